"""Where the bodies of one partition are: batches in memory, and segments on disk."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from wherry.journal.bodies.merged import Merged, Slice
from wherry.journal.bodies.places import Place, is_run, places_in
from wherry.journal.bodies.segments.reading import Block, among
from wherry.journal.bodies.segments.segment import Segment
from wherry.journal.bodies.singles import Columns, columns_of
from wherry.journal.codec import Packed
from wherry.model.row_batch import RowBatch

Int64: TypeAlias = npt.NDArray[np.int64]

OVERHEAD_BYTES = 1_024
"""What a batch in memory costs beside its columns."""

SLACK = 16
"""Rows of dropped batches that may stay however few batches there are: a sweep costs more than a publish."""


class CachedRow(NamedTuple):
    """A batch that is in the journal and in no segment, as a checkpoint stores it: its columns, in this order."""

    topic: int
    partition: int
    base: int
    published_us: int
    position: int
    batch_index: int
    gate: int


class CachedBatch:
    """A compact batch in memory, and its position in the journal. A batch read on recovery is decoded when needed.

    `count` are its messages, `size` the bytes of memory that count for it.
    """

    __slots__ = (
        "_batch",
        "_columns",
        "base",
        "count",
        "dropped",
        "gate",
        "index",
        "partition",
        "position",
        "published_us",
        "size",
        "topic",
    )

    def __init__(  # noqa: PLR0913, PLR0917  a row of columns, made for every batch
        self,
        topic: int,
        partition: int,
        base: int,
        batch: pa.RecordBatch | RowBatch | Packed,
        published_us: int,
        position: int,
        index: int,
        gate: int,
        count: int | None = None,
    ) -> None:
        self.topic, self.partition, self.base, self.published_us = topic, partition, base, published_us
        self.position, self.index, self.gate = position, index, gate
        self._batch: pa.RecordBatch | RowBatch | Packed | Slice = batch
        self._columns: Columns | None = None
        if isinstance(batch, Packed):
            self.count = self._unpacked().num_rows if count is None else count
            self.size = OVERHEAD_BYTES + batch.size
        else:
            self.count, self.size = batch.num_rows, OVERHEAD_BYTES + batch.nbytes
        self.dropped = False

    @property
    def batch(self) -> pa.RecordBatch:
        """The messages as columns. Threads may read this as well: decoding twice does no harm."""
        found = self._unpacked()
        return found.batch if isinstance(found, RowBatch) else found

    @property
    def rows(self) -> RowBatch | None:
        """The messages as values, if they were published so."""
        found = self._batch
        if isinstance(found, Packed):
            found = self._unpacked()
        return found if isinstance(found, RowBatch) else None

    @property
    def values(self) -> RowBatch | Columns | None:
        """The messages to be read one by one; None if rows cannot have all that they have."""
        found = self._unpacked() if self._columns is None else None
        if found is None or isinstance(found, RowBatch):
            return found or self._columns
        self._columns = columns_of(found)
        return self._columns

    def _unpacked(self) -> pa.RecordBatch | RowBatch:
        found = self._batch
        if isinstance(found, Packed):
            found = self._batch = found.unpack()
        return found.merged.batch.slice(found.start, self.count) if isinstance(found, Slice) else found

    @property
    def slice(self) -> Slice | None:
        """What this batch is a slice of, if it was merged with others."""
        return self._batch if isinstance(self._batch, Slice) else None

    def belong_to(self, merged: Merged, start: int) -> None:
        """Hold the messages as a slice of what they were merged into."""
        self._batch, self._columns = Slice(merged, start), None

    def row(self) -> CachedRow:
        """Return what a checkpoint stores of the batch."""
        return CachedRow(self.topic, self.partition, self.base, self.published_us, self.position, self.index, self.gate)


class PartitionBodies:
    """Bodies of one partition by offset. Rows of dropped batches are swept when they are more than half."""

    __slots__ = ("_base", "_empty", "_found", "_slots", "_stop", "loaded", "segments")

    def __init__(self) -> None:
        self._slots: list[CachedBatch | None] = []
        self._base = np.zeros(16, np.int64)
        self._stop = np.zeros(16, np.int64)
        """First and end offset of the batch in each slot; the arrays are longer than the list of slots."""
        self._empty = 0
        self._found: tuple[Int64, list[Place]] | None = None
        """Where the messages in memory are that were last asked for: they are measured, and then delivered."""
        self.segments: list[Segment] = []
        self.loaded: dict[tuple[str, int], Block] = {}

    def put(self, cached: CachedBatch) -> None:
        """Add a batch.

        Bases grow as messages are published. On recovery batches come in the order of the journal, which has a staged
        batch where it was staged and not where it was committed.
        """
        end = len(self._slots)
        if end == len(self._base):
            self._base, self._stop = (np.concatenate((c, np.zeros_like(c))) for c in (self._base, self._stop))
        row = end
        if row and cached.base < self._base[end - 1]:
            row = int(np.searchsorted(self._base[:end], cached.base))
            for column in (self._base, self._stop):
                column[row + 1 : end + 1] = column[row:end].copy()
        self._base[row] = cached.base
        self._stop[row] = cached.base + cached.count
        self._slots.insert(row, cached)

    def drop(self, base: int) -> CachedBatch | None:
        """Drop a batch."""
        row = int(self._base[: len(self._slots)].searchsorted(base))
        cached = self._slots[row] if row < len(self._slots) and self._base[row] == base else None
        self._found = None  # it would keep memory
        if cached is not None:
            self._slots[row] = None
            self._stop[row] = base
            self._empty += 1
            if cached.slice is not None:
                cached.slice.merged.drop(cached)
            if self._empty * 2 > len(self._slots) + SLACK:
                self._sweep()
        return cached

    def _sweep(self) -> None:
        rows = np.flatnonzero(self._stop[: len(self._slots)] > self._base[: len(self._slots)])
        self._slots = [cached for cached in self._slots if cached is not None]
        self._empty = 0
        for name in ("_base", "_stop"):
            fresh = np.zeros(max(16, len(rows) * 2), np.int64)
            fresh[: len(rows)] = getattr(self, name)[rows]
            setattr(self, name, fresh)

    def holder(self, offset: int) -> CachedBatch | None:
        """Return the batch in memory that holds a message."""
        row = int(self._base[: len(self._slots)].searchsorted(offset, "right")) - 1
        return self._slots[row] if row >= 0 and offset < self._stop[row] else None

    def places(self, offsets: Int64) -> tuple[list[Place], Int64 | None]:
        """Return where in memory these messages are, and the offsets that are not in memory, if any."""
        base, stop = self._base[: len(self._slots)], self._stop[: len(self._slots)]
        if len(base) == 0:
            return self._from_blocks(offsets, np.arange(len(offsets), dtype=np.int64))
        first, last = int(offsets[0]), int(offsets[-1])
        row = int(base.searchsorted(last, "right")) - 1
        if row >= 0 and base[row] <= first and last < stop[row] and is_run(offsets):
            return [self._slice(row, first, len(offsets))], None
        if self._found is not None and np.array_equal(self._found[0], offsets):
            return self._found[1], None
        rows = base.searchsorted(offsets, "right") - 1
        found = (rows >= 0) & (offsets < stop[rows])
        at = np.flatnonzero(found)
        places = places_in(self._slots, rows[at], offsets[at], at)
        if len(at) == len(offsets):
            places = [places[0]._replace(at=slice(None))] if len(places) == 1 else places
            self._found = offsets, places
            return places, None
        lost = np.flatnonzero(~found)
        more, missing = self._from_blocks(offsets[lost], lost)
        return places + more, missing

    def _slice(self, row: int, first: int, count: int) -> Place:
        cached = self._slots[row]
        assert cached is not None
        batch = cached.batch.slice(first - cached.base, count)
        return Place(slice(None), batch, None, cached.published_us, cached.gate)

    def _from_blocks(self, offsets: Int64, at: Int64) -> tuple[list[Place], Int64 | None]:
        places: list[Place] = []
        found = np.zeros(len(offsets), np.bool_)
        order = np.argsort(offsets)
        ascending = offsets[order]
        for segment, number in self.blocks_for(ascending):
            block = self.loaded.get((segment.path, number))
            if block is None:
                continue
            rows, here = among(block.offsets, ascending)
            mine = order[here]
            if len(mine):
                found[mine] = True
                places.append(Place(at[mine], block.batch, rows, block.published_us[rows], 0))
        return places, None if found.all() else offsets[~found]

    def between(self, start: int, stop: int) -> tuple[list[CachedBatch], list[tuple[Segment, int]]]:
        """Return where the messages of `start..stop` are: batches in memory, blocks on disk."""
        count = len(self._slots)
        low, high = np.searchsorted(self._stop[:count], start, "right"), np.searchsorted(self._base[:count], stop)
        cached = [each for each in self._slots[int(low) : int(high)] if each is not None]
        blocks = [(segment, number) for segment in self.segments for number in segment.blocks_between(start, stop)]
        return cached, blocks

    def blocks_for(self, offsets: Int64) -> list[tuple[Segment, int]]:
        """Return the blocks that may hold these offsets (sorted)."""
        wanted = []
        for segment in self.segments:
            low, high = np.searchsorted(offsets, (segment.first, segment.last + 1))
            if low < high:
                wanted += [(segment, number) for number in segment.blocks_for(offsets[low:high]).tolist()]
        return wanted
