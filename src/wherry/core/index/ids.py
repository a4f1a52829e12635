"""Which message has a custom id: 16 bytes a message, whatever the length of the ids.

An id belongs to its message as long as the message is in the topic (waiting, leased, dead or kept); then it is free.
The index holds hashes only, so the caller compares the id of each candidate itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from wherry.core.index.runs import NOTHING, Pairs

Int64: TypeAlias = npt.NDArray[np.int64]
Mask: TypeAlias = npt.NDArray[np.bool_]

PARTITION_SHIFT = 43

RUN_MAX = 1 << 18
"""Runs are merged up to this size: about 8 ms, the longest pause of this index. A lookup searches every run."""


class PackedOffset:
    """A partition and an offset packed into one int64, so that an index can hold them."""

    @staticmethod
    def pack(partition: int, offset: Int64) -> Int64:
        """Return offsets of one partition as packed offsets."""
        return offset | (partition << PARTITION_SHIFT)

    @staticmethod
    def unpack(packed: int) -> tuple[int, int]:
        """Return the partition and the offset."""
        return packed >> PARTITION_SHIFT, packed & ((1 << PARTITION_SHIFT) - 1)


class IdIndex:
    """Candidates by the rank of their hash: sorted runs of (rank, packed offset), each of at most `RUN_MAX` pairs."""

    __slots__ = ("_runs",)

    def __init__(self) -> None:
        self._runs: list[Pairs] = []

    def __len__(self) -> int:
        return sum(len(run.rank) for run in self._runs)

    def add(self, rank: Int64, packed: Int64) -> None:
        """Add messages with ids."""
        for start in range(0, len(rank), RUN_MAX):
            self._push(Pairs(rank[start : start + RUN_MAX], packed[start : start + RUN_MAX]))

    def _push(self, new: Pairs) -> None:
        """Append a run, merged with the last runs while they are of like size: each pair moves O(log n) times."""
        parts, total = [new], len(new.rank)
        while self._runs and len(self._runs[-1].rank) < min(total * 2, RUN_MAX + 1 - total):
            parts.append(self._runs.pop())
            total += len(parts[-1].rank)
        rank, packed = (np.concatenate(column) for column in zip(*parts, strict=True))
        order = np.argsort(rank, kind="stable")  # a merge: the stable sort makes use of the sorted parts
        self._runs.append(Pairs(rank[order], packed[order]))

    def find(self, rank: Int64) -> tuple[Int64, Int64]:
        """Return rows of `rank`, and a packed offset for each. A row may be returned several times or not at all."""
        order = np.argsort(rank, kind="stable")  # sorted, so that a run is read from front to back
        asked = rank[order]
        rows, found = [order[:0]], [rank[:0]]
        for run in self._runs:
            low = np.searchsorted(run.rank, asked)
            hits = np.flatnonzero(run.rank.take(low, mode="clip") == asked)
            if len(hits) == 0:
                continue
            low = low[hits]
            count = np.searchsorted(run.rank, asked[hits], "right") - low
            step = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
            rows.append(np.repeat(order[hits], count))
            found.append(run.offset[np.repeat(low, count) + step])
        row = np.concatenate(rows)
        by_row = np.argsort(row, kind="stable")
        return row[by_row], np.concatenate(found)[by_row]

    def prune(self, gone: Callable[[Int64], Mask]) -> None:
        """Remove the packed offsets that are `gone`, over several calls: one long call would be a long pause.

        Each call takes a sixteenth of the runs, at least one, so that pruning keeps up with any rate of new ids.
        """
        for run in [self._runs.pop(0) for _ in range(-(-len(self._runs) // 16))]:
            alive = ~gone(run.offset)
            if alive.any():
                self._push(Pairs(run.rank[alive], run.offset[alive]))

    def columns(self) -> Pairs:
        """Return every pair, for a checkpoint."""
        parts = [NOTHING, *self._runs]
        return Pairs(np.concatenate([p.rank for p in parts]), np.concatenate([p.offset for p in parts]))
