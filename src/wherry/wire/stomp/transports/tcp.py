"""The listener and its connections: STOMP over TCP and TLS."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress
from typing import cast

from wherry.queueing.queueing import Queueing
from wherry.security.access import Access
from wherry.wire.peer import certified, place
from wherry.wire.stomp.desk import STRANGE, Bounds, Desk
from wherry.wire.stomp.session import Session
from wherry.wire.stomp.transports.transport import (
    HIGH_BYTES,
    LOW_BYTES,
    NEVER_BYTES,
    unread,
)
from wherry.wire.turns import TurnProtocol

BACKLOG = 1_024

PARTING_S = 5.0
"""How long a client may take to read the last that was written to it."""


class Connection(TurnProtocol):
    """One socket; the road of one session."""

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
        wire = transport.get_extra_info("socket")
        # Without heart-beats nothing else finds out that the machine of an idle client is gone.
        wire.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if hasattr(socket, "TCP_QUICKACK"):
            # Else a client with Nagle's algorithm (stomp.py) holds CONNECT back some 40 ms after the TLS handshake.
            wire.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
        self._server.connections.add(self)
        self.begin_turns(self._transport)
        self.session = Session(
            self._server.desk,
            self,
            peer=place(transport.get_extra_info("peername")),
            secure=transport.get_extra_info("ssl_object") is not None,
            certified=certified(transport),
        )

    def eof_received(self) -> None:
        """The client says no more: the session ends now, so that it is given nothing that the socket would drop."""
        self.session.over()
        self.close()

    def connection_lost(self, fault: Exception | None) -> None:
        if self._parting is not None:
            self._parting.cancel()
        self.end_turns()
        self._server.gone(self)
        self.session.over()

    def data_received(self, data: bytes) -> None:
        self.session.feed(data)
        if self.session.is_full:
            self._pause()

    @property
    def is_stranger(self) -> bool:
        """Whether the client is not let in yet."""
        return self.session.is_stranger

    def refuse_stranger(self, why: str) -> None:
        """Tell the client that it sent too much before it was let in, and end."""
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
        """Bytes to the client."""
        if not self._transport.is_closing():
            self._transport.write(data)

    def close(self) -> None:
        """Close, once everything is written, or after a while."""
        if self._parting is None:
            self._parting = asyncio.get_running_loop().call_later(PARTING_S, self._transport.abort)
            self._transport.close()

    def waiting_bytes(self) -> int:
        """Written, but not taken by our kernel yet."""
        return NEVER_BYTES if self._transport.is_closing() else self._transport.get_write_buffer_size()

    def unread_bytes(self) -> int:
        """Written, but not known to have reached the client's machine."""
        return unread(self.waiting_bytes(), self._transport)


class Server:
    """STOMP on any number of addresses."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        self.connections: set[Connection] = set()
        self._listeners: list[asyncio.Server] = []
        self._nobody = asyncio.Event()

    async def listen(self, host: str, port: int, tls: ssl.SSLContext | None = None) -> int:
        """Serve an address; its port, which the system chooses for 0."""
        patience_s = None if tls is None else self.desk.bounds.login_s
        listener = await asyncio.get_running_loop().create_server(
            lambda: Connection(self), host, port, ssl=tls, backlog=BACKLOG, ssl_handshake_timeout=patience_s
        )
        self._listeners.append(listener)
        return int(listener.sockets[0].getsockname()[1])

    def gone(self, connection: Connection) -> None:
        """A connection is gone."""
        self.connections.discard(connection)
        if not self.connections:
            self._nobody.set()

    def stop_listening(self) -> None:
        """Take no more."""
        for listener in self._listeners:
            listener.close()

    async def parted(self, drain_s: float) -> None:
        """Until everybody has read the last word, or for a while."""
        self._nobody.clear()
        if self.connections:
            try:
                async with asyncio.timeout(min(drain_s, PARTING_S)):
                    await self._nobody.wait()
            except TimeoutError:
                for connection in list(self.connections):
                    connection.close()


@asynccontextmanager
async def serve(
    queueing: Queueing,
    *,
    access: Access | None = None,
    bounds: Bounds | None = None,
    any_user: bool = False,
    names: Iterable[str] = (),
    drain_s: float = 2.0,
) -> AsyncIterator[Server]:
    """STOMP over the virtual hosts of a queueing that is open, while the `async with` lasts; `listen` on it.

    Other roads make sessions of their own at its `desk`. `names` are those that clients may call this machine by.
    """
    server = Server(Desk(queueing, access, bounds, any_user=any_user, names=names))
    async with server.desk.open():
        try:
            yield server
        finally:
            server.stop_listening()
            await _stored(server.desk, drain_s)
            await server.desk.close()
            await server.parted(drain_s)


async def _stored(desk: Desk, drain_s: float) -> None:
    """Until what came is stored, and whoever asked for a receipt has it; within a bound."""
    with suppress(TimeoutError):
        async with asyncio.timeout(drain_s):
            await asyncio.gather(*(session.receipts.all_stored() for session in desk.sessions))
