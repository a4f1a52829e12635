"""Connections to one address, kept open between requests and never more than a bound.

Requests that the broker was asked to hold are counted apart: else a few consumers of nothing would have acks, renewals
and everything else wait until a message comes.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import urlsplit

from wherry.client.link.connection import Connection
from wherry.client.link.transport import Answer, Ask
from wherry.model import check
from wherry.model.errors import InvalidInput, Unavailable

PORT = 7070
CONNECTIONS_MAX = 64
WAITS_MAX = 256
"""Requests that wait for messages or outcomes, each on a connection of its own beside those."""

CONNECT_S = 10.0
TIMEOUT_S = 30.0
IDLE_S = 60.0
"""A connection that was not used for so long is not used again: the broker closes it soon, maybe under our hands."""

GOODBYE_S = 1.0
"""How long a closing connection has: TLS ends with a word from either side."""

HIDDEN = "(not shown)"

REPEATABLE = ("GET", "PUT", "DELETE")
"""Methods that may be sent again when a connection that was kept open turns out to be closed."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where a broker listens."""

    host: str
    port: int = PORT
    secure: bool = False

    @classmethod
    def parse(cls, url: str) -> Address:
        """From `http://host:port` or `https://host:port`; the port is 7070 unless it is given."""
        allowed = "an address such as http://127.0.0.1:7070"
        try:
            parts = urlsplit(url)
            host, port = parts.hostname, parts.port
        except (ValueError, AttributeError, TypeError):
            raise InvalidInput("url", url, allowed) from None
        extra = parts.path.strip("/") or parts.query or parts.fragment or parts.username
        if parts.scheme not in ("http", "https") or not host or extra:
            raise InvalidInput("url", url, allowed)
        return cls(host, PORT if port is None else port, parts.scheme == "https")

    @property
    def authority(self) -> str:
        """As the `Host` header has it."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def _checked(key: object) -> str:
    """An API key without the white space around it, empty for none; whatever is wrong with it, it is not shown."""
    bare = key.strip() if isinstance(key, str) else key
    if bare is None:
        return ""
    if not isinstance(bare, str) or not all("!" <= sign <= "~" for sign in bare):
        raise InvalidInput("api_key", HIDDEN, "text of visible ASCII characters, such as wk_…")
    return bare


class Pool:
    """A `Transport` over TCP: the connection used last is used first, so that those not needed grow old and go."""

    def __init__(
        self,
        address: Address,
        key: str | None = None,
        *,
        tls: ssl.SSLContext | None = None,
        connections: int = CONNECTIONS_MAX,
        waits: int = WAITS_MAX,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        self._address = address
        self._tls = (tls or ssl.create_default_context()) if address.secure else None
        self._timeout_s = timeout_s
        self._idle: list[tuple[Connection, float]] = []
        self._open: set[Connection] = set()
        self._room = asyncio.Semaphore(check.integer("connections", connections, 1, 65_535))
        self._waits = asyncio.Semaphore(check.integer("waits", waits, 1, 65_535))
        key = _checked(key)
        bearer = f"Bearer {key}" if key else ""
        self._make: Callable[[], Connection] = lambda: Connection(address.authority, bearer)
        self._closed = False

    async def ask(self, ask: Ask) -> Answer:
        """See `Transport`. A long poll has its wait on top of the time that every request has."""
        async with self._waits if ask.wait_s else self._room:
            connection, kept = self._kept(), True
            if connection is None:
                connection, kept = await self._connect(), False
            try:
                answer = await connection.ask(ask, self._timeout_s + ask.wait_s)
            except Unavailable:
                if not kept or ask.method not in REPEATABLE:
                    raise
                connection = await self._connect()
                answer = await connection.ask(ask, self._timeout_s + ask.wait_s)
            if self._closed:
                connection.close()
            elif connection.free:
                self._idle.append((connection, time.monotonic()))
            return answer

    def _kept(self) -> Connection | None:
        while self._idle:
            connection, since = self._idle.pop()
            if not connection.free:
                continue
            if time.monotonic() - since < IDLE_S:
                return connection
            connection.close()
        return None

    async def _connect(self) -> Connection:
        if self._closed:
            raise Unavailable("this client is closed")
        address, loop = self._address, asyncio.get_running_loop()
        try:
            async with asyncio.timeout(CONNECT_S):
                _, connection = await loop.create_connection(self._make, address.host, address.port, ssl=self._tls)
        except (OSError, TimeoutError) as fault:
            raise Unavailable(f"{address.authority} cannot be reached: {str(fault) or 'no answer'}") from fault
        self._open.add(connection)
        connection.lost.add_done_callback(lambda _: self._open.discard(connection))
        return connection

    async def close(self) -> None:
        """Close what is idle now, and the rest with its answers; on return what was closed is gone."""
        self._closed = True
        while self._idle:
            self._idle.pop()[0].close()
        if await self._leaving():
            for connection in [each for each in self._open if each.closing]:
                connection.abort()
            await self._leaving()

    async def _leaving(self) -> bool:
        """Wait for what is closing, for a while; whether some of it is still there."""
        leaving = [connection.lost for connection in self._open if connection.closing]
        return bool(leaving and (await asyncio.wait(leaving, timeout=GOODBYE_S))[1])
