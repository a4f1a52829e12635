"""The HTTP port on the simulated network: the native wire is an upgrade of its connections.

A node checks keys as well. Here every client may do everything; the rest is the code of the HTTP port and of the wire.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Protocol

from wherry.broker.broker import Broker
from wherry.model.catalog.key import Verb
from wherry.model.errors import WherryError
from wherry.wire.http.api.problem import HttpError, problem
from wherry.wire.http.api.routing import EndpointGroup
from wherry.wire.http.api.service import ApiCall
from wherry.wire.http.app import App, serve
from wherry.wire.http.protocol.message import Answer, Request, Response
from wherry.wire.http.protocol.server import Server
from wherry.wire.listener import Clock
from wherry.wire.native.application import CallReply
from wherry.wire.native.codec.calls import CallHead
from wherry.wire.native.codec.frames import PATH
from wherry.wire.native.connection import Connection
from wherry.wire.native.sessions import Bounds, Sessions

HEARTBEAT_MS = 1_500
"""The heartbeat that sessions agree on: short, so that some are due in every run."""


@asynccontextmanager
async def serve_native(broker: Broker, *, clock: Clock, more: Sequence[EndpointGroup] = ()) -> AsyncIterator[Server]:
    """Serve HTTP, and the native wire by upgrade, while the `async with` lasts; with `more` endpoints."""
    app = App(broker, clock=clock)
    app.mount(*more)
    sessions = Sessions(broker, Bounds(heartbeat_ms=HEARTBEAT_MS), clock=clock)
    app.mount(_upgrade(app, sessions))
    async with serve(app) as server:
        await server.begin_ticks()
        yield server
    await sessions.finished()


def _upgrade(app: App, sessions: Sessions) -> EndpointGroup:
    async def open_native_wire(call: ApiCall) -> Answer:
        """Open the native wire."""
        return Connection(sessions, OpenApplication(app))

    table = EndpointGroup("wire")
    table.add("GET", PATH, "publish", answers={101: None})(open_native_wire)
    return table


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
