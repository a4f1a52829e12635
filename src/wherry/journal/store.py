"""The bodies of all messages: recent ones in memory, older ones in segments.

Publishing puts a batch into memory; it leaves when nobody wants it, or when the memory budget moves it to a segment.
Batches that were settled in the meantime never reach a segment: short-lived traffic is written once, to the journal.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from wherry.core.bodies import Cold
from wherry.journal import segment as segments
from wherry.journal.files import Files
from wherry.journal.segment import Segment, SegmentImage
from wherry.journal.shelf import OVERHEAD_BYTES, Block, Cached, Piece, Shelf
from wherry.model.errors import Corrupt
from wherry.model.schema import DELIVERED, MESSAGE, absent, content_sizes, expand

Int64: TypeAlias = npt.NDArray[np.int64]
Wanted: TypeAlias = Callable[[int, int, Int64], npt.NDArray[np.bool_]]
"""Which messages of a partition somebody still wants."""

CACHE_BYTES_MAX = 256 << 20
READ_CACHE_BYTES_MAX = 128 << 20
SEGMENT_BYTES_MAX = 64 << 20


class StoreImage(msgspec.Struct, frozen=True, array_like=True):
    """What a checkpoint remembers: the segments, and where in the journal the other bodies are.

    `cached` holds `topic, partition, base, published_us, position, index, gate` for each batch.
    """

    segments: list[SegmentImage]
    cached: Int64


class Store:
    """Bodies by topic, partition and offset. Implements `Bodies` for the core."""

    def __init__(
        self,
        files: Files | None,
        *,
        cache_bytes_max: int = CACHE_BYTES_MAX,
        read_cache_bytes_max: int = READ_CACHE_BYTES_MAX,
    ) -> None:
        self._files = files
        self._shelves: dict[tuple[int, int], Shelf] = {}
        self._order: dict[tuple[int, int, int], Cached] = {}
        """Batches in memory, oldest first."""
        self._recent: OrderedDict[tuple[tuple[int, int], str, int], int] = OrderedDict()
        self._pinned: set[tuple[tuple[int, int], str, int]] = set()
        self._read_bytes = 0
        self._read_bytes_max = read_cache_bytes_max
        self._next_segment = 1
        self.cached_bytes = 0
        """Of messages that a flush can move to a segment."""
        self.transient_bytes = 0
        """Of messages that must stay in memory."""
        self.cache_bytes_max = cache_bytes_max
        self.garbage: list[str] = []
        """Segment files that nothing needs once the next checkpoint is durable."""

    def put(self, cached: Cached) -> None:
        """A batch was published."""
        cached.size = int(cached.batch.nbytes) + OVERHEAD_BYTES
        self._shelf(cached.topic, cached.partition).put(cached)
        self._order[cached.topic, cached.partition, cached.base] = cached
        self._count(cached, cached.size)

    def drop(self, topic: int, partition: int, bases: list[int]) -> None:
        """Nobody wants these batches any more."""
        shelf = self._shelves.get((topic, partition))
        for base in bases if shelf is not None else ():
            cached = shelf.drop(base) if shelf is not None else None
            if cached is not None:
                self._forget(cached)

    def _forget(self, cached: Cached) -> None:
        cached.dropped = True
        del self._order[cached.topic, cached.partition, cached.base]
        self._count(cached, -cached.size)

    def _count(self, cached: Cached, size: int) -> None:
        if cached.position:
            self.cached_bytes += size
        else:
            self.transient_bytes += size

    def drop_topic(self, topic: int) -> None:
        """A topic is gone with everything in it."""
        for key in [key for key in self._shelves if key[0] == topic]:
            shelf = self._shelves.pop(key)
            self.garbage += [segment.path for segment in shelf.segments]
        for cached in [cached for cached in self._order.values() if cached.topic == topic]:
            self._forget(cached)

    def _shelf(self, topic: int, partition: int) -> Shelf:
        shelf = self._shelves.get((topic, partition))
        if shelf is None:
            shelf = self._shelves[topic, partition] = Shelf()
        return shelf

    def _pieces(self, topic: int, partition: int, offsets: Int64) -> list[Piece]:
        shelf = self._shelves.get((topic, partition))
        if shelf is None:
            raise Cold(topic, partition, offsets)
        pieces, missing = shelf.pieces(offsets)
        if len(missing):
            # What this decision has found must still be there when it is made again, with the rest loaded.
            self._pinned |= {((topic, partition), path, number) for path, number in shelf.hits}
            raise Cold(topic, partition, missing)
        self._pinned.clear()
        return pieces

    def sizes(self, topic: int, partition: int, offsets: Int64) -> Int64:
        """See `Bodies`."""
        sizes = np.empty(len(offsets), np.int64)
        for piece in self._pieces(topic, partition, offsets):
            sizes[piece.at] = content_sizes(piece.batch)
        return sizes

    def take(self, topic: int, partition: int, offsets: Int64, columns: Sequence[str]) -> pa.RecordBatch:
        """See `Bodies`."""
        schema = pa.schema([MESSAGE.field(name) for name in columns])
        if len(offsets) == 0:
            return pa.RecordBatch.from_pylist([], schema)
        return _joined(self._pieces(topic, partition, offsets), schema, len(offsets))

    def deliver(self, topic: int, partition: int, offsets: Int64, attempts: Int64) -> tuple[pa.RecordBatch, int]:
        """Messages as a consumer gets them, and the journal position that must be durable before it does."""
        pieces = self._pieces(topic, partition, offsets)
        full = self._full(pieces, offsets)
        count = len(offsets)
        columns = [*full.columns, pa.array(np.full(count, partition, np.uint16)), pa.array(attempts.astype(np.uint16))]
        return pa.RecordBatch.from_arrays(columns, schema=DELIVERED), max(piece.gate for piece in pieces)

    def messages(self, topic: int, partition: int, offsets: Int64) -> pa.RecordBatch:
        """Messages as a full batch."""
        if len(offsets) == 0:
            return pa.RecordBatch.from_pylist([], MESSAGE)
        return self._full(self._pieces(topic, partition, offsets), offsets)

    def _full(self, pieces: list[Piece], offsets: Int64) -> pa.RecordBatch:
        if len(pieces) == 1 and isinstance(pieces[0].at, slice):
            return expand(pieces[0].batch, offsets, pieces[0].published_us)
        published = np.empty(len(offsets), np.int64)
        names: dict[str, None] = {}
        for piece in pieces:
            published[piece.at] = piece.published_us
            names |= dict.fromkeys(piece.batch.schema.names)
        schema = pa.schema([field for field in MESSAGE if field.name in names and field.name not in _STAMPED])
        return expand(_joined(pieces, schema, len(offsets)), offsets, published)

    async def load(self, cold: Cold) -> None:
        """Bring bodies from segments into memory, so that the decision that wanted them can be made again."""
        key = (cold.topic, cold.partition)
        shelf = self._shelves.get(key)
        wanted = np.sort(cold.offsets)
        blocks = shelf.blocks_for(wanted) if shelf is not None else []
        if self._files is None or shelf is None or not blocks:
            raise Corrupt(
                "store", int(wanted[0]), f"topic {cold.topic} partition {cold.partition} has lost this offset"
            )
        for segment, number in blocks:
            if (segment.path, number) not in shelf.loaded:
                batch = await segments.read_block(self._files, segment, number)
                if (segment.path, number) not in shelf.loaded:  # somebody else may have loaded it meanwhile
                    self._keep(key, shelf, segment, number, batch)
            self._pinned.add((key, segment.path, number))
        self._evict()

    def _keep(self, key: tuple[int, int], shelf: Shelf, segment: Segment, number: int, batch: pa.RecordBatch) -> None:
        offsets = batch.column("offset").to_numpy()
        published = batch.column("published").view(pa.int64()).to_numpy()
        shelf.loaded[segment.path, number] = Block(batch, offsets, published)
        size = int(segment.blocks[4, number])
        self._recent[key, segment.path, number] = size
        self._read_bytes += size

    def _evict(self) -> None:
        """Forget the oldest blocks over the budget, but none that a decision under way has asked for."""
        for place in [place for place in self._recent if place not in self._pinned]:
            if self._read_bytes <= self._read_bytes_max:
                return
            key, path, number = place
            self._read_bytes -= self._recent.pop(place)
            shelf = self._shelves.get(key)
            if shelf is not None:
                shelf.loaded.pop((path, number), None)

    def is_over(self) -> bool:
        """Whether memory holds more than its budget, so that a flush is due."""
        return self._files is not None and self.cached_bytes > self.cache_bytes_max

    async def flush(self, wanted: Wanted, durable: int, before: int = 0) -> None:
        """Move the oldest half of the memory budget to segments, as far as the journal is durable.

        And whatever lies in the journal up to `before`: one message that waits must not keep the whole journal.

        A segment has no gate any more, so a batch that is not durable yet must stay where it has one.
        """
        assert self._files is not None
        target = self.cached_bytes - self.cache_bytes_max // 2 if self.is_over() else 0
        picked: dict[tuple[int, int], list[Cached]] = {}
        for cached in self._order.values():
            if target <= 0 and cached.position > before:
                break
            # Transient messages have no position: they are never on disk.
            if cached.position and cached.gate <= durable:
                picked.setdefault((cached.topic, cached.partition), []).append(cached)
                target -= cached.size
        for (topic, partition), batches in picked.items():
            await self._seal(topic, partition, batches, wanted)

    async def _seal(self, topic: int, partition: int, batches: list[Cached], wanted: Wanted) -> None:
        for group in _by_bytes(batches, SEGMENT_BYTES_MAX):
            full = [batch for batch in (_wanted_rows(cached, wanted) for cached in group) if batch.num_rows]
            shelf = self._shelves.get((topic, partition))
            if full and shelf is not None and self._files is not None:
                path = f"segments/{topic}/{partition}/{group[0].base:020d}-{self._next_segment}.arrow"
                self._next_segment += 1
                sealed = await segments.write(self._files, topic, partition, path, [pa.concat_batches(full)])
                if (topic, partition) not in self._shelves:
                    self.garbage.append(path)
                    continue
                shelf.segments.append(sealed)
            self.drop(topic, partition, [cached.base for cached in group if not cached.dropped])

    def sweep(self, wants_any: Callable[[int, int, int, int], bool]) -> None:
        """Segments in which nobody wants anything (topic, partition, from, to) any more become garbage."""
        for (topic, partition), shelf in self._shelves.items():
            kept = []
            for segment in shelf.segments:
                if wants_any(topic, partition, segment.first, segment.last + 1):
                    kept.append(segment)
                else:
                    self.garbage.append(segment.path)
            shelf.segments = kept

    def journal_floor(self) -> int | None:
        """The lowest journal position whose body is only there, None if there is none."""
        return min((cached.position for cached in self._order.values() if cached.position), default=None)

    def image(self) -> StoreImage:
        """For a checkpoint."""
        rows = [
            (c.topic, c.partition, c.base, c.published_us, c.position, c.index, c.gate)
            for c in self._order.values()
            if c.position
        ]
        sealed = [segment.image() for shelf in self._shelves.values() for segment in shelf.segments]
        return StoreImage(sealed, np.array(rows, np.int64).ravel())

    def load_segments(self, image: StoreImage) -> None:
        """The segments of a checkpoint; the other bodies come from the journal."""
        for each in image.segments:
            self._shelf(each.topic, each.partition).segments.append(segments.from_image(each))
            self._next_segment = max(self._next_segment, int(each.path.rsplit("-", 1)[1].split(".")[0]) + 1)

    def segment_paths(self) -> set[str]:
        """Files that are in use."""
        return {segment.path for shelf in self._shelves.values() for segment in shelf.segments}


_STAMPED = ("offset", "published")


def _by_bytes(batches: list[Cached], size_max: int) -> list[list[Cached]]:
    groups: list[list[Cached]] = []
    room = 0
    for cached in sorted(batches, key=lambda each: each.base):
        if room < cached.size or not groups:
            groups.append([])
            room = size_max
        groups[-1].append(cached)
        room -= cached.size
    return groups


def _wanted_rows(cached: Cached, wanted: Wanted) -> pa.RecordBatch:
    offsets = np.arange(cached.base, cached.base + cached.count, dtype=np.int64)
    mask = wanted(cached.topic, cached.partition, offsets)
    full = expand(cached.batch, offsets, cached.published_us)
    return full if mask.all() else full.filter(pa.array(mask))


def _joined(pieces: list[Piece], schema: pa.Schema, count: int) -> pa.RecordBatch:
    """Pieces as one batch of `schema`, rows in the order that was asked for."""
    if len(pieces) == 1 and isinstance(pieces[0].at, slice):
        return _shaped([pieces[0].batch], schema)
    by_columns: dict[tuple[str, ...], list[Piece]] = {}
    for piece in pieces:
        by_columns.setdefault(tuple(piece.batch.schema.names), []).append(piece)
    grouped = [piece for group in by_columns.values() for piece in group]
    shaped = [_shaped([piece.batch for piece in group], schema) for group in by_columns.values()]
    batch = pa.concat_batches(shaped) if len(shaped) > 1 else shaped[0]
    at = np.concatenate([piece.at for piece in grouped])
    if bool((at[1:] > at[:-1]).all()):
        return batch
    order = np.empty(count, np.int64)
    order[at] = np.arange(count)
    return batch.take(pa.array(order))


def _shaped(batches: list[pa.RecordBatch], schema: pa.Schema) -> pa.RecordBatch:
    batch = pa.concat_batches(batches) if len(batches) > 1 else batches[0]
    present = set(batch.schema.names)
    columns = [
        batch.column(field.name) if field.name in present else absent(field.name, batch.num_rows) for field in schema
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)
