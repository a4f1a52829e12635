"""The end of a turn of the event loop: gathered calls are submitted, then written, waiters are woken, answers sent.

    reads, calls ─► submit: publishes, settles ─► write: one group, one sync ─► wake: pulls that wait ─► send: answers

All of it is one call of the loop: a lone message pays for each call.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import copy_context
from enum import IntEnum
from typing import TypeAlias

EndOfTurn: TypeAlias = Callable[[], None]


class Phase(IntEnum):
    """What is done at the end of a turn, in this order."""

    SUBMIT = 0
    WRITE = 1
    WAKE = 2
    SEND = 3


class Turn:
    """Calls to make at the end of the current turn of the loop, by phase."""

    __slots__ = ("_context", "_is_scheduled", "_phases")

    def __init__(self) -> None:
        self._phases: list[list[EndOfTurn]] = [[] for _ in Phase]
        self._is_scheduled = False
        self._context = copy_context()  # of the broker: the task of the caller may end before the end of the turn

    def at_end(self, phase: Phase, call: EndOfTurn) -> None:
        """EndOfTurn at the end of this turn, or of the next one if that phase of this turn has begun."""
        self._phases[phase].append(call)
        if not self._is_scheduled:
            self._schedule()

    def _schedule(self) -> None:
        self._is_scheduled = True
        asyncio.get_running_loop().call_soon(self._end, context=self._context)

    def _end(self) -> None:
        """Make the calls of each phase; what they add to a later phase is of this turn too."""
        phases = self._phases
        try:
            for phase, calls in enumerate(phases):
                if not calls:
                    continue
                phases[phase] = []
                left = iter(calls)
                for call in left:
                    try:
                        call()
                    except (Exception, asyncio.CancelledError) as fault:
                        _report(call, fault)
                    except BaseException:  # a KeyboardInterrupt: the calls that were not made have their turn
                        phases[phase][:0] = left
                        raise
        finally:
            self._is_scheduled = False
            if any(phases):
                self._schedule()


def _report(call: EndOfTurn, fault: BaseException) -> None:
    """Report an exception of a call as that of any callback; the other calls are made."""
    report = {"message": f"{call!r} failed at the end of a turn", "exception": fault}
    asyncio.get_running_loop().call_exception_handler(report)
