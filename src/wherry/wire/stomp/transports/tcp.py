"""The STOMP server over TCP and TLS, and its connections."""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress
from typing import cast

from wherry.queueing.queueing import Queueing
from wherry.security.access import Access
from wherry.wire.fair_protocol import FairProtocol
from wherry.wire.listener import Clock, Connected, Listener
from wherry.wire.peer import certified, place
from wherry.wire.stomp.session import Session
from wherry.wire.stomp.sessions import STRANGE, Bounds, Sessions
from wherry.wire.stomp.transports.transport import (
    HIGH_BYTES,
    LOW_BYTES,
    NEVER_BYTES,
    unread,
)

PARTING_S = 5.0
"""How long a client may take to read the last bytes that were written to it."""


class Connection(FairProtocol):
    """One socket; the transport of one session."""

    name = "tcp"

    def __init__(self, server: Server) -> None:
        self._server = server
        self._transport: asyncio.Transport
        self._paused = False
        self._parting: asyncio.TimerHandle | None = None

    # ------------------------------------------------------------------------------------------------------- the socket

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=HIGH_BYTES // 2, low=LOW_BYTES)
        _set_options(transport.get_extra_info("socket"))
        self._server.connected.admit(self)
        self.join_loop(self._transport)
        self.session = Session(
            self._server.sessions,
            self,
            peer=place(transport.get_extra_info("peername")),
            secure=transport.get_extra_info("ssl_object") is not None,
            certified=certified(transport),
        )

    def eof_received(self) -> None:
        """End the session, since the client sends no more: messages written now would be lost."""
        self.session.over()
        self.close()

    def connection_lost(self, fault: Exception | None) -> None:
        if self._parting is not None:
            self._parting.cancel()
        self.leave_loop()
        self._server.connected.discard(self)
        self.session.over()

    def data_received(self, data: bytes) -> None:
        self.session.feed(data)
        if self.session.is_full:
            self._pause()

    @property
    def is_stranger(self) -> bool:
        """Whether the client has not logged in yet."""
        return self.session.is_stranger

    def refuse_stranger(self, why: str) -> None:
        """Send the reason to a client that sent too much before login, and close."""
        self.session.cut_off(STRANGE, why)

    def resume_writing(self) -> None:
        self.session.drained()

    def _pause(self) -> None:
        if not self._paused and not self._transport.is_closing():
            self._paused = True
            self.stop("full")
            self.session.when_relieved(self._resume)

    def _resume(self) -> None:
        if not self._paused or self._transport.is_closing():
            return
        if self.session.is_full:
            self.session.when_relieved(self._resume)
            return
        self._paused = False
        self.go_on("full")

    # -------------------------------------------------------------------------------------------------- for the session

    def write(self, data: bytes) -> None:
        """Send bytes to the client."""
        if not self._transport.is_closing():
            self._transport.write(data)

    def close(self) -> None:
        """Close once everything is written, or after a while."""
        if self._parting is None:
            self._parting = asyncio.get_running_loop().call_later(PARTING_S, self._transport.abort)
            self._transport.close()

    def waiting_bytes(self) -> int:
        """Return how many written bytes the kernel has not taken yet."""
        return NEVER_BYTES if self._transport.is_closing() else self._transport.get_write_buffer_size()

    def unread_bytes(self) -> int:
        """Return how many written bytes are not known to have reached the client's machine."""
        return unread(self.waiting_bytes(), self._transport)


class Server:
    """STOMP on any number of addresses."""

    def __init__(self, sessions: Sessions) -> None:
        self.sessions = sessions
        self.connected = Connected[Connection]()
        """The open sockets; `Sessions` bounds how many there may be."""
        self._listener = Listener(self.connection, sessions.bounds.login_s)

    def connection(self) -> Connection:
        """Return the protocol object for a client that is about to connect."""
        return Connection(self)

    async def listen(self, host: str, port: int, tls: ssl.SSLContext | None = None) -> int:
        """Serve an address, and return its port, which the system chooses for 0."""
        return await self._listener.listen(host, port, tls)

    def stop_listening(self) -> None:
        """Accept no more connections."""
        self._listener.stop()

    async def parted(self, drain_s: float) -> None:
        """Wait until all clients have read their last frames, or for a while."""
        await self.connected.all_gone(min(drain_s, PARTING_S), Connection.close)


def _set_options(wire: socket.socket | None) -> None:
    """Set the options of a connection that has a socket."""
    if wire is None:
        return
    # Without heart-beats nothing else detects that the machine of an idle client is gone.
    wire.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, "TCP_QUICKACK"):
        # Otherwise a client with Nagle's algorithm (stomp.py) delays CONNECT some 40 ms after the TLS handshake.
        wire.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)


@asynccontextmanager
async def serve(
    queueing: Queueing,
    *,
    access: Access | None = None,
    bounds: Bounds | None = None,
    any_user: bool = False,
    names: Iterable[str] = (),
    drain_s: float = 2.0,
    clock: Clock = time.monotonic,
) -> AsyncIterator[Server]:
    """Serve STOMP over an open `Queueing` while the `async with` lasts; call `listen` on the result.

    Other transports make sessions of their own with its `sessions`; `names` are further names of this machine.
    """
    server = Server(Sessions(queueing, access, bounds, any_user=any_user, names=names, clock=clock))
    async with server.sessions.open():
        try:
            yield server
        finally:
            server.stop_listening()
            await _stored(server.sessions, drain_s)
            await server.sessions.close()
            await server.parted(drain_s)


async def _stored(sessions: Sessions, drain_s: float) -> None:
    """Wait until what arrived is stored and its receipts are sent, within a bound."""
    with suppress(TimeoutError):
        async with asyncio.timeout(drain_s):
            await asyncio.gather(*(session.receipts.all_stored() for session in sessions.connected))
