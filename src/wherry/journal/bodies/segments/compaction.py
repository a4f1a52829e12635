"""Finds segments to delete or to compact, a few at a time, so that no call takes long however many there are."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeAlias

from wherry.journal.bodies.segments.segment import Segment

Wants: TypeAlias = Callable[[int, int, int, int], int]
"""Returns an upper bound of the messages of a partition (topic, partition, from, to) that are needed; 0: none."""

SPARSE_FACTOR = 4
"""A segment is compacted when less than one in so many of its messages is needed."""
SCAN_MAX = 1_024
"""Segments that one scan examines, at a few microseconds each: 64 GiB, if they are full."""


class SparseSegments:
    """Goes over all segments again and again, and keeps those that are worth compacting."""

    def __init__(self) -> None:
        self._round: list[Segment] = []
        """Segments still to be examined in this round, the next one last."""
        self._sparse: dict[Segment, int] = {}
        """Segments with few needed messages, and the bytes that compacting each would free."""

    @property
    def gain_bytes(self) -> int:
        """Return about how many bytes compacting all known sparse segments would free."""
        return sum(self._sparse.values())

    def scan(self, segments: Iterable[Segment], wants: Wants) -> list[Segment]:
        """Examine the next segments of the round; return those without a needed message."""
        if not self._round:
            self._round = list(segments)[::-1]
            self._sparse = {}
        dead = []
        for _ in range(min(SCAN_MAX, len(self._round))):
            segment = self._round.pop()
            alive, rows = _alive(segment, wants), segment.rows
            if not alive:
                dead.append(segment)
            elif SPARSE_FACTOR * alive < rows:
                self._sparse[segment] = segment.bytes * (rows - alive) // rows
        return dead

    def take(self, has: Callable[[Segment], bool]) -> Segment | None:
        """Remove and return the sparse segment that would free the most and is still in use."""
        while self._sparse:
            segment = max(self._sparse, key=self._sparse.__getitem__)
            del self._sparse[segment]
            if has(segment):
                return segment
        return None


def _alive(segment: Segment, wants: Wants) -> int:
    return wants(segment.topic, segment.partition, segment.first, segment.last + 1)
