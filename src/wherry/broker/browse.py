"""Looking without touching: browse, search, list what is scheduled, list dead letters.

Nothing here changes a delivery count, an order or a lease, and nothing is shown before it is durable. Long scans go
block by block and let others run between.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from wherry.broker.shard import Shard
from wherry.core import amending, deadletters
from wherry.core.bodies import Cold
from wherry.core.deadletters import DeadFilter
from wherry.core.partition import Partition
from wherry.core.reader import DEAD
from wherry.core.state import TopicState
from wherry.model import check, limits
from wherry.model.errors import NotFound
from wherry.model.schema import MESSAGE

Int64: TypeAlias = npt.NDArray[np.int64]

BLOCK = 4_096
LIMIT_MAX = 1_000_000

LISTED = MESSAGE.append(pa.field("partition", pa.uint16(), nullable=False)).append(
    pa.field("version", pa.int64(), nullable=False)
)
"""What browsing and searching give: messages, where they are, and how often each was changed: what an edit names."""

SCHEDULED = LISTED.append(pa.field("at", pa.timestamp("ms", tz="UTC"), nullable=False))
"""What is scheduled: messages, and when each may be handed out."""

_TIME = pa.timestamp("ms", tz="UTC")
DEAD_LETTERS = pa.schema(
    [
        *LISTED,
        pa.field("subscription", pa.string(), nullable=False),
        pa.field("reason", pa.string(), nullable=False),
        pa.field("error", pa.string(), nullable=False),
        pa.field("attempts", pa.int64(), nullable=False),
        pa.field("first_failed", _TIME, nullable=False),
        pa.field("last_failed", _TIME, nullable=False),
        pa.field("died", _TIME, nullable=False),
    ]
)
"""Dead letters: the whole message, whose dead letter it is ("" for nobody's), and what happened to it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """What to look for; every condition that is given must hold.

    `headers` must all be there with these values; times are when messages were published, Unix milliseconds, the end
    not included.
    """

    key: str | None = None
    headers: dict[str, str] | None = None
    from_ms: int | None = None
    to_ms: int | None = None
    limit: int = 1_000

    def checked(self) -> Search:
        """This search, or `InvalidInput`."""
        if self.key is not None:
            check.text("key", self.key)
        check.headers("headers", self.headers)
        check.optional_integer("from_ms", self.from_ms, 0, limits.TIME_MS_MAX)
        check.optional_integer("to_ms", self.to_ms, 0, limits.TIME_MS_MAX)
        check.integer("limit", self.limit, 1, LIMIT_MAX)
        return self


async def load(
    shard: Shard, topic: TopicState, partition: int, offsets: Int64
) -> tuple[pa.RecordBatch, npt.NDArray[np.bool_]]:
    """Messages as a listed batch, from memory or disk, and which of them are still there: others go on meanwhile."""
    there = np.ones(len(offsets), np.bool_)
    while True:
        if shard.state.topics.get(topic.number) is not topic:
            raise NotFound("topic", topic.config.name)
        there &= ~topic.partitions[partition].released.contains(offsets)
        try:
            batch = shard.store.messages(topic.number, partition, offsets[there])
        except Cold as cold:
            await shard.store.load(cold)
            continue
        numbers = np.full(batch.num_rows, partition, np.uint16)
        versions = topic.partitions[partition].versions.get(offsets[there], "version", 1)
        columns = [*batch.columns, pa.array(numbers), pa.array(versions)]
        return pa.RecordBatch.from_arrays(columns, schema=LISTED), there


async def browse(shard: Shard, topic: TopicState, partition: int, start: int, limit: int) -> pa.RecordBatch:
    """Messages of a partition by offset, from `start`."""
    check.integer("partition", partition, 0, topic.config.partitions - 1)
    check.integer("start", start, 0, limits.OFFSET_MAX)
    check.integer("limit", limit, 1, LIMIT_MAX)
    found = topic.partitions.get(partition)
    blocks: list[pa.RecordBatch] = []
    if found is not None:
        async for block in _blocks(shard, topic, found, start, found.next_offset):
            blocks.append(block)
            limit -= block.num_rows
            if limit <= 0:
                blocks[-1] = block.slice(0, block.num_rows + limit)
                break
    await shard.committer.wait(shard.committer.submitted)
    return _joined(blocks, LISTED)


async def _blocks(
    shard: Shard, topic: TopicState, partition: Partition, start: int, stop: int
) -> AsyncIterator[pa.RecordBatch]:
    while start < stop:
        end = min(start + BLOCK, stop)
        offsets = partition.released.missing(start, end)
        start = end
        if len(offsets):
            yield (await load(shard, topic, partition.number, offsets))[0]
            await asyncio.sleep(0)
        elif partition.released.floor > start:
            start = min(partition.released.floor, stop)


async def by_id(shard: Shard, topic: TopicState, message_id: str) -> pa.RecordBatch:
    """The message with an id, as a batch of one row; empty if it is not in the topic."""
    try:
        found = await find(shard, topic, message_id)
    except NotFound:
        return _joined([], LISTED)
    batch, _ = await load(shard, topic, found.partition, np.array([found.offset], np.int64))
    await shard.committer.wait(shard.committer.submitted)
    return batch


async def find(shard: Shard, topic: TopicState, message_id: str) -> amending.Found:
    """Where the message with an id is, or `NotFound`."""
    while True:
        try:
            return amending.find(shard.state, topic, message_id)
        except Cold as cold:
            await shard.store.load(cold)


async def search(shard: Shard, topic: TopicState, wanted: Search) -> pa.RecordBatch:
    """Messages that match, by partition and offset."""
    wanted.checked()
    hits: list[pa.RecordBatch] = []
    left = wanted.limit
    for partition in list(topic.partitions.values()):
        start, stop = _time_range(partition, wanted)
        async for block in _blocks(shard, topic, partition, start, stop):
            hit = block.filter(_matches(block, wanted)).slice(0, left)
            if hit.num_rows:
                hits.append(hit)
                left -= hit.num_rows
            if left <= 0:
                break
        if left <= 0:
            break
    await shard.committer.wait(shard.committer.submitted)
    return _joined(hits, LISTED)


def _time_range(partition: Partition, wanted: Search) -> tuple[int, int]:
    start, stop = 0, partition.next_offset
    if wanted.from_ms is not None:
        first = partition.directory.first_published_from(wanted.from_ms * 1000)
        start = stop if first is None else first
    return start, stop


def _matches(block: pa.RecordBatch, wanted: Search) -> pa.Array:
    mask = pa.array(np.ones(block.num_rows, np.bool_))
    if wanted.key is not None:
        mask = pc.and_(mask, pc.fill_null(pc.equal(block.column("key"), wanted.key), False))
    published = block.column("published").view(pa.int64())
    if wanted.from_ms is not None:
        mask = pc.and_(mask, pc.greater_equal(published, wanted.from_ms * 1000))
    if wanted.to_ms is not None:
        mask = pc.and_(mask, pc.less(published, wanted.to_ms * 1000))
    for name, value in (wanted.headers or {}).items():
        found = pc.map_lookup(block.column("headers"), name, "last")
        mask = pc.and_(mask, pc.fill_null(pc.equal(found, value), False))
    return mask


async def scheduled(
    shard: Shard, topic: TopicState, subscription: str, from_ms: int | None, to_ms: int | None, limit: int
) -> pa.RecordBatch:
    """What a subscription will be handed in a time range, soonest first."""
    now_ms = shard.now().wall_ms
    low = check.optional_integer("from_ms", from_ms, 0, limits.TIME_MS_MAX)
    high = check.optional_integer("to_ms", to_ms, 0, limits.TIME_MS_MAX)
    check.integer("limit", limit, 1, LIMIT_MAX)
    state = shard.state.subscription(topic.config.name, subscription)
    rows: list[tuple[int, Int64, Int64]] = []
    for number, reader in state.readers.items():
        pairs = reader.scheduled(now_ms + 1 if low is None else low, limits.TIME_MS_MAX + 1 if high is None else high)
        rows.append((number, pairs.rank[:limit], pairs.offset[:limit]))
    batches = []
    for number, at, offset in rows:
        if len(offset):
            listed, there = await load(shard, topic, number, offset)
            times = pa.array(at[there], pa.int64()).view(SCHEDULED.field("at").type)
            batches.append(pa.RecordBatch.from_arrays([*listed.columns, times], schema=SCHEDULED))
    await shard.committer.wait(shard.committer.submitted)
    batch = _joined(batches, SCHEDULED)
    order = pc.sort_indices(batch.column("at").view(pa.int64()))
    return batch.take(order).slice(0, limit)


async def dead_letters(shard: Shard, topic: TopicState, wanted: DeadFilter) -> pa.RecordBatch:
    """Dead letters that a filter means, with the whole message and what happened to it."""
    shard.upkeep(shard.now())
    batches = []
    for group in deadletters.select(shard.state, topic, wanted):
        listed, there = await load(shard, topic, group.partition, group.offsets)
        rows = dict(zip(DEAD, group.rows[1:, there], strict=True))
        texts = np.array(shard.state.texts.texts, object)
        columns = [
            pa.array([group.name] * listed.num_rows, pa.string()),
            pa.array(texts[rows["reason"]], pa.string()),
            pa.array(texts[rows["error"]], pa.string()),
            pa.array(rows["attempts"]),
            *(pa.array(rows[name], pa.int64()).view(_TIME) for name in ("first_ms", "last_ms", "dead_ms")),
        ]
        batches.append(pa.RecordBatch.from_arrays([*listed.columns, *columns], schema=DEAD_LETTERS))
    await shard.committer.wait(shard.committer.submitted)
    return _joined(batches, DEAD_LETTERS)


def _joined(batches: list[pa.RecordBatch], schema: pa.Schema) -> pa.RecordBatch:
    if not batches:
        return pa.RecordBatch.from_pylist([], schema)
    return pa.concat_batches(batches) if len(batches) > 1 else batches[0]
