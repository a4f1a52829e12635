"""A call while it is made: the method as callers name it, and what was asked for."""

from __future__ import annotations

import time

from wherry.service.balancing.set_aside import SetAside
from wherry.service.statistics import CallStatistics
from wherry.wire.native.codec.invokes import CallContext


class CalledMethod:
    """A method, as callers name it."""

    __slots__ = ("answered", "balancer", "method", "name", "service", "statistics")

    def __init__(self, name: str, service: str, balancer: SetAside) -> None:
        self.name, self.service, self.balancer = name, service, balancer
        self.method = name.encode()
        self.answered = 0
        self.statistics = CallStatistics()
        """Of the calls that had no result."""


class CallAttempt:
    """A call as it was asked for."""

    __slots__ = (
        "argument",
        "context",
        "deadline",
        "flags",
        "has_new_token",
        "idempotent",
        "resend",
        "session",
        "target",
        "timeout_s",
        "token",
        "tried",
    )

    def __init__(
        self,
        target: CalledMethod,
        argument: bytes,
        flags: int,
        timeout_s: float,
        session: str | None,
        context: CallContext | None,
        *,
        idempotent: bool,
        resend: bool | None = False,
    ) -> None:
        self.target, self.argument, self.flags = target, argument, flags
        self.timeout_s, self.session, self.context, self.idempotent = timeout_s, session, context, idempotent
        self.resend = resend
        """None for a call that the log of lost calls sends: it is kept already."""
        self.has_new_token = False
        """Whether it is sent again because its token was refused."""
        self.token = ""
        """The one of the last attempt, where tokens are needed."""
        self.deadline = time.monotonic() + timeout_s
        self.tried: list[str] = []
        """Ids of the instances that it was sent to, or that were not reached."""

    @property
    def left_s(self) -> float:
        """Return the time until its deadline."""
        return max(0.001, self.deadline - time.monotonic())
