"""Apply changes of the catalog: shard owners, topics, subscriptions and their first messages, routes, keys."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from wherry.core.apply.step import (
    Handler,
    Step,
    check_ended,
    release_settled,
)
from wherry.core.index.offsets import members
from wherry.core.state.lease import Leases
from wherry.core.state.partition import Partition
from wherry.core.state.reader import DEAD as DEAD_COLUMNS
from wherry.core.state.reader import Reader
from wherry.core.state.state import REMOVALS_MAX, SubscriptionState, TopicState
from wherry.model import ops
from wherry.model.calls.fate import DEAD, DROPPED
from wherry.model.calls.stats import Removal
from wherry.model.catalog.subscription import Subscription
from wherry.model.limits import ERROR_CHARS_MAX
from wherry.model.ops import from_ranges

Int64: TypeAlias = npt.NDArray[np.int64]


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
        grown, known.config = op.topic.partitions > known.config.partitions, op.topic
        for subscription in known.subscriptions.values() if grown else ():
            subscription.share_out()
            for number in subscription.readers:
                step.state.mark_nonempty(subscription, number)
        known.replan()
    step.state.catalog.put_topic(op.number, op.topic)


def _delete_topic(step: Step, op: ops.DeleteTopic) -> None:
    topic = step.state.topics.pop(op.number)
    for number in topic.subscriptions:
        del step.state.subscriptions[number]
        step.state.to_wake[number] = None
        for lease in step.state.leases.of_subscription(number):
            step.state.leases.end(lease)
    for number in topic.partitions:
        step.state.expiry_times.forget(op.number, number)
    step.state.with_outcomes.pop(op.number, None)
    step.state.catalog.delete_topic(op.number, topic.config.name)
    step.effects.dropped_topics.append(op.number)
    step.effects.maybe_ready[op.number] = None


def _put_subscription(step: Step, op: ops.PutSubscription) -> None:
    topic = step.state.topics[op.topic]
    subscription = SubscriptionState(op.number, op.subscription, topic, op.starts)
    step.state.subscriptions[op.number] = subscription
    topic.subscriptions[op.number] = subscription
    if op.subscription.durable:
        step.state.catalog.put_subscription(op.number, op.topic, op.subscription)
    if op.subscription.webhook is not None:
        step.effects.webhooks_changed.append(op.number)
    topic.replan()
    for partition in topic.partitions.values():
        _begin_reading(step, subscription, partition)


def _begin_reading(step: Step, subscription: SubscriptionState, partition: Partition) -> None:
    start = min(subscription.start_of(partition.number), partition.next_offset)
    reader = step.state.new_reader(subscription, partition.number, start)
    topic, end = subscription.topic, partition.next_offset
    if start < end:
        _settle_absent(reader, partition, start, end)
        if topic.config.order == "fifo" and not partition.has_due:
            reader.begin(end)
        else:
            reader.backlog = (start, end)
    if subscription.config.durable and start > 0 and not topic.is_stream():
        if len(partition.readers) == 1:  # messages that waited for a first subscription, but come before its start
            partition.end(partition.finished.missing(0, start), DROPPED)
        release_settled(step, topic, partition, partition.released.missing(0, start))


def _settle_absent(reader: Reader, partition: Partition, start: int, end: int) -> None:
    """Settle finished messages for a new subscription: if they are still kept, then as another's dead letters."""
    reader.settled.absorb(partition.finished, start, end)


def _change_subscription(step: Step, op: ops.ChangeSubscription) -> None:
    subscription = step.state.subscriptions[op.number]
    if op.subscription.buffer_bytes is None:
        subscription.backlog_bytes = 0
    elif subscription.config.buffer_bytes is None:  # the bytes were not counted until now
        subscription.backlog_bytes = sum(
            partition.directory.share_of(partition.kept(reader.settled.missing(0, partition.next_offset)))
            for partition, reader in subscription.by_partition()
        )
    if op.subscription.webhook != subscription.config.webhook:
        step.effects.webhooks_changed.append(op.number)
    subscription.config = op.subscription
    subscription.topic.replan()
    step.effects.maybe_ready[subscription.topic.number] = None


def _delete_subscription(step: Step, op: ops.DeleteSubscription) -> None:
    subscription = step.state.subscriptions.pop(op.number)
    topic = subscription.topic
    del topic.subscriptions[op.number]
    topic.replan()
    step.state.to_wake[op.number] = None
    for lease in step.state.leases.of_subscription(op.number):
        step.state.leases.end(lease)
    if subscription.config.durable:
        step.state.catalog.delete_subscription(topic.number, subscription.config.name)
    for number, reader in subscription.readers.items():
        partition = topic.partitions[number]
        step.state.end_hold(topic, number)
        if not subscription.config.durable:
            del partition.ephemeral[op.number]
            step.effects.touched[topic.number, number] = partition
            continue
        del partition.readers[op.number]
        topic.dead -= len(reader.dead) - (_keep_dead_letters(partition, reader) if op.keep_dead else 0)
        _remember_endings(topic, partition, reader)
        if partition.readers and not topic.is_stream():
            release_settled(step, topic, partition, reader.settled.missing(0, partition.next_offset))
        # Without another subscription, waiting messages stay for the next one; dead letters are removed.
        elif not topic.is_stream():
            gone = reader.dead.offsets()
            partition.release(gone[~partition.dead.has(gone)])
            step.effects.touched[topic.number, number] = partition
        check_ended(step, topic, partition, None)
    _note_removal(step, topic, subscription.config, op.why)
    step.effects.unsubscribed.append((op.number, op.why))
    step.effects.maybe_ready[topic.number] = None


def _note_removal(step: Step, topic: TopicState, config: Subscription, why: str) -> None:
    """Remember that a subscription was cut off.

    A peer asks for that when it is back. So the last record of each stays longer than those of other subscriptions, and
    goes when its subscription is deleted by a client.
    """
    if config.peer is not None:
        for each in [each for each in topic.removals if each.subscription == config.name]:
            topic.removals.remove(each)
    if not why:
        return
    topic.count("cut_off", 1)
    if len(topic.removals) >= REMOVALS_MAX:
        topic.removals.remove(next((each for each in topic.removals if each.peer is None), topic.removals[0]))
    topic.removals.append(Removal(step.now_ms, config.name, why[:ERROR_CHARS_MAX], config.peer))


def _keep_dead_letters(partition: Partition, reader: Reader) -> int:
    """Turn the dead letters of a deleted subscription into dead letters of no subscription; return how many are new."""
    rows = reader.dead.columns()
    rows = rows[:, ~partition.dead.has(rows[0])]
    partition.dead.put(rows[0], **dict(zip(DEAD_COLUMNS, rows[1:], strict=True)))
    return int(rows.shape[1])


def _remember_endings(topic: TopicState, partition: Partition, reader: Reader) -> None:
    """Record how messages ended when a subscription was deleted.

    Its dead letters stay dead; messages that only this subscription was to get are dropped unread.
    """
    if partition.readers and not topic.is_stream():
        first = min(other.start for other in partition.readers.values())
        partition.end(reader.settled.missing(0, first), DROPPED)
    partition.end(reader.dead.offsets(), DEAD)


def _admit(step: Step, op: ops.Admit) -> None:
    """Put messages from before a subscription into its order, and settle for it what is gone up to `stop`.

    Transient messages are missing on replay. Then there may be nothing before the subscription, or nothing with a due
    time, so that everything is in its order already. Older journals also name transient messages here.
    """
    subscription = step.state.subscriptions[op.subscription]
    partition, reader = subscription.topic.partitions[op.partition], subscription.readers[op.partition]
    if reader.backlog is None and not step.volatile:
        return
    offset = from_ranges(op.ranges)
    known = _known(partition, reader, offset)
    offset = offset[known]
    reader.admit_late(offset, op.ranks[known], op.due_ms[known], step.now_ms)
    step.state.mark_nonempty(subscription, op.partition)
    if reader.backlog is not None:
        start, end = reader.backlog
        gone = np.setdiff1d(reader.settled.missing(start, min(op.stop, end)), offset, assume_unique=True)
        if partition.transient:  # the volatile half of this operation admits them
            passing = partition.present(gone)
            gone = np.setdiff1d(gone, passing[members(partition.transient, passing)], assume_unique=True)
        reader.settled.add(gone)
        reader.backlog = (op.stop, end) if op.stop < end else None
    step.effects.maybe_ready[subscription.topic.number] = None


def _known(partition: Partition, reader: Reader, offset: Int64) -> npt.NDArray[np.bool_]:
    """Return which of these messages are still to be put into the order of a subscription."""
    gone = partition.released.contains(offset) | reader.settled.contains(offset)
    return (offset < partition.next_offset) & ~gone


def _put_route(step: Step, op: ops.PutRoute) -> None:
    step.state.catalog.put_route(op.route)


def _delete_route(step: Step, op: ops.DeleteRoute) -> None:
    step.state.catalog.delete_route(op.name)


def _bind(step: Step, op: ops.Bind) -> None:
    step.state.catalog.bind(op.route, op.binding)


def _unbind(step: Step, op: ops.Unbind) -> None:
    step.state.catalog.unbind(op.route, op.binding)


def _put_key(step: Step, op: ops.PutKey) -> None:
    step.state.catalog.put_key(op.key)


def _delete_key(step: Step, op: ops.DeleteKey) -> None:
    step.state.catalog.delete_key(op.id)


HANDLERS: dict[type[ops.Op], Handler] = {
    ops.Opened: _opened,
    ops.PutTopic: _put_topic,
    ops.DeleteTopic: _delete_topic,
    ops.PutSubscription: _put_subscription,
    ops.DeleteSubscription: _delete_subscription,
    ops.Admit: _admit,
    ops.PutRoute: _put_route,
    ops.DeleteRoute: _delete_route,
    ops.Bind: _bind,
    ops.Unbind: _unbind,
    ops.PutKey: _put_key,
    ops.DeleteKey: _delete_key,
    ops.ChangeSubscription: _change_subscription,
}
