"""Accounts for the end of each call at its provider: one outcome, one answer, one count.

A call has one outcome, which is set once; a call that already has one is not answered again.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from wherry.model.errors import InvalidInput, error_text
from wherry.service import values
from wherry.service.outcomes import CallOutcome, RefusalCode
from wherry.service.providing.running import ProvidedCall, ProvidedMethod
from wherry.service.providing.unseen import Unseen
from wherry.wire.native.codec.frames import FRAME_BYTES_MAX, Flag
from wherry.wire.native.codec.invokes import TEXT_CHARS_MAX, Trouble

OnLost = Callable[[ProvidedCall, CallOutcome], None]
"""Called with a call that had no result, or whose result the caller has not reported as read. Must not raise."""

_log = logging.getLogger("wherry.service")

_MSGPACK, _JSON = int(Flag.MSGPACK), int(Flag.JSON)


class Endings:
    """How calls end. `with_deadline` are the calls whose deadline is watched."""

    def __init__(self, on_lost: OnLost | None, note_answer: Callable[[ProvidedCall, bytes, int], None]) -> None:
        self._on_lost = on_lost
        self.note_answer = note_answer
        """Called with the result of a call that has an id, for repeats of it."""
        self.with_deadline: dict[ProvidedCall, None] = {}
        self.unseen_results = 0
        """Results whose caller disconnected before it reported that it has read them."""

    def returned(self, call: ProvidedCall, method: ProvidedMethod, result: object) -> None:
        if call.outcome is not None and call.repeat_key is None:  # cancelled, and the method went on to its end
            return
        flags, body = 0, b""
        try:
            if not method.method.result.is_bytes:
                is_json = call.flags & Flag.JSON or call.sink.wants_json
                flags = _JSON if is_json else _MSGPACK
                body = values.encode_json(result) if is_json else values.encode_msgpack(result)
            elif type(result) is bytes:
                body = result
            else:
                self._wrong(call, "TypeError", f"the method returned {type(result).__name__}, and declares bytes")
                return
        except InvalidInput as fault:
            self._wrong(call, "TypeError", f"the result cannot be encoded: {fault}")
            return
        if len(body) > FRAME_BYTES_MAX:
            self._wrong(call, "TooLarge", f"the result has {len(body)} bytes; at most {FRAME_BYTES_MAX} are allowed")
            return
        if call.outcome is None:
            self.answered(call, body, flags)
        if call.repeat_key is not None:
            self.note_answer(call, body, flags)

    def answered(self, call: ProvidedCall, body: bytes, flags: int) -> None:
        """Answer a call."""
        self.done(call, CallOutcome.ANSWERED)
        call.sink.answer(call, body, flags)

    def _wrong(self, call: ProvidedCall, kind: str, text: str) -> None:
        """Answer a call whose method returned what cannot be sent."""
        if call.outcome is None:
            self.failed(call, kind, text)

    def raised(self, call: ProvidedCall, fault: BaseException) -> None:
        if not isinstance(fault, Exception):
            _log.error("%s raised what is no Exception", call.name, exc_info=fault)
        if call.outcome is None:
            text = error_text(fault, TEXT_CHARS_MAX)
            kind = type(fault).__name__
            self.failed(call, kind, text.removeprefix(kind).removeprefix(": "))

    def failed(self, call: ProvidedCall, kind: str, text: str) -> None:
        self.done(call, CallOutcome.FAILED)
        call.trouble = Trouble("failed", text[:TEXT_CHARS_MAX], kind)
        call.sink.trouble(call, Flag.FAILED, call.trouble)
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

    @property
    def keeps_calls(self) -> bool:
        """Return whether a call is needed after its answer, until its caller has read it."""
        return self._on_lost is not None

    def unseen(self, results: Unseen) -> None:
        """Note results whose caller disconnected before it reported that it has read them."""
        self.unseen_results += results.count
        for call in results.calls:
            if call.outcome is CallOutcome.ANSWERED:
                self.lost(call, CallOutcome.LOST)

    def lost(self, call: ProvidedCall, outcome: CallOutcome) -> None:
        if self._on_lost is not None:
            self._on_lost(call, outcome)
