"""What became of messages, derived from the state. A message that no client asks about costs nothing.

A message has a final fate only when every durable subscription is done with it; until then its fate is that of the
subscription that still has work with it. A final fate is `dead` while the message is a dead letter, else what
`Partition.ends` records, else `settled`. An amended message has the fate of its replacement.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from wherry.core.index.offsets import members
from wherry.core.state.partition import Partition
from wherry.core.state.state import State, TopicState
from wherry.model.calls.fate import (
    DEAD,
    DELIVERED,
    EXPIRED,
    GONE,
    SCHEDULED,
    SETTLED,
    WAITING,
)
from wherry.model.schema import integers

Int64: TypeAlias = npt.NDArray[np.int64]
Mask: TypeAlias = npt.NDArray[np.bool_]


def is_open(partition: Partition, offset: Int64) -> Mask:
    """Return which messages still have to be settled by a durable subscription.

    A message from before all durable subscriptions is open as long as it is not finished.
    """
    unsettled = np.zeros(len(offset), np.bool_)
    for reader in partition.readers.values():
        unsettled |= ~(reader.settled.contains(offset) | reader.dead.has(offset))
    return unsettled | (_before_all_subscriptions(partition, offset) & ~partition.finished.contains(offset))


def _before_all_subscriptions(partition: Partition, offset: Int64) -> Mask:
    """Return which messages were published before every durable subscription started."""
    return offset < min((reader.start for reader in partition.readers.values()), default=partition.next_offset)


def is_dead(partition: Partition, offset: Int64) -> Mask:
    """Return which messages are dead letters, of a subscription or of none."""
    dead = partition.dead.has(offset)
    for reader in partition.readers.values():
        dead |= reader.dead.has(offset)
    return dead


def ended(partition: Partition, offset: Int64) -> Int64:
    """Return the final fate of each message; `WAITING` for messages that are still open."""
    why = partition.ends.get(offset, "why", 0)
    unknown = (offset < partition.ends_unknown_below) | members(partition.lost, offset)
    unknown &= partition.released.contains(offset)
    done = np.where(why > 0, why, np.where(unknown, GONE, SETTLED))
    return np.where(is_open(partition, offset), WAITING, np.where(is_dead(partition, offset), DEAD, done))


def ending(partition: Partition, offset: Int64) -> Int64:
    """Return the final fates in the step in which messages end, when none of them can be forgotten yet."""
    code = ended(partition, offset)
    return np.where(code == GONE, SETTLED, code)


def fates(state: State, topic: TopicState, number: int, offset: Int64, now_ms: int) -> Int64:
    """Return the fates of messages of a partition. May raise `Cold`: due times of a timeline are in the bodies only."""
    partition = topic.partitions[number]
    offset = replacements(partition, offset)
    code = ended(partition, offset)
    left = np.flatnonzero(code == WAITING)
    if len(left):
        code[left] = _under_way(state, topic, partition, offset[left], now_ms)
    return code


def replacements(partition: Partition, offset: Int64) -> Int64:
    """Return for each message the one that replaced it, after any number of amends."""
    while len(partition.ends):
        replacement = partition.ends.get(offset, "replacement", -1)
        if (replacement < 0).all():
            break
        offset = np.where(replacement < 0, offset, replacement)
    return offset


def was_delivered(partition: Partition, offset: Int64) -> Mask:
    """Return which messages were delivered: leased, failed, or settled by one subscription but not by another."""
    handed = np.zeros(len(offset), np.bool_)
    # A subscription that settled an amended message had the original; where a message expired it was not delivered.
    anew = partition.versions.has(offset) | (partition.ends.get(offset, "why", 0) == EXPIRED)
    for reader in (*partition.readers.values(), *partition.ephemeral.values()):
        done = (offset >= reader.start) & reader.settled.contains(offset) & ~anew
        handed |= done | members(reader.leased, offset) | (reader.attempts(offset) > 0) | reader.dead.has(offset)
    return handed


def _under_way(state: State, topic: TopicState, partition: Partition, offset: Int64, now_ms: int) -> Int64:
    handed, later = was_delivered(partition, offset), np.zeros(len(offset), np.bool_)
    for reader in (*partition.readers.values(), *partition.ephemeral.values()):
        later |= members(reader.delayed.members, offset) & (reader.attempts_table.get(offset, "until_ms", 0) > now_ms)
    unsure = ~(handed | later)
    if topic.config.order != "timeline":
        unsure &= partition.has_due & (partition.in_backlog(offset) | _before_all_subscriptions(partition, offset))
    if unsure.any():
        batch = state.bodies.take(topic.number, partition.number, offset[unsure], ("due",))
        later[unsure] = integers(batch, "due", -1) > now_ms
    return np.where(handed, DELIVERED, np.where(later, SCHEDULED, WAITING))
