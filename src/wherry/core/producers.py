"""Idempotent producers: a repeat of a call is answered with the offsets of the first.

For each producer of a topic the last calls are remembered. A call is known by its first sequence number and its
count; sequence numbers only grow, gaps are allowed.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from wherry.model.errors import OutOfSequence

CALLS_MAX = 64
"""Calls remembered for each producer: how many a client may have in flight."""

PRODUCERS_MAX = 100_000
"""Producers remembered for each topic; the one that was silent longest is forgotten first."""


class Call(NamedTuple):
    """One publish of a producer: its sequence numbers, and `partition, base, count` for each part."""

    first: int
    messages: int
    placed: list[int]


class Producers:
    """The producers of one topic, the most recent last."""

    __slots__ = ("_calls",)

    def __init__(self) -> None:
        self._calls: dict[str, deque[Call]] = {}

    def __len__(self) -> int:
        return len(self._calls)

    def repeated(self, producer: str, first: int, count: int) -> Call | None:
        """The earlier call that this one repeats, None if it is new; `OutOfSequence` if it is neither."""
        calls = self._calls.get(producer)
        if not calls or first >= calls[-1].first + calls[-1].messages:
            return None
        for call in calls:
            if call.first == first:
                if call.messages == count:
                    return call
                raise OutOfSequence(producer, first, f"was used before with {call.messages} messages, now {count}")
        if first < calls[0].first:
            raise OutOfSequence(producer, first, f"is older than the last {len(calls)} calls, which are remembered")
        raise OutOfSequence(producer, first, "overlaps an earlier call")

    def note(self, producer: str, call: Call) -> None:
        """A new call went through."""
        calls = self._calls.pop(producer, None)
        if calls is None:
            calls = deque(maxlen=CALLS_MAX)
            if len(self._calls) >= PRODUCERS_MAX:
                del self._calls[next(iter(self._calls))]
        calls.append(call)
        self._calls[producer] = calls

    def dump(self) -> list[tuple[str, list[tuple[int, int, list[int]]]]]:
        """Everything, for a checkpoint. Calls are values, so nothing is done for each of them."""
        return [(name, list(calls)) for name, calls in self._calls.items()]

    def load(self, rows: list[tuple[str, list[tuple[int, int, list[int]]]]]) -> None:
        """The way back from `dump`."""
        for name, calls in rows:
            for call in calls:
                self.note(name, Call(*call))
