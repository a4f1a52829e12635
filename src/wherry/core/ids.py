"""Which message has a custom id: 16 bytes a message, whatever the length of the ids.

An id belongs to its message as long as that message is in the topic (waiting, leased, dead or kept); then it is free.
The index holds hashes; whoever finds a candidate compares the id itself.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from wherry.core.runs import Pairs, sort_pairs

Int64: TypeAlias = npt.NDArray[np.int64]

PARTITION_SHIFT = 43


class Place:
    """A partition and an offset in one int64, so that an index can hold them."""

    @staticmethod
    def pack(partition: int, offset: Int64) -> Int64:
        """Offsets of one partition as places."""
        return offset | (partition << PARTITION_SHIFT)

    @staticmethod
    def unpack(place: int) -> tuple[int, int]:
        """Partition and offset."""
        return place >> PARTITION_SHIFT, place & ((1 << PARTITION_SHIFT) - 1)


class IdIndex:
    """Candidates by hash rank: a few sorted runs of (rank, place)."""

    __slots__ = ("_runs",)

    def __init__(self) -> None:
        self._runs: list[Pairs] = []

    def __len__(self) -> int:
        return sum(len(run.rank) for run in self._runs)

    def add(self, rank: Int64, place: Int64) -> None:
        """New messages with ids."""
        if len(rank) == 0:
            return
        self._runs.append(sort_pairs(rank, place))
        while len(self._runs) > 1 and len(self._runs[-1].rank) * 2 > len(self._runs[-2].rank):
            last, before = self._runs.pop(), self._runs.pop()
            self._runs.append(
                sort_pairs(np.concatenate((before.rank, last.rank)), np.concatenate((before.offset, last.offset)))
            )

    def find(self, rank: Int64) -> tuple[Int64, Int64]:
        """Candidates: rows of `rank`, and the place for each; a row may come more than once, or not at all."""
        rows, places = [], []
        for run in self._runs:
            low, high = np.searchsorted(run.rank, rank, "left"), np.searchsorted(run.rank, rank, "right")
            hits = np.flatnonzero(high > low)
            for row in hits.tolist():
                found = run.offset[low[row] : high[row]]
                rows.append(np.full(len(found), row, np.int64))
                places.append(found)
        if not rows:
            return np.empty(0, np.int64), np.empty(0, np.int64)
        return np.concatenate(rows), np.concatenate(places)

    def places(self) -> Int64:
        """Every place, for weeding."""
        parts = [run.offset for run in self._runs]
        return np.concatenate(parts) if parts else np.empty(0, np.int64)

    def keep(self, wanted: Int64) -> None:
        """Forget every place that is not in `wanted` (sorted)."""
        kept = []
        for run in self._runs:
            at = np.minimum(np.searchsorted(wanted, run.offset), max(len(wanted) - 1, 0))
            alive = wanted[at] == run.offset if len(wanted) else np.zeros(len(run.offset), np.bool_)
            if alive.any():
                kept.append(Pairs(run.rank[alive], run.offset[alive]))
        self._runs = kept

    def columns(self) -> Pairs:
        """Every pair, for a checkpoint."""
        if not self._runs:
            return Pairs(np.empty(0, np.int64), np.empty(0, np.int64))
        return Pairs(np.concatenate([r.rank for r in self._runs]), np.concatenate([r.offset for r in self._runs]))
