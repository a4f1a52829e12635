"""An immutable view of a range of a partition at one moment, which can be read in any thread.

The event loop only notes where the bodies are. The reading thread does the rest, block by block: files are read,
checked and filtered outside the event loop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyroaring import BitMap64

from wherry.core.index.offsets import members
from wherry.journal.bodies.groups import needed_rows
from wherry.journal.bodies.partition import CachedBatch
from wherry.journal.bodies.segments import segment as segments
from wherry.journal.bodies.segments.segment import Segment
from wherry.journal.bodies.store import BodyStore
from wherry.model.calls.log import projection
from wherry.model.calls.where import Where
from wherry.model.errors import Corrupt
from wherry.model.schema import MESSAGE

Int64: TypeAlias = npt.NDArray[np.int64]
Read: TypeAlias = Callable[[str, int, int], pa.Buffer]
"""Returns bytes of a file (path, offset, length). Waits for the disk."""

JOIN_BYTES = 2 << 20
"""Small batches are joined up to this size, because each batch has a cost for the client."""
ROWS_MAX = 16_384
"""Messages in one batch at most."""
PINNED_BYTES_MAX = 32 << 20
"""Batches in memory that one window keeps there, however slowly it is read; a single batch may be larger."""


_NONE = BitMap64()


class SegmentGone(Exception):
    """The file of a segment is missing: the segment was compacted since, or the file is lost."""

    def __init__(self, segment: Segment) -> None:
        self.segment = segment
        super().__init__(segment.path)


class Window(NamedTuple):
    """The messages of `start..stop` of a partition."""

    partition: int
    start: int
    stop: int
    cached: Sequence[CachedBatch] = ()
    blocks: Sequence[tuple[Segment, int]] = ()
    gone: BitMap64 = _NONE
    """Messages in the range that must not be returned any more."""
    gate: int = 0
    """The journal position that must be durable before any of these messages is sent."""

    def batches(self, read: Read, columns: list[str], where: Where) -> Iterator[tuple[pa.RecordBatch, int]]:
        """Yield the matching messages in batches of a few thousand, ascending, and the offset after each batch.

        A batch is empty where nothing matched, so that the caller can stop between any two batches. Raises
        `SegmentGone` if a segment was compacted since: ask for a new window from there on.
        """
        kept = [name for name in MESSAGE.names if name == "offset" or name in columns]
        looked_at = [name for name in MESSAGE.names if name in kept or name in where.columns()]
        for batch in self._ascending(read, looked_at):
            mask = where.mask(batch)
            wanted = batch if mask is None else batch.select(kept).filter(mask)
            if not wanted.num_rows:
                yield self._projected(wanted, columns), _last(batch) + 1
            for at in range(0, wanted.num_rows, ROWS_MAX):
                piece = wanted.slice(at, ROWS_MAX)
                yield self._projected(piece, columns), _last(piece) + 1

    def check_without(self, gone: Segment | None) -> None:
        """Raise `Corrupt` if a segment whose file was missing is still in this newer window: the file is lost."""
        for segment, number in self.blocks if gone is not None else ():
            if segment is gone:
                raise Corrupt(segment.path, int(segment.blocks[3, number]), "the file of this segment is missing")

    def _projected(self, batch: pa.RecordBatch, columns: list[str]) -> pa.RecordBatch:
        arrays = [
            pa.array(np.full(batch.num_rows, self.partition, np.uint16)) if name == "partition" else batch.column(name)
            for name in columns
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=projection(columns))

    def _ascending(self, read: Read, columns: list[str]) -> Iterator[pa.RecordBatch]:
        """Yield some columns of all rows, by offset. Rows of blocks that overlap are sorted together."""
        waiting = _Waiting()
        for source in self._sources():
            if isinstance(source, list):  # without gaps, so whatever comes later begins after it
                for batch in self._from_memory(source):
                    yield from waiting.below(int(batch.column("offset")[0].as_py()))
                    waiting.add(batch.select(columns))
            else:
                yield from waiting.below(_first(source))
                waiting.add(self._from_disk(read, *source).select(columns))
        yield from waiting.below(self.stop)

    def _sources(self) -> Iterator[list[CachedBatch] | tuple[Segment, int]]:
        """Yield blocks on disk, and runs of batches in memory, by their first offsets."""
        sources: list[tuple[Segment, int] | CachedBatch] = [*self.blocks, *self.cached]
        together: list[CachedBatch] = []
        for source in sorted(sources, key=_first):
            if isinstance(source, CachedBatch):
                together.append(source)
                continue
            if together:
                yield together
            together = []
            yield source
        if together:
            yield together

    def _from_memory(self, group: list[CachedBatch]) -> Iterator[pa.RecordBatch]:
        offsets = np.concatenate([self._inside(cached.base, cached.base + cached.count) for cached in group])
        yield from needed_rows(group, offsets[~members(self.gone, offsets)], JOIN_BYTES)

    def _inside(self, start: int, stop: int) -> Int64:
        return np.arange(max(start, self.start), min(stop, self.stop), dtype=np.int64)

    def _from_disk(self, read: Read, segment: Segment, number: int) -> pa.RecordBatch:
        at, length = (int(value) for value in segment.blocks[3:5, number])
        try:
            data = read(segment.path, at, length)
        except FileNotFoundError:
            raise SegmentGone(segment) from None
        batch = segments.decode_block(data, segment, number)
        offsets = batch.column("offset").to_numpy()
        low, high = np.searchsorted(offsets, (self.start, self.stop))
        batch, offsets = batch.slice(low, high - low), offsets[low:high]
        hidden = members(self.gone, offsets)
        return batch.filter(pa.array(~hidden)) if hidden.any() else batch


class _Waiting:
    """Rows, ascending, that are held until no row before them can come any more."""

    def __init__(self) -> None:
        self._rows: pa.RecordBatch | None = None

    def add(self, batch: pa.RecordBatch) -> None:
        """Add rows of one block or batch, ascending; merge them with the rows that are held."""
        if not batch.num_rows:
            return
        if self._rows is not None:
            both = pa.concat_batches([self._rows, batch])
            batch = both.take(pa.array(np.argsort(both.column("offset").to_numpy(), kind="stable")))
        self._rows = batch

    def below(self, offset: int) -> Iterator[pa.RecordBatch]:
        """Yield the rows below an offset, and stop holding them."""
        if self._rows is None:
            return
        cut = int(np.searchsorted(self._rows.column("offset").to_numpy(), offset))
        ready, self._rows = self._rows.slice(0, cut), self._rows.slice(cut) if cut < self._rows.num_rows else None
        if cut:
            yield ready


def _first(source: tuple[Segment, int] | CachedBatch) -> int:
    return source.base if isinstance(source, CachedBatch) else int(source[0].blocks[0, source[1]])


def _last(batch: pa.RecordBatch) -> int:
    return int(batch.column("offset")[-1].as_py())


def window(store: BodyStore, topic: int, partition: int, start: int, stop: int, gone: BitMap64) -> Window:
    """Note where the bodies of `start..stop` are; end earlier if the window would keep too much memory."""
    cached, blocks = store.between(topic, partition, start, stop)
    size = 0
    for number, each in enumerate(cached):
        size += each.size
        if number and size > PINNED_BYTES_MAX:
            cached, stop = cached[:number], each.base
            blocks = [source for source in blocks if _first(source) < stop]
            break
    return Window(partition, start, stop, cached, blocks, gone, max((each.gate for each in cached), default=0))
