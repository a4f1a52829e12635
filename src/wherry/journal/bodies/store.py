"""The bodies of all messages: recent ones in memory, older ones in segments.

A publish puts its batch into memory. The batch leaves memory when its messages are no longer needed, or when the memory
budget moves it to a segment. Batches that were settled meanwhile are never written to a segment, so short-lived traffic
is written once, to the journal.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from wherry.core.state.bodies import Cold
from wherry.journal.bodies.groups import groups_of, needed_rows, offsets_of
from wherry.journal.bodies.image import StoreImage, StoreSnapshot
from wherry.journal.bodies.joining import full, joined, one
from wherry.journal.bodies.partition import CachedBatch, PartitionBodies
from wherry.journal.bodies.places import BatchPiece, Place
from wherry.journal.bodies.rows import RowsAt, rows_between
from wherry.journal.bodies.segments import segment as segments
from wherry.journal.bodies.segments.compaction import SparseSegments, Wants
from wherry.journal.bodies.segments.reading import READ_BYTES_MAX, ReadCache
from wherry.journal.bodies.segments.segment import Segment
from wherry.journal.bodies.singles import Single, singles_at
from wherry.journal.disk.files import Files
from wherry.model.schema import MESSAGE, delivered

Int64: TypeAlias = npt.NDArray[np.int64]
Wanted: TypeAlias = Callable[[int, int, Int64], npt.NDArray[np.bool_]]
"""Returns which messages of a partition are still needed."""

CACHE_BYTES_MAX = 256 << 20
OLDEST_SCAN_MAX = 64
"""Batches that the search for the oldest journaled batch goes through: transient batches may come before it."""


class BodyStore:
    """Bodies by topic, partition and offset. Implements `Bodies` for the core."""

    def __init__(
        self, files: Files | None, *, cache_bytes_max: int = CACHE_BYTES_MAX, read_bytes_max: int = READ_BYTES_MAX
    ) -> None:
        self._files = files
        self._partitions: dict[tuple[int, int], PartitionBodies] = {}
        self._order: dict[tuple[int, int, int], CachedBatch] = {}
        """Batches in memory, oldest first."""
        self.read_cache = ReadCache(files, self._partitions, read_bytes_max)
        self._sealing = asyncio.Lock()
        self._next_segment = 1
        self._run: tuple[tuple[int, int, int, int], list[RowsAt]] | None = None
        """The run that was measured last, by topic, partition, first and stop: it is delivered next."""
        self._measured: tuple[list[int], list[Single]] | None = None
        """The few messages that were measured last: most are delivered next, by the same list of offsets."""
        self._sparse = SparseSegments()
        self.cached_bytes = 0
        """Bytes of batches that a flush can move to a segment."""
        self.cached_messages = 0
        """Messages of these batches; some may be settled."""
        self.transient_bytes = 0
        """Bytes of transient batches, which must stay in memory."""
        self.cache_bytes_max = cache_bytes_max
        self.garbage: list[str] = []
        """Segment files that nothing needs once the next checkpoint is durable."""
        self.garbage_bytes = 0

    def put(self, cached: CachedBatch) -> None:
        """Add a published batch."""
        self._bodies_of(cached.topic, cached.partition).put(cached)
        self._order[cached.topic, cached.partition, cached.base] = cached
        self._count(cached, cached.size)

    def drop(self, topic: int, partition: int, bases: list[int]) -> None:
        """Drop batches that no subscription needs any more."""
        bodies = self._partitions.get((topic, partition))
        for base in bases if bodies is not None else ():
            cached = bodies.drop(base) if bodies is not None else None
            if cached is not None:
                self._forget(cached)

    def _forget(self, cached: CachedBatch) -> None:
        cached.dropped = True
        self._run = None
        del self._order[cached.topic, cached.partition, cached.base]
        self._count(cached, -cached.size)

    def _count(self, cached: CachedBatch, size: int) -> None:
        if cached.position:
            self.cached_bytes += size
            self.cached_messages += cached.count if size > 0 else -cached.count
        else:
            self.transient_bytes += size

    def drop_topic(self, topic: int) -> None:
        """Drop everything of a deleted topic."""
        for key in [key for key in self._partitions if key[0] == topic]:
            bodies = self._partitions.pop(key)
            self._discard(bodies.segments)
        for cached in [cached for cached in self._order.values() if cached.topic == topic]:
            self._forget(cached)

    def _bodies_of(self, topic: int, partition: int) -> PartitionBodies:
        bodies = self._partitions.get((topic, partition))
        if bodies is None:
            bodies = self._partitions[topic, partition] = PartitionBodies()
        return bodies

    def _places(self, topic: int, partition: int, offsets: Int64) -> list[Place]:
        bodies = self._partitions.get((topic, partition))
        if bodies is None:
            raise Cold(topic, partition, offsets)
        places, missing = bodies.places(offsets)
        if missing is not None:
            raise Cold(topic, partition, missing, offsets)
        return places

    def _pieces(self, topic: int, partition: int, offsets: Int64) -> list[BatchPiece]:
        return [place.piece() for place in self._places(topic, partition, offsets)]

    def sizes(self, topic: int, partition: int, offsets: Int64, *, share: int = 1) -> Int64:
        """See `Bodies`.

        Returns the sizes of the first messages only, if the read cache cannot hold the others as well.
        """
        try:
            places = self._places(topic, partition, offsets)
        except Cold as cold:
            fitting = self.read_cache.fitting(topic, partition, offsets, share)
            if fitting == len(offsets):
                cold.fewer_suffice = True
                raise
            return self.sizes(topic, partition, offsets[:fitting], share=share)
        if len(places) == 1 and isinstance(places[0].at, slice):
            return places[0].sizes()
        sizes = np.empty(len(offsets), np.int64)
        for place in places:
            sizes[place.at] = place.sizes()
        return sizes

    def run_sizes(self, topic: int, partition: int, first: int, stop: int) -> list[int] | None:
        """See `Bodies`."""
        found = self.run(topic, partition, first, stop)
        if found is None:
            return None
        self._run = (topic, partition, first, stop), found
        return found[0].sizes() if len(found) == 1 else [size for each in found for size in each.sizes()]

    def run(self, topic: int, partition: int, first: int, stop: int) -> list[RowsAt] | None:
        """Return consecutive messages as rows; None unless all of them are in memory as rows."""
        measured, self._run = self._run, None
        if measured is not None and measured[0] == (topic, partition, first, stop):
            return measured[1]
        bodies = self._partitions.get((topic, partition))
        return None if bodies is None else rows_between(self._order, bodies, (topic, partition), first, stop)

    def few(self, topic: int, partition: int, offsets: list[int]) -> list[Single] | None:
        """Return a few messages, in any places; None unless all are in memory and rows can have what they have."""
        measured, self._measured = self._measured, None
        if measured is not None and measured[0] is offsets:
            return measured[1]
        bodies = self._partitions.get((topic, partition))
        return None if bodies is None else singles_at(bodies, offsets)

    def few_sizes(self, topic: int, partition: int, offsets: list[int]) -> list[int] | None:
        """See `Bodies`."""
        found = self.few(topic, partition, offsets)
        if found is None:
            return None
        self._measured = offsets, found
        return [each.size() for each in found]

    def values(self, topic: int, partition: int, offset: int, columns: Sequence[str]) -> list[Any] | None:
        """Return some stored columns of one message as values; None if it is not in memory."""
        found = self.run(topic, partition, offset, offset + 1)
        if found is not None:
            values, at = found[0].rows.values, found[0].at
            return [values[name][at] if name in values else None for name in columns]
        try:
            batch = self.take(topic, partition, np.array([offset], np.int64), columns)
        except Cold:
            return None
        return [column[0].as_py() for column in batch.columns]

    def take(self, topic: int, partition: int, offsets: Int64, columns: Sequence[str]) -> pa.RecordBatch:
        """See `Bodies`."""
        schema = pa.schema([MESSAGE.field(name) for name in columns])
        if len(offsets) == 0:
            return pa.RecordBatch.from_pylist([], schema)
        return joined(self._pieces(topic, partition, offsets), schema, len(offsets))

    def deliver(self, topic: int, partition: int, offsets: Int64, attempts: int | Int64) -> tuple[pa.RecordBatch, int]:
        """Return messages as a consumer gets them, and the position that must be durable before they are sent."""
        pieces = self._pieces(topic, partition, offsets)
        batch, published_us = one(pieces, len(offsets))
        return delivered(batch, offsets, published_us, partition, attempts), max(piece.gate for piece in pieces)

    def messages(self, topic: int, partition: int, offsets: Int64) -> pa.RecordBatch:
        """Return messages as a full batch."""
        if len(offsets) == 0:
            return pa.RecordBatch.from_pylist([], MESSAGE)
        return full(self._pieces(topic, partition, offsets), offsets)

    def between(
        self, topic: int, partition: int, start: int, stop: int
    ) -> tuple[list[CachedBatch], list[tuple[Segment, int]]]:
        """Return where the messages of `start..stop` are: batches in memory, blocks on disk."""
        bodies = self._partitions.get((topic, partition))
        return ([], []) if bodies is None else bodies.between(start, stop)

    async def load(self, *colds: Cold) -> None:
        """Read bodies from segments into memory: see `ReadCache.load`."""
        await self.read_cache.load(*colds)

    def _has(self, segment: Segment) -> bool:
        bodies = self._partitions.get((segment.topic, segment.partition))
        return bodies is not None and segment in bodies.segments

    def is_over(self) -> bool:
        """Return whether memory holds more than its budget, so that a flush is due."""
        return self._files is not None and self.cached_bytes > self.cache_bytes_max

    def overflow(self, durable: int, before: int = 0) -> list[list[CachedBatch]]:
        """Return the batches to move from memory to segments, one list for each segment: the oldest half of the budget.

        Also takes batches in the journal up to position `before`: one waiting message must not keep the whole journal.
        A batch in a segment has no gate, so a batch that is not durable yet stays in memory.
        """
        target = self.cached_bytes - self.cache_bytes_max // 2 if self.is_over() else 0
        picked: list[CachedBatch] = []
        for cached in self._order.values():
            if target <= 0 and cached.position > before:
                break
            # Transient messages have no position: they are never on disk.
            if cached.position and cached.gate <= durable:
                picked.append(cached)
                target -= cached.size
        return groups_of(picked)

    def oldest(self) -> int | None:
        """Return about the lowest journal position that is the only copy of a body, None if there is none.

        Looks at the first few batches only.
        """
        return next((each.position for each in islice(self._order.values(), OLDEST_SCAN_MAX) if each.position), None)

    def few_before(self, edges: Sequence[int], durable: int, size_max: int) -> list[list[CachedBatch]]:
        """Return what to move to segments so that the journal can be trimmed up to the highest possible of `edges`.

        `edges` are ascending positions; `size_max` bounds the bytes that are moved.
        """
        picked: list[CachedBatch] = []
        size = count = at = 0
        for cached in self._order.values():
            while at < len(edges) and cached.position >= edges[at]:
                at, count = at + 1, len(picked)
            if not cached.position:
                continue
            size += cached.size
            if at == len(edges) or size > size_max or cached.gate > durable:
                break
            picked.append(cached)
        else:
            count = len(picked)
        return groups_of(picked[:count])

    async def seal(self, group: list[CachedBatch], wanted: Wanted) -> None:
        """Move batches of one partition, ascending, to a segment: those of their messages that are needed now.

        One caller at a time: a batch that another caller has moved meanwhile is dropped by then, and must not be in two
        segments.
        """
        async with self._sealing:
            await self._seal(group, wanted)

    async def _seal(self, group: list[CachedBatch], wanted: Wanted) -> None:
        group = [cached for cached in group if not cached.dropped]
        bodies = self._partitions.get((group[0].topic, group[0].partition)) if group else None
        if bodies is None:
            return
        topic, partition = group[0].topic, group[0].partition
        offsets = offsets_of(group)
        kept = offsets[wanted(topic, partition, offsets)]
        if len(kept):
            sealed = await self._write(topic, partition, int(kept[0]), needed_rows(group, kept))
            if self._partitions.get((topic, partition)) is not bodies:
                self._discard([sealed])
                return
            bodies.segments.append(sealed)
        self.drop(topic, partition, [cached.base for cached in group if not cached.dropped])

    async def _write(self, topic: int, partition: int, first: int, batches: Iterable[pa.RecordBatch]) -> Segment:
        assert self._files is not None
        path = f"segments/{topic}/{partition}/{first:020d}-{self._next_segment}.arrow"
        self._next_segment += 1
        return await segments.write(self._files, topic, partition, path, batches)

    async def rewrite(self, wanted: Wanted, wants: Wants) -> bool:
        """Compact a sparse segment: write its needed messages to a new one. Return whether there was one to compact.

        The old file becomes garbage and stays until a checkpoint without it is durable.
        """
        old = self._sparse.take(self._has)
        if old is None:
            return False
        topic, partition = old.topic, old.partition
        kept = await self._wanted_of(old, wanted, wants)
        # A generator, so that the thread that writes the segment joins the batches.
        whole = (pa.concat_batches(all_of_them) for all_of_them in (kept,))
        new = [await self._write(topic, partition, old.first, whole)] if kept else []
        if self._has(old):
            beside = self._partitions[topic, partition].segments
            at = beside.index(old)
            beside[at : at + 1] = new
            self._discard([old])
        else:
            self._discard(new)
        return True

    def _discard(self, segments: Iterable[Segment]) -> None:
        for segment in segments:
            self.garbage.append(segment.path)
            self.garbage_bytes += segment.bytes

    async def _wanted_of(self, segment: Segment, wanted: Wanted, wants: Wants) -> list[pa.RecordBatch]:
        """Return the needed messages of a segment, bypassing the read cache; blocks without any are not read."""
        assert self._files is not None
        topic, partition = segment.topic, segment.partition
        kept = []
        for number, (first, last) in enumerate(segment.blocks[:2].T.tolist()):
            if wants(topic, partition, first, last + 1):
                batch = await segments.read_block(self._files, segment, number)
                kept.append(batch.filter(pa.array(wanted(topic, partition, batch.column("offset").to_numpy()))))
        return [batch for batch in kept if batch.num_rows]

    def find_sparse(self, wants: Wants) -> int:
        """Examine the next segments: those without needed messages become garbage.

        Returns about how many bytes compacting the sparse ones would free.
        """
        self._remove(self._sparse.scan(self._segments(), wants))
        return self._sparse.gain_bytes

    def sweep(self, wants: Wants) -> None:
        """Turn all segments without needed messages into garbage."""
        self._remove([s for s in self._segments() if not wants(s.topic, s.partition, s.first, s.last + 1)])

    def _segments(self) -> list[Segment]:
        return [each for bodies in self._partitions.values() for each in bodies.segments]

    def _remove(self, dead: list[Segment]) -> None:
        gone = {segment for segment in dead if self._has(segment)}
        for key in {(segment.topic, segment.partition): None for segment in dead if segment in gone}:
            bodies = self._partitions[key]
            self._discard(segment for segment in bodies.segments if segment in gone)
            bodies.segments = [segment for segment in bodies.segments if segment not in gone]

    def snapshot(self) -> StoreSnapshot:
        """Return what a checkpoint is made of; quick, because nothing is copied but two lists."""
        return StoreSnapshot(self._segments(), list(self._order.values()))

    def load_segments(self, image: StoreImage) -> None:
        """Load the segments of a checkpoint. The other bodies are read from the journal."""
        for each in image.segments:
            self._bodies_of(each.topic, each.partition).segments.append(segments.from_image(each))
            self._next_segment = max(self._next_segment, int(each.path.rsplit("-", 1)[1].split(".")[0]) + 1)

    def segment_paths(self) -> set[str]:
        """Return the paths of the segments in use."""
        return {segment.path for bodies in self._partitions.values() for segment in bodies.segments}
