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

from wherry.core.index.offsets import members
from wherry.journal.bodies import segment as segments
from wherry.journal.bodies.partition import CachedBatch
from wherry.journal.bodies.segment import Segment
from wherry.journal.bodies.store import BodyStore, rows
from wherry.model.calls.log import projection
from wherry.model.calls.where import Where
from wherry.model.errors import Corrupt
from wherry.model.schema import MESSAGE

Int64: TypeAlias = npt.NDArray[np.int64]
Read: TypeAlias = Callable[[str, int, int], pa.Buffer]
"""Bytes of a file: path, offset, length. It waits for the disk."""

JOIN_BYTES = 2 << 20
"""Small batches are joined up to this size: whoever reads pays for each batch."""
ROWS_MAX = 16_384
"""Messages of one batch that is read."""
PINNED_BYTES_MAX = 32 << 20
"""Batches in memory that one window holds on to, however slowly it is read; one batch may be larger alone."""


_NONE = BitMap64()


class SegmentGone(Exception):
    """The file of a segment is not there any more: it was written again since, or it is lost."""

    def __init__(self, segment: Segment) -> None:
        self.segment = segment
        super().__init__(segment.path)


class Window(NamedTuple):
    """What there is of `start..stop` of a partition."""

    partition: int
    start: int
    stop: int
    cached: Sequence[CachedBatch] = ()
    blocks: Sequence[tuple[Segment, int]] = ()
    gone: BitMap64 = _NONE
    """Messages in it that nobody is to see any more."""
    gate: int = 0
    """The journal position that must be durable before anybody sees it."""

    def batches(self, read: Read, columns: list[str], where: Where) -> Iterator[tuple[pa.RecordBatch, int]]:
        """The messages that are wanted, in batches of some thousand, ascending by offset, and how far each batch goes.

        A batch is empty where nothing is wanted of what was read, so that whoever reads can give up between any two.
        Raises `SegmentGone` where a segment was written again since: then ask for a new window from there.
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
        """`Corrupt` if a segment whose file was not there is in this newer window still: it is lost."""
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
        """Some columns of all rows, by offset. Places may lie in each other: only there rows are sorted together."""
        waiting = _Waiting()
        for place in self._places():
            if isinstance(place, list):  # dense, so whatever comes later begins behind it
                for batch in self._from_memory(place):
                    yield from waiting.below(int(batch.column("offset")[0].as_py()))
                    waiting.add(batch.select(columns))
            else:
                yield from waiting.below(_first(place))
                waiting.add(self._from_disk(read, *place).select(columns))
        yield from waiting.below(self.stop)

    def _places(self) -> Iterator[list[CachedBatch] | tuple[Segment, int]]:
        """Blocks on disk, and runs of batches in memory, by their first offsets."""
        places: list[tuple[Segment, int] | CachedBatch] = [*self.blocks, *self.cached]
        together: list[CachedBatch] = []
        for place in sorted(places, key=_first):
            if isinstance(place, CachedBatch):
                together.append(place)
                continue
            if together:
                yield together
            together = []
            yield place
        if together:
            yield together

    def _from_memory(self, group: list[CachedBatch]) -> Iterator[pa.RecordBatch]:
        offsets = np.concatenate([self._inside(cached.base, cached.base + cached.count) for cached in group])
        yield from rows(group, offsets[~members(self.gone, offsets)], JOIN_BYTES)

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
    """Rows, ascending, that stay until nothing before them can come any more."""

    def __init__(self) -> None:
        self._rows: pa.RecordBatch | None = None

    def add(self, batch: pa.RecordBatch) -> None:
        """Rows of one place, ascending; sorted in among those that wait, if there are any."""
        if not batch.num_rows:
            return
        if self._rows is not None:
            both = pa.concat_batches([self._rows, batch])
            batch = both.take(pa.array(np.argsort(both.column("offset").to_numpy(), kind="stable")))
        self._rows = batch

    def below(self, offset: int) -> Iterator[pa.RecordBatch]:
        """The rows before an offset; they wait no longer."""
        if self._rows is None:
            return
        cut = int(np.searchsorted(self._rows.column("offset").to_numpy(), offset))
        ready, self._rows = self._rows.slice(0, cut), self._rows.slice(cut) if cut < self._rows.num_rows else None
        if cut:
            yield ready


def _first(place: tuple[Segment, int] | CachedBatch) -> int:
    return place.base if isinstance(place, CachedBatch) else int(place[0].blocks[0, place[1]])


def _last(batch: pa.RecordBatch) -> int:
    return int(batch.column("offset")[-1].as_py())


def window(store: BodyStore, topic: int, partition: int, start: int, stop: int, gone: BitMap64) -> Window:
    """Note where the bodies of the beginning of `start..stop` are, as far as memory that is held on to is bounded."""
    cached, blocks = store.between(topic, partition, start, stop)
    size = 0
    for number, each in enumerate(cached):
        size += each.size
        if number and size > PINNED_BYTES_MAX:
            cached, stop = cached[:number], each.base
            blocks = [place for place in blocks if _first(place) < stop]
            break
    return Window(partition, start, stop, cached, blocks, gone, max((each.gate for each in cached), default=0))
