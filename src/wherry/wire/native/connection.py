"""The socket of a session: a connection of the HTTP port that was handed over, read within its budget."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from wherry.wire.fair_protocol import FairProtocol
from wherry.wire.fairness import Budget
from wherry.wire.native.application import Application
from wherry.wire.native.codec.frames import PROTOCOL, Chunk, chunk_bytes
from wherry.wire.native.session import Session
from wherry.wire.native.sessions import Sessions
from wherry.wire.peer import place

T = TypeVar("T")

SWITCHING = f"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: {PROTOCOL}\r\n\r\n".encode()

WRITE_HIGH_BYTES = 1 << 20
"""Bytes that a client has not read; beyond it nothing is pushed to it, and it is not read."""

JOINED_BYTES = 64 << 10
"""Smaller writes are joined to one buffer: cheaper than a list of buffers."""

UNIX = "unix socket"
"""The peer of a connection that has no address."""

PARTING_S = 2.0
"""How long a client may take to read the last bytes that were written to it."""


class Connection(FairProtocol):
    """The transport of one session, on a connection that served HTTP before."""

    is_stranger = False
    """The key was checked before the upgrade."""

    def __init__(self, sessions: Sessions, application: Application) -> None:
        self._sessions, self._application = sessions, application
        self._is_paused = False
        self._is_full = False
        self._parting_since: float | None = None

    def begin(self, transport: asyncio.Transport, rest: bytes, left: Callable[[], None]) -> None:
        """Take over a connection: `rest` is what arrived after the request."""
        self._transport, self._left = transport, left
        transport.set_write_buffer_limits(high=WRITE_HIGH_BYTES)
        transport.write(SWITCHING)
        self.join_loop(transport)
        self.leave_loop()  # of the strangers: this client has shown its key
        self._calls_budget = Budget(self.fair_loop, self)
        self.session = Session(
            self._sessions,
            self,
            self._application,
            peer=place(transport.get_extra_info("peername")) or UNIX,
            secure=transport.get_extra_info("ssl_object") is not None,
        )
        if rest:
            self.handle_first(rest)

    # ------------------------------------------------------------------------------------------------------- the socket

    def data_received(self, data: bytes) -> None:
        self.session.feed(data)
        self._stop_if_full()

    def _stop_if_full(self) -> None:
        if not self._is_full and self.session.is_full:
            self._is_full = True
            self.stop("full")

    def space(self) -> memoryview | None:
        return self.session.space()

    @property
    def reads_large(self) -> bool:
        return self.session.reads_large

    def arrived(self, count: int) -> None:
        self.session.arrived(count)
        self._stop_if_full()

    def refuse_stranger(self, why: str) -> None:
        """Do nothing: no client of this wire is a stranger."""

    def eof_received(self) -> None:
        """Close: a client that sends no more cannot settle what it would be sent."""

    def connection_lost(self, fault: Exception | None) -> None:
        self.leave_loop()
        self.session.lost()
        self._left()

    def pause_writing(self) -> None:
        self._is_paused = True

    def resume_writing(self) -> None:
        self._is_paused = False
        self.session.drained()

    # -------------------------------------------------------------------------------------------------- for the session

    @property
    def is_write_paused(self) -> bool:
        """Whether the client has not read what it was sent before, or the connection is closing."""
        return self._is_paused or self._transport.is_closing()

    def write_all(self, chunks: list[Chunk]) -> None:
        """Send chunks in one write."""
        if self._transport.is_closing():
            return
        size = chunk_bytes(chunks)
        if len(chunks) == 1:
            self._transport.write(chunks[0])
        elif size <= JOINED_BYTES:
            self._transport.write(b"".join(chunks))
        else:
            self._transport.writelines(chunks)
        if size > JOINED_BYTES:
            self._budget.note_bulk(size)

    def waiting_bytes(self) -> int:
        """Return how many written bytes the kernel has not taken yet."""
        return self._transport.get_write_buffer_size()

    def unstored_max(self) -> int:
        """Return how many published bytes of this connection may be on their way to the disk."""
        return self.fair_loop.unstored_max(self)

    def look_again(self) -> None:
        """Read the client again if the session is no longer full."""
        if self._is_full and not self.session.is_full:
            self._is_full = False
            self.go_on("full")

    def timed(self, work: Awaitable[T]) -> Awaitable[T]:
        """Return work whose steps count against the budget of the connection."""
        return self._calls_budget.timed(work)

    async def wait_for_budget(self) -> None:
        """Wait in line if the budget of the connection is used up."""
        await self._calls_budget.wait_if_used_up()

    def close(self) -> None:
        """Close the sending side once everything is written; drop what the client still sends, until it closes too.

        If the socket were closed at once, the kernel would answer bytes of the client with a reset, and a client that
        has not read the last frames yet would lose them.
        """
        if self._parting_since is not None or self._transport.is_closing():
            return
        self._parting_since = self._sessions.clock()
        if not self._transport.can_write_eof():  # TLS has its own farewell
            self._transport.close()
            return
        try:
            self._transport.write_eof()
        except OSError:  # the client is gone already
            self._transport.abort()
            return
        self._is_full = False
        self.go_on("full")

    def abort(self) -> None:
        """Close at once."""
        self._transport.abort()

    # --------------------------------------------------------------------------------------------------- for the server

    def tick(self, now: float) -> None:
        """Cut off a client that is too slow; called about once a second."""
        if self._parting_since is None:
            self.session.tick(now)
        elif now - self._parting_since > PARTING_S:
            self._transport.abort()

    def finish(self) -> None:
        """Announce the end to the client, since the server closes."""
        self.session.drain("the broker is closing")
