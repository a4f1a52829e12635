"""The durable state as plain columns, and back: what a checkpoint holds, and what replay must equal.

`dump` takes references to immutable arrays and copies small ones, so it is quick even with a large backlog.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Sequence
from typing import TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyroaring import BitMap64

from wherry.core.index.directory import Directory
from wherry.core.index.directory_part import COLUMNS as BATCH_COLUMNS
from wherry.core.index.offsets import OffsetSet, offsets_of
from wherry.core.index.runs import RUN_MAX, Pairs, SortedRuns
from wherry.core.index.table import OffsetTable
from wherry.core.state.outbox import OUTCOMES, WATCHED, Outbox
from wherry.core.state.partition import Partition
from wherry.core.state.producers import ProducerCall
from wherry.core.state.reader import ATTEMPTS, DEAD, Reader
from wherry.core.state.stages import OpenStage, StagedBatch
from wherry.core.state.state import State, SubscriptionState, TopicState
from wherry.model.calls.dead import AuditRecord
from wherry.model.calls.stats import Removal
from wherry.model.catalog.key import Key
from wherry.model.catalog.route import Route
from wherry.model.catalog.subscription import Subscription
from wherry.model.catalog.topic import Topic
from wherry.model.schema import stored_schema

Int64: TypeAlias = npt.NDArray[np.int64]
Leased: TypeAlias = dict[tuple[int, int], list[Pairs]]


class Column:
    """An int64 column in several arrays that are never modified, so that a checkpoint writes them without a copy."""

    __slots__ = ("pieces",)

    def __init__(self, pieces: list[Int64]) -> None:
        self.pieces = pieces

    def joined(self) -> Int64:
        """Return the column as one array."""
        return self.pieces[0] if len(self.pieces) == 1 else np.concatenate([_NONE, *self.pieces])


_NONE = np.empty(0, np.int64)


class DirectoryImage:
    """A `Directory` as bytes, in pieces that are never modified, so that a checkpoint writes them without a copy."""

    __slots__ = ("pieces",)

    def __init__(self, pieces: Sequence[bytes | memoryview] = ()) -> None:
        self.pieces = pieces

    def opened(self) -> Directory:
        """Return the directory."""
        directory = Directory()
        directory.load_bytes(b"".join(self.pieces))
        return directory


class SetImage(msgspec.Struct, frozen=True, array_like=True):
    """An `OffsetSet`."""

    floor: int
    above: bytes


class ReaderImage(msgspec.Struct, frozen=True, array_like=True):
    """A `Reader` without its leases: leased messages are saved as waiting."""

    subscription: int
    start: int
    settled: SetImage
    held: Int64
    delayed: bytes
    dead: Int64
    rank: Column
    offset: Column
    backlog: tuple[int, int] | None


class PartitionImage(msgspec.Struct, frozen=True, array_like=True):
    """A `Partition`."""

    number: int
    next_offset: int
    reserved: int
    has_due: bool
    directory: Int64
    """The rows of the directory in an older checkpoint; nothing in one of today, which has `batches`."""
    finished: SetImage
    released: SetImage
    dead: Int64
    expiry: Column
    versions: Int64
    transient: bytes
    expiry_exempt: bytes
    readers: list[ReaderImage]
    ends: Int64 = msgspec.field(default_factory=lambda: _NONE)
    ends_unknown_below: int = -1
    """-1 in a checkpoint from before `ends` was recorded: then the fate of messages that are gone is unknown."""
    lost: bytes = BitMap64().serialize()
    batches: DirectoryImage = msgspec.field(default_factory=DirectoryImage)


class OutboxImage(msgspec.Struct, frozen=True, array_like=True):
    """An `Outbox`."""

    urls: dict[int, str]
    watched: Int64
    outcomes: Int64


class TopicImage(msgspec.Struct, frozen=True, array_like=True):
    """A `TopicState`."""

    number: int
    config: Topic
    messages: int
    bytes: int
    dead: int
    counters: dict[str, int]
    producers: list[tuple[str, list[ProducerCall]]]
    ids: Column
    audit_records: list[AuditRecord]
    partitions: list[PartitionImage]
    removals: list[Removal] = []
    outbox: OutboxImage | None = None


class SubscriptionImage(msgspec.Struct, frozen=True, array_like=True):
    """A durable `SubscriptionState`."""

    number: int
    topic: int
    config: Subscription
    starts: Int64
    backlog_bytes: int
    counters: dict[str, int]


class StageImage(msgspec.Struct, frozen=True, array_like=True):
    """An open `Stage`: `topic, partition, count, columns, bytes` for each part. The bodies are in the journal."""

    key: str
    opened_ms: int
    held_settles: bool
    parts: list[tuple[int, int, int, int, int]]


class StateImage(msgspec.Struct, frozen=True, array_like=True):
    """A `State`."""

    epoch: int
    next_number: int
    topics: list[TopicImage]
    subscriptions: list[SubscriptionImage]
    routes: list[Route]
    stages: list[StageImage]
    committed: list[tuple[str, list[int]]]
    texts: list[str]
    expired: list[str] = []
    keys: list[Key] = []


def dump(state: State) -> StateImage:
    """Return the durable state. Leased messages count as waiting, because a restart ends all leases."""
    leased: Leased = {}
    for lease in state.leases.all():
        leased.setdefault((lease.subscription, lease.partition), []).append(Pairs(lease.rank, lease.offset))
    return StateImage(
        state.epoch,
        state.catalog.next_number,
        [_topic_image(topic, leased) for topic in state.topics.values()],
        [_subscription_image(each) for each in state.subscriptions.values() if each.config.durable],
        list(state.catalog.routes.values()),
        [_stage_image(stage) for stage in state.stages.open.values()],
        [(key, placed.tolist()) for key, placed in state.stages.committed.items()],
        list(state.texts.texts),
        list(state.stages.expired),
        list(state.catalog.keys.values()),
    )


def _stage_image(stage: OpenStage) -> StageImage:
    parts = [(p.topic, p.partition, p.messages, p.columns, p.bytes) for p in stage.parts]
    return StageImage(stage.key, stage.opened_ms, stage.held_settles, parts)


def _subscription_image(each: SubscriptionState) -> SubscriptionImage:
    return SubscriptionImage(
        each.number, each.topic.number, each.config, each.starts, each.backlog_bytes, dict(each.counters)
    )


def _topic_image(topic: TopicState, leased: Leased) -> TopicImage:
    return TopicImage(
        topic.number,
        topic.config,
        topic.messages,
        topic.bytes,
        topic.dead,
        dict(topic.counters),
        topic.producers.dump(),
        Column(list(topic.ids.columns())),
        list(topic.audit_records),
        [_partition_image(partition, leased) for partition in topic.partitions.values()],
        list(topic.removals),
        _outbox_image(topic.outbox),
    )


def _outbox_image(outbox: Outbox) -> OutboxImage | None:
    if not outbox.urls:
        return None
    return OutboxImage(dict(outbox.urls), outbox.watched.columns().ravel(), outbox.outcomes.columns().ravel())


def _partition_image(partition: Partition, leased: Leased) -> PartitionImage:
    expiring, overdue = partition.expiry.parts(), partition.overdue.copy()
    return PartitionImage(
        partition.number,
        partition.next_offset,
        partition.reserved,
        partition.has_due,
        _NONE,
        _set_image(partition.finished),
        _set_image(partition.released),
        partition.dead.columns().ravel(),
        Column([*(p.rank for p in expiring), np.zeros_like(overdue), *(p.offset for p in expiring), overdue]),
        partition.versions.columns().ravel(),
        partition.transient.serialize(),
        partition.expiry_exempt.serialize(),
        [
            _reader_image(number, reader, leased.get((number, partition.number), []))
            for number, reader in partition.readers.items()
        ],
        partition.ends.columns().ravel(),
        partition.ends_unknown_below,
        partition.lost.serialize(),
        DirectoryImage(partition.directory.bytes_pieces()),
    )


def _reader_image(subscription: int, reader: Reader, leased: list[Pairs]) -> ReaderImage:
    waiting = [*reader.waiting.parts(), *(leased if reader.ranked else [])]
    return ReaderImage(
        subscription,
        reader.start,
        _set_image(reader.settled),
        reader.attempts_table.columns().ravel(),
        reader.delayed.members.serialize(),
        reader.dead.columns().ravel(),
        Column([pairs.rank for pairs in waiting]),
        Column([pairs.offset for pairs in waiting]),
        reader.backlog,
    )


def _set_image(offsets: OffsetSet) -> SetImage:
    return SetImage(offsets.floor, offsets.above.serialize())


def load(state: State, image: StateImage) -> None:
    """Load what `dump` returned into a fresh state. The shell adds the bodies of open stages."""
    state.epoch = image.epoch
    state.texts.load(list(image.texts))
    for topic_image in image.topics:
        state.catalog.put_topic(topic_image.number, topic_image.config)
        state.topics[topic_image.number] = _load_topic(topic_image)
        if topic_image.outbox is not None:
            state.with_outcomes[topic_image.number] = None
    for each in image.subscriptions:
        topic = state.topics[each.topic]
        subscription = SubscriptionState(each.number, each.config, topic, each.starts)
        subscription.backlog_bytes = each.backlog_bytes
        subscription.counters = dict(each.counters)
        state.subscriptions[each.number] = topic.subscriptions[each.number] = subscription
        state.catalog.put_subscription(each.number, each.topic, each.config)
    for topic_image in image.topics:
        for partition_image in topic_image.partitions:
            _load_partition(state, state.topics[topic_image.number], partition_image)
    for route in image.routes:
        state.catalog.put_route(route)
    for key in image.keys:
        state.catalog.put_key(key)
    state.catalog.next_number = image.next_number
    for stage in image.stages:
        state.stages.open[stage.key] = _load_stage(stage)
    state.stages.expired = dict.fromkeys(image.expired)
    state.stages.committed = {key: np.array(placed, np.int64) for key, placed in image.committed}


def _load_stage(image: StageImage) -> OpenStage:
    parts = [StagedBatch(*fields, pa.RecordBatch.from_pylist([], stored_schema(fields[3]))) for fields in image.parts]
    return OpenStage(image.key, image.opened_ms, parts, image.held_settles)


def _load_topic(image: TopicImage) -> TopicState:
    topic = TopicState(image.number, image.config)
    topic.messages, topic.bytes, topic.dead = image.messages, image.bytes, image.dead
    topic.counters = dict(image.counters)
    topic.producers.load(image.producers)
    topic.audit_records.extend(image.audit_records)
    topic.removals.extend(image.removals)
    ids = image.ids.joined()
    half = len(ids) // 2
    topic.ids.add(ids[:half], ids[half:])
    if image.outbox is not None:
        watched, outcomes = (
            _table(flat, 1 + len(names))
            for flat, names in ((image.outbox.watched, WATCHED), (image.outbox.outcomes, OUTCOMES))
        )
        topic.outbox.load(image.outbox.urls, watched, outcomes)
    return topic


def _load_partition(state: State, topic: TopicState, image: PartitionImage) -> None:
    partition = topic.partition(image.number)
    partition.next_offset, partition.reserved, partition.has_due = image.next_offset, image.reserved, image.has_due
    if len(image.directory):
        partition.directory.load(_table(image.directory, len(BATCH_COLUMNS)))
    else:
        partition.directory = image.batches.opened()
    partition.expiry_exempt = BitMap64.deserialize(image.expiry_exempt)
    partition.finished, partition.released = _load_set(image.finished), _load_set(image.released)
    _load_table(partition.dead, image.dead)
    _load_table(partition.versions, image.versions)
    _load_table(partition.ends, image.ends)
    partition.ends_unknown_below = image.next_offset if image.ends_unknown_below < 0 else image.ends_unknown_below
    partition.lost = BitMap64.deserialize(image.lost)
    expiry = image.expiry.joined()
    half = len(expiry) // 2
    _insert_in_blocks(partition.expiry, expiry[:half], expiry[half:])
    if half:
        state.expiry_times.note(topic.number, partition.number, int(expiry[:half].min()))
    oldest_us = partition.directory.oldest_us()
    if oldest_us is not None:
        topic.oldest.note(partition.number, oldest_us)
    for reader_image in image.readers:
        _load_reader(state, topic, partition, reader_image)
    topic.give_back(partition.forget(offsets_of(BitMap64.deserialize(image.transient))))


def _load_reader(state: State, topic: TopicState, partition: Partition, image: ReaderImage) -> None:
    subscription = topic.subscriptions[image.subscription]
    reader = state.new_reader(subscription, partition.number, image.start)
    reader.settled = _load_set(image.settled)
    _load_table(reader.attempts_table, image.held)
    _load_table(reader.dead, image.dead)
    reader.backlog = image.backlog
    reader.load(image.rank.joined(), image.offset.joined(), BitMap64.deserialize(image.delayed), partition.next_offset)


def _load_set(image: SetImage) -> OffsetSet:
    return OffsetSet(image.floor, BitMap64.deserialize(image.above))


def _table(flat: Int64, rows: int) -> Int64:
    return flat.reshape(rows, -1).copy()


def _load_table(table: OffsetTable, flat: Int64) -> None:
    table.load(_table(flat, 1 + len(table.names)))


def _insert_in_blocks(runs: SortedRuns, rank: Int64, offset: Int64) -> None:
    for start in range(0, len(rank), RUN_MAX):
        runs.insert(rank[start : start + RUN_MAX], offset[start : start + RUN_MAX])


VOLATILE_COUNTERS = frozenset({"cut_off"})
"""Also counted for ephemeral subscriptions, which are not in the journal."""


def digest(state: State) -> str:
    """Return a fingerprint of the durable state: equal after replay, in whatever order it was indexed.

    Leaves out topics that ever had transient messages, because a restart loses those.
    """
    canon = hashlib.blake2b(digest_size=16)
    image = dump(state)
    texts = np.array([zlib.crc32(text.encode()) for text in image.texts], np.int64)
    lasting = [topic for topic in image.topics if not any(partition.reserved for partition in topic.partitions)]
    for topic in sorted(lasting, key=lambda each: each.number):
        # An ephemeral subscription that was cut off is counted, although it is not in the journal.
        counters = sorted((name, count) for name, count in topic.counters.items() if name not in VOLATILE_COUNTERS)
        head = (topic.number, topic.config, topic.messages, topic.bytes, topic.dead, counters)
        canon.update(repr(head).encode())
        canon.update(repr(topic.producers).encode())
        if topic.outbox is not None:
            _digest_outbox(canon, topic.outbox)
        for partition in sorted(topic.partitions, key=lambda each: each.number):
            _digest_partition(canon, partition, texts)
    numbers = {topic.number for topic in lasting}
    for each in sorted(image.subscriptions, key=lambda each: each.number):
        if each.topic in numbers:
            canon.update(repr((each.number, each.topic, each.config, sorted(each.counters.items()))).encode())
    canon.update(repr((image.routes, image.stages, image.committed, image.keys)).encode())
    return canon.hexdigest()


def _digest_partition(canon: hashlib.blake2b, image: PartitionImage, texts: Int64) -> None:
    canon.update(repr((image.number, image.next_offset, image.has_due, image.ends_unknown_below)).encode())
    canon.update(image.ends.tobytes())
    canon.update(image.batches.opened().columns().tobytes())
    for offsets in (image.finished, image.released):
        _digest_set(canon, offsets)
    canon.update(image.versions.tobytes())
    _digest_table(canon, image.dead, DEAD, texts)
    for reader in sorted(image.readers, key=lambda each: each.subscription):
        canon.update(repr((reader.subscription, reader.start, reader.backlog)).encode())
        _digest_set(canon, reader.settled)
        _digest_table(canon, reader.held, ATTEMPTS, texts)
        _digest_table(canon, reader.dead, DEAD, texts)


def _digest_outbox(canon: hashlib.blake2b, image: OutboxImage) -> None:
    """Hash URLs by their text instead of their number, and only those that a row refers to."""
    for flat, names in ((image.watched, WATCHED), (image.outcomes, OUTCOMES)):
        rows = _table(flat, 1 + len(names))
        rows[1] = [zlib.crc32(image.urls[number].encode()) for number in rows[1].tolist()]
        canon.update(rows.tobytes())


def _digest_table(canon: hashlib.blake2b, flat: Int64, names: tuple[str, ...], texts: Int64) -> None:
    """Hash texts themselves instead of their numbers, which depend on what else happened since the start."""
    rows = _table(flat, 1 + len(names))
    for index, name in enumerate(names, 1):
        if name in ("reason", "error"):
            rows[index] = texts[rows[index]]
    canon.update(rows.tobytes())


def _digest_set(canon: hashlib.blake2b, image: SetImage) -> None:
    canon.update(repr(image.floor).encode())
    canon.update(offsets_of(BitMap64.deserialize(image.above)).tobytes())
