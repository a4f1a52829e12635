"""Segments that are dead, or mostly: found a few at a time, so that no look takes long however many there are."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeAlias

from wherry.journal.bodies.segment import Segment

Wants: TypeAlias = Callable[[int, int, int, int], int]
"""How many messages of a partition (topic, partition, from, to) are wanted at most; 0 means none."""

SPARSE_FACTOR = 4
"""A segment is written again when less than one in so many of its messages is wanted."""
LOOK_MAX = 1_024
"""Segments that one look goes through, at a few microseconds each: 64 GiB, if they are full."""


class SparseSegments:
    """Goes round all segments, and remembers those that are worth writing again."""

    def __init__(self) -> None:
        self._round: list[Segment] = []
        """Still to be looked at in this round, the next one last."""
        self._sparse: dict[Segment, int] = {}
        """Mostly dead, and the bytes that writing each again would win."""

    @property
    def gain_bytes(self) -> int:
        """About what writing all known sparse segments again would win."""
        return sum(self._sparse.values())

    def scan(self, segments: Iterable[Segment], wants: Wants) -> list[Segment]:
        """Go on with the round of `segments`; those met in which nobody wants anything any more."""
        if not self._round:
            self._round = list(segments)[::-1]
            self._sparse = {}
        dead = []
        for _ in range(min(LOOK_MAX, len(self._round))):
            segment = self._round.pop()
            alive, rows = _alive(segment, wants), segment.rows
            if not alive:
                dead.append(segment)
            elif SPARSE_FACTOR * alive < rows:
                self._sparse[segment] = segment.bytes * (rows - alive) // rows
        return dead

    def take(self, has: Callable[[Segment], bool]) -> Segment | None:
        """The sparse segment that wins the most and is still there, for good."""
        while self._sparse:
            segment = max(self._sparse, key=self._sparse.__getitem__)
            del self._sparse[segment]
            if has(segment):
                return segment
        return None


def _alive(segment: Segment, wants: Wants) -> int:
    return wants(segment.topic, segment.partition, segment.first, segment.last + 1)
