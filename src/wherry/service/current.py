"""The call that the running method answers: its deadline, session and trace bound and mark the calls that it makes."""

from __future__ import annotations

import time
from contextvars import ContextVar
from typing import Protocol

from wherry.service.outcomes import CallOutcome
from wherry.wire.native.codec.invokes import CallContext


class CurrentCall(Protocol):
    """What a method can know of the call that it answers."""

    caller: str
    """The name of the caller, where tokens are checked."""
    due: float
    """When the answer is due, by `time.monotonic`; 0 for no deadline."""
    outcome: CallOutcome | None
    """How it ended; None while the method may still answer it."""

    @property
    def name(self) -> str:
        """Return the service and the method."""

    def context(self) -> CallContext:
        """Return what travelled with the call: session, call id, trace."""


CURRENT: ContextVar[CurrentCall] = ContextVar("wherry_call")


def current_call() -> CurrentCall | None:
    """Return the call that the running method answers; None outside of methods."""
    return CURRENT.get(None)


def within_current(timeout_s: float, context: CallContext | None) -> tuple[float, CallContext | None]:
    """Return the timeout and the context of a call: one that a method makes ends with its deadline, and has its trace.

    A task that outlives the call of its method has deadlines of its own.
    """
    current = CURRENT.get(None)
    if current is not None and current.outcome is None:
        if current.due:
            timeout_s = max(0.001, min(timeout_s, current.due - time.monotonic()))
        if context is None and (found := current.context()).traceparent is not None:
            context = CallContext(traceparent=found.traceparent, tracestate=found.tracestate)
    return timeout_s, context
