"""What is read of segments into memory, within a budget of bytes, because a decision needs bodies that are on disk.

Blocks are kept whole where those that a decision needs fit into the budget together: what lies beside a message is
often asked for next. Messages in the order of their due times or priorities may lie in hundreds of blocks, a few in
each. Then each block is read, and only the messages that were asked for are kept of it. So a pull of thousands reads
each block once, and not once for each few messages that whole blocks leave room for.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from wherry.core.index.offsets import starts
from wherry.core.state.bodies import Cold
from wherry.journal.bodies.segments.segment import Segment, read_block
from wherry.journal.disk.files import Files
from wherry.model.errors import Corrupt

if TYPE_CHECKING:
    from wherry.journal.bodies.partition import PartitionBodies

Int64: TypeAlias = npt.NDArray[np.int64]

READ_BYTES_MAX = 128 << 20
READ_ONCE_BYTES_MAX = 256 << 20
"""Bytes of blocks that are read for one decision, if only few of their messages are kept: some tenths of a second."""


class BlockKey(NamedTuple):
    """A block: topic and partition, path of its segment, number of the block."""

    partition: tuple[int, int]
    path: str
    number: int


class Block(NamedTuple):
    """Messages of a block of a segment as a full batch, and their offsets; `is_whole`: all messages of the block."""

    batch: pa.RecordBatch
    offsets: Int64
    published_us: Int64
    is_whole: bool

    def only(self, offsets: Int64) -> Block:
        """Return those of its messages that have one of these offsets (sorted), as a copy."""
        rows, _ = among(self.offsets, offsets)
        return Block(self.batch.take(pa.array(rows)), self.offsets[rows], self.published_us[rows], is_whole=False)


class BlockCounts(NamedTuple):
    """For each block that holds some of a few messages: its bytes, its messages, how many of the few are among them."""

    sizes: Int64
    rows: Int64
    asked: Int64
    first: Int64
    """Index of the first message, as they were given, that is in the block."""


class ReadCache:
    """Blocks of segments in memory, or some of their messages; the least recently used leave first."""

    def __init__(
        self, files: Files | None, partitions: dict[tuple[int, int], PartitionBodies], bytes_max: int = READ_BYTES_MAX
    ) -> None:
        self._files = files
        self._partitions = partitions
        self._sizes: OrderedDict[BlockKey, int] = OrderedDict()
        """Blocks in memory and their bytes, the most recently used last."""
        self._reading = asyncio.Lock()
        self._is_uneven = False
        """Whether messages that were asked for turned out to be far larger than others of their blocks."""
        self.bytes_max = bytes_max
        self.bytes = 0

    def fitting(self, topic: int, partition: int, offsets: Int64, share: int) -> int:
        """Return how many of the first messages can be in memory together, in 1/`share` of the budget; at least one."""
        bodies = self._partitions.get((topic, partition))
        size_max = self.bytes_max // share
        if bodies is None:
            return len(offsets)
        whole = _fitting_whole(_counts(bodies, offsets), size_max, len(offsets))
        count = 0 if self._is_uneven else len(offsets)
        while count > whole:
            found = _counts(bodies, offsets[:count])
            kept = int((found.sizes * found.asked // found.rows).sum())  # if they are as large as the others
            if 2 * kept <= size_max and int(found.sizes.sum()) <= READ_ONCE_BYTES_MAX:
                return count
            count //= 2
        return whole

    async def load(self, *colds: Cold) -> None:
        """Read what a decision needs from segments into memory, so that it can be made again at once.

        `colds` are all questions that the decision has asked so far: their bodies must be in memory together. One
        caller at a time loads, and decides again in the same turn of the event loop in which this returns, so that no
        other caller can evict its blocks before.
        """
        newest = colds[-1]
        needed = {block: segment for cold in colds for block, segment in self._blocks_needed(cold)}
        if not self._blocks_needed(newest):
            raise lost(newest, newest.offsets)
        read_bytes = sum(int(segment.blocks[4, block.number]) for block, segment in needed.items())
        asked = _asked(colds) if len(needed) > 1 and read_bytes > self.bytes_max else None
        async with self._reading:
            for block in [block for block in needed if block in self._sizes]:
                self._sizes.move_to_end(block)
            kept_bytes = 0
            for block, segment in needed.items():
                wanted = None if asked is None else asked[block.partition]
                if not self._has(block, segment, wanted) and not await self._read(block, segment, wanted):
                    return  # the segment was compacted or deleted: the decision has to ask again
                self._evict(len(needed))
                kept_bytes += self._sizes.get(block, 0)
                if asked is not None and newest.fewer_suffice and kept_bytes > self.bytes_max and not self._is_uneven:
                    self._is_uneven = True
                    return  # the decision asks again, for so few messages that whole blocks of them fit
            self._is_uneven = False
            self._check_found(newest, list(needed))

    def _blocks_needed(self, cold: Cold) -> list[tuple[BlockKey, Segment]]:
        key = (cold.topic, cold.partition)
        bodies = self._partitions.get(key)
        blocks = bodies.blocks_for(np.sort(cold.asked)) if bodies is not None else []
        return [(BlockKey(key, segment.path, number), segment) for segment, number in blocks]

    def _has(self, block: BlockKey, segment: Segment, wanted: Int64 | None) -> bool:
        bodies = self._partitions.get(block.partition)
        found = None if bodies is None else bodies.loaded.get((block.path, block.number))
        if found is None or found.is_whole:
            return found is not None
        if wanted is None:
            return False
        low, high = np.searchsorted(wanted, segment.blocks[:2, block.number] + (0, 1))
        return len(among(found.offsets, wanted)[0]) == high - low

    async def _read(self, block: BlockKey, segment: Segment, wanted: Int64 | None) -> bool:
        """Read a block into memory, or what is wanted of it; return False if its segment is no longer in use."""
        assert self._files is not None
        try:
            batch = await read_block(self._files, segment, block.number)
        except OSError:
            if self._is_used(block, segment):
                raise
            return False
        if not self._is_used(block, segment):
            return False
        offsets = batch.column("offset").to_numpy()
        published = batch.column("published").view(pa.int64()).to_numpy()
        found = Block(batch, offsets, published, is_whole=True)
        size = int(segment.blocks[4, block.number])
        if wanted is not None:
            found = found.only(wanted)
            size = found.batch.nbytes
        self.bytes += size - self._sizes.pop(block, 0)
        self._sizes[block] = size
        self._partitions[block.partition].loaded[block.path, block.number] = found
        return True

    def _is_used(self, block: BlockKey, segment: Segment) -> bool:
        bodies = self._partitions.get(block.partition)
        return bodies is not None and segment in bodies.segments

    def _evict(self, kept: int) -> None:
        """Evict the least recently used blocks over the budget, but none of the last `kept`."""
        while self.bytes > self.bytes_max and len(self._sizes) > kept:
            block, size = self._sizes.popitem(last=False)
            self.bytes -= size
            bodies = self._partitions.get(block.partition)
            if bodies is not None:
                bodies.loaded.pop((block.path, block.number), None)

    def _check_found(self, cold: Cold, blocks: list[BlockKey]) -> None:
        """Raise `Corrupt` if a missing message is in no loaded block: asking again would never end."""
        bodies = self._partitions.get((cold.topic, cold.partition))
        if bodies is None:
            return  # the topic was deleted meanwhile
        wanted = np.sort(cold.offsets)
        found = np.zeros(len(wanted), np.bool_)
        for block in blocks:
            if block.partition == (cold.topic, cold.partition):
                found[among(bodies.loaded[block.path, block.number].offsets, wanted)[1]] = True
        if not found.all():
            raise lost(cold, wanted[~found])


def among(held: Int64, wanted: Int64) -> tuple[Int64, Int64]:
    """Return the positions of the numbers that both have, in the one and in the other. Both are sorted."""
    if len(held) == 0:
        return held, held
    low, high = np.searchsorted(wanted, (held[0], held[-1] + 1))
    rows = np.searchsorted(held, wanted[low:high])
    both = np.flatnonzero(held[rows] == wanted[low:high])
    return rows[both], both + low


def lost(cold: Cold, offsets: Int64) -> Corrupt:
    """Return the error for messages that are neither in memory nor in a segment."""
    return Corrupt("store", int(offsets[0]), f"topic {cold.topic} partition {cold.partition} has lost this offset")


def _asked(colds: tuple[Cold, ...]) -> dict[tuple[int, int], Int64]:
    """Return the offsets of all questions by topic and partition, sorted."""
    asked: dict[tuple[int, int], list[Int64]] = {}
    for cold in colds:
        asked.setdefault((cold.topic, cold.partition), []).append(cold.asked)
    return {key: np.unique(np.concatenate(each)) for key, each in asked.items()}


def _counts(bodies: PartitionBodies, offsets: Int64) -> BlockCounts:
    """Return the blocks that may hold these messages."""
    order = np.argsort(offsets)
    ascending = offsets[order]
    found = [np.zeros((4, 0), np.int64), *_columns(bodies, order, ascending)]
    return BlockCounts(*np.concatenate(found, axis=1))


def _columns(bodies: PartitionBodies, order: Int64, ascending: Int64) -> Iterator[Int64]:
    """Yield the columns of `BlockCounts` for the blocks of each segment."""
    for segment in bodies.segments:
        low, high = np.searchsorted(ascending, (segment.first, segment.last + 1))
        if low < high:
            numbers = np.searchsorted(segment.blocks[1], ascending[low:high])
            first = starts(numbers)
            blocks = numbers[first]
            asked = np.diff(np.append(first, len(numbers)))
            yield np.stack(
                (
                    segment.blocks[4, blocks],
                    segment.blocks[2, blocks],
                    asked,
                    np.minimum.reduceat(order[low:high], first),
                )
            )


def _fitting_whole(found: BlockCounts, size_max: int, count: int) -> int:
    """Return how many of the first of `count` messages are in blocks of at most `size_max` bytes together."""
    needed = np.argsort(found.first)
    over = np.cumsum(found.sizes[needed]) > size_max
    ends = found.first[needed][over]
    ends = ends[ends > 0]
    return int(ends[0]) if len(ends) else count
