"""Accounts for the end of each call at its provider: one outcome, one answer, one count.

A call has one outcome, which is set once; a call that already has one is not answered again.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from wherry.model.errors import InvalidInput, error_text
from wherry.service import values
from wherry.service.outcomes import CallOutcome, RefusalCode
from wherry.service.providing.running import ProvidedCall, ProvidedMethod
from wherry.wire.native.codec.faults import WireFault
from wherry.wire.native.codec.frames import Flag
from wherry.wire.native.codec.invokes import TEXT_CHARS_MAX, Trouble

OnLost = Callable[[ProvidedCall, CallOutcome], None]
"""Called with a call that had no result, or whose result the caller has not reported as read. Must not raise."""

_MSGPACK: Final = int(Flag.MSGPACK)


class Endings:
    """How calls end. `with_deadline` are the calls whose deadline is watched."""

    def __init__(self, on_lost: OnLost | None) -> None:
        self._on_lost = on_lost
        self.with_deadline: dict[ProvidedCall, None] = {}
        self.unseen_results = 0
        """Results whose caller disconnected before it reported that it has read them."""

    def returned(self, call: ProvidedCall, method: ProvidedMethod, result: object) -> None:
        if call.outcome is not None:  # cancelled, and the method went on to its end
            return
        if method.method.result.is_bytes:
            if type(result) is bytes:
                self.done(call, CallOutcome.ANSWERED)
                call.sink.answer(call, result, 0)
            else:
                self.failed(call, "TypeError", f"the method returned {type(result).__name__}, and declares bytes")
            return
        try:
            if call.flags & Flag.JSON or call.sink.wants_json:
                flags, body = int(Flag.JSON), values.encode_json(result)
            else:
                flags, body = _MSGPACK, values.encode_msgpack(result)
        except InvalidInput as fault:
            self.failed(call, "TypeError", f"the result cannot be encoded: {fault}")
            return
        self.done(call, CallOutcome.ANSWERED)
        try:
            call.sink.answer(call, body, flags)
        except WireFault as fault:
            call.sink.trouble(call, Flag.FAILED, Trouble("failed", str(fault), "TooLarge"))

    def raised(self, call: ProvidedCall, fault: Exception) -> None:
        if call.outcome is None:
            text = error_text(fault)
            kind = type(fault).__name__
            self.failed(call, kind, text.removeprefix(kind).removeprefix(": "))

    def failed(self, call: ProvidedCall, kind: str, text: str) -> None:
        self.done(call, CallOutcome.FAILED)
        call.sink.trouble(call, Flag.FAILED, Trouble("failed", text[:TEXT_CHARS_MAX], kind))
        self.lost(call, CallOutcome.FAILED)

    def invalid(self, call: ProvidedCall, fault: InvalidInput) -> None:
        if call.outcome is None:
            call.ran_from = 0.0
            given = repr(fault.given)[:200]
            trouble = Trouble(RefusalCode.INVALID_INPUT.value, str(fault), "", fault.field, given, fault.allowed)
            self._refuse(call, trouble)

    def refuse(self, call: ProvidedCall, code: RefusalCode, text: str) -> None:
        """Answer a call that is not run."""
        self._refuse(call, Trouble(code.value, text[:TEXT_CHARS_MAX]))

    def _refuse(self, call: ProvidedCall, trouble: Trouble) -> None:
        self.done(call, CallOutcome.REFUSED)
        call.sink.trouble(call, Flag.REFUSED, trouble)

    def done(self, call: ProvidedCall, outcome: CallOutcome) -> None:
        """Account for the end of a call."""
        call.outcome = outcome
        if call.due:
            self.with_deadline.pop(call, None)
        if call.method is not None:
            seconds = time.perf_counter() - call.ran_from if call.ran_from else None
            call.method.statistics.note(outcome, seconds)

    def unseen(self, call: ProvidedCall) -> None:
        """Note an answer whose caller disconnected before it reported that it has read it."""
        self.unseen_results += 1
        if call.outcome is CallOutcome.ANSWERED:
            self.lost(call, CallOutcome.LOST)

    def lost(self, call: ProvidedCall, outcome: CallOutcome) -> None:
        if self._on_lost is not None:
            self._on_lost(call, outcome)
