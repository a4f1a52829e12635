"""One connection to an instance, from the side of the caller.

    call ──► INVOKE of this turn ──► one write          RESULT ──► the future of its call

A call is a future in a table, by its number; no task and no timer is made for it. One sweep of the table, while there
are calls in it, ends those whose deadline has passed. When the connection ends, each call without an answer gets
`ConnectionLost`: its method may have been run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from struct import error as struct_error
from typing import Final, TypeAlias

import msgspec

from wherry.service.outcomes import ConnectionLost, TimedOut
from wherry.wire.native.codec.documents import GoodbyeDocument, decode_document
from wherry.wire.native.codec.faults import WireFault
from wherry.wire.native.codec.frames import NUMBER_MAX, Kind, encode_frame
from wherry.wire.native.codec.invokes import (
    SERVICE_RULES,
    CallKind,
    PeerHello,
    encode_invoke,
    encode_seen,
)
from wherry.wire.native.codec.reader import FrameReader

CALLS_MAX: Final = 16_384
"""Calls under way over one connection; one more waits for room."""

TURN_FRAMES_MAX: Final = 32
"""Frames of one turn that are written before its end, so that the provider begins while the caller goes on."""

SWEEP_S: Final = 0.02
"""How often deadlines are looked at while calls are under way: the most that a call may end late."""

PING_AFTER_S: Final = 2.0
"""Without a byte from the instance while calls are under way."""

SILENT_S: Final = 10.0
"""After this time without a byte, although asked, the connection is given up."""

CallResult: TypeAlias = tuple[int, bytes]  # the flags and the body of a RESULT

Pending: TypeAlias = "tuple[asyncio.Future[CallResult], float, str]"
"""A call under way: its future, when it is due by the clock of the loop, and its method."""


class CallerLink(asyncio.Protocol):
    """A connection that was switched to the protocol of services."""

    def __init__(self, transport: asyncio.Transport, url: str, ended: Callable[[CallerLink], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._transport, self.url, self._ended = transport, url, ended
        self.instance = ""
        """The id of the instance, once its HELLO has come."""
        self._is_introduced = False
        self._reader = FrameReader("server", rules=SERVICE_RULES)
        self._turn: list[bytes] = []
        self._pending: dict[int, Pending] = {}
        self._last = 0
        self._token: str | None = None
        """As the provider knows it: the first one came with the request for the connection."""
        self._unseen = 0
        """Results that were read, and not reported to the provider yet."""
        self._sweeping: asyncio.TimerHandle | None = None
        self.used_at = self._loop.time()
        self._owed_since = 0.0
        """Since when the instance has sent no byte, although one is owed: for a call or a PING; 0 if none is."""
        self._asked_at = 0.0
        self.is_heard = False
        """Whether a whole frame of the protocol has come."""
        self.is_leaving = False
        """Whether the instance sent GOODBYE: it accepts no new calls."""
        self.is_closed = False
        self.why = ""
        """Why it is closed."""
        self.is_at_fault = False
        """Whether it ended before a frame came, or since the instance broke the protocol."""
        self._is_paused = False
        """Whether the socket has not taken what was written."""
        self._for_change: dict[asyncio.Future[None], None] = {}
        transport.set_protocol(self)
        if transport.is_closing():  # the protocol before this one was told
            self._loop.call_soon(self.connection_lost, None)
        transport.write(encode_frame(Kind.HELLO, 0, msgspec.json.encode(PeerHello(name="wherry-python"))))

    # --------------------------------------------------------------------------------------------------------- calls

    @property
    def is_open(self) -> bool:
        """Whether a call may be sent now."""
        return not (self.is_leaving or self._is_paused or self.is_closed or len(self._pending) >= CALLS_MAX)

    @property
    def calls(self) -> int:
        """Return how many calls are under way."""
        return len(self._pending)

    def invoke(
        self, name: str, method: bytes, argument: bytes, flags: int, timeout_s: float, context: bytes = b""
    ) -> tuple[int, asyncio.Future[CallResult]]:
        """Send a call in this turn; return its number, and the future of its result."""
        number = self._last + 1
        if number > NUMBER_MAX or number in self._pending:
            number = self._free_number()
        frame = encode_invoke(
            number, method, argument, flags=flags, timeout_ms=int(timeout_s * 1000) or 1, context=context
        )
        self._last = number
        loop = self._loop
        now = loop.time()
        future: asyncio.Future[CallResult] = loop.create_future()
        self._pending[number] = future, now + timeout_s, name
        if not self._owed_since:
            self._owed_since = now
        if self._sweeping is None:
            self._sweeping = loop.call_later(SWEEP_S, self._sweep)
        turn = self._turn
        if not turn:
            loop.call_soon(self._flush)
        turn.append(frame)
        if len(turn) >= TURN_FRAMES_MAX:
            self._flush()
        return number, future

    async def room(self) -> None:
        """Wait until a call may be sent, or none ever may."""
        while (self._is_paused or len(self._pending) >= CALLS_MAX) and not (self.is_closed or self.is_leaving):
            await self._change()

    async def introduced(self) -> None:
        """Wait until the instance has told its id, or never will."""
        while not (self._is_introduced or self.is_closed):
            await self._change()

    async def _change(self) -> None:
        """Wait until something came, or the socket takes bytes again."""
        waiter = self._loop.create_future()
        self._for_change[waiter] = None
        try:
            await waiter
        finally:
            self._for_change.pop(waiter, None)

    def _changed(self) -> None:
        for waiter in self._for_change:
            if not waiter.done():
                waiter.set_result(None)

    def cancel(self, number: int) -> None:
        """Give up a call: the provider is asked to cancel its method, and what it still answers is dropped."""
        if self._pending.pop(number, None) is not None:
            self._send(encode_frame(Kind.CANCEL, number))

    def note_token(self, token: str) -> None:
        """Send the token of the caller, for the calls behind it, if it is another one than before."""
        if token != self._token:
            if self._token is not None:
                self._send(encode_frame(CallKind.TOKEN, 0, token.encode("ascii")))
            self._token = token

    def _free_number(self) -> int:
        number = 1
        while number in self._pending:
            number += 1
        return number

    # ---------------------------------------------------------------------------------------------------------- send

    def _send(self, frame: bytes) -> None:
        if self.is_closed:
            return
        if not self._turn:
            self._loop.call_soon(self._flush)
        self._turn.append(frame)

    def _flush(self) -> None:
        """Write the frames of this turn, behind the count of results that were read."""
        turn = self._turn
        if self._unseen:
            turn.append(encode_seen(self._unseen))
            self._unseen = 0
        if turn and not self.is_closed:
            self._turn = []
            self._transport.write(turn[0] if len(turn) == 1 else b"".join(turn))

    def pause_writing(self) -> None:
        """The socket has not taken what was written: calls wait, or go elsewhere."""
        self._is_paused = True

    def resume_writing(self) -> None:
        """The socket takes bytes again."""
        self._is_paused = False
        self._changed()

    # ------------------------------------------------------------------------------------------------------- receive

    def data_received(self, data: bytes) -> None:
        """Hand each result to the call that waits for it."""
        pending, seen = self._pending, 0
        try:
            for kind, flags, number, body in self._reader.feed(data):
                if kind != CallKind.RESULT:
                    self._other(kind, number, body)
                    continue
                seen += 1
                found = pending.pop(number, None)
                if found is not None and not found[0].done():
                    found[0].set_result((flags, body))
        except (WireFault, struct_error) as fault:
            self.broke(fault)
            return
        self._unseen += seen
        if seen:
            self.is_heard = True
        self._owed_since = self._loop.time() if pending else 0.0
        self._changed()
        if self._reader.fault is not None:
            self.broke(self._reader.fault)
        elif self.is_leaving and not pending:
            self._flush()
            self._transport.close()

    def _other(self, kind: int, number: int, body: bytes) -> None:
        self.is_heard = True
        if kind == Kind.PING:
            self._send(encode_frame(Kind.PONG, number))
        elif kind == Kind.GOODBYE:
            decode_document("server", GoodbyeDocument, body)
            self.is_leaving = True
            self._changed()
        elif kind == Kind.HELLO:
            self.instance = decode_document("server", PeerHello, body).name
            self._is_introduced = True

    # ---------------------------------------------------------------------------------------------------------- time

    def _sweep(self) -> None:
        """End calls whose deadline has passed; report what was read, if no call has done that."""
        now = self._loop.time()
        for number in [number for number, each in self._pending.items() if each[1] <= now]:
            future, _, name = self._pending.pop(number)
            if not future.done():
                future.set_exception(
                    TimedOut(name, self.instance, "no answer before the deadline; whether it was run is unknown")
                )
            self._send(encode_frame(Kind.CANCEL, number))
        self.listen(now)
        if self._unseen and not self._turn:
            self._flush()
        self._sweeping = None
        if self.is_closed:
            return
        self.used_at = now
        if self._pending:
            self._sweeping = self._loop.call_later(SWEEP_S, self._sweep)
        elif self.is_leaving:
            self._flush()
            self._transport.close()

    def listen(self, now: float) -> None:
        """Ask an instance that owes an answer for a sign of life; give it up if it sends none.

        The pool calls it too: so calls that all end before an answer do not hide that the connection is dead.
        """
        if not self._owed_since or self.is_closed:
            return
        silent = now - self._owed_since
        if silent > SILENT_S and self._asked_at > self._owed_since:
            self.end(f"the instance sent nothing for {SILENT_S:g} s")
        elif silent > PING_AFTER_S and now - self._asked_at > PING_AFTER_S:
            self._asked_at = now
            self._send(encode_frame(Kind.PING, 0))

    # ----------------------------------------------------------------------------------------------------------- end

    def connection_lost(self, fault: Exception | None) -> None:
        """The connection is closed: end what is under way."""
        self.end(f"the connection was closed{f' ({fault})' if fault else ''}")

    def end(self, why: str) -> None:
        """Close the connection; calls under way get `ConnectionLost`."""
        if self.is_closed:
            return
        self.is_closed, self.why = True, why
        self.is_at_fault = self.is_at_fault or not self.is_heard
        if self._sweeping is not None:
            self._sweeping.cancel()
        pending, self._pending = self._pending, {}
        for future, _, name in pending.values():
            if not future.done():
                future.set_exception(ConnectionLost(name, self.instance, f"{why}; whether it was run is unknown"))
        self._changed()
        self._transport.abort()
        self._ended(self)

    def broke(self, fault: Exception) -> None:
        """End the connection to an instance that broke the protocol."""
        self.is_at_fault = True
        self.end(f"the instance broke the protocol: {fault}")

    def close(self) -> None:
        """Close an idle connection, or one whose calls are given up."""
        self._flush()
        self.is_heard = True  # so the end says nothing of the instance
        self.end("the peer was closed")
