"""Apply what ends messages or changes their wait: settles, failures, dead letters, redrives, removals."""

from __future__ import annotations

from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from wherry.core.apply.step import (
    Handler,
    Step,
    check_ended,
    put_dead,
)
from wherry.core.index.ids import PackedOffset
from wherry.core.index.offsets import bitmap_of, members
from wherry.core.state.fates import is_open
from wherry.core.state.partition import Freed, Partition
from wherry.core.state.state import SubscriptionState, TopicState
from wherry.model import ops
from wherry.model.calls.dead import AuditRecord
from wherry.model.calls.fate import (
    CANCELLED,
    DEAD,
    DROPPED,
    EXPIRED,
)
from wherry.model.ops import from_ranges

Int64: TypeAlias = npt.NDArray[np.int64]

_WHY = {"cancelled": CANCELLED, "expired": EXPIRED, "dropped": DROPPED, "trimmed": DROPPED}


def _settle(step: Step, op: ops.Settle) -> None:
    subscription = step.state.subscriptions[op.subscription]
    partition = subscription.topic.partitions[op.partition]
    if op.outcome == "expired":
        _expire_for_one(step, subscription, partition, from_ranges(op.ranges))
        return
    if len(op.ranges) == 2:
        first, stop = op.ranges.tolist()
        subscription.count(op.outcome, stop - first)
        if _settle_run(step, subscription, partition, first, stop):
            return
        offset = from_ranges(op.ranges)
    else:
        offset = from_ranges(op.ranges)
        subscription.count(op.outcome, len(offset))
        if len(offset) and _settle_set(step, subscription, partition, offset):
            return
    _settle_reader(step, subscription, partition, offset)


def _expire_for_one(step: Step, subscription: SubscriptionState, partition: Partition, offset: Int64) -> None:
    """End messages for a subscription where they waited, while another one holds them."""
    if subscription.config.durable:
        subscription.topic.count("expired", _newly_expired(step, partition, offset))
        partition.end(offset, EXPIRED)
    _settle_reader(step, subscription, partition, offset)


def _newly_expired(step: Step, partition: Partition, offset: Int64) -> int:
    """Return how many messages did not expire before, for another subscription: dropped, or as its dead letter."""
    if partition.has_no_end(offset):
        return len(offset)
    before = partition.ends.get(offset, "why", 0) == EXPIRED
    number = step.state.texts.find("expired")
    for table in (partition.dead, *(reader.dead for reader in partition.readers.values())):
        if number is not None and len(table):
            before |= table.get(offset, "reason", 0) == number
    return int((~before).sum())


def _settle_run(step: Step, subscription: SubscriptionState, partition: Partition, first: int, stop: int) -> bool:
    """Do as `_settle_reader` does for consecutive messages, without arrays; return False, with no change, if it cannot.

    Most acks are of this kind: of messages on lease that never failed, in the order in which they were delivered.
    """
    topic, reader = subscription.topic, subscription.readers[partition.number]
    if not subscription.config.durable or topic.is_stream() or not reader.settle_run(first, stop):
        return False
    freed = partition.settled_run(first, stop)
    _settled(step, subscription, partition, np.arange(first, stop, dtype=np.int64), freed)
    return True


def _settle_set(step: Step, subscription: SubscriptionState, partition: Partition, offset: Int64) -> bool:
    """Do as `_settle_run` for messages in any places: those that a pull took by priority or due time.

    One bitmap answers for all of them what `_settle_reader` asks array by array.
    """
    topic, reader = subscription.topic, subscription.readers[partition.number]
    if not subscription.config.durable or topic.is_stream() or not reader.leased:
        return False
    some = bitmap_of(offset)
    if not reader.settle_set(some):
        return False
    _settled(step, subscription, partition, offset, partition.settled_set(some, offset))
    return True


def _settled(
    step: Step, subscription: SubscriptionState, partition: Partition, offset: Int64, freed: Freed | None
) -> None:
    """Record what follows when a subscription has settled messages; `freed` is None if that is still to be found."""
    topic = subscription.topic
    if subscription.backlog_bytes:
        unsettled = subscription.behind() + len(offset)
        subscription.backlog_bytes -= subscription.backlog_bytes * len(offset) // max(unsettled, 1)
    topic.give_back(partition.settled(offset) if freed is None else freed)
    step.effects.touched[topic.number, partition.number] = partition
    step.state.end_hold(topic, partition.number)
    check_ended(step, topic, partition, offset)


def _settle_reader(step: Step, subscription: SubscriptionState, partition: Partition, offset: Int64) -> None:
    reader = subscription.readers[partition.number]
    if subscription.backlog_bytes:
        unsettled = subscription.behind()
        subscription.backlog_bytes -= subscription.backlog_bytes * len(offset) // max(unsettled, len(offset), 1)
    dead_before = len(reader.dead)
    offset = reader.settle(offset)
    _free_keys(step, subscription, partition)
    topic = subscription.topic
    topic.dead -= dead_before - len(reader.dead)
    if subscription.config.durable and not topic.is_stream():
        topic.give_back(partition.settled(offset))
    step.effects.touched[topic.number, partition.number] = partition
    step.state.end_hold(topic, partition.number)
    if subscription.config.durable:
        check_ended(step, topic, partition, offset)


def _free_keys(step: Step, subscription: SubscriptionState, partition: Partition) -> None:
    """Let pulls look for messages of these keys, after messages ended that may have blocked them."""
    if subscription.config.key_order and partition.number in subscription.readers:
        step.state.mark_nonempty(subscription, partition.number)


def _fail(step: Step, op: ops.Fail) -> None:
    subscription = step.state.subscriptions[op.subscription]
    reader = subscription.readers[op.partition]
    (error,) = step.state.text_numbers(op.error)
    reader.fail(op.offsets, op.ranks, op.hashes, op.until_ms, step.now_ms, error)
    step.state.mark_nonempty(subscription, op.partition)
    subscription.count("failed", len(op.offsets))
    step.effects.maybe_ready[subscription.topic.number] = None


def _bury(step: Step, op: ops.Bury) -> None:
    topic = step.state.topics[op.topic]
    partition = topic.partitions[op.partition]
    if op.reason == "expired" and not op.failed:
        topic.count("expired", _newly_expired(step, partition, op.offsets))
    if op.subscription:
        subscription = step.state.subscriptions[op.subscription]
        reason, error = step.state.text_numbers(op.reason, op.error)
        reader = subscription.readers[op.partition]
        reader.bury(op.offsets, op.ranks, step.now_ms, reason, error, failed=op.failed)
        _free_keys(step, subscription, partition)
        subscription.count("buried", len(op.offsets))
        if not topic.is_stream():
            topic.give_back(partition.finish(op.offsets))
    else:
        _end_ephemeral_leases(step, partition, op.offsets)
        put_dead(step, partition, op.offsets, op.reason, op.error)
        topic.give_back(partition.remove(op.offsets))
        for each in topic.subscriptions.values():
            _free_keys(step, each, partition)
        topic.count("buried", len(op.offsets))
    topic.dead += len(op.offsets)
    step.effects.buried.append(topic.number)
    check_ended(step, topic, partition, op.offsets)


def _redrive(step: Step, op: ops.Redrive) -> None:
    topic = step.state.topics[op.topic]
    partition = topic.partitions[op.partition]
    subscription = step.state.subscriptions[op.subscription]
    subscription.readers[op.partition].redrive(op.offsets, op.ranks, op.due_ms, step.now_ms)
    step.state.mark_nonempty(subscription, op.partition)
    partition.expiry_exempt |= bitmap_of(op.offsets)
    if not topic.is_stream():
        topic.take(partition.unfinish(op.offsets))
    topic.dead -= len(op.offsets)
    subscription.count("redriven", len(op.offsets))
    name = subscription.config.name
    topic.audit_records.append(AuditRecord(step.now_ms, "redriven", op.by, name, op.partition, len(op.offsets)))
    step.effects.maybe_ready[topic.number] = None


def _discard(step: Step, op: ops.Discard) -> None:
    topic = step.state.topics[op.topic]
    partition = topic.partitions[op.partition]
    if op.reason:
        _count_deaths(step, topic, partition, op)
    partition.end(op.offsets, DEAD)
    if op.subscription:
        subscription = step.state.subscriptions[op.subscription]
        if not (op.reason and _settle_waiting(step, subscription, partition, op.offsets)):
            _settle_reader(step, subscription, partition, op.offsets)
    else:
        partition.dead.remove(op.offsets)
        topic.dead -= len(op.offsets)
        partition.release(partition.unwanted(op.offsets))
        step.effects.touched[topic.number, partition.number] = partition
        check_ended(step, topic, partition, op.offsets)
    what: Literal["redriven", "discarded"] = "redriven" if op.redriven else "discarded"
    topic.count(what, len(op.offsets))
    name = step.state.subscriptions[op.subscription].config.name if op.subscription else ""
    topic.audit_records.append(AuditRecord(step.now_ms, what, op.by, name, op.partition, len(op.offsets)))


def _count_deaths(step: Step, topic: TopicState, partition: Partition, op: ops.Discard) -> None:
    """Count messages that died in this entry as if they had been buried before."""
    if op.reason == "expired":
        topic.count("expired", _newly_expired(step, partition, op.offsets))
    dead_of = step.state.subscriptions[op.subscription] if op.subscription else topic
    dead_of.count("buried", len(op.offsets))


def _settle_waiting(step: Step, subscription: SubscriptionState, partition: Partition, offset: Int64) -> bool:
    """Do as `_settle_run` for consecutive messages that wait, as those do that expire first in a queue."""
    first, stop = int(offset[0]), int(offset[-1]) + 1
    topic, reader = subscription.topic, subscription.readers[partition.number]
    if stop - first != len(offset) or not subscription.config.durable or topic.is_stream():
        return False
    if not reader.settle_waiting(first, stop):
        return False
    _settled(step, subscription, partition, offset, partition.settled_run(first, stop))
    return True


def _remove(step: Step, op: ops.Remove) -> None:
    topic = step.state.topics[op.topic]
    partition = topic.partitions[op.partition]
    offset = from_ranges(op.ranges)
    topic.count(op.reason, _newly_expired(step, partition, offset) if op.reason == "expired" else len(offset))
    _end_ephemeral_leases(step, partition, offset)
    partition.end(offset[is_open(partition, offset)], _WHY[op.reason])
    topic.give_back(partition.remove(offset))
    for subscription in topic.subscriptions.values():
        _free_keys(step, subscription, partition)
    step.effects.touched[topic.number, partition.number] = partition
    check_ended(step, topic, partition, offset)


def _end_ephemeral_leases(step: Step, partition: Partition, offset: Int64) -> None:
    """Take removed messages out of ephemeral leases, which continue with the remaining messages."""
    for number, reader in partition.ephemeral.items():
        if not members(reader.leased, offset).any():
            continue
        for lease in step.state.leases.of_subscription(number):
            rows = np.flatnonzero(np.isin(lease.offset, offset))
            if lease.partition == partition.number and len(rows):
                step.state.take_out(lease, rows)


def _reported(step: Step, op: ops.Reported) -> None:
    topic = step.state.topics[op.topic]
    topic.outbox.reported(PackedOffset.pack(op.partition, op.offsets), op.fates)
    if not len(topic.outbox.outcomes):
        step.state.with_outcomes.pop(op.topic, None)


HANDLERS: dict[type[ops.Op], Handler] = {
    ops.Settle: _settle,
    ops.Fail: _fail,
    ops.Bury: _bury,
    ops.Redrive: _redrive,
    ops.Discard: _discard,
    ops.Remove: _remove,
    ops.Reported: _reported,
}
