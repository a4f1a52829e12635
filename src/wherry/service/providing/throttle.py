"""How many calls run at a time: of each method, and of the instance. Pure: it counts and orders, and runs nothing.

    enter ──► RUN ──────────────► leave ──► next_calls: those that waited, in the order in which they came
          ├─► WAIT (bounded) ──────────────────┘
          └─► FULL

A call of a method that has room may pass one of another method that has none; calls of one method keep their order.
"""

from __future__ import annotations

from collections import OrderedDict
from enum import Enum, auto
from typing import Generic, TypeVar

C = TypeVar("C")


class Admission(Enum):
    """What becomes of a call that arrived."""

    RUN = auto()
    WAIT = auto()
    FULL = auto()


class MethodRoom(Generic[C]):
    """The room of one method: how many calls run, and which ones wait."""

    __slots__ = ("max_concurrent", "max_waiting", "running", "running_most", "waiting")

    def __init__(self, max_concurrent: int, max_waiting: int) -> None:
        self.max_concurrent, self.max_waiting = max_concurrent, max_waiting
        self.running = 0
        self.running_most = 0
        """The most that ever ran at a time, since the start."""
        self.waiting: OrderedDict[C, int] = OrderedDict()
        """Calls that wait, each with its place among those of all methods."""


class Throttle(Generic[C]):
    """The room of an instance, with that of its methods.

    Examples
    --------
    >>> throttle, room = Throttle[str](8), MethodRoom[str](1, 1)
    >>> [throttle.enter(room, call).name for call in "abc"]
    ['RUN', 'WAIT', 'FULL']
    >>> throttle.leave(room)
    >>> [call for _, call in throttle.next_calls([room])]
    ['b']
    """

    def __init__(self, max_concurrent: int) -> None:
        self.max_concurrent = max_concurrent
        self.running = 0
        self.waiting = 0
        self._arrived = 0

    def enter(self, room: MethodRoom[C], call: C) -> Admission:
        """Count a call that runs now, or put it behind those that wait, or neither."""
        if room.running < room.max_concurrent and self.running < self.max_concurrent and not room.waiting:
            self._count(room)
            return Admission.RUN
        if len(room.waiting) >= room.max_waiting:
            return Admission.FULL
        self._arrived += 1
        room.waiting[call] = self._arrived
        self.waiting += 1
        return Admission.WAIT

    def leave(self, room: MethodRoom[C]) -> None:
        """Count a call that ended; then `next_calls` may have room."""
        room.running -= 1
        self.running -= 1

    def forget(self, room: MethodRoom[C], call: C) -> None:
        """Drop a call that waits."""
        if room.waiting.pop(call, None) is not None:
            self.waiting -= 1

    def next_calls(self, rooms: list[MethodRoom[C]]) -> list[tuple[MethodRoom[C], C]]:
        """Return the calls that may run now, and count them; `rooms` are those of all methods."""
        found: list[tuple[MethodRoom[C], C]] = []
        while self.waiting and self.running < self.max_concurrent:
            first: MethodRoom[C] | None = None
            place = 0
            for room in rooms:
                if room.waiting and room.running < room.max_concurrent:
                    at = next(iter(room.waiting.values()))
                    if first is None or at < place:
                        first, place = room, at
            if first is None:
                break
            call, _ = first.waiting.popitem(last=False)
            self.waiting -= 1
            self._count(first)
            found.append((first, call))
        return found

    def _count(self, room: MethodRoom[C]) -> None:
        self.running += 1
        room.running = running = room.running + 1
        room.running_most = max(room.running_most, running)
