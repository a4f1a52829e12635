"""A real identity provider as a process: npm's certified `oidc-provider`, whose tokens are as Keycloak writes them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.environments import node, node_modules
from tests.oidc.signing import jwk
from tests.ports import free_port

PACKAGE = "oidc-provider@9.13.3"
SCRIPT = Path(__file__).with_name("provider.mjs")
SECRET = "a-secret-of-the-client-and-of-nobody-else"
ALGORITHMS = ("RS256", "PS256", "ES256", "ES384", "ES512", "EdDSA")


def client(name: str, **more: Any) -> dict[str, Any]:
    usual = {
        "id": name,
        "secret": SECRET,
        "grants": ["client_credentials"],
        "redirects": [],
        "signed_out": [],
        "origins": [],
        "lives_s": 600,
        "realm_roles": [],
        "client_roles": {},
        "in_query": False,
    }
    return usual | more


PEOPLE = {"ann": ["clerk"], "bob": ["clerk", "root"], "eve": []}
"""Who can sign in, and their roles of the realm. Any password is right."""


def console(name: str, node: str, **more: Any) -> dict[str, Any]:
    """Return the public client of the console of a node, by its URL."""
    usual = {
        "secret": None,
        "grants": ["authorization_code", "refresh_token"],
        "redirects": [f"{node}/console"],
        "signed_out": [f"{node}/console"],
        "origins": [node],
    }
    return client(name, **(usual | more))


CLIENTS = (
    client("shop", realm_roles=["clerk"], client_roles={"wherry": {"roles": ["reader"]}}),
    client("boss", realm_roles=["root"]),
    client("nobody"),
    client("brief", realm_roles=["clerk"], client_roles={"wherry": {"roles": ["reader"]}}, lives_s=6),
)


class ProviderProcess:
    """The provider, which can be stopped and started again with other keys on the same port."""

    def __init__(self, folder: Path, clients: Sequence[dict[str, Any]] = CLIENTS) -> None:
        self._folder, self._clients = folder, clients
        self.port = free_port()
        self.issuer = f"http://127.0.0.1:{self.port}/realms/shop"
        self._process: subprocess.Popen[str] | None = None

    def start(self, algorithm: str = "RS256", *names: str) -> None:
        """Start with the keys of these names, of every algorithm; tokens are signed with the first."""
        modules = node_modules(PACKAGE)
        named = [jwk(each, name, private=True) for name in names or ("provider",) for each in ALGORITHMS]
        settings = {
            "library": str(modules / "oidc-provider" / "lib" / "index.js"),
            "port": self.port,
            "clients": self._clients,
            "people": PEOPLE,
            "keys": named,
            "scopes": ["orders", "bill"],
            "audience": "wherry",
            "algorithm": algorithm,
        }
        file = self._folder / "provider.json"
        file.write_text(json.dumps(settings))
        self._folder.joinpath("provider.log").touch()
        with self._folder.joinpath("provider.log").open("a") as log:
            command = [node(), str(SCRIPT), str(file)]
            self._process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True
            )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line.strip() == str(self.port), self._folder.joinpath("provider.log").read_text()

    def stop(self) -> None:
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)  # the program is a child of the command
            self._process.communicate()
            self._process = None

    def token(self, name: str = "shop", **form: str) -> str:
        """Return an access token, by client credentials."""
        fields = {"grant_type": "client_credentials", "client_id": name, "client_secret": SECRET, **form}
        request = urllib.request.Request(f"{self.issuer}/token", urllib.parse.urlencode(fields).encode())
        with urllib.request.urlopen(request, timeout=30) as answer:
            return str(json.load(answer)["access_token"])


@contextmanager
def provider(folder: Path, clients: Sequence[dict[str, Any]] = CLIENTS) -> Iterator[ProviderProcess]:
    folder.mkdir(parents=True, exist_ok=True)
    process = ProviderProcess(folder, clients)
    process.start()
    try:
        yield process
    finally:
        process.stop()
