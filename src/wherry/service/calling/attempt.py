"""A call while it is made: the method as callers name it, and what was asked for."""

from __future__ import annotations

import copy
import time
from collections.abc import Container
from typing import Final

import msgspec

from wherry.mesh.instance import Instance
from wherry.model.errors import InvalidInput
from wherry.service.balancing.hedges import Hedges
from wherry.service.balancing.retries import Retries
from wherry.service.balancing.set_aside import SetAside
from wherry.service.statistics import CallStatistics
from wherry.wire.native.codec.faults import WireFault
from wherry.wire.native.codec.invokes import CallContext, encode_context

REFUSING_MAX: Final = 10_000
"""Instances that are remembered as refusing one method."""


class CalledMethod:
    """A method, as callers name it."""

    __slots__ = (
        "answered",
        "balancer",
        "hedges",
        "is_idempotent",
        "method",
        "name",
        "refusing",
        "retries",
        "service",
        "statistics",
        "turns",
    )

    def __init__(self, name: str, service: str, balancer: SetAside, retries: Retries) -> None:
        self.name, self.service, self.balancer, self.retries = name, service, balancer, retries
        self.turns = balancer.for_method()
        self.refusing: dict[str, float] = {}
        """Instances that refused this method alone, each with the time until which it gets no calls of it."""
        self.method = name.encode()
        self.is_idempotent = False
        """Whether its provider declares that it may run twice, as the last answer had it."""
        self.hedges = Hedges()
        self.answered = 0
        self.statistics = CallStatistics()
        """Of the calls that had no result."""

    def refused_by(self, instance_id: str, until: float) -> None:
        """Note an instance that refuses this method, and perhaps no other one."""
        if len(self.refusing) >= REFUSING_MAX:
            self.refusing.clear()
        self.refusing[instance_id] = until

    def left_out(self, tried: list[str], now: float) -> Container[str]:
        """Return the instances that are not to be chosen: those tried, and those that refuse this method now."""
        refusing = self.refusing
        for each in [each for each, until in refusing.items() if until <= now]:
            del refusing[each]
        return refusing if not tried else {*refusing, *tried}


class CallAttempt:
    """A call as it was asked for."""

    __slots__ = (
        "argument",
        "context",
        "deadline",
        "encoded",
        "flags",
        "has_new_token",
        "hedge",
        "idempotent",
        "is_hedged",
        "resend",
        "second",
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
        self.encoded = b"" if context is None else _encoded(context)
        """The context, as it is sent."""
        self.resend = resend
        """None for a call that the log of lost calls sends: it is kept already."""
        self.hedge: bool | float = False
        """Whether it is sent to a second instance when it is slow, and after which time."""
        self.is_hedged = False
        """Whether that was done."""
        self.second: Instance | None = None
        """The second instance, if this is what is sent to it."""
        self.has_new_token = False
        """Whether it is sent again because its token was refused."""
        self.token = ""
        """The one of the last attempt, where tokens are needed."""
        self.deadline = time.monotonic() + timeout_s
        self.tried: list[str] = []
        """Ids of the instances that it was sent to, or that were not reached."""

    @property
    def may_repeat(self) -> bool:
        """Return whether it may run twice: its caller says so, or its provider does."""
        return self.idempotent or self.target.is_idempotent

    def as_hedge(self, second: Instance) -> CallAttempt:
        """Return the call as it is sent to a second instance: the same, with a mark."""
        other = copy.copy(self)
        other.second = second
        other.encoded = _encoded(msgspec.structs.replace(self.context or CallContext(), hedge=True))
        return other

    @property
    def left_s(self) -> float:
        """Return the time until its deadline."""
        return max(0.001, self.deadline - time.monotonic())


def _encoded(context: CallContext) -> bytes:
    try:
        return encode_context(context)
    except WireFault as fault:
        raise InvalidInput("context", fault.given, fault.allowed) from None
    except (TypeError, ValueError, OverflowError, RecursionError) as fault:
        raise InvalidInput("context", type(context).__name__, f"a CallContext of texts ({fault})") from None
