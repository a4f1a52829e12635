"""A stretch of a partition as it was at one moment, to be read in any thread: nothing in it changes any more.

The loop only notes where the bodies are. Whoever reads does the rest, block by block, and holds up nobody: files are
read, checked and cut to size outside the loop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyroaring import BitMap64

from wherry.core.offsets import members
from wherry.journal import segment as segments
from wherry.journal.segment import Segment
from wherry.journal.shelf import Cached
from wherry.journal.store import Store, rows
from wherry.model.schema import MESSAGE
from wherry.model.where import Where

Int64: TypeAlias = npt.NDArray[np.int64]
Read: TypeAlias = Callable[[str, int, int], pa.Buffer]
"""Bytes of a file: path, offset, length. It waits for the disk."""

LOGGED = MESSAGE.append(pa.field("partition", pa.uint16(), nullable=False))
"""What reading the log gives: messages, and where they are."""

JOIN_BYTES = 2 << 20
"""Small batches are joined up to this size: whoever reads pays for each batch."""
ROWS_MAX = 16_384
"""Messages of one batch that is read."""


_NONE = BitMap64()


class Window(NamedTuple):
    """What there is of `start..stop` of a partition."""

    partition: int
    start: int
    stop: int
    cached: Sequence[Cached] = ()
    blocks: Sequence[tuple[Segment, int]] = ()
    gone: BitMap64 = _NONE
    """Messages in it that nobody is to see any more."""
    gate: int = 0
    """The journal position that must be durable before anybody sees it."""

    def batches(self, read: Read, columns: list[str], where: Where) -> Iterator[tuple[pa.RecordBatch, int]]:
        """The messages that are wanted, in batches of some thousand, and with each how far it goes.

        Ascending by offset, but for transient messages between others. Raises `FileNotFoundError` where a segment was
        written again since: then ask for a new window from there.
        """
        for batch in self._rows(read):
            mask = where.mask(batch)
            wanted = batch if mask is None else batch.filter(mask)
            for at in range(0, wanted.num_rows, ROWS_MAX):
                piece = wanted.slice(at, ROWS_MAX)
                yield self._projected(piece, columns), int(piece.column("offset")[-1].as_py()) + 1

    def _projected(self, batch: pa.RecordBatch, columns: list[str]) -> pa.RecordBatch:
        arrays = [
            pa.array(np.full(batch.num_rows, self.partition, np.uint16)) if name == "partition" else batch.column(name)
            for name in columns
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=projection(columns))

    def _rows(self, read: Read) -> Iterator[pa.RecordBatch]:
        """Full batches: what waits in memory and what is on disk, by their first offsets."""
        places: list[tuple[Segment, int] | Cached] = [*self.blocks, *self.cached]
        together: list[Cached] = []
        for place in sorted(places, key=_first):
            if isinstance(place, Cached):
                together.append(place)
                continue
            yield from self._from_memory(together)
            together = []
            yield from self._from_disk(read, place[0], place[1])
        yield from self._from_memory(together)

    def _from_memory(self, group: list[Cached]) -> Iterator[pa.RecordBatch]:
        if group:
            offsets = np.concatenate([self._inside(cached.base, cached.base + cached.count) for cached in group])
            yield from rows(group, offsets[~members(self.gone, offsets)], JOIN_BYTES)

    def _inside(self, start: int, stop: int) -> Int64:
        return np.arange(max(start, self.start), min(stop, self.stop), dtype=np.int64)

    def _from_disk(self, read: Read, segment: Segment, number: int) -> Iterator[pa.RecordBatch]:
        at, length = (int(value) for value in segment.blocks[3:5, number])
        batch = segments.decode_block(read(segment.path, at, length), segment, number)
        offsets = batch.column("offset").to_numpy()
        low, high = np.searchsorted(offsets, (self.start, self.stop))
        batch, offsets = batch.slice(low, high - low), offsets[low:high]
        hidden = members(self.gone, offsets)
        if hidden.any():
            batch = batch.filter(pa.array(~hidden))
        if batch.num_rows:
            yield batch


def projection(columns: list[str]) -> pa.Schema:
    """The schema of some columns."""
    return pa.schema([LOGGED.field(name) for name in columns])


def _first(place: tuple[Segment, int] | Cached) -> int:
    return place.base if isinstance(place, Cached) else int(place[0].blocks[0, place[1]])


def window(store: Store, topic: int, partition: int, start: int, stop: int, gone: BitMap64) -> Window:
    """Note where the bodies of `start..stop` are."""
    cached, blocks = store.between(topic, partition, start, stop)
    return Window(partition, start, stop, cached, blocks, gone, max((each.gate for each in cached), default=0))
