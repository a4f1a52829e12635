"""A node behind HTTP, and frames by hand, for the tests of the two transports over that port."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from tests.integration.served import Served, served
from wherry.node.config import FlightSection
from wherry.node.stomp.transports import HttpTransports
from wherry.wire.stomp.sessions import Sessions

PATIENCE_S = 20.0


@contextmanager
def node(home: Path, **sections: Any) -> Iterator[Served]:
    """Run a node without Flight, until the end of the `with`."""
    with served(home, flight=FlightSection(enabled=False), **sections) as found:
        yield found


def sessions_of(served: Served) -> Sessions:
    """Return the sessions of a node."""
    assert served.node.stomp_sessions is not None
    return served.node.stomp_sessions


def transports_of(served: Served) -> HttpTransports:
    """Return the transports of STOMP over the HTTP port of a node."""
    found = served.node.stomp_over_http
    assert found is not None
    return found


def frame(command: str, body: bytes = b"", /, **headers: str) -> bytes:
    """Return a frame; `_` in a name is a dash."""
    lines = "".join(f"{name.replace('_', '-')}:{value}\n" for name, value in headers.items())
    return f"{command}\n{lines}\n".encode() + body + b"\0"


CONNECT = frame("CONNECT", accept_version="1.2", host="/")


class Answer(NamedTuple):
    """An answer of HTTP."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


def ask(url: str, method: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None) -> Answer:
    """Send one request on a connection of its own."""
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=PATIENCE_S)
    try:
        connection.request(method, path, body, headers or {})
        answer = connection.getresponse()
        return Answer(answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read())
    finally:
        connection.close()


class Polled:
    """A session by long polling, as the page of docs/browser.md has it."""

    def __init__(self, url: str) -> None:
        self.url = url
        opened = ask(url, "POST", "/v1/stomp/sessions")
        assert opened.status == 201, opened
        self.path = f"/v1/stomp/sessions/{opened.json['id']}"
        self.headers = {"Wherry-Session": opened.json["token"]}
        self.sent = self.after = 0
        self.over = False

    def post(self, data: bytes, at: int | None = None) -> Answer:
        place = self.sent if at is None else at
        return ask(self.url, "POST", f"{self.path}/frames?at={place}", data, self.headers)

    def send(self, data: bytes) -> None:
        answer = self.post(data)
        assert answer.status == 200, answer
        self.sent += len(data)
        assert answer.json["received"] == self.sent

    def look(self, wait_ms: int = 0, after: int | None = None) -> Answer:
        place = self.after if after is None else after
        return ask(self.url, "GET", f"{self.path}/frames?after={place}&wait_ms={wait_ms}", None, self.headers)

    def take(self, wait_ms: int = 10_000) -> bytes:
        answer = self.look(wait_ms)
        assert answer.status == 200, answer
        self.after = int(answer.headers["wherry-next"])
        self.over = answer.headers.get("wherry-over") == "true"
        return answer.body

    def until(self, wanted: bytes) -> bytes:
        """Return all that comes until something is in it."""
        got = b""
        while wanted not in got:
            part = self.take()
            assert part or not self.over, got
            got += part
        return got

    def end(self) -> Answer:
        return ask(self.url, "DELETE", self.path, None, self.headers)
