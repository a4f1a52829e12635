"""STOMP over HTTP: a WebSocket, or a polled session for clients that cannot open one."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from wherry.model import check
from wherry.node.stomp.transports import HttpTransports
from wherry.node.stomp.views import StompView
from wherry.wire.http.api.problem import HttpError
from wherry.wire.http.api.routing import EndpointGroup
from wherry.wire.http.api.service import ApiCall, BrokerService
from wherry.wire.http.api.terms import (
    WAIT_MS_MAX,
    Sequence,
    WaitMs,
    json_schema,
)
from wherry.wire.http.protocol.message import (
    OCTETS,
    Answer,
    Request,
    Response,
    json_response,
)

SESSIONS = "/v1/stomp/sessions"
FRAMES = SESSIONS + "/{session}/frames"

TOKEN = "Wherry-Session"
FRAMES_BYTES_MAX = 1 << 20
"""Most bytes of one call; a larger frame is sent in several."""

SHOWS_TOKEN = {TOKEN: "The token that came with the session"}


class StompSession(msgspec.Struct):
    """A session: its id is for the path, its token for the header `Wherry-Session`."""

    id: str
    token: str


class FramesQuery(msgspec.Struct, frozen=True):
    """Where the body begins, in bytes since the session was opened: bytes that were received before are skipped."""

    at: Sequence


class FramesTaken(msgspec.Struct):
    """How many bytes were received so far, and whether the session has ended and accepts no more."""

    received: Annotated[int, json_schema(minimum=0)]
    over: bool


class TakeQuery(msgspec.Struct, frozen=True):
    """How many bytes the client has received since the session was opened, and how long to wait for more."""

    after: Sequence
    wait_ms: WaitMs = 0


class StompEndpoints:
    """The endpoints, over the transports of one node."""

    def __init__(self, transports: HttpTransports) -> None:
        self._transports = transports

    def table(self) -> EndpointGroup:
        """Return all endpoints, for the server of the port."""
        table = EndpointGroup("stomp")
        socket: dict[str, Any] = {"answers": {101: None}, "codes": ("not-found", "method-not-allowed")}
        table.add("GET", "/ws", "none", **socket)(self.websocket)
        table.add("GET", "/stomp", "none", **socket)(self.websocket_at_stomp)
        table.add("GET", SESSIONS, "admin", answers={200: StompView})(self.list_stomp_sessions)
        opens = {"answers": {201: StompSession}, "codes": ("limit-reached", "too-large")}
        table.add("POST", SESSIONS, "none", **opens)(self.open_stomp_session)
        frames: dict[str, Any] = {"admits": self._shows_token, "headers": SHOWS_TOKEN}
        sends = {"query": FramesQuery, "takes": (OCTETS,), "answers": {200: FramesTaken}, "codes": ("limit-reached",)}
        table.add("POST", FRAMES, "none", body_bytes=FRAMES_BYTES_MAX, **sends, **frames)(self.send_stomp_frames)
        takes = {"query": TakeQuery, "answers": {200: (OCTETS,)}}
        table.add("GET", FRAMES, "none", **takes, **frames)(self.take_stomp_frames)
        table.add("DELETE", SESSIONS + "/{session}", "none", answers={204: None}, **frames)(self.end_stomp_session)
        return table

    def _shows_token(self, request: Request, service: BrokerService) -> None:
        """Check the token before the body is read."""
        self._transports.check(request.params["session"], request.headers.get(TOKEN.lower(), ""))

    async def websocket(self, call: ApiCall) -> Answer:
        """STOMP over a WebSocket.

        Subprotocols are `v12.stomp`, `v11.stomp` and `v10.stomp`, or none. The key is in the CONNECT frame.
        """
        request = call.request
        if request.method != "GET":
            text = f"a WebSocket begins with GET, not {request.method}"
            raise HttpError("method-not-allowed", text, [("Allow", "GET")])
        return self._transports.upgrade(request.headers, peer=request.peer, secure=request.secure)

    async def websocket_at_stomp(self, call: ApiCall) -> Answer:
        """STOMP over a WebSocket, the same as `/ws`."""
        return await self.websocket(call)

    async def list_stomp_sessions(self, call: ApiCall) -> Answer:
        """Sessions of STOMP over any transport, what they hold, and the last that were cut off."""
        return json_response(self._transports.seen(), headers=[("Cache-Control", "no-store")])

    async def open_stomp_session(self, call: ApiCall) -> Answer:
        """Open a session of STOMP that is polled.

        For clients that cannot open a WebSocket. The key is in the CONNECT frame. A session without a call for a minute
        is ended.
        """
        name, token = self._transports.open(peer=call.request.peer, secure=call.request.secure)
        return json_response(StompSession(name, token), 201, [("Cache-Control", "no-store")])

    async def send_stomp_frames(self, call: ApiCall) -> Answer:
        """Send frames, or parts of frames, to a session.

        A call whose answer was lost is repeated unchanged: bytes that were received before are skipped.
        """
        kind = call.request.content_type()
        if kind not in ("", OCTETS):
            raise HttpError("unsupported-media-type", f"{kind} is not understood here; {OCTETS} is")
        query: FramesQuery = call.query
        check.integer("at", query.at, 0, 1 << 62)
        body = bytes(memoryview(call.request.body))
        received, is_over = await self._transports.send(call["session"], query.at, body)
        return json_response(FramesTaken(received, is_over))

    async def take_stomp_frames(self, call: ApiCall) -> Answer:
        """Take frames from a session; with `wait_ms` the answer waits for the first byte.

        The header `Wherry-Next` is the `after` of the next call, which confirms all bytes before it. A call
        with the same `after` returns the same bytes again. `Wherry-Over: true` means that no more bytes follow.
        """
        query: TakeQuery = call.query
        check.integer("after", query.after, 0, 1 << 62)
        check.integer("wait_ms", query.wait_ms, 0, WAIT_MS_MAX)
        session, server = call["session"], call.service.server
        if query.wait_ms:
            server.begin_wait(call.request)
        data, following, is_over = await server.patiently(
            lambda wait_ms: self._transports.take(session, query.after, wait_ms), query.wait_ms
        )
        headers = [("Wherry-Next", str(following)), ("Cache-Control", "no-store")]
        if is_over:
            headers.append(("Wherry-Over", "true"))
        return Response(200, [data] if data else [], OCTETS, headers)

    async def end_stomp_session(self, call: ApiCall) -> Answer:
        """End a session: messages that it held wait again."""
        self._transports.end(call["session"])
        return Response(204)
