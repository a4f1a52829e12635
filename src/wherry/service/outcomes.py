"""How a call ended, as both sides report it. A call that is not known to have had no effect says so.

answered    the method returned, and the caller has its result
refused     the method was not run: `Refused`, with a code that says why
failed      the method was run, and raised: `Failed`, with type and text of its error
timed out   the deadline passed without an answer: `TimedOut`; whether the method was run is unknown
lost        the connection broke without an answer: `ConnectionLost`; whether the method was run is unknown
"""

from __future__ import annotations

from enum import StrEnum
from typing import ClassVar, Final

from wherry.model.errors import Unavailable, WherryError


class CallOutcome(StrEnum):
    """How a call ended; the values are the words in statistics and logs."""

    ANSWERED = "answered"
    REFUSED = "refused"
    FAILED = "failed"
    TIMED_OUT = "timed out"
    CANCELLED = "cancelled"
    LOST = "lost"
    """The connection broke: before the answer; at the provider also before the caller reported that it has read it."""


class RefusalCode(StrEnum):
    """Why a call was refused: nothing was run, so it may be sent again."""

    FULL = "full"
    PAUSED = "paused"
    DRAINING = "draining"
    NO_METHOD = "no-method"
    NO_INSTANCE = "no-instance"
    UNAUTHORIZED = "unauthorized"
    FORBIDDEN = "forbidden"
    INVALID_INPUT = "invalid-input"


ELSEWHERE: Final = frozenset({RefusalCode.DRAINING, RefusalCode.PAUSED, RefusalCode.NO_METHOD})
"""Refusals of one instance that say nothing of the others: the call is sent to another one."""


class CallError(WherryError):
    """A call had no result. `method` is the service and its method, `instance` the id of the instance, if any."""

    outcome: ClassVar[CallOutcome]
    is_unknown = False
    """Whether the method may have been run, although there is no answer."""

    call_id = ""
    """Of a call that a log of lost calls was to keep."""

    is_kept = False
    """Whether the call is in the log of lost calls of this peer, on its disk."""

    def __init__(self, method: str, instance: str, text: str) -> None:
        self.method, self.instance = method, instance
        super().__init__(f"{method} at {instance}: {text}" if instance else f"{method}: {text}")


class Refused(CallError):
    """The method was not run. `reason` says why."""

    code = "refused"
    outcome = CallOutcome.REFUSED

    def __init__(
        self,
        method: str,
        instance: str,
        reason: RefusalCode,
        text: str,
        *,
        field: str | None = None,
        given: str | None = None,
        allowed: str | None = None,
    ) -> None:
        self.reason = reason
        self.field, self.given, self.allowed = field, given, allowed
        super().__init__(method, instance, f"refused ({reason.value}): {text}")


class Failed(CallError):
    """The method was run, and raised an error: `kind` is the class of that error, `text` its text."""

    code = "failed"
    outcome = CallOutcome.FAILED

    def __init__(self, method: str, instance: str, kind: str, text: str) -> None:
        self.kind, self.text = kind, text
        super().__init__(method, instance, f"failed: {kind}: {text}" if text else f"failed: {kind}")


class TimedOut(CallError, TimeoutError):
    """No answer before the deadline; whether the method was run is unknown."""

    code = "timed-out"
    outcome = CallOutcome.TIMED_OUT
    is_unknown = True


class ConnectionLost(CallError, Unavailable):
    """The connection broke before the answer; whether the method was run is unknown."""

    code = "connection-lost"
    outcome = CallOutcome.LOST
    is_unknown = True
