"""The connection of one caller, at the provider: INVOKE in, RESULT out. Read within its budget of the event loop.

The answers of one turn are one write. Each call is in a table until it is answered; each answer is kept until the
caller has reported that it read it (SEEN), so that the provider knows at the end of a connection what got through.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import msgspec

from wherry.service.outcomes import CallOutcome, RefusalCode
from wherry.service.providing.running import ProvidedCall
from wherry.service.providing.unseen import Unseen
from wherry.wire.fair_protocol import FairProtocol
from wherry.wire.native.codec.documents import decode_document, encode_goodbye
from wherry.wire.native.codec.faults import WireFault
from wherry.wire.native.codec.frames import Kind, encode_frame
from wherry.wire.native.codec.invokes import (
    PROTOCOL,
    SERVICE_RULES,
    TOKEN_BYTES_MAX,
    CallKind,
    PeerHello,
    Trouble,
    check_content,
    decode_invoke,
    decode_seen,
    encode_result,
    encode_trouble,
)
from wherry.wire.native.codec.reader import FrameReader
from wherry.wire.peer import place

if TYPE_CHECKING:
    from wherry.service.providing.host import Host

SWITCHING = f"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: {PROTOCOL}\r\n\r\n".encode()

WRITE_HIGH_BYTES: Final = 4 << 20
"""Results that a caller has not read; beyond it the caller is not read."""

WRITE_S: Final = 30.0
"""A caller that reads nothing of what it was sent for so long is cut off."""

CALLS_MAX: Final = 16_384
"""Calls of one connection under way; one more is refused as full."""

ARGUMENT_BYTES_MAX: Final = 64 << 20
"""Of the arguments of calls under way, of one connection; one more call is refused as full."""

TURN_FRAMES_MAX: Final = 32
"""Results of one turn that are written before its end, so that the caller begins while the provider goes on."""

PARTIAL_BYTES_MAX: Final = 64 << 20
"""Of an incomplete frame."""


class ProviderConnection(FairProtocol):
    """A connection that was handed over by HTTP."""

    is_stranger = False
    wants_json = False

    def __init__(self, host: Host, token: str = "") -> None:
        self._host = host
        self.token = token
        """The token of the caller, for the calls that come from now on."""
        self.calls: dict[int, ProvidedCall] = {}
        self._argument_bytes = 0
        """Of the calls under way."""
        self.unseen = Unseen(keeps_calls=host.endings.keeps_calls)
        self._turn: list[bytes] = []
        self._reader = FrameReader("client", rules=SERVICE_RULES)
        self._paused_since: float | None = None
        self._is_leaving = False
        self._is_closed = False

    def begin(self, transport: asyncio.Transport, rest: bytes, left: Callable[[], None]) -> None:
        """Take over a connection: `rest` is what arrived after the request."""
        self._loop = asyncio.get_running_loop()
        self._transport, self._left = transport, left
        transport.set_write_buffer_limits(high=WRITE_HIGH_BYTES)
        self.join_loop(transport)
        self.leave_loop()  # of the strangers: rights are checked call by call
        self.peer = place(transport.get_extra_info("peername")) or ""
        hello = PeerHello(name=self._host.instance_id, calls_max=CALLS_MAX)
        transport.write(SWITCHING + encode_frame(Kind.HELLO, 0, msgspec.json.encode(hello)))
        self._host.connections[self] = None
        if rest:
            self.handle_first(rest)

    # ------------------------------------------------------------------------------------------------------- receive

    def data_received(self, data: bytes) -> None:
        reader, invoke = self._reader, CallKind.INVOKE
        try:
            for kind, flags, number, body in reader.feed(data):
                if kind == invoke:
                    self._invoke(flags, number, body)
                else:
                    self._other(kind, number, body)
        except WireFault as fault:
            self._cut_off(str(fault))
            return
        if reader.fault is not None:
            self._cut_off(str(reader.fault))
        elif reader.partial_bytes > PARTIAL_BYTES_MAX:
            self._cut_off("an incomplete frame is too large")

    def space(self) -> memoryview | None:
        return self._reader.space()

    @property
    def reads_large(self) -> bool:
        return self._reader.reads_large

    def arrived(self, count: int) -> None:
        try:
            for kind, flags, number, body in self._reader.arrived(count):
                if kind == CallKind.INVOKE:
                    self._invoke(flags, number, body)
                else:
                    self._other(kind, number, body)
        except WireFault as fault:
            self._cut_off(str(fault))

    def refuse_stranger(self, why: str) -> None:
        """Do nothing: rights are checked call by call."""

    def _invoke(self, flags: int, number: int, body: bytes) -> None:
        asked = decode_invoke(body)
        check_content("client", flags)
        calls = self.calls
        if number in calls:
            raise WireFault("client", "id", number, "a number without a call under way")
        call = ProvidedCall(self, number, flags, asked)
        size = len(asked.argument)
        if len(calls) >= CALLS_MAX or self._argument_bytes + size > ARGUMENT_BYTES_MAX:
            text = f"{len(calls)} calls of this connection, with {self._argument_bytes} bytes, are under way"
            self._host.refuse(call, RefusalCode.FULL, text)
            return
        calls[number] = call
        self._argument_bytes += size
        self._host.begin(call)

    def _other(self, kind: int, number: int, body: bytes) -> None:
        if kind == CallKind.SEEN:
            self.unseen.seen(decode_seen(body))
        elif kind == Kind.CANCEL:
            call = self.calls.get(number)
            if call is not None:
                self._host.cancel(call, CallOutcome.CANCELLED)
        elif kind == Kind.PING:
            self._send(encode_frame(Kind.PONG, number))
        elif kind == Kind.HELLO:
            decode_document("client", PeerHello, body)
        elif kind == CallKind.TOKEN:
            if len(body) > TOKEN_BYTES_MAX or not body.isascii():
                raise WireFault("client", "token", f"{len(body)} bytes", f"ASCII, at most {TOKEN_BYTES_MAX} bytes")
            self.token = body.decode("ascii")
        elif kind == Kind.GOODBYE:
            self._is_leaving = True
            self._close_if_done()

    # ---------------------------------------------------------------------------------------------------------- send

    def answer(self, call: ProvidedCall, result: bytes, flags: int) -> None:
        """Send the result of a call."""
        self._sent(call, encode_result(call.number, result, flags))

    def trouble(self, call: ProvidedCall, outcome: int, trouble: Trouble) -> None:
        """Send why a call has no result; `outcome` is the flag REFUSED or FAILED."""
        self._sent(call, encode_trouble(call.number, outcome, trouble))

    def drop(self, call: ProvidedCall) -> None:
        """Forget a call whose caller wants no answer any more."""
        self._forget(call)
        self._close_if_done()

    def _forget(self, call: ProvidedCall) -> None:
        if self.calls.get(call.number) is call:
            del self.calls[call.number]
            self._argument_bytes -= len(call.asked.argument)

    def _sent(self, call: ProvidedCall, frame: bytes) -> None:
        self._forget(call)
        if self._is_closed:
            return
        if not self.unseen.add(call):
            self._cut_off(f"{self.unseen.count} results are not reported as read")
            return
        turn = self._turn
        if not turn:
            self._loop.call_soon(self._flush)
        turn.append(frame)
        if len(turn) >= TURN_FRAMES_MAX:
            self._flush()
        if self._is_leaving:
            self._close_if_done()

    def _send(self, frame: bytes) -> None:
        if not self._turn:
            self._loop.call_soon(self._flush)
        self._turn.append(frame)

    def _flush(self) -> None:
        turn, self._turn = self._turn, []
        if turn and not self._is_closed:
            self._transport.write(turn[0] if len(turn) == 1 else b"".join(turn))

    def pause_writing(self) -> None:
        self._paused_since = self._loop.time()
        self.stop("full")

    def resume_writing(self) -> None:
        self._paused_since = None
        self.go_on("full")

    # ----------------------------------------------------------------------------------------------------------- end

    def say_goodbye(self, why: str) -> None:
        """Announce that no new calls are accepted."""
        self._send(encode_goodbye(why))

    def _close_if_done(self) -> None:
        if self._is_leaving and not self.calls and not self._is_closed:
            self._flush()
            self._transport.close()

    def _cut_off(self, why: str) -> None:
        """Close the connection of a caller that broke a rule."""
        self._host.note_cut_off(self.peer, why)
        self._send(encode_goodbye(why))
        self._flush()
        self._transport.close()

    def eof_received(self) -> None:
        """Close: a caller that sends no more gets no more."""

    def connection_lost(self, fault: Exception | None) -> None:
        self._is_closed = True
        self.leave_loop()
        self._host.connections.pop(self, None)
        for call in list(self.calls.values()):
            self._host.cancel(call, CallOutcome.LOST)
        self.calls.clear()
        self._host.endings.unseen(self.unseen)
        self._left()

    # --------------------------------------------------------------------------------------------------- for the server

    def tick(self, now: float) -> None:
        """Cut off a caller that does not read its results; called about once a second."""
        if self._paused_since is not None and self._loop.time() - self._paused_since > WRITE_S:
            self._host.note_cut_off(self.peer, f"nothing read for {WRITE_S:g} s")
            self._transport.abort()

    def finish(self) -> None:
        """Announce the end, since the server closes: calls under way are answered first."""
        if not self._is_leaving:
            self._is_leaving = True
            self.say_goodbye("the instance is closing")
        self._close_if_done()

    def abort(self) -> None:
        """Close at once."""
        self._transport.abort()
