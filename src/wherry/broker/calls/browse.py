"""Read without taking: browse, search, list what is scheduled, list dead letters.

Nothing here changes a delivery count, an order or a lease, and no message is shown before it is durable. A long listing
is made slice by slice (`slices`), and loads no more messages than were asked for. A listing can be read page by page: a
page ends at so many messages or bytes, and names the place after which the next page begins.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from wherry.broker.commit.shard import Shard
from wherry.broker.waiting.slices import SLICE_BYTES, SLICE_MESSAGES
from wherry.core.decide.dead_letters import select
from wherry.core.inspect import by_id as messages_by_id
from wherry.core.inspect.dead_kinds import DeadGroup
from wherry.core.state.bodies import Cold
from wherry.core.state.partition import Partition
from wherry.core.state.reader import DEAD
from wherry.core.state.state import TopicState
from wherry.model import check, limits
from wherry.model.calls.dead import DeadFilter
from wherry.model.calls.listing import (
    DEAD_CURSOR,
    DEAD_LETTERS,
    LIMIT_MAX,
    LISTED,
    MESSAGE_CURSOR,
    SCHEDULED,
    SCHEDULED_CURSOR,
    TIME,
    Page,
    Search,
)
from wherry.model.catalog.topic import COUNT_MAX
from wherry.model.errors import InvalidInput, NotFound
from wherry.model.schema import content_sizes

Int64: TypeAlias = npt.NDArray[np.int64]

SPAN = 4_096
"""Offsets that are checked at once for messages that are still there."""

ROW_BYTES = 64
"""What a message counts for in a page beside its content."""


class _Gathering:
    """Messages of one page, up to its bounds; the first one is taken however large it is."""

    def __init__(self, limit: int, bytes_max: int | None) -> None:
        self._batches: list[pa.RecordBatch] = []
        self._limit, self._bytes = limit, bytes_max
        self._last: str | None = None
        self._full = False

    def add(self, batch: pa.RecordBatch, *place: str | int) -> bool:
        """Add what fits of a batch; return whether the page is full. `place`: columns and numbers that name a row."""
        taken = min(batch.num_rows, self._limit)
        if self._bytes is not None and taken:
            weights = np.cumsum(_weights(batch))
            fitting = int(np.searchsorted(weights, self._bytes, "right"))
            taken = min(taken, fitting if self._batches else max(1, fitting))
            self._bytes -= int(weights[taken - 1]) if taken else 0
        if taken:
            self._batches.append(batch.slice(0, taken))
            self._limit -= taken
            self._last = "-".join(str(_whole(batch, taken - 1, part)) for part in place)
        self._full = taken < batch.num_rows or self._limit == 0
        return self._full

    def left(self) -> int:
        """Return how many more messages fit at most."""
        return self._limit

    def page(self, schema: pa.Schema) -> Page:
        return Page(_joined(self._batches, schema), self._last if self._full else None)


def _weights(batch: pa.RecordBatch) -> Int64:
    """Return how many bytes each message counts for in a page."""
    weights = content_sizes(batch) + ROW_BYTES
    for name in {"reason", "error"} & set(batch.schema.names):
        weights += pc.binary_length(batch.column(name)).to_numpy()
    return weights


def _whole(batch: pa.RecordBatch, row: int, part: str | int) -> int:
    return part if isinstance(part, int) else int(batch.column(part)[row].cast(pa.int64()).as_py())


def _place(after: str, pattern: str) -> tuple[int, ...]:
    """Return the numbers in the name of a place, as `Page.next` gave it."""
    if not re.fullmatch(pattern, after, re.ASCII):
        raise InvalidInput("after", after, "the place that the answer before named as `next`")
    return tuple(map(int, after.split("-")))


async def load(
    shard: Shard, topic: TopicState, partition: int, offsets: Int64
) -> tuple[pa.RecordBatch, npt.NDArray[np.bool_]]:
    """Return messages as a listed batch, from memory or disk, and which are still there: some may go meanwhile."""
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


def expire(shard: Shard, topic: TopicState) -> None:
    """Have the messages of a topic expire that are due: no listing shows them."""
    shard.upkeep(shard.now(), (topic.config.name,))


async def browse(shard: Shard, topic: TopicState, partition: int, start: int, limit: int) -> pa.RecordBatch:
    """Return messages of a partition by offset, from `start`."""
    return (await browse_page(shard, topic, partition, start, limit)).batch


async def browse_page(
    shard: Shard,
    topic: TopicState,
    partition: int,
    start: int,
    limit: int,
    *,
    after: str | None = None,
    bytes_max: int | None = None,
) -> Page:
    """Return one page of the messages of a partition; `after` overrides `partition` and `start`."""
    if after is not None:
        partition, offset = _place(after, MESSAGE_CURSOR)
        start = min(offset + 1, limits.OFFSET_MAX)
        if partition >= topic.config.partitions:
            raise NotFound("partition", str(partition))
    check.integer("partition", partition, 0, topic.config.partitions - 1)
    check.integer("start", start, 0, limits.OFFSET_MAX)
    check.integer("limit", limit, 1, LIMIT_MAX)
    expire(shard, topic)
    found = topic.partitions.get(partition)
    gathering = _Gathering(limit, bytes_max)
    if found is not None:
        async for block in _blocks(shard, topic, found, (start, found.next_offset), gathering.left):
            if gathering.add(block, partition, "offset"):
                break
    await shard.committer.wait(shard.committer.submitted)
    return gathering.page(LISTED)


async def _blocks(
    shard: Shard, topic: TopicState, partition: Partition, span: tuple[int, int], wanted: Callable[[], int]
) -> AsyncIterator[pa.RecordBatch]:
    """Yield messages of a partition between two offsets, each time at most as many as are still wanted."""
    start, stop = span
    while start < stop:
        end = min(start + SPAN, stop)
        offsets = partition.released.missing(start, end)
        start = end
        for part in _parts(offsets[None], lambda rows: partition.directory.share_of(rows[0]), wanted):
            await shard.slices.turn()
            yield (await load(shard, topic, partition.number, part[0]))[0]
        if not len(offsets) and partition.released.floor > start:
            start = min(partition.released.floor, stop)


def _parts(
    rows: Int64, weigh: Callable[[Int64], int], wanted: Callable[[], int] = lambda: SLICE_MESSAGES
) -> Iterator[Int64]:
    """Cut columns of offsets into slices, none with more messages than are still wanted."""
    at, count = 0, rows.shape[1]
    while at < count:
        size = min(SLICE_MESSAGES, max(1, wanted()), count - at)
        while size > 1 and weigh(rows[:, at : at + size]) > SLICE_BYTES:
            size //= 2
        yield rows[:, at : at + size]
        at += size


async def by_id(shard: Shard, topic: TopicState, message_id: str) -> pa.RecordBatch:
    """Return the message with an id, as a batch of one row; empty if it is not in the topic."""
    try:
        found = await find(shard, topic, message_id)
    except NotFound:
        batch = _joined([], LISTED)
    else:
        batch, _ = await load(shard, topic, found.partition, np.array([found.offset], np.int64))
    await shard.committer.wait(shard.committer.submitted)  # an empty answer must be durable as well
    return batch


async def find(shard: Shard, topic: TopicState, message_id: str) -> messages_by_id.Found:
    """Return the partition and offset of the message with an id, or raise `NotFound`."""
    expire(shard, topic)
    while True:
        try:
            return messages_by_id.find(shard.state, topic, message_id)
        except Cold as cold:
            await shard.store.load(cold)


async def search(shard: Shard, topic: TopicState, wanted: Search) -> pa.RecordBatch:
    """Return messages that match, by partition and offset."""
    return (await search_page(shard, topic, wanted)).batch


async def search_page(
    shard: Shard, topic: TopicState, wanted: Search, *, after: str | None = None, bytes_max: int | None = None
) -> Page:
    """Return a page of messages that match."""
    wanted.checked()
    expire(shard, topic)
    gathering, where = _Gathering(wanted.limit, bytes_max), wanted.where()
    partitions, first = list(topic.partitions.values()), 0
    if after is not None:
        number, offset = _place(after, MESSAGE_CURSOR)
        if number not in topic.partitions:
            raise NotFound("partition", str(number))
        partitions, first = partitions[list(topic.partitions).index(number) :], offset + 1
    for partition in partitions:
        start, stop = _time_range(partition, wanted)
        async for block in _blocks(shard, topic, partition, (max(start, first), stop), lambda: SLICE_MESSAGES):
            mask = where.mask(block)
            if gathering.add(block if mask is None else block.filter(mask), "partition", "offset"):
                break
        else:
            first = 0
            continue
        break
    await shard.committer.wait(shard.committer.submitted)
    return gathering.page(LISTED)


def _time_range(partition: Partition, wanted: Search) -> tuple[int, int]:
    start, stop = 0, partition.next_offset
    if wanted.from_ms is not None:
        first = partition.directory.first_published_from(wanted.from_ms * 1000)
        start = stop if first is None else first
    return start, stop


async def scheduled(
    shard: Shard, topic: TopicState, subscription: str, from_ms: int | None, to_ms: int | None, limit: int
) -> pa.RecordBatch:
    """Return what a subscription will get in a time range, soonest first."""
    return (await scheduled_page(shard, topic, subscription, from_ms, to_ms, limit)).batch


async def scheduled_page(
    shard: Shard,
    topic: TopicState,
    subscription: str,
    from_ms: int | None,
    to_ms: int | None,
    limit: int,
    *,
    after: str | None = None,
    bytes_max: int | None = None,
) -> Page:
    """Return a page of what a subscription will get in a time range."""
    now_ms = shard.now().wall_ms
    low = check.optional_integer("from_ms", from_ms, 0, limits.TIME_MS_MAX)
    high = check.optional_integer("to_ms", to_ms, 0, limits.TIME_MS_MAX)
    check.integer("limit", limit, 1, LIMIT_MAX)
    done = (-1, -1, -1) if after is None else _place(after, SCHEDULED_CURSOR)
    state = shard.state.subscription(topic.config.name, subscription)
    expire(shard, topic)
    tables = [np.empty((3, 0), np.int64)]
    for number, reader in state.readers.items():
        pairs = reader.scheduled(now_ms + 1 if low is None else low, limits.TIME_MS_MAX + 1 if high is None else high)
        table = np.stack((pairs.rank, np.full(len(pairs.rank), number), pairs.offset))
        tables.append(table[:, _later(table, done)][:, :limit])
    rows = np.concatenate(tables, axis=1)
    rows = rows[:, np.lexsort(rows[::-1])][:, :limit]
    gathering = _Gathering(limit, bytes_max)
    for part in _parts(rows, lambda part: _share(topic, part)):
        if gathering.add(await _soonest(shard, topic, part), "at", "partition", "offset"):
            break
    await shard.committer.wait(shard.committer.submitted)
    return gathering.page(SCHEDULED)


def _later(rows: Int64, done: tuple[int, ...]) -> npt.NDArray[np.bool_]:
    """Return which of the rows (time, partition, offset) come after a place."""
    at, number, offset = rows
    return (at > done[0]) | ((at == done[0]) & ((number > done[1]) | ((number == done[1]) & (offset > done[2]))))


def _share(topic: TopicState, rows: Int64) -> int:
    _, numbers, offsets = rows
    return sum(
        topic.partitions[number].directory.share_of(np.sort(offsets[numbers == number]))
        for number in np.unique(numbers).tolist()
    )


async def _soonest(shard: Shard, topic: TopicState, rows: Int64) -> pa.RecordBatch:
    """Return messages of several partitions in the order of their rows."""
    batches, places = [], []
    for number in np.unique(rows[1]).tolist():
        here = np.flatnonzero(rows[1] == number)
        await shard.slices.turn()
        listed, there = await load(shard, topic, number, rows[2, here])
        times = pa.array(rows[0, here[there]], pa.int64()).view(SCHEDULED.field("at").type)
        batches.append(pa.RecordBatch.from_arrays([*listed.columns, times], schema=SCHEDULED))
        places.append(here[there])
    return _joined(batches, SCHEDULED).take(pa.array(np.argsort(np.concatenate(places))))


async def dead_letters(shard: Shard, topic: TopicState, wanted: DeadFilter) -> pa.RecordBatch:
    """Return dead letters that match a filter, with the whole message and its history."""
    return _joined([block async for block in dead_blocks(shard, topic, wanted)], DEAD_LETTERS)


async def dead_blocks(shard: Shard, topic: TopicState, wanted: DeadFilter) -> AsyncIterator[pa.RecordBatch]:
    """Yield dead letters block by block."""
    async for block, _ in _dead_blocks(shard, topic, wanted, None, lambda: SLICE_MESSAGES):
        yield block


async def dead_page(
    shard: Shard, topic: TopicState, wanted: DeadFilter, *, after: str | None = None, bytes_max: int | None = None
) -> Page:
    """Return a page of dead letters."""
    gathering = _Gathering(wanted.checked().limit, bytes_max)
    async for block, subscription in _dead_blocks(shard, topic, wanted, after, gathering.left):
        if gathering.add(block, "partition", subscription, "offset"):
            break
    return gathering.page(DEAD_LETTERS)


async def _dead_blocks(
    shard: Shard, topic: TopicState, wanted: DeadFilter, after: str | None, left: Callable[[], int]
) -> AsyncIterator[tuple[pa.RecordBatch, int]]:
    """Yield dead letters by partition, subscription and offset, each block with the number of its subscription."""
    expire(shard, topic)
    if after is None:
        groups = select(shard.state, topic, wanted)
    else:
        place = _place(after, DEAD_CURSOR)
        groups = _behind(topic, select(shard.state, topic, replace(wanted, limit=COUNT_MAX)), place)
    texts = np.array(shard.state.texts.texts, object)  # of now: their numbers may change while we wait for bodies
    for group in groups:
        share_of = topic.partitions[group.partition].directory.share_of
        for rows in _parts(group.rows, lambda rows, share_of=share_of: share_of(rows[0]), left):  # type: ignore[misc]
            yield await _buried(shard, topic, group, rows, texts), group.subscription
    await shard.committer.wait(shard.committer.submitted)  # what is not listed must be gone for good


def _behind(topic: TopicState, groups: list[DeadGroup], place: tuple[int, ...]) -> list[DeadGroup]:
    """Return the dead letters after a place, by first use of the partition, then by number of the subscription."""
    number, subscription, offset = place
    ranks = {each: rank for rank, each in enumerate(topic.partitions)}
    if number not in ranks:
        raise NotFound("partition", str(number))
    done, rest = (ranks[number], subscription), []
    for group in groups:
        here = (ranks[group.partition], group.subscription)
        rows = group.rows[:, group.offsets > offset] if here == done else group.rows
        if here >= done and rows.shape[1]:
            rest.append(replace(group, rows=rows))
    return rest


async def _buried(
    shard: Shard, topic: TopicState, group: DeadGroup, table: Int64, texts: npt.NDArray[np.object_]
) -> pa.RecordBatch:
    await shard.slices.turn()
    listed, there = await load(shard, topic, group.partition, table[0])
    await shard.committer.wait(shard.committer.submitted)
    rows = dict(zip(DEAD, table[1:, there], strict=True))
    columns = [
        pa.array([group.name] * listed.num_rows, pa.string()),
        pa.array(texts[rows["reason"]], pa.string()),
        pa.array(texts[rows["error"]], pa.string()),
        pa.array(rows["attempts"]),
        *(pa.array(rows[name], pa.int64()).view(TIME) for name in ("first_ms", "last_ms", "dead_ms")),
    ]
    return pa.RecordBatch.from_arrays([*listed.columns, *columns], schema=DEAD_LETTERS)


def _joined(batches: list[pa.RecordBatch], schema: pa.Schema) -> pa.RecordBatch:
    if not batches:
        return pa.RecordBatch.from_pylist([], schema)
    return pa.concat_batches(batches) if len(batches) > 1 else batches[0]
