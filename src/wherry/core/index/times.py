"""The next time at which each of many keys has to be checked: a heap with lazy removal.

A time may be too early, but never too late: a check that comes too early finds nothing, and notes the next time.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
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

    def may_be_due(self, now: int) -> bool:
        """Return False if no time has come, True if one may have: without a look past an outdated row."""
        return bool(self._heap) and self._heap[0][0] <= now

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


class ExpiryTimes:
    """When messages may next expire, by topic and partition; and the partitions where that time has come.

    A partition stays among those that are due until `done` is called for it: the journal may have no space now.
    """

    __slots__ = ("_due", "_times")

    def __init__(self) -> None:
        self._times: Times[tuple[int, int]] = Times()
        self._due: dict[int, dict[int, None]] = {}

    def __len__(self) -> int:
        return len(self._times) + sum(map(len, self._due.values()))

    def note(self, topic: int, partition: int, at_ms: int) -> None:
        """Look for expired messages at this time at the latest."""
        if partition not in self._due.get(topic, ()):
            self._times.note((topic, partition), at_ms)

    def forget(self, topic: int, partition: int) -> None:
        """Forget a partition."""
        self._times.forget((topic, partition))
        due = self._due.get(topic)
        if due is not None:
            due.pop(partition, None)
            if not due:
                del self._due[topic]

    def done(self, topic: int, partition: int, next_ms: int | None) -> None:
        """Note that nothing of a partition is due any more, and when the next message of it expires."""
        self.forget(topic, partition)
        if next_ms is not None:
            self._times.note((topic, partition), next_ms)

    def is_due(self, now_ms: int) -> bool:
        """Return whether messages of any topic may have expired."""
        if self._times.may_be_due(now_ms):
            for topic, partition in self._times.due(now_ms):
                self._due.setdefault(topic, {})[partition] = None
        return bool(self._due)

    def may_be_due_now(self) -> bool:
        """Return False if `next_ms` is not 0; True if it may be."""
        return bool(self._due) or self._times.may_be_due(0)

    def due_topics(self) -> int:
        """Return in how many topics `is_due` found something."""
        return len(self._due)

    def due(self, topics: Iterable[int] | None) -> list[tuple[int, int]]:
        """Return the partitions of some topics (None: of all) that `is_due` found, by the time since they are due."""
        chosen = self._due if topics is None else [each for each in dict.fromkeys(topics) if each in self._due]
        return [(topic, partition) for topic in chosen for partition in self._due[topic]]

    def next_ms(self) -> int | None:
        """Return when `is_due` should be asked next: 0 for now, None for never."""
        if self._due:
            return 0
        first = self._times.first()
        return None if first is None else first[0]
