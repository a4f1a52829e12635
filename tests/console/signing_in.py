"""What tests of the sign-in share: one provider with several clients, a node for each, and a user at the browser."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from playwright.sync_api import Page, Response, expect

from tests.console.asking import ask
from tests.integration.served import Served
from tests.oidc.nodes import RULES, taking_tokens
from tests.oidc.provider import ProviderProcess, console, provider
from tests.ports import free_port
from wherry.node.config import AmqpSection, FlightSection, ServerSection, StompSection

PATIENCE_MS = 60_000


class Identities(NamedTuple):
    """A provider, and the ports of the nodes to which its clients send people back."""

    process: ProviderProcess
    ports: dict[str, int]


class Place(NamedTuple):
    """A node, and the provider by which people sign in at its console."""

    url: str
    admin: str
    served: Served
    identity: ProviderProcess


@contextmanager
def providing(home: Path, clients: dict[str, dict[str, Any]]) -> Iterator[Identities]:
    """Run a provider with public clients, each for a node that can be started."""
    ports = {name: free_port() for name in clients}
    known = [console(name, f"http://127.0.0.1:{ports[name]}", **more) for name, more in clients.items()]
    with provider(home / "provider", known) as process:
        yield Identities(process, ports)


@contextmanager
def signing_in(home: Path, identities: Identities, client: str, **oidc: Any) -> Iterator[Place]:
    """Run the node at whose console people sign in by a client of the provider."""
    port = identities.ports[client]
    url = f"http://127.0.0.1:{port}"
    sections = {
        "server": ServerSection(port=port, drain_s=2.0),
        "flight": FlightSection(enabled=False),
        "amqp": AmqpSection(enabled=False),
        "stomp": StompSection(enabled=False),
    }
    rules = (*RULES, "realm:clerk -> consume:orders.*")
    given = {"console_client": client, "console_scopes": ("orders",), "rules": rules, **oidc}
    with taking_tokens(home / client, identities.process.issuer, sections, **given) as served:
        assert served.node.first_key is not None
        admin = served.node.first_key.read_text().strip()
        for name in ("orders.new", "jobs"):
            ask(url, f"PUT /v1/topics/{name}", {}, admin)
        yield Place(url, admin, served, identities.process)


def begin(page: Page, place: Place) -> None:
    page.get_by_role("dialog").get_by_role("button", name=f"Sign in with 127.0.0.1:{place.identity.port}").click()


def sign_in(page: Page, place: Place, who: str = "ann") -> None:
    """Sign in, and agree to what the console asks for."""
    begin(page, place)
    page.get_by_placeholder("Enter any login").fill(who)
    page.get_by_placeholder("and password").fill("any")
    page.get_by_role("button", name="Sign-in").click()
    page.get_by_role("button", name="Continue").click()


def key_of(page: Page) -> str:
    return str(page.evaluate("() => sessionStorage.getItem('wherry.key') ?? ''"))


def kept(page: Page) -> list[str]:
    return sorted(page.evaluate("() => [...Object.keys(sessionStorage), ...Object.keys(localStorage)]"))


def is_live(page: Page) -> None:
    expect(page.locator(".status")).to_have_text("live", timeout=PATIENCE_MS)


def returned_to(page: Page, place: Place) -> list[str]:
    """Note where the provider sends the browser back to, with what it says in the address."""
    found: list[str] = []

    def look(response: Response) -> None:
        target = response.headers.get("location", "")
        if target.startswith((f"{place.url}/console#", f"{place.url}/console?")):
            found.append(target)

    page.on("response", look)
    return found


def with_claims(token: str, **claims: Any) -> str:
    """Return an ID token with other claims; None takes one out."""
    head, body, signature = token.split(".")
    found = json.loads(base64.urlsafe_b64decode(body + "=="))
    changed = {name: value for name, value in (found | claims).items() if value is not None}
    return ".".join([head, base64.urlsafe_b64encode(json.dumps(changed).encode()).decode().rstrip("="), signature])
