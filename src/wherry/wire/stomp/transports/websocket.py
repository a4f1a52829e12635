"""STOMP over a WebSocket: handshake, messages and closing by `websockets`, which does no IO of its own.

    transport ──► Protocol ── messages ──► Session.feed
    transport ◄── Protocol ◄── send_text ◄── write

Messages carry a stream: a frame of STOMP may come in several of them, several frames in one, and a message in
fragments is fed as they arrive. The server writes text, as clients in pages expect, and binary only for bodies
that are not UTF-8.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from websockets.datastructures import Headers
from websockets.exceptions import InvalidState
from websockets.frames import CloseCode, Frame, Opcode
from websockets.http11 import Request
from websockets.protocol import SEND_EOF, Protocol, Side, State
from websockets.server import ServerProtocol
from websockets.typing import Subprotocol

from wherry.model.errors import InvalidInput
from wherry.wire.fair_protocol import FairProtocol
from wherry.wire.peer import certified, place
from wherry.wire.stomp.codec import BODY_BYTES_MAX, HEAD_BYTES_MAX
from wherry.wire.stomp.session import Session
from wherry.wire.stomp.sessions import STRANGE, Sessions
from wherry.wire.stomp.transports.transport import (
    FEED_BYTES,
    HIGH_BYTES,
    LOW_BYTES,
    NEVER_BYTES,
    unread,
)

SUBPROTOCOLS = tuple(Subprotocol(name) for name in ("v12.stomp", "v11.stomp", "v10.stomp"))
"""Supported, the best first. A client that names none of them is served as well."""

MESSAGE_BYTES_MAX = 2 * (HEAD_BYTES_MAX + BODY_BYTES_MAX)
FRAGMENT_BYTES_MAX = HEAD_BYTES_MAX + BODY_BYTES_MAX
"""Held until it is complete: as much as the largest frame of STOMP. A message may bring another one along."""

PING_S, SILENCE_S = 25.0, 75.0
"""After how much silence a client is sent a ping, and after how much it is cut off."""

FRAME_PACE = 100_000
"""Each so many bytes of a frame give it one second more."""

PARTING_S = 2.0
"""How long a client may take to answer a close."""

DATA = frozenset({Opcode.TEXT, Opcode.BINARY, Opcode.CONT})
PONG = 0x80 | Opcode.PONG
"""The first byte of a PONG frame."""

_log = logging.getLogger("wherry.stomp")
_quiet = logging.getLogger("wherry.stomp.websocket")
_quiet.setLevel(logging.ERROR)  # otherwise the library logs each frame


class WebSocket(FairProtocol):
    """The transport of one session, on a connection that served HTTP before."""

    name = "websocket"

    def __init__(self, sockets: WebSockets, answer: bytes) -> None:
        self._sockets, self._answer, self._clock = sockets, answer, sockets.sessions.clock
        self._protocol = Protocol(Side.SERVER, max_size=(MESSAGE_BYTES_MAX, FRAGMENT_BYTES_MAX), logger=_quiet)
        self._received_at = self._pinged_at = self._clock()
        self._parting_since: float | None = None
        self._part_since: float | None = None
        self._is_paused = False
        self._goodbye = (CloseCode.NORMAL_CLOSURE, "")
        self._ending: asyncio.Task[None] | None = None
        self._kept: deque[bytes] = deque()
        """Bytes that were read and do not fit into the session yet, in order."""
        self._kept_bytes = 0
        self.unparsed_bytes = 0
        """Bytes of an incomplete WebSocket frame, and of what is kept."""

    def begin(self, transport: asyncio.Transport, rest: bytes, left: Callable[[], None]) -> None:
        """Take over a connection: `rest` is what arrived after the request."""
        self._transport, self._left = transport, left
        self._sockets.open.add(self)
        transport.set_write_buffer_limits(high=HIGH_BYTES // 2, low=LOW_BYTES)
        transport.write(self._answer)
        self.join_loop(transport)
        secure = transport.get_extra_info("ssl_object") is not None
        self._session = Session(
            self._sockets.sessions,
            self,
            peer=place(transport.get_extra_info("peername")),
            secure=secure,
            certified=certified(transport),
        )
        if rest:
            self.handle_first(rest)

    # ---------------------------------------------------------------------------------------------------- the socket

    def data_received(self, data: bytes) -> None:
        self._received_at = self._clock()
        self._protocol.receive_data(data)
        events = self._protocol.events_received()
        self._answer_pings()
        for event in events:
            if isinstance(event, Frame) and event.opcode in DATA:
                self._keep(event.data)
        self._feed()
        self._flush()
        if self._protocol.close_expected():
            self._session.over()
            self._part()
        self._sockets.check_unparsed()

    @property
    def is_stranger(self) -> bool:
        """Whether the client has not logged in yet."""
        return self._session.is_stranger

    def refuse_stranger(self, why: str) -> None:
        """Send the reason to a client that sent too much before login, and close."""
        self._session.cut_off(STRANGE, why)

    def _answer_pings(self) -> None:
        """Answer the last ping of a read, which RFC 6455 allows: a flood of pings costs one small write."""
        frames = [data for data in self._protocol.data_to_send() if data != SEND_EOF]
        pongs = [data for data in frames if data[0] == PONG]
        frames = pongs[-1:] + [data for data in frames if data[0] != PONG]
        if frames and not self._transport.is_closing():
            self._transport.write(b"".join(frames))

    def _keep(self, data: bytes | bytearray | memoryview) -> None:
        view = memoryview(data)
        self._kept.extend(bytes(view[at : at + FEED_BYTES]) for at in range(0, len(view), FEED_BYTES))
        self._kept_bytes += len(view)

    def _count_unparsed(self) -> None:
        part = len(self._protocol.reader.buffer)
        size = part + self._kept_bytes
        self._sockets.unparsed_bytes += size - self.unparsed_bytes
        self.unparsed_bytes = size
        if not part:
            self._part_since = None
        elif self._part_since is None:
            self._part_since = self._received_at

    def _feed(self) -> None:
        """Feed kept bytes to the session; while the session is full, stop reading.

        Bytes that came with a close are fed even if the session is full: there is no later.
        """
        session, is_last = self._session, self._protocol.state is not State.OPEN
        session.feed(b"")  # a part of a frame, or a ping, proves that the client is there
        while self._kept and not session.is_over and (is_last or not session.is_full):
            piece = self._kept.popleft()
            self._kept_bytes -= len(piece)
            session.feed(piece)
        if session.is_over:
            self._drop_kept()
        elif session.is_full and not self._is_paused and not self._transport.is_closing():
            self._is_paused = True
            self.stop("full")
            session.when_relieved(self._on_relief)
        self._count_unparsed()

    def _drop_kept(self) -> None:
        self._kept.clear()
        self._kept_bytes = 0

    def _on_relief(self) -> None:
        self._is_paused = False
        self._feed()
        if not self._is_paused:
            self.go_on("full")

    def eof_received(self) -> bool:
        """End the session, since the client sends no more: messages written now would be lost."""
        self._protocol.receive_eof()
        self._session.over()
        self._part()
        return False

    def connection_lost(self, fault: Exception | None) -> None:
        self.leave_loop()
        if self._ending is not None:
            self._ending.cancel()
        self._drop_kept()
        self._sockets.unparsed_bytes -= self.unparsed_bytes
        self.unparsed_bytes = 0
        self._sockets.open.discard(self)
        self._session.over()
        self._left()

    def resume_writing(self) -> None:
        self._session.drained()

    def _flush(self) -> None:
        for data in self._protocol.data_to_send():
            if data != SEND_EOF and not self._transport.is_closing():
                self._transport.write(data)

    # ----------------------------------------------------------------------------------------------- for the session

    def write(self, data: bytes) -> None:
        """Send complete STOMP frames as one message."""
        if self._protocol.state is not State.OPEN or self._transport.is_closing():
            return
        if data.isascii() or _is_text(data):
            self._protocol.send_text(data)
        else:
            self._protocol.send_binary(data)
        self._flush()

    def close(self) -> None:
        """Send a close, and wait a moment for the client's."""
        with suppress(InvalidState):  # it is closing already
            self._protocol.send_close(*self._goodbye)
        self._flush()
        self._part()

    def waiting_bytes(self) -> int:
        """Return how many written bytes the kernel has not taken yet."""
        if self._protocol.state is not State.OPEN or self._transport.is_closing():
            return NEVER_BYTES
        return self._transport.get_write_buffer_size()

    def unread_bytes(self) -> int:
        """Return how many written bytes are not known to have reached the client's machine."""
        return unread(self.waiting_bytes(), self._transport)

    def _part(self) -> None:
        """Close the socket once both sides have sent a close, or the client broke a rule of the protocol."""
        if self._parting_since is None:
            self._parting_since = self._clock()
        if self._protocol.close_rcvd is not None or self._protocol.parser_exc is not None:
            self._transport.close()

    # --------------------------------------------------------------------------------------------------- the server

    def tick(self, now: float) -> None:
        """Cut off a client that is too slow; send a ping to a silent one."""
        if self._parting_since is not None:
            if now - self._parting_since > PARTING_S:
                self._transport.abort()
        elif self.is_stopped:
            self._received_at = now  # while it is not read it cannot be late
            self._part_since = None if self._part_since is None else now
        elif now - self._received_at > SILENCE_S:
            self.cut_off(f"nothing arrived for {SILENCE_S:g} s")
        elif self._part_since is not None and now - self._part_since > self._patience_s():
            self.cut_off(f"{self.unparsed_bytes} bytes of a frame, and no end within {self._patience_s():.0f} s")
        elif now - max(self._received_at, self._pinged_at) > PING_S:
            self._pinged_at = now
            self._protocol.send_ping(b"")
            self._flush()

    def _patience_s(self) -> float:
        return self._sockets.sessions.bounds.frame_s + self.unparsed_bytes / FRAME_PACE

    def finish(self) -> None:
        """Close for the end of the server: once what arrived is stored and confirmed, first the session."""
        self._goodbye = (CloseCode.GOING_AWAY, "the broker is closing")
        if self._ending is None:
            self._ending = asyncio.get_running_loop().create_task(self._end_stored(), name="wherry websocket end")

    async def _end_stored(self) -> None:
        await self._session.receipts.all_stored()
        self._session.over()  # before the close, after which everything would be dropped
        self.close()

    def abort(self) -> None:
        """Close at once."""
        self._transport.abort()

    def cut_off(self, why: str) -> None:
        """Close at once, and record the reason."""
        _log.info("cut off", extra={"peer": self._session.peer, "why": why})
        self._sockets.sessions.note(self._session, "websocket", why)
        self._transport.abort()


class WebSockets:
    """All open WebSockets."""

    def __init__(self, sessions: Sessions) -> None:
        self.sessions = sessions
        self.open: set[WebSocket] = set()
        self.unparsed_bytes = 0
        """Bytes of incomplete frames."""

    def answer(self, headers: Mapping[str, str]) -> WebSocket:
        """Return a WebSocket for a request that asks for one; raise `InvalidInput` for a bad request."""
        return WebSocket(self, handshake(headers))

    def check_unparsed(self) -> None:
        """Cut off the client that holds the most memory with incomplete frames, if memory is short."""
        if self.unparsed_bytes > self.sessions.bounds.held_bytes:
            max(self.open, key=lambda each: each.unparsed_bytes).cut_off("too much that is not whole")


def handshake(headers: Mapping[str, str]) -> bytes:
    """Return the answer to a request for a WebSocket; raise `InvalidInput` for a bad request."""
    server = ServerProtocol(subprotocols=SUBPROTOCOLS, select_subprotocol=_select, logger=_quiet)
    response = server.accept(Request("/", Headers(headers)))
    if server.handshake_exc is not None:
        allowed = "websocket, with the headers of RFC 6455"
        raise InvalidInput("Upgrade", headers.get("upgrade"), f"{allowed} ({server.handshake_exc})")
    return response.serialize()


def _select(server: ServerProtocol, offered: Sequence[Subprotocol]) -> Subprotocol | None:
    return next((name for name in SUBPROTOCOLS if name in offered), None)


def _is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True
