"""Bodies in segments: what a thread seals, what the read cache holds, and segments that are mostly dead."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np
import pytest

from tests.unit.journal.cutfiles import CutFiles
from wherry.core.state.bodies import Cold, together
from wherry.journal.bodies import groups
from wherry.journal.bodies.partition import CachedBatch
from wherry.journal.bodies.segments import compaction, segment
from wherry.journal.bodies.store import BodyStore
from wherry.journal.disk.files import Bytes
from wherry.model.errors import Corrupt
from wherry.model.schema import Message, compact

T = TypeVar("T")

ROWS = 4
"""Messages of a block here."""


class Files(CutFiles):
    """A disk in memory on which something happens while a thread is at work."""

    def __init__(self) -> None:
        super().__init__()
        self.meanwhile: Callable[[], None] = lambda: None
        self.reading: Callable[[], None] = lambda: None

    async def compute(self, work: Callable[[], T]) -> T:
        self.meanwhile()
        return work()

    async def read(self, path, offset=0, length=None):
        await asyncio.sleep(0)
        self.reading()
        if path not in self.disk:
            raise FileNotFoundError(path)
        return await super().read(path, offset, length)

    async def put(self, path: str, parts: Sequence[Bytes]) -> None:
        self.disk[path] = bytearray(b"".join(parts))


class World:
    """A store in which `gone` holds the messages that are not wanted any more."""

    def __init__(self, cache_bytes_max: int = 1 << 30) -> None:
        self.files = Files()
        self.store = BodyStore(self.files, cache_bytes_max=cache_bytes_max)
        self.gone: set[int] = set()

    def put(self, count: int, base: int = 0, partition: int = 0) -> list[CachedBatch]:
        """Put messages whose payloads are their offsets, four in a batch."""
        batches = []
        for first in range(base, base + count, ROWS):
            rows = compact([Message(payload=b"%d" % offset) for offset in range(first, first + ROWS)])
            batches.append(CachedBatch(1, partition, first, rows, 7, first + 1, 0, first + 1))
            self.store.put(batches[-1])
        return batches

    def wanted(self, topic, partition, offsets):
        return np.array([offset not in self.gone for offset in offsets.tolist()], np.bool_)

    def wants(self, topic, partition, start, stop):
        return sum(offset not in self.gone for offset in range(start, stop))

    def seal(self, batches: list[CachedBatch]) -> None:
        asyncio.run(self.store.seal(batches, self.wanted))

    def rewrite(self) -> bool:
        self.store.find_sparse(self.wants)
        return asyncio.run(self.store.rewrite(self.wanted, self.wants))

    async def look(self, *offsets: int, partition: int = 0) -> list[bytes]:
        asked = np.array(offsets, np.int64)
        colds: list[Cold] = []
        while True:
            try:
                return self.store.messages(1, partition, asked).column("payload").to_pylist()
            except Cold as cold:
                colds = together(colds, cold)
                await self.store.load(*colds)


def texts(*offsets: int) -> list[bytes]:
    return [b"%d" % offset for offset in offsets]


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr(segment, "BLOCK_ROWS_MAX", ROWS)


def test_a_segment_has_what_was_wanted_when_it_was_begun():
    world = World()
    batches = world.put(16)
    world.gone = {0, 5, 6, 15}
    world.files.meanwhile = lambda: world.gone.update({1, 2})
    world.seal(batches)
    assert world.store.snapshot().floor() is None and world.store.cached_bytes == 0
    assert asyncio.run(world.look(14, 1, 7, 4)) == texts(14, 1, 7, 4)
    assert world.store.snapshot().segments[0].rows == 12


def test_batches_of_other_columns_and_many_chunks_keep_their_order(monkeypatch):
    for chunk_bytes in (1, 1 << 20):
        monkeypatch.setattr(groups, "CHUNK_BYTES", chunk_bytes)
        world = World()
        batches = world.put(12)
        keyed = compact([Message(payload=b"%d" % offset, key="k") for offset in range(12, 16)])
        batches.append(CachedBatch(1, 0, 12, keyed, 9, 13, 0, 13))
        world.store.put(batches[-1])
        batches += world.put(4, 16)
        world.gone = {1, 13}
        world.seal(batches)
        kept = [offset for offset in range(20) if offset not in world.gone]
        assert asyncio.run(world.look(*kept)) == texts(*kept)


def test_a_batch_that_was_dropped_while_it_was_sealed_is_dropped_once():
    world = World()
    batches = world.put(8)
    world.files.meanwhile = lambda: world.store.drop(1, 0, [0])
    world.seal(batches)
    assert (world.store.cached_bytes, len(world.store.snapshot().cached)) == (0, 0)


def test_what_two_seal_at_once_is_in_one_segment():
    world = World()
    batches = world.put(16)

    async def main() -> None:
        await asyncio.gather(*(world.store.seal(list(batches), world.wanted) for _ in range(2)))

    world.files.compute = _slowly(world.files.compute)  # type: ignore[method-assign]
    asyncio.run(main())
    assert [each.rows for each in world.store.snapshot().segments] == [16]


def _slowly(compute):
    async def slow(work):
        for _ in range(5):
            await asyncio.sleep(0)
        return await compute(work)

    return slow


@pytest.mark.parametrize("work", ["seal", "rewrite"])
def test_a_topic_that_is_deleted_while_a_thread_works_leaves_only_garbage(work):
    world = World()
    batches = world.put(16)
    if work == "rewrite":
        world.seal(batches)
        world.gone = set(range(1, 16))
    world.files.meanwhile = lambda: world.store.drop_topic(1)
    if work == "seal":
        world.seal(batches)
    else:
        assert world.rewrite()
    assert world.store.snapshot().segments == []
    assert sorted(world.store.garbage) == sorted(world.files.disk)


def test_overflow_is_written_to_segments_of_bounded_size(monkeypatch):
    world = World(cache_bytes_max=20_000)
    batches = world.put(80)
    monkeypatch.setattr(groups, "SEGMENT_BYTES_MAX", 3 * batches[-1].size)
    found = world.store.overflow(durable=60)
    assert [len(group) for group in found] == [3, 3, 3, 2]
    assert [cached.base for group in found for cached in group] == list(range(0, 44, ROWS))
    monkeypatch.setattr(groups, "SEGMENT_BATCHES_MAX", 2)
    assert [len(group) for group in world.store.overflow(durable=60)] == [2, 2, 2, 2, 2, 1]
    assert len(world.store.overflow(durable=20)) == 3, "what is not durable stays where it has a gate"


def test_a_mostly_dead_segment_is_written_again_without_the_dead():
    world = World()
    world.seal(world.put(64))
    (old,) = world.store.snapshot().segments
    world.gone = set(range(64)) - {3, 17, 18, 60}
    assert world.rewrite()
    (new,) = world.store.snapshot().segments
    assert new.rows == 4 and new.bytes < old.bytes
    assert world.store.garbage == [old.path] and old.path in world.files.disk
    assert asyncio.run(world.look(60, 3, 17)) == texts(60, 3, 17)
    assert not world.rewrite(), "what is left is wanted"


def test_a_segment_of_which_a_quarter_is_wanted_stays():
    world = World()
    world.seal(world.put(64))
    world.gone = set(range(48))
    assert not world.rewrite()
    world.gone = set(range(49))
    assert world.rewrite()


def test_a_segment_that_lost_its_last_message_during_compaction_is_deleted_without_a_new_one():
    world = World()
    world.seal(world.put(16))
    world.gone = set(range(15))
    world.files.reading = lambda: world.gone.add(15)
    assert world.rewrite()
    assert world.store.snapshot().segments == [] and len(world.store.garbage) == 1


def test_the_search_for_sparse_segments_is_bounded_and_continues_where_it_ended(monkeypatch):
    monkeypatch.setattr(compaction, "SCAN_MAX", 2)
    world = World()
    for base in range(0, 80, 16):
        world.seal(world.put(16, base))
    world.gone = set(range(64, 79))
    assert [world.rewrite() for _ in range(4)] == [False, False, True, False]


def test_dead_segments_are_garbage_at_once_however_many_there_are():
    world = World()
    for base in range(0, 320, 16):
        world.seal(world.put(16, base))
    paths = [each.path for each in world.store.snapshot().segments]
    world.gone = set(range(16 * 15)) | set(range(16 * 16 + 1, 16 * 17))
    gain = world.store.find_sparse(world.wants)
    assert world.store.garbage == paths[:15]
    assert world.store.garbage_bytes == sum(len(world.files.disk[path]) for path in paths[:15])
    assert 0 < gain < len(world.files.disk[paths[16]])
    assert asyncio.run(world.store.rewrite(world.wanted, world.wants)), "the one that is mostly dead"
    assert world.store.garbage[15:] == [paths[16]]
    assert world.store.find_sparse(world.wants) == 0


def test_few_messages_that_keep_the_journal_are_found_by_what_it_costs_to_move_them():
    world = World()
    batches = world.put(40)
    cost = np.cumsum([each.size for each in batches])

    def moved(edges: list[int], size_max: int) -> int:
        return sum(len(group) for group in world.store.few_before(edges, 99, size_max))

    assert [moved([6, 30], int(size)) for size in cost] == [0, 2, 2, 2, 2, 2, 2, 8, 8, 8]
    assert moved([6, 99], int(cost[-1])) == 10
    assert moved([6, 99], int(cost[-1]) - 1) == 2


def test_a_load_whose_segment_is_written_again_meanwhile_is_asked_anew():
    world = World()
    world.seal(world.put(32))
    (old,) = world.store.snapshot().segments
    world.gone = set(range(32)) - {0, 30}

    async def main() -> None:
        looking = asyncio.create_task(world.look(0, 30))
        await asyncio.sleep(0)  # the look holds the blocks of the old segment now
        world.store.find_sparse(world.wants)
        assert await world.store.rewrite(world.wanted, world.wants)
        await world.files.remove(world.store.garbage)
        assert old.path not in world.files.disk
        assert await looking == texts(0, 30)

    asyncio.run(main())


def test_a_body_that_no_block_has_is_lost_and_not_asked_for_for_ever():
    world = World()
    batches = world.put(16)
    world.gone = {6, 15}
    world.seal(batches)
    for lost in (6, 15):
        with pytest.raises(Corrupt, match="lost"):
            asyncio.run(world.look(4, lost))


@pytest.mark.parametrize("blocks", [*(pytest.param(each, marks=pytest.mark.more) for each in (0.5, 1, 2)), 3.5])
def test_sizes_are_returned_of_as_many_as_the_read_cache_holds_in_order(blocks):
    world = World()
    world.seal(world.put(400))
    each = int(world.store.snapshot().segments[0].blocks[4].max())
    world.store.read_cache.bytes_max = int(blocks * each)
    left = np.random.default_rng(3).permutation(400).astype(np.int64)
    loads = 0
    while len(left):
        try:
            sizes = world.store.sizes(1, 0, left[:50])
        except Cold as cold:
            loads += 1
            asyncio.run(world.store.load(cold))
            assert world.store.read_cache.bytes <= max(world.store.read_cache.bytes_max, each)
            assert len(world.store.sizes(1, 0, left[:50])) > 0, "what was loaded is there at once"
            continue
        assert len(sizes) > 0
        assert sizes.tolist() == [len(b"%d" % offset) for offset in left[: len(sizes)]]
        left = left[len(sizes) :]
    assert loads >= 400 / ROWS / max(blocks, 1)


def test_readers_that_push_each_other_out_of_the_cache_still_get_on():
    world = World()
    for partition in range(3):
        world.seal(world.put(64, partition=partition))
    world.store.read_cache.bytes_max = 1

    async def read(partition: int) -> None:
        for first in range(0, 64, 2):
            offsets = [first, 63 - first, first + 1]
            assert await world.look(*offsets, partition=partition) == texts(*offsets)

    async def main() -> None:
        async with asyncio.timeout(20):
            await asyncio.gather(*(read(partition) for partition in (0, 1, 2, 0, 1)))

    asyncio.run(main())


def test_a_decision_with_several_questions_keeps_the_bodies_of_all():
    world = World()
    for partition in range(3):
        world.seal(world.put(16, partition=partition))
    world.store.read_cache.bytes_max = 1

    async def main() -> int:
        colds: list[Cold] = []
        for attempt in range(10):
            try:
                for partition in range(3):
                    world.store.take(1, partition, np.array([0, 9], np.int64), ("payload",))
            except Cold as cold:
                colds = together(colds, cold)
                await world.store.load(*colds)
            else:
                return attempt
        raise AssertionError("it asks for ever")

    assert asyncio.run(main()) == 3


def scattered(world: World, count: int) -> np.ndarray:
    """Seal so many messages, with room for two of their blocks, and return their offsets in random order."""
    world.seal(world.put(count))
    world.store.read_cache.bytes_max = 2 * int(world.store.snapshot().segments[0].blocks[4].max())
    return np.random.default_rng(5).permutation(count).astype(np.int64)


def test_many_messages_of_more_blocks_than_memory_holds_are_found_by_reading_each_block_once(monkeypatch):
    monkeypatch.setattr(segment, "BLOCK_ROWS_MAX", 256)
    world = World()
    offsets = scattered(world, 4_096)[:32]
    blocks = world.store.snapshot().segments[0].blocks.shape[1]
    reads = 0

    def count() -> None:
        nonlocal reads
        reads += 1

    world.files.reading = count
    with pytest.raises(Cold) as cold:
        world.store.sizes(1, 0, offsets)
    asyncio.run(world.store.load(cold.value))
    assert world.store.sizes(1, 0, offsets).tolist() == [len(b"%d" % offset) for offset in offsets]
    batch, _ = world.store.deliver(1, 0, offsets, 1)
    assert batch.column("payload").to_pylist() == [b"%d" % offset for offset in offsets]
    assert reads == len(np.unique(offsets // 256)) <= blocks
    assert world.store.read_cache.bytes <= world.store.read_cache.bytes_max
    assert asyncio.run(world.look(int(offsets[0]) ^ 1)) == texts(int(offsets[0]) ^ 1), "the others of a block are read"


def test_messages_that_are_far_larger_than_those_beside_them_do_not_fill_memory(monkeypatch):
    monkeypatch.setattr(segment, "BLOCK_ROWS_MAX", 256)
    world = World()
    large = np.arange(0, 4_096, 256, dtype=np.int64)
    batches = []
    for first in range(0, 4_096, 256):
        rows = compact([Message(payload=b"x" * (20_000 if n == 0 else 1)) for n in range(256)])
        batches.append(CachedBatch(1, 0, first, rows, 7, first + 1, 0, first + 1))
        world.store.put(batches[-1])
    world.seal(batches)
    cache = world.store.read_cache
    cache.bytes_max = 3 * int(world.store.snapshot().segments[0].blocks[4].max())
    loads, left = 0, large
    while len(left):
        try:
            left = left[len(world.store.sizes(1, 0, left)) :]
        except Cold as cold:
            loads += 1
            asyncio.run(world.store.load(cold))
            assert cache.bytes <= cache.bytes_max + 30_000
    assert loads < 3 * len(large)
