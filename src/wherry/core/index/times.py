"""The next time at which each of many keys has to be checked: a heap with lazy removal.

A time may be too early, but never too late: a check that comes too early finds nothing, and notes the next time.
"""

from __future__ import annotations

import heapq
from typing import Generic, TypeVar

K = TypeVar("K", int, tuple[int, int])

SLACK = 64


class Times(Generic[K]):
    """One time for each key: the earliest that was noted since the key was last taken."""

    __slots__ = ("_at", "_heap")

    def __init__(self) -> None:
        self._at: dict[K, int] = {}
        self._heap: list[tuple[int, K]] = []  # rows that differ from `_at` are outdated, and skipped

    def __len__(self) -> int:
        return len(self._at)

    def __contains__(self, key: K) -> bool:
        return key in self._at

    def note(self, key: K, at: int) -> None:
        """Check `key` at this time at the latest; an earlier time that was noted stays."""
        known = self._at.get(key)
        if known is not None and known <= at:
            return
        self._at[key] = at
        heapq.heappush(self._heap, (at, key))
        if len(self._heap) > 2 * len(self._at) + SLACK:
            self._heap = [(time, each) for each, time in self._at.items()]
            heapq.heapify(self._heap)

    def first(self) -> tuple[int, K] | None:
        """Return the earliest time and its key."""
        while self._heap:
            at, key = self._heap[0]
            if self._at.get(key) == at:
                return at, key
            heapq.heappop(self._heap)
        return None

    def forget(self, key: K) -> None:
        """Forget the time of `key`."""
        self._at.pop(key, None)

    def due(self, now: int) -> list[K]:
        """Remove and return every key whose time has come, earliest first."""
        taken: list[K] = []
        while (first := self.first()) is not None and first[0] <= now:
            taken.append(first[1])
            self.forget(first[1])
        return taken
