"""What a provider keeps of its methods and of each call under way."""

from __future__ import annotations

import asyncio
from collections.abc import Hashable
from typing import TYPE_CHECKING, Final, Protocol

from wherry.service.method import ServiceMethod
from wherry.service.outcomes import CallOutcome
from wherry.service.providing.throttle import MethodRoom, Throttle
from wherry.service.statistics import CallStatistics
from wherry.wire.native.codec.invokes import CallContext, Invoke, Trouble, decode_context

if TYPE_CHECKING:
    from wherry.service.service import Service

NO_CONTEXT: Final = CallContext()


class ResultSink(Protocol):
    """Where the result of a call is sent: a connection of the wire of services, or a request of REST."""

    token: str
    wants_json: bool
    """Whether results are JSON, also if the argument was bytes."""

    def answer(self, call: ProvidedCall, result: bytes, flags: int) -> None:
        """Send a result."""

    def trouble(self, call: ProvidedCall, outcome: int, trouble: Trouble) -> None:
        """Send why there is no result; `outcome` is the flag REFUSED or FAILED."""

    def drop(self, call: ProvidedCall) -> None:
        """Forget a call whose caller wants no answer any more."""


class ProvidedService:
    """A service as this process provides it."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.name = service.name
        self.throttle: Throttle[ProvidedCall] = Throttle(service.max_concurrent)
        self.methods = {name: ProvidedMethod(self, method) for name, method in service.methods.items()}
        self.rooms = [each.room for each in self.methods.values()]
        self.is_draining = False


class ProvidedMethod:
    """A method as this process provides it: its room, its statistics, and whether it is paused."""

    __slots__ = ("full_name", "hedges", "is_paused", "method", "room", "service", "statistics")

    def __init__(self, service: ProvidedService, method: ServiceMethod) -> None:
        self.service, self.method = service, method
        self.full_name = f"{service.name}.{method.name}"
        self.room: MethodRoom[ProvidedCall] = MethodRoom(method.max_concurrent, method.max_waiting)
        self.statistics = CallStatistics()
        self.is_paused = False
        self.hedges = 0
        """Calls that another instance was sent before, since that was slow."""


class ProvidedCall:
    """One call at its provider, from its arrival to its end."""

    __slots__ = (
        "_context",
        "asked",
        "caller",
        "due",
        "flags",
        "method",
        "number",
        "outcome",
        "ran_from",
        "repeat_key",
        "sink",
        "task",
        "trouble",
    )

    def __init__(self, sink: ResultSink, number: int, flags: int, asked: Invoke) -> None:
        self.sink, self.number, self.flags, self.asked = sink, number, flags, asked
        self.method: ProvidedMethod | None = None
        self.task: asyncio.Task[None] | None = None
        self.outcome: CallOutcome | None = None
        """How it ended; set once."""
        self.caller = ""
        self.due = 0.0
        """By `time.monotonic`, also in another thread; 0 for none."""
        self.ran_from = 0.0
        """When the method began; 0 before."""
        self.repeat_key: Hashable = None
        """By what a repeat of it is known; None without a call id."""
        self.trouble: Trouble | None = None
        """How it failed."""
        self._context: CallContext | None = None

    @property
    def name(self) -> str:
        """Return the service and the method."""
        return self.asked.method.decode("utf-8", "replace")

    def context(self) -> CallContext:
        """Return what travelled with the call."""
        if self._context is None:
            self._context = decode_context(self.asked.context) if self.asked.context else NO_CONTEXT
        return self._context


def full_text(method: ProvidedMethod) -> str:
    """Return why a call is refused as full."""
    room, throttle = method.room, method.service.throttle
    return (
        f"{room.running} of {room.max_concurrent} calls of the method run, {len(room.waiting)} of {room.max_waiting} "
        f"wait; {throttle.running} of {throttle.max_concurrent} of the service run"
    )
