"""Where the bodies of one partition are: batches in memory, and segments on disk."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from wherry.journal.segment import Segment

Int64: TypeAlias = npt.NDArray[np.int64]

OVERHEAD_BYTES = 1_024
"""What a batch in memory costs beside its columns."""


@dataclass(slots=True)
class Cached:
    """A compact batch in memory, and where the journal has it."""

    topic: int
    partition: int
    base: int
    batch: pa.RecordBatch
    published_us: int
    position: int
    index: int
    gate: int
    size: int
    dropped: bool = False

    @property
    def count(self) -> int:
        """Messages of the batch."""
        return int(self.batch.num_rows)


class Piece(NamedTuple):
    """Messages of one batch that were asked for: which rows of the answer they are, and which of the batch."""

    at: Int64 | slice
    batch: pa.RecordBatch
    published_us: int | Int64
    gate: int


class Block(NamedTuple):
    """A block of a segment in memory, as a full batch, and its offsets."""

    batch: pa.RecordBatch
    offsets: Int64
    published_us: Int64


class Shelf:
    """Bodies of one partition by offset."""

    __slots__ = ("_base", "_end", "_slots", "_start", "_stop", "hits", "loaded", "segments")

    def __init__(self) -> None:
        self._base = np.zeros(16, np.int64)
        self._stop = np.zeros(16, np.int64)
        self._slots: list[Cached | None] = []
        self._start = 0
        self._end = 0
        self.segments: list[Segment] = []
        self.loaded: dict[tuple[str, int], Block] = {}
        self.hits: list[tuple[str, int]] = []
        """Blocks that the last question found."""

    def put(self, cached: Cached) -> None:
        """A batch comes into memory.

        Bases only grow as messages are published. On recovery they come in the order of the journal, which has the
        body of a staged batch where it was staged and not where it was committed.
        """
        if self._end == len(self._base):
            self._make_room()
        row = len(self._slots)
        if row and cached.base < self._base[self._end - 1]:
            row = int(np.searchsorted(self._base[self._start : self._end], cached.base))
        at = self._start + row
        for column in (self._base, self._stop):
            column[at + 1 : self._end + 1] = column[at : self._end].copy()
        self._base[at] = cached.base
        self._stop[at] = cached.base + cached.count
        self._slots.insert(row, cached)
        self._end += 1

    def drop(self, base: int) -> Cached | None:
        """A batch leaves memory."""
        row = int(np.searchsorted(self._base[self._start : self._end], base))
        if row >= self._end - self._start or self._base[self._start + row] != base:
            return None
        cached = self._slots[row]
        self._slots[row] = None
        self._stop[self._start + row] = base
        if row == 0:
            self._drop_leading()
        return cached

    def _drop_leading(self) -> None:
        gone = 0
        while gone < len(self._slots) and self._slots[gone] is None:
            gone += 1
        del self._slots[:gone]
        self._start += gone
        if self._start == self._end:
            self._start = self._end = 0

    def _make_room(self) -> None:
        rows = self._end - self._start
        for name in ("_base", "_stop"):
            fresh = np.zeros(max(16, rows * 2), np.int64)
            fresh[:rows] = getattr(self, name)[self._start : self._end]
            setattr(self, name, fresh)
        self._start, self._end = 0, rows

    def pieces(self, offsets: Int64) -> tuple[list[Piece], Int64]:
        """What is in memory of these messages, and the offsets that are not."""
        base, stop = self._base[self._start : self._end], self._stop[self._start : self._end]
        if len(base) == 0:
            return self._from_blocks(offsets, np.arange(len(offsets), dtype=np.int64))
        rows = np.searchsorted(base, offsets, "right") - 1
        first, last = int(rows[0]), int(rows[-1])
        contiguous = int(offsets[-1]) - int(offsets[0]) == len(offsets) - 1
        if first == last >= 0 and contiguous and offsets[-1] < stop[last] and bool((offsets[1:] > offsets[:-1]).all()):
            return [self._slice(first, int(offsets[0]), len(offsets))], offsets[:0]
        found = (rows >= 0) & (offsets < stop[rows])
        at = np.flatnonzero(found)
        pieces = self._cached_pieces(rows[at], offsets[at], at)
        if len(at) == len(offsets):
            return pieces, offsets[:0]
        lost = np.flatnonzero(~found)
        more, missing = self._from_blocks(offsets[lost], lost)
        return pieces + more, missing

    def _slice(self, row: int, first: int, count: int) -> Piece:
        cached = self._slots[row]
        assert cached is not None
        batch = cached.batch.slice(first - cached.base, count)
        return Piece(slice(None), batch, cached.published_us, cached.gate)

    def _cached_pieces(self, rows: Int64, offsets: Int64, at: Int64) -> list[Piece]:
        pieces = []
        for row, mine in _groups(rows):
            cached = self._slots[row]
            assert cached is not None
            wanted = offsets[mine] - cached.base
            whole = len(wanted) == cached.count == 1
            batch = cached.batch if whole else cached.batch.take(pa.array(wanted))
            pieces.append(Piece(at[mine], batch, cached.published_us, cached.gate))
        return pieces

    def _from_blocks(self, offsets: Int64, at: Int64) -> tuple[list[Piece], Int64]:
        pieces: list[Piece] = []
        self.hits = []
        found = np.zeros(len(offsets), np.bool_)
        for segment, number in self.blocks_for(np.sort(offsets)):
            block = self.loaded.get((segment.path, number))
            if block is None:
                continue
            place = np.minimum(np.searchsorted(block.offsets, offsets), len(block.offsets) - 1)
            mine = np.flatnonzero(block.offsets[place] == offsets)
            if len(mine):
                self.hits.append((segment.path, number))
                rows = place[mine]
                found[mine] = True
                pieces.append(Piece(at[mine], block.batch.take(pa.array(rows)), block.published_us[rows], 0))
        return pieces, offsets[~found]

    def blocks_for(self, offsets: Int64) -> list[tuple[Segment, int]]:
        """Blocks that may hold these offsets (sorted)."""
        wanted = []
        for segment in self.segments:
            low, high = np.searchsorted(offsets, (segment.first, segment.last + 1))
            if low < high:
                wanted += [(segment, number) for number in segment.blocks_for(offsets[low:high]).tolist()]
        return wanted


def _groups(rows: Int64) -> list[tuple[int, Int64]]:
    """Each row with the places where it stands, in order."""
    if len(rows) == 0:
        return []
    order = np.argsort(rows, kind="stable")
    breaks = np.flatnonzero(np.diff(rows[order])) + 1
    return [(int(rows[part[0]]), part) for part in np.split(order, breaks)]
