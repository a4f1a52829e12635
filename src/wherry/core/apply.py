"""The one place where durable state changes: an entry goes in, the state moves one atomic step.

Live, on recovery and on another node the same entries give the same state. Nothing here asks for bodies, waits, or
refuses: whether an entry is right was decided before it was written.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from wherry.core.hashing import hash_strings, ranks_of
from wherry.core.ids import Place
from wherry.core.lease import Leases
from wherry.core.offsets import bitmap_of, members
from wherry.core.partition import Partition
from wherry.core.producers import Call
from wherry.core.reader import Reader
from wherry.core.settling import take_out
from wherry.core.stages import Part, Stage
from wherry.core.state import Deed, State, SubscriptionState, TopicState
from wherry.model import ops
from wherry.model.limits import PRIORITY_DEFAULT
from wherry.model.ops import Entry, from_ranges
from wherry.model.schema import integers

Int64: TypeAlias = npt.NDArray[np.int64]


class Stored(NamedTuple):
    """A batch that became part of a partition."""

    topic: int
    partition: int
    base: int
    batch: pa.RecordBatch
    published_us: int
    batch_index: int
    """Which batch of the entry it was, or"""
    staged: tuple[str, int] | None = None
    """which part of a stage."""


@dataclass(slots=True)
class Effects:
    """What the shell has to do after a step: keep bodies, look for emptied batches, wake consumers."""

    stored: list[Stored] = field(default_factory=list)
    touched: dict[tuple[int, int], Partition] = field(default_factory=dict)
    awake: dict[int, None] = field(default_factory=dict)
    """Topics in which something may have become ready."""
    staged: list[tuple[str, int, int]] = field(default_factory=list)
    """Key, number of the part, and which batch of the entry it was."""
    ended: list[str] = field(default_factory=list)
    """Keys of stages that are over."""
    dropped_topics: list[int] = field(default_factory=list)


class Step(NamedTuple):
    """One entry on its way through the operations."""

    state: State
    at_us: int
    volatile: bool
    batches: list[pa.RecordBatch]
    effects: Effects
    total: int

    def next_batch(self) -> tuple[pa.RecordBatch, int]:
        """The next batch of the entry, and its number."""
        index = self.total - len(self.batches)
        return self.batches.pop(0), index

    @property
    def now_ms(self) -> int:
        """The time of the entry."""
        return self.at_us // 1000


def apply(state: State, entry: Entry) -> Effects:
    """Move the state by one entry."""
    step = Step(state, entry.at_us, entry.volatile, list(entry.batches), Effects(), len(entry.batches))
    for op in entry.ops:
        _HANDLERS[type(op)](step, op)
    return step.effects


def _opened(step: Step, op: ops.Opened) -> None:
    step.state.epoch = op.epoch
    step.state.leases = Leases(op.epoch)
    for stage in step.state.stages.open.values():
        stage.lost = stage.held_settles
    for topic in step.state.topics.values():
        for partition in topic.partitions.values():
            partition.skip_to(partition.reserved)


def _put_topic(step: Step, op: ops.PutTopic) -> None:
    known = step.state.topics.get(op.number)
    if known is None:
        step.state.topics[op.number] = TopicState(op.number, op.topic)
    else:
        known.config = op.topic
    step.state.catalog.put_topic(op.number, op.topic)


def _delete_topic(step: Step, op: ops.DeleteTopic) -> None:
    topic = step.state.topics.pop(op.number)
    for number in topic.subscriptions:
        del step.state.subscriptions[number]
        for lease in step.state.leases.of_subscription(number):
            step.state.leases.end(lease)
    for number in topic.partitions:
        step.state.mortal.pop((op.number, number), None)
    step.state.catalog.delete_topic(op.number, topic.config.name)
    step.effects.dropped_topics.append(op.number)
    step.effects.awake[op.number] = None


def _put_subscription(step: Step, op: ops.PutSubscription) -> None:
    topic = step.state.topics[op.topic]
    subscription = SubscriptionState(op.number, op.subscription, topic, op.starts)
    step.state.subscriptions[op.number] = subscription
    topic.subscriptions[op.number] = subscription
    if op.subscription.durable:
        step.state.catalog.put_subscription(op.number, op.topic, op.subscription)
    for partition in topic.partitions.values():
        _begin_reading(step, subscription, partition)


def _begin_reading(step: Step, subscription: SubscriptionState, partition: Partition) -> None:
    start = min(subscription.start_of(partition.number), partition.next_offset)
    reader = step.state.new_reader(subscription, partition.number, start)
    topic, end = subscription.topic, partition.next_offset
    if start < end:
        _settle_absent(reader, partition, start, end)
        if topic.config.order == "fifo" and not partition.has_due:
            reader.admit(start, np.arange(start, end, dtype=np.int64), None, step.now_ms)
            absent = reader.settled.within(start, end)
            reader.waiting.claim(absent)
        else:
            reader.backlog = (start, end)
    if not subscription.config.durable or topic.is_stream():
        return
    if len(partition.finished) > len(partition.released):  # dead elsewhere, and now there is one that waits for it
        topic.take(partition.unfinish(reader.settled.missing(start, end)))
    if start > 0:
        _settled(step, topic, partition, partition.released.missing(0, start))


def _settle_absent(reader: Reader, partition: Partition, start: int, end: int) -> None:
    """What is released, or died before any subscription, is nothing to this reader."""
    wanted = partition.released.missing(start, end)
    if len(partition.dead):
        wanted = wanted[~partition.dead.has(wanted)]
    absent = np.setdiff1d(np.arange(start, end, dtype=np.int64), wanted, assume_unique=True)
    reader.settled.add(absent)


def _delete_subscription(step: Step, op: ops.DeleteSubscription) -> None:
    subscription = step.state.subscriptions.pop(op.number)
    topic = subscription.topic
    del topic.subscriptions[op.number]
    for lease in step.state.leases.of_subscription(op.number):
        step.state.leases.end(lease)
    if subscription.config.durable:
        step.state.catalog.delete_subscription(topic.number, subscription.config.name)
    for number, reader in subscription.readers.items():
        partition = topic.partitions[number]
        if not subscription.config.durable:
            del partition.ephemeral[op.number]
            step.effects.touched[topic.number, number] = partition
            continue
        del partition.readers[op.number]
        topic.dead -= len(reader.dead)
        if partition.readers and not topic.is_stream():
            _settled(step, topic, partition, reader.settled.missing(0, partition.next_offset))
        elif not topic.is_stream():  # what waits stays for the next subscription, but dead letters go
            partition.release(reader.dead.offsets())
            step.effects.touched[topic.number, number] = partition
    if op.why:
        topic.count("cut_off", 1)
    step.effects.awake[topic.number] = None


def _settled(step: Step, topic: TopicState, partition: Partition, offset: Int64) -> None:
    topic.give_back(partition.settled(offset))
    step.effects.touched[topic.number, partition.number] = partition


def _admit(step: Step, op: ops.Admit) -> None:
    subscription = step.state.subscriptions[op.subscription]
    reader = subscription.readers[op.partition]
    offset = from_ranges(op.ranges)
    reader.admit_late(offset, op.ranks, op.due_ms, step.now_ms)
    assert reader.backlog is not None
    start, end = reader.backlog
    gone = np.setdiff1d(reader.settled.missing(start, op.stop), offset, assume_unique=True)
    reader.settled.add(gone)
    reader.backlog = (op.stop, end) if op.stop < end else None
    step.effects.awake[subscription.topic.number] = None


def _put_route(step: Step, op: ops.PutRoute) -> None:
    step.state.catalog.routes[op.route.name] = op.route


def _delete_route(step: Step, op: ops.DeleteRoute) -> None:
    del step.state.catalog.routes[op.name]


def _publish(step: Step, op: ops.Publish) -> None:
    batch, index = step.next_batch()
    _add_batch(step, op, batch)
    step.effects.stored.append(Stored(op.topic, op.partition, op.base, batch, step.at_us, index))


def _add_batch(step: Step, op: ops.Publish, batch: pa.RecordBatch) -> None:
    topic = step.state.topics[op.topic]
    partition = topic.partition(op.partition)
    partition.skip_to(op.base)
    partition.append(op.base, op.count, op.bytes, step.at_us)
    if step.volatile:
        partition.transient.add_range(op.base, op.base + op.count)
    _index_ids(topic, op, batch)
    if op.dead:
        _publish_dead(step, topic, partition, op)
    else:
        _admit_all(step, topic, partition, op, batch)
    step.effects.awake[op.topic] = None


def _admit_all(step: Step, topic: TopicState, partition: Partition, op: ops.Publish, batch: pa.RecordBatch) -> None:
    names = batch.schema.names
    rank = ranks(topic, op.base, batch, step.now_ms)
    due = integers(batch, "due", -1) if "due" in names and topic.config.order != "timeline" else None
    partition.has_due |= due is not None
    if "expires" in names:
        expires = integers(batch, "expires", -1)
        mortal = np.flatnonzero(expires >= 0)
        partition.expiry.insert(expires[mortal], op.base + mortal)
        step.state.mortal[op.topic, op.partition] = None
    for subscription in topic.subscriptions.values():
        reader = step.state.reader(subscription, op.partition, op.base)
        reader.admit(op.base, rank, due, step.now_ms)
        if subscription.config.buffer_bytes is not None:
            subscription.backlog_bytes += op.bytes
    topic.messages += op.count
    topic.bytes += op.bytes
    topic.count("published", op.count)


def ranks(topic: TopicState, base: int, batch: pa.RecordBatch, now_ms: int) -> Int64:
    """The place of each new message in the topic's order."""
    if topic.config.order == "fifo":
        return np.arange(base, base + batch.num_rows, dtype=np.int64)
    if topic.config.order == "priority":
        return integers(batch, "priority", PRIORITY_DEFAULT)
    return integers(batch, "due", now_ms)


def _publish_dead(step: Step, topic: TopicState, partition: Partition, op: ops.Publish) -> None:
    """Messages that did not fit: stored whole, dead for everybody, not counted against the bounds."""
    for subscription in topic.subscriptions.values():
        step.state.reader(subscription, op.partition, op.base).pass_over(op.base, op.count)
    offset = np.arange(op.base, op.base + op.count, dtype=np.int64)
    partition.finished.add(offset)
    partition.directory.finish(offset)
    _put_dead(step, partition, offset, op.dead, "")
    topic.dead += op.count
    topic.count("overflowed", op.count)


def _put_dead(step: Step, partition: Partition, offset: Int64, reason: str, error: str) -> None:
    partition.dead.put(
        offset,
        attempts=0,
        first_ms=step.now_ms,
        last_ms=step.now_ms,
        dead_ms=step.now_ms,
        rank=0,
        reason=step.state.texts.number(reason),
        error=step.state.texts.number(error),
    )


def _index_ids(topic: TopicState, op: ops.Publish, batch: pa.RecordBatch) -> None:
    if "id" not in batch.schema.names:
        return
    ids = batch.column("id")
    given = np.flatnonzero(ids.is_valid().to_numpy(zero_copy_only=False))
    rank = ranks_of(hash_strings(ids))[given]
    topic.ids.add(rank, Place.pack(op.partition, op.base + given))


def _sequenced(step: Step, op: ops.Sequenced) -> None:
    step.state.topics[op.topic].producers.note(op.producer, Call(op.first, op.count, op.placed))


def _reserve(step: Step, op: ops.Reserve) -> None:
    partition = step.state.topics[op.topic].partition(op.partition)
    partition.reserved = max(partition.reserved, op.below)


def _settle(step: Step, op: ops.Settle) -> None:
    subscription = step.state.subscriptions[op.subscription]
    partition = subscription.topic.partitions[op.partition]
    _settle_reader(step, subscription, partition, from_ranges(op.ranges))
    subscription.count(op.outcome, int((op.ranges[1::2] - op.ranges[::2]).sum()))


def _settle_reader(step: Step, subscription: SubscriptionState, partition: Partition, offset: Int64) -> None:
    reader = subscription.readers[partition.number]
    if subscription.backlog_bytes:
        unsettled = subscription.behind()
        subscription.backlog_bytes -= subscription.backlog_bytes * len(offset) // max(unsettled, len(offset), 1)
    dead_before = len(reader.dead)
    offset = reader.settle(offset)
    topic = subscription.topic
    topic.dead -= dead_before - len(reader.dead)
    if subscription.config.durable and not topic.is_stream():
        topic.give_back(partition.settled(offset))
    step.effects.touched[topic.number, partition.number] = partition


def _fail(step: Step, op: ops.Fail) -> None:
    subscription = step.state.subscriptions[op.subscription]
    reader = subscription.readers[op.partition]
    error = step.state.texts.number(op.error)
    reader.fail(op.offsets, op.ranks, op.hashes, op.until_ms, step.now_ms, error)
    subscription.count("failed", len(op.offsets))
    step.effects.awake[subscription.topic.number] = None


def _bury(step: Step, op: ops.Bury) -> None:
    topic = step.state.topics[op.topic]
    partition = topic.partitions[op.partition]
    if op.subscription:
        subscription = step.state.subscriptions[op.subscription]
        reason, error = step.state.texts.number(op.reason), step.state.texts.number(op.error)
        reader = subscription.readers[op.partition]
        reader.bury(op.offsets, op.ranks, step.now_ms, reason, error, failed=op.failed)
        subscription.count("buried", len(op.offsets))
        if not topic.is_stream():
            topic.give_back(partition.finish(op.offsets))
    else:
        _end_ephemeral_leases(step, partition, op.offsets)
        _put_dead(step, partition, op.offsets, op.reason, op.error)
        topic.give_back(partition.remove(op.offsets))
        topic.count("buried", len(op.offsets))
    topic.dead += len(op.offsets)


def _redrive(step: Step, op: ops.Redrive) -> None:
    topic = step.state.topics[op.topic]
    partition = topic.partitions[op.partition]
    subscription = step.state.subscriptions[op.subscription]
    subscription.readers[op.partition].redrive(op.offsets, op.ranks, op.due_ms, step.now_ms)
    partition.immortal |= bitmap_of(op.offsets)
    if not topic.is_stream():
        topic.take(partition.unfinish(op.offsets))
    topic.dead -= len(op.offsets)
    subscription.count("redriven", len(op.offsets))
    name = subscription.config.name
    topic.deeds.append(Deed(step.now_ms, "redriven", op.by, name, op.partition, len(op.offsets)))
    step.effects.awake[topic.number] = None


def _discard(step: Step, op: ops.Discard) -> None:
    topic = step.state.topics[op.topic]
    partition = topic.partitions[op.partition]
    if op.subscription:
        _settle_reader(step, step.state.subscriptions[op.subscription], partition, op.offsets)
    else:
        partition.dead.remove(op.offsets)
        topic.dead -= len(op.offsets)
        partition.release(op.offsets)
        step.effects.touched[topic.number, partition.number] = partition
    what: Literal["redriven", "discarded"] = "redriven" if op.redriven else "discarded"
    topic.count(what, len(op.offsets))
    name = step.state.subscriptions[op.subscription].config.name if op.subscription else ""
    topic.deeds.append(Deed(step.now_ms, what, op.by, name, op.partition, len(op.offsets)))


def _remove(step: Step, op: ops.Remove) -> None:
    topic = step.state.topics[op.topic]
    partition = topic.partitions[op.partition]
    offset = from_ranges(op.ranges)
    _end_ephemeral_leases(step, partition, offset)
    topic.give_back(partition.remove(offset))
    topic.count(op.reason, len(offset))
    step.effects.touched[topic.number, partition.number] = partition


def _end_ephemeral_leases(step: Step, partition: Partition, offset: Int64) -> None:
    """Messages go although an ephemeral subscription holds them: its leases go on over what is left."""
    for number, reader in partition.ephemeral.items():
        if not members(reader.leased, offset).any():
            continue
        for lease in step.state.leases.of_subscription(number):
            rows = np.flatnonzero(np.isin(lease.offset, offset))
            if lease.partition == partition.number and len(rows):
                take_out(step.state, lease, rows)


def _replace(step: Step, op: ops.Replace) -> None:
    """The new message is not admitted like another: each reader puts it where the old one stood."""
    topic = step.state.topics[op.topic]
    partition = topic.partitions[op.partition]
    publish = op.publish
    batch, index = step.next_batch()
    partition.skip_to(publish.base)
    partition.append(publish.base, 1, publish.bytes, step.at_us)
    if step.volatile:
        partition.transient.add(publish.base)
    _index_ids(topic, publish, batch)
    rank = int(ranks(topic, publish.base, batch, step.now_ms)[0])
    due = int(integers(batch, "due", -1)[0]) if topic.config.order != "timeline" else None
    partition.has_due |= due is not None and due >= 0
    expires = int(integers(batch, "expires", -1)[0])
    if expires >= 0:
        partition.expiry.insert(np.array([expires], np.int64), np.array([publish.base], np.int64))
        step.state.mortal[op.topic, op.partition] = None
    for subscription in topic.subscriptions.values():
        reader = step.state.reader(subscription, op.partition, publish.base)
        reader.replace(op.old, publish.base, rank, due, step.now_ms)
    at_new = np.array([publish.base], np.int64)
    partition.versions.put(at_new, version=op.version)
    topic.messages += 1
    topic.bytes += publish.bytes
    topic.give_back(partition.remove(np.array([op.old], np.int64)))
    if partition.readers and not topic.is_stream():
        _settled(step, topic, partition, at_new)
    step.effects.touched[topic.number, partition.number] = partition
    step.effects.stored.append(Stored(op.topic, op.partition, publish.base, batch, step.at_us, index))
    step.effects.awake[op.topic] = None


def _stage(step: Step, op: ops.Stage) -> None:
    stage = step.state.stages.open.get(op.key)
    if stage is None:
        stage = step.state.stages.open[op.key] = Stage(op.key, step.now_ms)
    if op.count == 0:
        stage.held_settles = True
        return
    batch, index = step.next_batch()
    step.effects.staged.append((op.key, len(stage.parts), index))
    stage.parts.append(Part(op.topic, op.partition, op.count, op.columns, op.bytes, batch))


def _commit(step: Step, op: ops.Commit) -> None:
    stage = step.state.stages.open.pop(op.key)
    placed = []
    for number, (part, base) in enumerate(zip(stage.parts, op.bases.tolist(), strict=True)):
        if base < 0:  # the topic was deleted since
            continue
        publish = ops.Publish(part.topic, part.partition, base, part.messages, part.columns, part.bytes)
        _add_batch(step, publish, part.batch)
        stored = Stored(part.topic, part.partition, base, part.batch, step.at_us, 0, (op.key, number))
        step.effects.stored.append(stored)
        placed += [part.topic, part.partition, base, part.messages]
    step.state.stages.remember(op.key, np.array(placed, np.int64))
    step.effects.ended.append(op.key)


def _abort(step: Step, op: ops.Abort) -> None:
    step.state.stages.open.pop(op.key, None)
    step.effects.ended.append(op.key)


_HANDLERS: dict[type[ops.Op], Callable[[Step, Any], None]] = {
    ops.Opened: _opened,
    ops.PutTopic: _put_topic,
    ops.DeleteTopic: _delete_topic,
    ops.PutSubscription: _put_subscription,
    ops.DeleteSubscription: _delete_subscription,
    ops.Admit: _admit,
    ops.PutRoute: _put_route,
    ops.DeleteRoute: _delete_route,
    ops.Publish: _publish,
    ops.Sequenced: _sequenced,
    ops.Reserve: _reserve,
    ops.Settle: _settle,
    ops.Fail: _fail,
    ops.Bury: _bury,
    ops.Redrive: _redrive,
    ops.Discard: _discard,
    ops.Remove: _remove,
    ops.Replace: _replace,
    ops.Stage: _stage,
    ops.Commit: _commit,
    ops.Abort: _abort,
}
