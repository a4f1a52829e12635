"""What the servers of all wires share: listen on addresses, count connections, tick, wait until all are closed.

    Listener ── a protocol object for each socket ──► Connected: the open connections, and the bound on them
                                                          │
                         ticking: about once a second ◄───┘

Each wire has its own connections, parses their bytes itself, and sends its own farewell when the broker closes.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
import ssl
import stat
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Generic, Protocol, TypeVar

BACKLOG = 1_024
"""Connections that the kernel holds until they are accepted."""

C = TypeVar("C")

Clock = Callable[[], float]
"""Returns the seconds of a steady clock."""


class Ticking(Protocol):
    """Has work that depends on time."""

    def tick(self, now: float) -> None:
        """Do what is due at `now`, by the steady clock."""


class Listener:
    """The addresses that a wire is served on."""

    def __init__(self, connect: Callable[[], asyncio.BaseProtocol], handshake_s: float) -> None:
        self._connect, self._handshake_s = connect, handshake_s
        self._servers: list[asyncio.Server] = []
        self._sockets: dict[str, int] = {}
        """Paths of Unix sockets, with the inode of each."""

    async def listen(self, host: str, port: int, tls: ssl.SSLContext | None = None) -> int:
        """Serve an address, and return its port, which the system chooses for 0.

        A connection in its TLS handshake is not among the counted ones yet, so the handshake has a bound of its
        own.
        """
        patience_s = None if tls is None else self._handshake_s
        server = await asyncio.get_running_loop().create_server(
            self._connect, host, port, ssl=tls, backlog=BACKLOG, ssl_handshake_timeout=patience_s
        )
        self._servers.append(server)
        return int(server.sockets[0].getsockname()[1])

    async def listen_unix(self, path: str) -> None:
        """Serve a Unix socket, in place of one that a process left behind; who may open it is up to the umask."""
        if _is_served(path):
            raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE), path)
        server = await asyncio.get_running_loop().create_unix_server(self._connect, path, backlog=BACKLOG)
        self._servers.append(server)
        self._sockets[path] = _inode(path)

    def stop(self) -> None:
        """Accept no more connections. Open ones stay."""
        for server in self._servers:
            server.close()
        for path, inode in self._sockets.items():
            with suppress(OSError):
                if _inode(path) == inode:  # else another process serves it by now
                    Path(path).unlink()
        self._sockets.clear()


def _inode(path: str) -> int:
    return Path(path).stat().st_ino


def _is_served(path: str) -> bool:
    """Return whether a process listens on a Unix socket; raise `OSError` if the path is something else."""
    try:
        mode = Path(path).stat().st_mode
    except FileNotFoundError:
        return False
    if not stat.S_ISSOCK(mode):
        raise OSError(errno.EEXIST, "there is a file that is no socket", path)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        return probe.connect_ex(path) == 0


class Connected(Generic[C]):
    """The open connections, in the order in which they connected; at most `most`, and no new ones while closing."""

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
        """Iterate over a copy, since connections may close meanwhile."""
        return iter(list(self._here))

    @property
    def is_full(self) -> bool:
        """Whether there are more connections than allowed, counting the newest one."""
        return self.most is not None and len(self._here) > self.most

    def admit(self, one: C) -> bool:
        """Count a connection, and return whether it may stay. It is counted until `discard`, whatever the answer."""
        self._here[one] = None
        self._nobody.clear()
        return not self.is_closing and not self.is_full

    def discard(self, one: C) -> None:
        """Count a connection out, since it is closed."""
        self._here.pop(one, None)
        if not self._here:
            self._nobody.set()

    def replace(self, one: C, successor: C) -> None:
        """Let another object continue the same connection, as a WebSocket does after HTTP."""
        self._here[successor] = None
        self._here.pop(one, None)

    async def all_gone(self, within_s: float, cut_off: Callable[[C], None]) -> None:
        """Wait for a while until there is no connection, as a server does that closes; then cut off those that stay."""
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await self._nobody.wait()
        for one in self:
            cut_off(one)


@asynccontextmanager
async def ticking(
    all_now: Callable[[], Iterable[Ticking]], every_s: float, *, clock: Clock, log: logging.Logger, name: str
) -> AsyncIterator[None]:
    """Call `tick` of each object again and again, while the `async with` lasts."""

    async def run() -> None:
        while True:
            await asyncio.sleep(every_s)
            await asyncio.sleep(0)  # if the loop itself is late, let it first read what clients sent meanwhile
            now = clock()
            for each in all_now():
                try:
                    each.tick(now)
                except Exception:  # a failed tick must not stop the ticks of the others
                    log.exception("a tick failed")

    task = asyncio.create_task(run(), name=name)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
