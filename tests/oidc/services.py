"""A peer whose callers show access tokens, in a thread of its own; and the ways that lead to its methods, as doors."""

from __future__ import annotations

import http.client
import socket
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any
from urllib.parse import urlsplit

from tests.oidc.doors import PATIENCE_S, Answer
from wherry.client.sync.portal import Portal
from wherry.service.peer import Peer, peer
from wherry.service.service import Service
from wherry.service.trust import Trust, TrustedIssuer
from wherry.wire.native.codec.frames import Flag, encode_frame
from wherry.wire.native.codec.invokes import SERVICE_RULES, CallKind, decode_trouble, encode_invoke
from wherry.wire.native.codec.reader import Frame, FrameReader

RULES = (
    "realm:clerk -> call:billing.total call:billing.slow",
    "scope:bill -> call:billing.*",
    "realm:root -> call admin:billing",
)


def billing() -> Service:
    """Return a service whose methods count how often they ran, by name of the method."""
    service = Service("billing")

    @service.method
    async def total(body: bytes) -> bytes:
        return body

    @service.method
    async def refund(body: bytes) -> bytes:
        return body

    return service


def trusted(issuer: str, **more: Any) -> TrustedIssuer:
    usual: dict[str, Any] = {"audiences": ("wherry",), "rules": RULES, "leeway_s": 0.0, "refetch_s": 1.0}
    return TrustedIssuer(issuer=issuer, **(usual | more))


class Provided:
    """The peer, and the thread that it runs in."""

    def __init__(self, opened: Peer, portal: Portal) -> None:
        self.peer, self.portal, self.url = opened, portal, opened.url

    @property
    def answered(self) -> int:
        """Return how many calls of all methods were answered."""
        assert self.peer.provider is not None
        methods = self.peer.provider.host.services["billing"].methods.values()
        return sum(each.statistics.counts().get("answered", 0) for each in methods)


@contextmanager
def providing(issuer: str, **more: Any) -> Iterator[Provided]:
    """Run a peer that provides `billing`."""
    portal = Portal()
    opened = peer(provides=[billing()], instance_id="a", trust=Trust(issuer=trusted(issuer, **more)))
    try:
        portal.run(opened.__aenter__())
        yield Provided(opened, portal)
        portal.run(opened.close())
    finally:
        portal.close()


def over_rest(url: str, token: str, method: str = "total") -> Answer:
    """Call over REST."""
    parts = urlsplit(url)
    with closing(http.client.HTTPConnection(str(parts.hostname), parts.port, timeout=PATIENCE_S)) as connection:
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/octet-stream"}
        connection.request("POST", f"/services/billing/{method}", b"x", headers)
        answer = connection.getresponse()
        body = answer.read().decode()
        return Answer(answer.status == 200, f"{answer.status} {answer.getheader('WWW-Authenticate')} {body}")


def over_list(url: str, token: str) -> Answer:
    """Inspect the services, which takes the right to control them."""
    parts = urlsplit(url)
    with closing(http.client.HTTPConnection(str(parts.hostname), parts.port, timeout=PATIENCE_S)) as connection:
        connection.request("GET", "/services", headers={"Authorization": f"Bearer {token}"})
        answer = connection.getresponse()
        body = answer.read().decode()
        return Answer(answer.status == 200, f"{answer.status} {answer.getheader('WWW-Authenticate')} {body}")


def over_upgrade(url: str, token: str, method: str = "total") -> Answer:
    """Call over the wire of services; the token comes with the request for it."""
    return _called(url, f"Authorization: Bearer {token}\r\n", b"", method)


def over_frame(url: str, token: str, method: str = "total") -> Answer:
    """Call over the wire of services; the token comes in a frame of its own."""
    return _called(url, "", encode_frame(CallKind.TOKEN, 0, token.encode("ascii")), method)


def _called(url: str, line: str, before: bytes, method: str) -> Answer:
    parts = urlsplit(url)
    frames = FrameReader("server", rules=SERVICE_RULES)
    with socket.create_connection((str(parts.hostname), parts.port or 0), timeout=PATIENCE_S) as plain:
        head = "GET /services HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: wherry-service/1\r\n"
        plain.sendall(f"{head}{line}\r\n".encode())
        got = b""
        while b"\r\n\r\n" not in got:
            more = plain.recv(1 << 16)
            assert more, got
            got += more
        answer, _, rest = got.partition(b"\r\n\r\n")
        if b" 101 " not in answer:
            return Answer(False, got.decode("latin-1"))
        plain.sendall(before + encode_invoke(1, f"billing.{method}".encode(), b"x"))
        found: list[Frame] = list(frames.feed(rest))
        while not any(kind == CallKind.RESULT for kind, *_ in found):
            more = plain.recv(1 << 16)
            assert more, found
            found += frames.feed(more)
    _, flags, _, body = next(each for each in found if each[0] == CallKind.RESULT)
    if flags & (Flag.REFUSED | Flag.FAILED):
        trouble = decode_trouble(body)
        return Answer(False, f"{trouble}")
    return Answer(body == b"x", body.decode())


SERVICE_DOORS: dict[str, Callable[[str, str], Answer]] = {
    "rest": over_rest,
    "list": over_list,
    "upgrade": over_upgrade,
    "frame": over_frame,
}
