"""The end of a turn of the event loop: what was gathered in it is submitted, then written, then waiters are woken.

    reads, calls ──► submit: publishes, settles ──► write: one group, one sync ──► wake: pulls that wait

All of it is one call of the loop: a lone message pays for each call.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextvars import copy_context
from enum import IntEnum
from typing import TypeAlias

Call: TypeAlias = Callable[[], None]


class Phase(IntEnum):
    """What is done at the end of a turn, in this order."""

    SUBMIT = 0
    WRITE = 1
    WAKE = 2


class Turn:
    """Calls to make at the end of the current turn of the loop, by phase."""

    __slots__ = ("_context", "_is_scheduled", "_phases")

    def __init__(self) -> None:
        self._phases: tuple[deque[Call], ...] = tuple(deque() for _ in Phase)
        self._is_scheduled = False
        self._context = copy_context()  # of the broker: the task of the caller may end before the end of the turn

    def at_end(self, phase: Phase, call: Call) -> None:
        """Call at the end of this turn, or of the next one if that phase of this turn is over."""
        self._phases[phase].append(call)
        self._schedule()

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._end, context=self._context)

    def _end(self) -> None:
        try:
            for calls in self._phases:
                for _ in range(
                    len(calls)
                ):  # what is added from here on is for the next turn, unless its phase is later
                    self._make(calls.popleft())
        finally:  # after a KeyboardInterrupt too, the calls that were not made have their turn
            self._is_scheduled = False
            if any(self._phases):
                self._schedule()

    def _make(self, call: Call) -> None:
        """Make a call; an exception is reported as that of any callback, and the others are made."""
        try:
            call()
        except (Exception, asyncio.CancelledError) as fault:
            report = {"message": f"{call!r} failed at the end of a turn", "exception": fault}
            asyncio.get_running_loop().call_exception_handler(report)
