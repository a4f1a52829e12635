"""The server of the native wire on the simulated network: the upgrade of a connection, sessions, ticks, the drain.

In a node the HTTP port reads the request for the upgrade, and checks keys. Here a small protocol reads it, and every
client may do everything; what comes after the upgrade is the code of the wire itself.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Protocol, cast

from wherry.broker.broker import Broker
from wherry.model.catalog.key import Verb
from wherry.model.errors import WherryError
from wherry.wire.http.api.problem import HttpError, problem
from wherry.wire.http.app import App
from wherry.wire.http.protocol.message import Request, Response
from wherry.wire.http.protocol.upgrade import Guest, hand_over
from wherry.wire.listener import Clock, Connected, ticking
from wherry.wire.native.application import CallReply
from wherry.wire.native.codec.calls import CallHead
from wherry.wire.native.connection import Connection
from wherry.wire.native.sessions import Bounds, Sessions

HEARTBEAT_MS = 1_500
"""The heartbeat that sessions agree on: short, so that some are due in every run."""

TICK_S = 0.5

_log = logging.getLogger("wherry.native")


class NativeServer:
    """The sessions on one broker, and their connections."""

    def __init__(self, broker: Broker, clock: Clock) -> None:
        self.app = App(broker)
        self.sessions = Sessions(broker, Bounds(heartbeat_ms=HEARTBEAT_MS), clock=clock)
        self.connected: Connected[Guest] = Connected()

    def connection(self) -> asyncio.BaseProtocol:
        """Return the protocol of a new connection."""
        return UpgradeDoor(self)

    async def close(self, drain_s: float) -> None:
        """Announce the end to all clients, wait for them, and cut off those that stay."""
        self.connected.is_closing = True
        for connection in self.connected:
            connection.finish()
        await self.connected.all_gone(drain_s)
        for connection in self.connected:
            connection.abort()
        await self.sessions.finished()


@asynccontextmanager
async def serve_native(broker: Broker, *, drain_s: float, clock: Clock) -> AsyncIterator[NativeServer]:
    """Serve the native wire while the `async with` lasts."""
    server = NativeServer(broker, clock)
    ticks = ticking(lambda: server.connected, TICK_S, clock=clock, log=_log, name="wherry native ticks")
    async with ticks:
        yield server
        await server.close(drain_s)


class UpgradeDoor(asyncio.Protocol):
    """Reads the request for the upgrade, and hands the connection over to a session."""

    def __init__(self, server: NativeServer) -> None:
        self._server, self._got = server, b""
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if not self._server.connected.admit(self):
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        self._got += data
        _, end, rest = self._got.partition(b"\r\n\r\n")
        if end and not self._transport.is_closing():
            connected = self._server.connected
            connection = Connection(self._server.sessions, OpenApplication(self._server.app))
            connected.replace(self, connection)
            hand_over(self._transport, connection, rest, lambda: connected.discard(connection))

    def connection_lost(self, fault: Exception | None) -> None:
        self._server.connected.discard(self)

    def tick(self, now: float) -> None:
        """Do nothing: clients of a run send their request at once."""

    def finish(self) -> None:
        """Close, since the server closes."""
        self._transport.close()

    def abort(self) -> None:
        """Close at once."""
        self._transport.abort()


class _Answering(Protocol):
    async def __call__(self, request: Request) -> object: ...


class OpenApplication:
    """The application of the HTTP port, without keys and without bounds on bodies."""

    def __init__(self, app: App) -> None:
        self._app = app

    def check(self, verb: Verb, topic: str) -> str:
        """Allow everything."""
        return ""

    def problem(self, fault: WherryError) -> bytes:
        """Return the problem document of an error."""
        (document,) = problem(fault).body
        return bytes(document)

    def call(self, head: CallHead, body: memoryview) -> OpenCall:
        """Return a call, which has not begun yet."""
        path, _, query = head.path.partition("?")
        return OpenCall(self._app.server.answer, Request(head.method, path, query, dict(head.headers), body))

    def hold(self, size: int) -> None:
        """Count nothing."""

    def keep(self, size: int) -> None:
        """Count nothing."""

    def close(self) -> None:
        """Do nothing: the application keeps nothing of a client."""


class OpenCall:
    """One call under way."""

    def __init__(self, answer: _Answering, request: Request) -> None:
        self._answer, self._request = answer, request

    @property
    def waits(self) -> bool:
        """Whether the call may be cancelled."""
        return self._request.waits

    async def run(self) -> CallReply:
        """Return the answer, whatever its status."""
        answer = await self._answer(self._request)
        if not isinstance(answer, Response):
            answer = problem(HttpError("not-acceptable", "an answer without an end needs a connection of its own"))
        headers = {name.lower(): value for name, value in answer.headers}
        if answer.content_type:
            headers["content-type"] = answer.content_type
        return CallReply(int(answer.status), headers, list(answer.body), answer.undo)
