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
from wherry.wire.native.codec.frames import Flag, Kind, encode_frame
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

TURN_BYTES_MAX: Final = 64 << 10
"""A result that is longer is written at once."""

HELLO_S: Final = 10.0
"""Until the first frame of a caller."""

PING_AFTER_S: Final = 30.0
"""Without a byte from the caller it is asked for a sign of life, about once a second."""

SILENT_S: Final = 60.0
"""Without a byte, although asked, the connection is closed."""

LAST_PING: Final = 1
"""The number of the PING behind the last GOODBYE: behind its PONG comes no call. PINGs for silence have 0."""


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
        self._holding = host.holding
        self._reader = FrameReader("client", rules=SERVICE_RULES, is_roomy=host.holding.is_roomy)
        self.partial_bytes = 0
        """Of the frame that is arriving."""
        self._is_heard = True
        """Whether bytes came since the last tick."""
        self._has_sent = False
        """Whether a frame came at all."""
        self._paused_since: float | None = None
        self._is_leaving = False
        """Whether no new call can come: either side has sent GOODBYE, and the other one knows it."""
        self._is_finishing = False
        self._is_cut_off = self._is_closed = False

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
        self._silent_since = self._loop.time()
        if rest:
            self.handle_first(rest)

    # ------------------------------------------------------------------------------------------------------- receive

    def data_received(self, data: bytes) -> None:
        reader, invoke = self._reader, CallKind.INVOKE
        self._is_heard = True
        try:
            for kind, flags, number, body in reader.feed(data):
                if kind == invoke:
                    self._invoke(flags, number, body)
                else:
                    self._other(kind, number, body)
        except WireFault as fault:
            self.cut_off(fault.field, str(fault))
            return
        if reader.fault is not None:
            self.cut_off(reader.fault.field, str(reader.fault))
        elif reader.partial_bytes != self.partial_bytes:
            self._note_partial(reader.partial_bytes)

    def _note_partial(self, now: int) -> None:
        before, self.partial_bytes = self.partial_bytes, now
        self._holding.note_partial(now - before)

    def space(self) -> memoryview | None:
        return self._reader.space()

    @property
    def reads_large(self) -> bool:
        return self._reader.reads_large

    def arrived(self, count: int) -> None:
        self._is_heard = True
        try:
            for kind, flags, number, body in self._reader.arrived(count):
                if kind == CallKind.INVOKE:
                    self._invoke(flags, number, body)
                else:
                    self._other(kind, number, body)
        except WireFault as fault:
            self.cut_off(fault.field, str(fault))
        else:
            self._note_partial(self._reader.partial_bytes)

    def refuse_stranger(self, why: str) -> None:
        """Do nothing: rights are checked call by call."""

    def _invoke(self, flags: int, number: int, body: bytes) -> None:
        if self._is_cut_off:  # those behind it came with the same bytes
            return
        self._has_sent = True
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
        self._has_sent = True
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
        elif kind == Kind.GOODBYE or (kind == Kind.PONG and number == LAST_PING and self._is_finishing):
            self._is_leaving = True
            self._close_if_done()

    # ---------------------------------------------------------------------------------------------------------- send

    def answer(self, call: ProvidedCall, result: bytes, flags: int) -> None:
        """Send the result of a call."""
        if call.method is not None and call.method.method.idempotent:
            flags |= Flag.IDEMPOTENT
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
        if self._is_closed or self._is_cut_off:
            return
        if not self.unseen.add(call):
            self.cut_off("unseen", f"{self.unseen.count} results are not reported as read")
            return
        turn = self._turn
        if not turn:
            self._loop.call_soon(self._flush)
        turn.append(frame)
        if len(turn) >= TURN_FRAMES_MAX or len(frame) > TURN_BYTES_MAX:
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
            if self._transport.get_write_buffer_size() > WRITE_HIGH_BYTES:
                self._holding.check_results(self)

    @property
    def held_bytes(self) -> int:
        """Return the bytes that were sent and that the caller has not read."""
        return 0 if self._is_closed else self._transport.get_write_buffer_size()

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

    def cut_off(self, what: str, why: str) -> None:
        """Close the connection of a caller that broke a rule, and tell it which."""
        if not self._is_cut_off:
            self._holding.note_cut_off(self.peer, what, why)
            self._send(encode_goodbye(why))
            self._flush()
            self._is_cut_off = True
            self._transport.close()

    def abort_since(self, what: str, why: str) -> None:
        """Close the connection of a caller that reads nothing, so that it cannot be told why."""
        if not self._is_cut_off:
            self._is_cut_off = True
            self._holding.note_cut_off(self.peer, what, why)
            self._transport.abort()

    def eof_received(self) -> None:
        """Close: a caller that sends no more gets no more."""

    def connection_lost(self, fault: Exception | None) -> None:
        self._is_closed = True
        self.leave_loop()
        self._host.connections.pop(self, None)
        self._note_partial(0)
        for call in list(self.calls.values()):
            self._host.cancel(call, CallOutcome.LOST)
        self.calls.clear()
        self._host.endings.unseen(self.unseen)
        self._left()

    # --------------------------------------------------------------------------------------------------- for the server

    def tick(self, now: float) -> None:
        """End a connection that does not read, or sends nothing; called about once a second."""
        now = self._loop.time()
        if self._paused_since is not None and now - self._paused_since > WRITE_S:
            self.abort_since("read", f"nothing read for {WRITE_S:g} s")
        elif self._is_heard or self.is_stopped:
            self._is_heard, self._silent_since = False, now
        elif now - self._silent_since > (SILENT_S if self._has_sent else HELLO_S):
            self.cut_off("silent", f"nothing came for {now - self._silent_since:.0f} s")
        elif self._has_sent and now - self._silent_since > PING_AFTER_S:
            self._send(encode_frame(Kind.PING, 0))

    def finish(self) -> None:
        """Announce the end, since the server closes: calls under way are answered first.

        A call that the caller sent before it read the GOODBYE is answered too, as refused: if the connection closed
        before, its caller could not know whether it was run. So the end waits for the answer to a PING.
        """
        if self._is_leaving:
            self._close_if_done()
        elif not self._is_finishing:
            self._is_finishing = True
            self.say_goodbye("the instance is closing")
            self._send(encode_frame(Kind.PING, LAST_PING))

    def abort(self) -> None:
        """Close at once."""
        self._transport.abort()
