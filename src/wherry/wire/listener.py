"""What every server of a wire does alike: listen on addresses, know who is connected, tick, wait until all are gone.

    Listener ── a protocol object for each socket ──► Connected: who is there, and whether one more may be
                                                          │
                         ticking: about once a second ◄───┘

What a connection is, what its bytes mean and how it is told that the broker closes is the wire's own.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager
from typing import Generic, Protocol, TypeVar

BACKLOG = 1_024
"""Connections that the kernel holds until we accept them."""

C = TypeVar("C")

Clock = Callable[[], float]
"""Seconds by a steady clock."""


class Ticking(Protocol):
    """What happens by time."""

    def tick(self, now: float) -> None:
        """Do what is due by now, by the steady clock."""


class Listener:
    """The addresses that a wire is served on."""

    def __init__(self, connect: Callable[[], asyncio.BaseProtocol], handshake_s: float) -> None:
        self._connect, self._handshake_s = connect, handshake_s
        self._servers: list[asyncio.Server] = []

    async def listen(self, host: str, port: int, tls: ssl.SSLContext | None = None) -> int:
        """Serve an address; its port, which the system chooses for 0.

        A TLS handshake that takes its time is not among our connections yet: it has a bound of its own.
        """
        patience_s = None if tls is None else self._handshake_s
        server = await asyncio.get_running_loop().create_server(
            self._connect, host, port, ssl=tls, backlog=BACKLOG, ssl_handshake_timeout=patience_s
        )
        self._servers.append(server)
        return int(server.sockets[0].getsockname()[1])

    def stop(self) -> None:
        """Accept no more. Who is connected stays."""
        for server in self._servers:
            server.close()


class Connected(Generic[C]):
    """Who is connected, in the order in which they came; at most so many, and no more once it closes."""

    def __init__(self, most: int | None = None) -> None:
        self.most = most
        self.is_closing = False
        self._here: dict[C, None] = {}
        self._nobody = asyncio.Event()
        self._nobody.set()

    def __len__(self) -> int:
        return len(self._here)

    def __contains__(self, one: object) -> bool:
        return one in self._here

    def __iter__(self) -> Iterator[C]:
        """All that are here now; they may go meanwhile."""
        return iter(list(self._here))

    @property
    def is_full(self) -> bool:
        """Whether more are here than may be, the last one that came among them."""
        return self.most is not None and len(self._here) > self.most

    def admit(self, one: C) -> bool:
        """Count one more; whether it may stay. It is counted until it is discarded, whatever the answer."""
        self._here[one] = None
        self._nobody.clear()
        return not self.is_closing and not self.is_full

    def discard(self, one: C) -> None:
        """One is gone."""
        self._here.pop(one, None)
        if not self._here:
            self._nobody.set()

    def replace(self, one: C, successor: C) -> None:
        """Another one goes on with the same connection."""
        self._here[successor] = None
        self._here.pop(one, None)

    async def all_gone(self, within_s: float) -> bool:
        """Wait until nobody is here any more; whether that was so in time."""
        try:
            async with asyncio.timeout(within_s):
                await self._nobody.wait()
        except TimeoutError:
            return False
        return True


@asynccontextmanager
async def ticking(
    all_now: Callable[[], Iterable[Ticking]], every_s: float, *, clock: Clock, log: logging.Logger, name: str
) -> AsyncIterator[None]:
    """Tick everybody that is there, again and again, while the `async with` lasts."""

    async def run() -> None:
        while True:
            await asyncio.sleep(every_s)
            await asyncio.sleep(0)  # a loop that is late itself reads first what has come meanwhile
            now = clock()
            for each in all_now():
                try:
                    each.tick(now)
                except Exception:  # one that fails shall not stop the time of the others
                    log.exception("a tick failed")

    task = asyncio.create_task(run(), name=name)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
