"""Calls that come again with the id of an earlier one: each is answered with the result of the first, or waits for it.

A repeat is one of the same caller, method and call id; so no caller is given what another one was answered. It runs
only when the first has really ended without a result. The id of another argument is refused, while the first one is
remembered: its client means another call. A call without an id is never looked at.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable
from typing import TypeAlias

from wherry.model.errors import InvalidInput
from wherry.service.lost.repeats import Repeats
from wherry.service.providing.running import ProvidedCall

Answer: TypeAlias = tuple[bytes, int, int]
"""The body and the flags of a result, and the hash of the argument."""


class Repeating:
    """The repeats of one provider."""

    def __init__(
        self,
        run: Callable[[ProvidedCall], None],
        answer: Callable[[ProvidedCall, bytes, int], None],
        refuse: Callable[[ProvidedCall, InvalidInput], None],
    ) -> None:
        self._run, self._answer, self._refuse = run, answer, refuse
        self._window = Repeats[Answer]()
        self._first: dict[Hashable, ProvidedCall] = {}
        self._behind: dict[Hashable, dict[ProvidedCall, None]] = {}
        """Repeats that wait for the first call to end."""
        self.recognised = 0
        """Repeats that were not run, since the start."""

    def admits(self, call: ProvidedCall) -> bool:
        """Return whether a call is to be run; if not, it is answered by now, or will be."""
        call_id = call.context().call_id
        if call_id is None:
            return True
        # Results differ by wire: as JSON over REST, whatever the argument was.
        key = call.repeat_key = call.caller, call.asked.method, call.flags, call.sink.wants_json, call_id
        known = self._window.begin(key, time.monotonic())
        if known.kind == "new":
            self._first[key] = call
            return True
        argument = call.asked.argument
        if known.result is not None:
            body, flags, mark = known.result
            is_same = mark == _mark(argument)
        else:
            is_same = self._first[key].asked.argument == argument
        if not is_same:
            call.repeat_key = None
            allowed = "an id of its own for each call: this one came with another argument before"
            self._refuse(call, InvalidInput("call_id", call_id, allowed))
            return False
        self.recognised += 1
        if known.result is None:
            self._behind.setdefault(key, {})[call] = None
        else:
            self._answer(call, body, flags)
        return False

    def answered(self, call: ProvidedCall, body: bytes, flags: int) -> None:
        """Note the result of a call, and answer those that wait for it."""
        key = call.repeat_key
        if self._first.get(key) is not call:
            return
        del self._first[key]
        self._window.answered(key, (body, flags, _mark(call.asked.argument)), len(body), time.monotonic())
        for each in self._behind.pop(key, ()):
            self._answer(each, body, flags)

    def ended(self, call: ProvidedCall) -> None:
        """Note that a call does not run any more; if it had no result, a repeat of it runs."""
        key = call.repeat_key
        if self._first.get(key) is not call:
            if key in self._behind:
                self._behind[key].pop(call, None)
            return
        del self._first[key]
        self._window.forget(key)
        for each in self._behind.pop(key, ()):
            self._run(each)


def _mark(argument: bytes) -> int:
    return hash(argument)
