"""Checks of the whole state, for tests and the simulator: every message is in exactly one state."""

from __future__ import annotations

import numpy as np
from pyroaring import BitMap64

from wherry.core.index.ids import PARTITION_SHIFT
from wherry.core.index.offsets import bitmap_of
from wherry.core.state import fates
from wherry.core.state.partition import Partition
from wherry.core.state.reader import Reader
from wherry.core.state.state import State, SubscriptionState, TopicState
from wherry.model.calls.fate import WAITING


def audit(state: State) -> None:
    """Raise `AssertionError`, with topic and partition, if the state contradicts itself."""
    for topic in state.topics.values():
        for partition in topic.partitions.values():
            _audit_partition(topic, partition)
        waiting = sum(_waiting(p)[0] for p in topic.partitions.values())
        _same(topic.messages, waiting, f"{topic.config.name}: messages counted and messages in the directory")
        size = sum(_waiting(p)[1] for p in topic.partitions.values())
        _same(topic.bytes, size, f"{topic.config.name}: bytes counted and bytes in the directory")
        dead = sum(len(p.dead) + sum(len(r.dead) for r in p.readers.values()) for p in topic.partitions.values())
        _same(topic.dead, dead, f"{topic.config.name}: dead letters counted and dead letters kept")
        _audit_outbox(state, topic)
    _audit_consumers(state)
    for subscription in state.subscriptions.values():
        _audit_nonempty(subscription)


def _audit_outbox(state: State, topic: TopicState) -> None:
    """Check that no message with a final fate is watched, and that topics with outcomes are known."""
    outbox = topic.outbox
    assert topic.number in state.with_outcomes or not len(outbox.outcomes), (
        f"{topic.config.name}: outcomes that no call would report"
    )
    for number, partition in topic.partitions.items():
        at = outbox.among(number, None) & ((1 << PARTITION_SHIFT) - 1)
        fate = fates.ended(partition, at)
        wrong = at[(fate != WAITING) & ~fates.is_dead(partition, at)]
        assert len(wrong) == 0, f"{topic.config.name}/{number}: offset {wrong[:1]} is over, and still watched"


def _audit_nonempty(subscription: SubscriptionState) -> None:
    """Check that every partition with a message to lease, now or later, is marked non-empty or has a time."""
    nonempty = subscription.nonempty
    for number, reader in subscription.readers.items():
        known = number in nonempty or number in nonempty.times
        waits = reader.waiting.ready(0) or reader.next_at_ms(0) is not None
        assert known or not waits, f"subscription {subscription.number}: no pull looks into partition {number}"


def _audit_partition(topic: TopicState, partition: Partition) -> None:
    where = f"{topic.config.name}/{partition.number}"
    live = partition.directory.live_messages()
    _same(live, partition.next_offset - len(partition.released), f"{where}: live rows and offsets not released")
    waiting, _ = _waiting(partition)
    _same(waiting, partition.next_offset - len(partition.finished), f"{where}: waiting rows and offsets not finished")
    for number, reader in (*partition.readers.items(), *partition.ephemeral.items()):
        _audit_reader(reader, partition.next_offset, f"{where} subscription {number}")


def _waiting(partition: Partition) -> tuple[int, int]:
    """Return the messages and bytes of a partition that count against the bounds."""
    _, count, _, waiting, size, _ = partition.directory.columns()
    return int(waiting.sum()), int((size * waiting // count).sum())


def _audit_reader(reader: Reader, end: int, where: str) -> None:
    waiting = bitmap_of(reader.waiting_offsets())
    dead = bitmap_of(reader.dead.offsets())
    backlog = BitMap64()
    if reader.backlog is not None:
        backlog = bitmap_of(reader.settled.missing(*reader.backlog))
    states = {"waiting": waiting, "leased": reader.leased, "delayed": reader.delayed.members, "dead": dead}
    states["backlog"] = backlog
    union = BitMap64()
    for name, members in states.items():
        both = union & members
        assert not both, f"{where}: offset {both.min() if both else 0} is {name} and also elsewhere"
        union |= members
    unsettled = bitmap_of(reader.settled.missing(0, end))
    lost, extra = unsettled - union, union - unsettled
    assert not lost, f"{where}: offset {lost.min() if lost else 0} is in no state"
    assert not extra, f"{where}: offset {extra.min() if extra else 0} is settled and also in another state"


def _audit_consumers(state: State) -> None:
    held: dict[tuple[int, str], int] = {}
    for lease in state.leases.all():
        key = (lease.subscription, lease.consumer)
        held[key] = held.get(key, 0) + len(lease)
        reader = state.subscriptions[lease.subscription].readers[lease.partition]
        missing = bitmap_of(np.sort(lease.offset)) - reader.leased
        assert not missing, f"lease {lease.token} holds offset {missing.min() if missing else 0}, which is not leased"
    for subscription in state.subscriptions.values():
        for consumer in subscription.consumers.values():
            expected = held.get((subscription.number, consumer.id), 0)
            _same(consumer.unsettled_messages, expected, f"consumer {consumer.id}: messages counted and messages held")


def _same(one: int, other: int, what: str) -> None:
    assert one == other, f"{what}: {one} and {other}"
