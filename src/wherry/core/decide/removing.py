"""Operations that remove waiting messages, because they expired or to make room: drop them or bury them."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from wherry.core.state.partition import Partition
from wherry.core.state.state import TopicState
from wherry.model import ops
from wherry.model.ops import AnyOp, Removed, to_ranges

Int64: TypeAlias = npt.NDArray[np.int64]

_REASON: dict[Removed, str] = {"expired": "expired", "dropped": "overflow"}


def removal_ops(
    topic: TopicState, partition: Partition, offset: Int64, why: Removed, *, bury: bool, dying: int = 0
) -> list[AnyOp]:
    """Return the operations that take waiting messages out of a topic; with `bury` the messages become dead letters.

    `dying` is the number of dead letters that the same entry has already made: there is room for that many fewer.
    """
    if len(offset) == 0:
        return []
    buried = _bury_ops(topic, partition, offset, _REASON[why], dying) if bury else []
    # The removal deletes what found no room among the dead letters; it leaves a message that was just buried.
    return [*buried, ops.Remove(topic.number, partition.number, to_ranges(offset), why)]


def expiry_ops(topic: TopicState, partition: Partition, free: Int64, held: Int64, dying: int) -> list[AnyOp]:
    """Return the operations that remove expired messages, and take from other subscriptions what one of them holds."""
    bury = topic.config.expired == "dead-letter"
    removed = removal_ops(topic, partition, free, "expired", bury=bury, dying=dying)
    if len(held) == 0:
        return removed
    room = max(0, topic.config.dead_messages_max - topic.dead - dying - buried_in(removed)) if bury else 0
    return [*removed, *_withdrawal_ops(topic, partition, held, room)]


def buried_in(steps: list[AnyOp]) -> int:
    """Return how many dead letters some operations make."""
    return sum(len(op.offsets) for op in steps if isinstance(op, ops.Bury))


def _withdrawal_ops(topic: TopicState, partition: Partition, offset: Int64, room: int) -> list[AnyOp]:
    """Return the operations that end messages for each subscription where they wait; `room` of them as dead letters."""
    steps: list[AnyOp] = []
    for number, reader in (*partition.readers.items(), *partition.ephemeral.items()):
        gone = offset[reader.keeps_waiting(offset)]
        dead = gone[: room if number > 0 else 0]
        gone, room = gone[len(dead) :], room - len(dead)
        if len(dead):
            ranks = reader.ranks(dead)
            steps.append(ops.Bury(topic.number, number, partition.number, dead, ranks, "expired", "", failed=False))
        if len(gone):
            steps.append(ops.Settle(number, partition.number, to_ranges(gone), "expired"))
    return steps


def _bury_ops(topic: TopicState, partition: Partition, offset: Int64, reason: str, dying: int) -> list[AnyOp]:
    """Return operations that make a message a dead letter of each subscription that had not settled it.

    In a topic without a subscription the dead letter belongs to no subscription.
    """
    room = max(0, topic.config.dead_messages_max - topic.dead - dying)

    def bury(subscription: int, some: Int64, ranks: Int64) -> AnyOp:
        return ops.Bury(topic.number, subscription, partition.number, some, ranks, reason, "", failed=False)

    if not partition.readers:
        # Some may already be dead letters of a subscription that was deleted.
        new = offset[~partition.dead.has(offset)][:room]
        return [bury(0, new, np.zeros(len(new), np.int64))] if len(new) else []
    buried: list[AnyOp] = []
    for number, reader in partition.readers.items():
        unread = offset[~(reader.settled.contains(offset) | reader.dead.has(offset))][:room]
        room -= len(unread)
        if len(unread):
            buried.append(bury(number, unread, reader.ranks(unread)))
    return buried
