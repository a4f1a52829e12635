"""Connections to one address, kept open between requests and never more than a bound.

Requests that wait for messages at the broker are counted apart: else a few idle consumers would hold up acks, renewals
and all other requests until a message comes.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping

from wherry.client.link.address import Address, dial, trust
from wherry.client.link.connection import Bounds, Connection
from wherry.client.link.credential import Credential, KeyOrSource
from wherry.client.link.idle import Idle
from wherry.client.link.transport import Bytes, ClientRequest, ClientResponse
from wherry.model import check
from wherry.model.errors import Unavailable

CONNECTIONS_MAX = 64
WAITS_MAX = 256
"""Requests that wait for messages or outcomes, each on a connection of its own beside those."""

TIMEOUT_S = 30.0
IDLE_S = 60.0
"""A connection that was not used for so long is not used again: the broker closes it soon, maybe during a request."""

GOODBYE_S = 1.0
"""How long a closing connection has: with TLS, either side sends that it closes."""

BOUNDS = Bounds(head_bytes=64 << 10, answer_bytes=256 << 20)
"""Far above what a pull or a listing asks for; a longer answer is not one of Wherry."""

REPEATABLE = ("GET", "PUT", "DELETE")
"""Methods that may be sent again when a connection that was kept open turns out to be closed."""


def head_of(request: ClientRequest, common: str) -> bytes:
    """Return the head of a request, with the lines that all requests of a client have."""
    head = f"{request.method} {request.target} HTTP/1.1\r\n{common}Accept: {request.accept}\r\n"
    for name, value in request.headers:
        head += f"{name}: {value}\r\n"
    if request.content_type:
        size = sum(memoryview(part).nbytes for part in request.body)
        head = f"{head}Content-Type: {request.content_type}\r\nContent-Length: {size}\r\n\r\n"
    elif request.method in ("GET", "DELETE"):
        head += "\r\n"
    else:
        head += "Content-Length: 0\r\n\r\n"
    return head.encode("ascii")


def answer_of(status: int, headers: Mapping[bytes, bytes], body: Bytes) -> ClientResponse:
    """Return an answer with what callers use of its head."""
    answer = ClientResponse(status, headers.get(b"content-type", b"").decode("latin-1"), body)
    if (after := headers.get(b"retry-after", b"")).isdigit():
        answer.retry_after_s = float(after)
    if (following := headers.get(b"wherry-next")) is not None:
        answer.following = following.decode("latin-1")
    return answer


class Pool:
    """A `Transport` over connections of HTTP/1.1."""

    def __init__(
        self,
        address: Address,
        key: KeyOrSource = None,
        *,
        tls: ssl.SSLContext | None = None,
        connections: int = CONNECTIONS_MAX,
        waits: int = WAITS_MAX,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        self._address = address
        self._tls = trust(address, tls)
        self._timeout_s = timeout_s
        self._room = asyncio.Semaphore(check.integer("connections", connections, 1, 65_535))
        self._waits = asyncio.Semaphore(check.integer("waits", waits, 1, 65_535))
        self._idle = Idle(connections + waits, IDLE_S, Connection.close)
        self._open: set[Connection] = set()
        self._credential = Credential(address, key)
        self._common = self._credential.fixed
        self._closed = False

    async def ask(self, request: ClientRequest) -> ClientResponse:
        """See `Transport`. A long poll has its wait on top of the time that every request has.

        A request that was refused for its token was not carried out: it is sent again with another one.
        """
        if self._common:
            return await self._ask(request, self._common)
        lines, token = await self._credential.lines()
        answer = await self._ask(request, lines)
        if answer.status == 401 and (other := await self._credential.other_lines(token)):
            return await self._ask(request, other)
        return answer

    async def _ask(self, request: ClientRequest, common: str) -> ClientResponse:
        head, timeout_s = head_of(request, common), self._timeout_s + request.wait_s
        async with self._waits if request.wait_s else self._room:
            connection, kept = self._idle.take(""), True
            if connection is None:
                connection, kept = await self._connect(), False
            try:
                body = await connection.ask(head, request.body, timeout_s)
            except Unavailable:
                if not kept or request.method not in REPEATABLE:
                    raise
                connection = await self._connect()
                body = await connection.ask(head, request.body, timeout_s)
            if self._closed:
                connection.close()
            elif connection.free:
                self._idle.keep("", connection)
            return answer_of(connection.status, connection.headers, body)

    async def _connect(self) -> Connection:
        if self._closed:
            raise Unavailable("this client is closed")
        connection = await dial(self._address, self._tls, lambda: Connection("the broker", BOUNDS))
        self._open.add(connection)
        connection.lost.add_done_callback(lambda _: self._open.discard(connection))
        return connection

    async def close(self) -> None:
        """Close idle connections now, and the others with their answers; returns when the idle ones are closed."""
        self._closed = True
        self._idle.close()
        if await self._leaving():
            for connection in [each for each in self._open if each.closing]:
                connection.abort()
            await self._leaving()

    async def _leaving(self) -> bool:
        """Wait for closing connections, for a while; return whether some are still open."""
        leaving = [connection.lost for connection in self._open if connection.closing]
        return bool(leaving and (await asyncio.wait(leaving, timeout=GOODBYE_S))[1])
