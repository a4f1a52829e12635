"""Apply what adds messages: publishes, amends, stages and commits; and remember calls of idempotent producers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from wherry.core.apply.step import (
    Handler,
    Step,
    Stored,
    check_ended,
    put_dead,
    release_settled,
)
from wherry.core.index.hashing import hash_strings, ranks_of
from wherry.core.index.ids import PackedOffset
from wherry.core.index.waiting import NO_RANKS
from wherry.core.state.partition import Partition
from wherry.core.state.producers import ProducerCall
from wherry.core.state.reader import Reader
from wherry.core.state.stages import OpenStage, StagedBatch
from wherry.core.state.state import SubscriptionState, TopicState
from wherry.model import ops
from wherry.model.calls.origin import passes_on
from wherry.model.limits import PRIORITY_DEFAULT
from wherry.model.row_batch import RowBatch
from wherry.model.schema import BIT, integers

Int64: TypeAlias = npt.NDArray[np.int64]


def _publish(step: Step, op: ops.Publish) -> None:
    batch, index = step.next_batch()
    _add_batch(step, op, batch)
    step.effects.stored.append(Stored(op.topic, op.partition, op.base, batch, step.at_us, index))


def _add_batch(step: Step, op: ops.Publish, batch: pa.RecordBatch | RowBatch) -> None:
    topic = step.state.topics[op.topic]
    partition = topic.partition(op.partition)
    if op.base > partition.next_offset:
        partition.skip_to(op.base)
    partition.append(op.base, op.count, op.bytes, step.at_us)
    topic.oldest.note(op.partition, step.at_us)
    if step.volatile:
        partition.transient.add_range(op.base, op.base + op.count)
    if isinstance(batch, RowBatch):
        _admit_rows(step, topic, partition, op, batch)
    elif op.dead:
        _index_ids(topic, op, batch)
        _publish_dead(step, topic, partition, op)
    else:
        _index_ids(topic, op, batch)
        _admit_all(step, topic, partition, op, batch)
    step.effects.maybe_ready[op.topic] = None


def _admit_rows(step: Step, topic: TopicState, partition: Partition, op: ops.Publish, rows: RowBatch) -> None:
    """Admit as `_admit_all` does, without columns where no message has a due time."""
    if op.columns & BIT["due"] or topic.config.order == "timeline":
        _admit_all(step, topic, partition, op, rows.batch)
        return
    if op.columns & BIT["expires"]:
        expiring = [(at, op.base + row) for row, at in enumerate(rows.values["expires"]) if at is not None]
        _note_expiry(step, partition, op.topic, np.array(list(zip(*expiring, strict=True)), np.int64))
    ranks = rows.values.get("priority") if topic.config.order == "priority" else None
    rank = NO_RANKS if ranks is None else np.array(ranks, np.int64)
    if ranks is None and topic.config.order == "priority":
        rank = np.full(op.count, PRIORITY_DEFAULT, np.int64)
    for subscription, reader in _receiving(step, topic, op):
        reader.waiting.admit(op.base, op.count, rank)
        if subscription.config.buffer_bytes is not None:
            subscription.backlog_bytes += op.bytes
    _count(step, topic, partition, op)


def _admit_all(step: Step, topic: TopicState, partition: Partition, op: ops.Publish, batch: pa.RecordBatch) -> None:
    names = batch.schema.names
    rank = ranks(topic, op.base, batch, step.now_ms)
    due = integers(batch, "due", -1) if "due" in names and topic.config.order != "timeline" else None
    partition.has_due |= due is not None
    if "expires" in names:
        expires = integers(batch, "expires", -1)
        expiring = np.flatnonzero(expires >= 0)
        if len(expiring):
            _note_expiry(step, partition, op.topic, np.stack((expires[expiring], op.base + expiring)))
    for subscription, reader in _receiving(step, topic, op):
        reader.admit(op.base, rank, due, step.now_ms)
        if subscription.config.buffer_bytes is not None:
            subscription.backlog_bytes += op.bytes
    _count(step, topic, partition, op)


def _receiving(step: Step, topic: TopicState, op: ops.Publish) -> Iterator[tuple[SubscriptionState, Reader]]:
    """Yield the subscriptions that get the messages of a publish, and settle them for the others."""
    for subscription in topic.subscriptions.values():
        reader = step.state.reader(subscription, op.partition, op.base)
        if op.origin and not passes_on(subscription.config, op.origin, from_hub=op.from_hub):
            reader.pass_over(op.base, op.count)
        else:
            yield subscription, reader


def _count(step: Step, topic: TopicState, partition: Partition, op: ops.Publish) -> None:
    """Count messages that wait now; release them if every durable subscription is a peer that has them."""
    topic.messages += op.count
    topic.bytes += op.bytes
    topic.count("published", op.count)
    if op.origin and partition.readers and not topic.is_stream():
        release_settled(step, topic, partition, np.arange(op.base, op.base + op.count, dtype=np.int64))


def _note_expiry(step: Step, partition: Partition, topic: int, times: Int64) -> None:
    """Note when messages expire, at least one: a row of times, and a row of offsets."""
    expires, offset = times
    partition.expiry.insert(expires, offset)
    step.state.expiry_times.note(topic, partition.number, int(expires.min()))


def ranks(topic: TopicState, base: int, batch: pa.RecordBatch, now_ms: int) -> Int64:
    """Return the rank of each new message in the order of the topic."""
    if topic.config.order == "fifo":
        return np.arange(base, base + batch.num_rows, dtype=np.int64)
    if topic.config.order == "priority":
        return integers(batch, "priority", PRIORITY_DEFAULT)
    return integers(batch, "due", now_ms)


def _publish_dead(step: Step, topic: TopicState, partition: Partition, op: ops.Publish) -> None:
    """Store messages that did not fit as dead letters. They do not count against the bounds."""
    for subscription in topic.subscriptions.values():
        step.state.reader(subscription, op.partition, op.base).pass_over(op.base, op.count)
    offset = np.arange(op.base, op.base + op.count, dtype=np.int64)
    partition.finished.add(offset)
    partition.directory.finish(offset)
    put_dead(step, partition, offset, op.dead, "")
    topic.dead += op.count
    step.effects.buried.append(topic.number)
    topic.count("overflowed", op.count)


def _index_ids(topic: TopicState, op: ops.Publish, batch: pa.RecordBatch) -> None:
    if "id" not in batch.schema.names:
        return
    ids = batch.column("id")
    given = np.flatnonzero(ids.is_valid().to_numpy(zero_copy_only=False))
    rank = ranks_of(hash_strings(ids))[given]
    topic.ids.add(rank, PackedOffset.pack(op.partition, op.base + given))


def _sequenced(step: Step, op: ops.Sequenced) -> None:
    call = ProducerCall(op.first, op.count, op.placed.tolist(), op.fingerprint, op.partitions)
    step.state.topics[op.topic].producers.note(op.producer, call)


def _reserve(step: Step, op: ops.Reserve) -> None:
    partition = step.state.topics[op.topic].partition(op.partition)
    partition.reserved = max(partition.reserved, op.below)


def _replace(step: Step, op: ops.Replace) -> None:
    """Apply an amend. Each subscription gets the new message in the place of the old one, not at the end."""
    topic = step.state.topics[op.topic]
    partition = topic.partitions[op.partition]
    publish = op.publish
    batch, index = step.next_batch()
    partition.skip_to(publish.base)
    partition.append(publish.base, 1, publish.bytes, step.at_us)
    topic.oldest.note(op.partition, step.at_us)
    if step.volatile:
        partition.transient.add(publish.base)
    _index_ids(topic, publish, batch)
    rank = int(ranks(topic, publish.base, batch, step.now_ms)[0])
    due = int(integers(batch, "due", -1)[0]) if topic.config.order != "timeline" else None
    partition.has_due |= due is not None and due >= 0
    expires = int(integers(batch, "expires", -1)[0])
    if expires >= 0:
        _note_expiry(step, partition, op.topic, np.array([[expires], [publish.base]], np.int64))
    for subscription in topic.subscriptions.values():
        reader = step.state.reader(subscription, op.partition, publish.base)
        reader.replace(op.old, publish.base, rank, due, step.now_ms)
    at_new = np.array([publish.base], np.int64)
    partition.versions.put(at_new, version=op.version)
    topic.messages += 1
    topic.bytes += publish.bytes
    at_old = np.array([op.old], np.int64)
    topic.give_back(partition.remove(at_old))
    partition.end(at_old, 0, publish.base)
    topic.outbox.move(PackedOffset.pack(op.partition, at_old), PackedOffset.pack(op.partition, at_new))
    step.effects.amended.append((op.topic, op.partition, op.old, publish.base))
    if partition.readers and not topic.is_stream():
        release_settled(step, topic, partition, at_new)
    step.effects.touched[topic.number, partition.number] = partition
    step.effects.stored.append(Stored(op.topic, op.partition, publish.base, batch, step.at_us, index))
    step.effects.maybe_ready[op.topic] = None


def _watch(step: Step, op: ops.Watch) -> None:
    topic = step.state.topics[op.topic]
    offset = np.arange(op.base, op.base + op.count, dtype=np.int64)
    topic.outbox.watch(PackedOffset.pack(op.partition, offset), op.url)
    check_ended(step, topic, topic.partitions[op.partition], offset)  # messages that did not fit have already ended


def _stage(step: Step, op: ops.Stage) -> None:
    stage = step.state.stages.open.get(op.key)
    if stage is None:
        stage = step.state.stages.open[op.key] = OpenStage(op.key, step.now_ms)
    if op.count == 0:
        stage.held_settles = True
        return
    batch, index = step.next_batch()
    step.effects.staged.append((op.key, len(stage.parts), index))
    stage.parts.append(StagedBatch(op.topic, op.partition, op.count, op.columns, op.bytes, batch))


def _commit(step: Step, op: ops.Commit) -> None:
    stages = [step.state.stages.open.pop(key) for key in ([op.key] if op.stages is None else op.stages)]
    parts = [((stage.key, number), part) for stage in stages for number, part in enumerate(stage.parts)]
    placed = []
    for (staged, part), base in zip(parts, op.bases.tolist(), strict=True):
        if base < 0:  # the topic was deleted since
            continue
        publish = ops.Publish(part.topic, part.partition, base, part.messages, part.columns, part.bytes)
        _add_batch(step, publish, part.batch)
        step.effects.stored.append(Stored(part.topic, part.partition, base, part.batch, step.at_us, 0, staged))
        placed += [part.topic, part.partition, base, part.messages]
    step.state.stages.remember(op.key, np.array(placed, np.int64))
    step.effects.ended += [stage.key for stage in stages]


def _abort(step: Step, op: ops.Abort) -> None:
    step.state.stages.open.pop(op.key, None)
    if op.why == ops.TOO_LATE:
        step.state.stages.forget(op.key)
    step.effects.ended.append(op.key)


HANDLERS: dict[type[ops.Op], Handler] = {
    ops.Publish: _publish,
    ops.Sequenced: _sequenced,
    ops.Reserve: _reserve,
    ops.Replace: _replace,
    ops.Stage: _stage,
    ops.Commit: _commit,
    ops.Abort: _abort,
    ops.Watch: _watch,
}
