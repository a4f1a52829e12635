"""Gather the messages that one entry has expire, from the partitions where some are due, and how large it is at most.

Expired messages move from the index of a partition to its `overdue`, and stay there until they are removed: an entry
that finds no room in the journal is gathered again. It never decides what becomes of them: `removing` does.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from wherry.core.index.offsets import distinct, members
from wherry.core.state.partition import Partition
from wherry.core.state.state import State, TopicState

Int64: TypeAlias = npt.NDArray[np.int64]
Mask: TypeAlias = npt.NDArray[np.bool_]
PartitionNumbers: TypeAlias = tuple[int, int]
"""The numbers of a topic and of a partition."""

_NONE = np.empty(0, np.int64)

EXPIRE_STEP = 65_536
"""Messages that one entry has expire at most."""

TAKEN_MIN = 1_024
"""Messages taken from the index at once: most of those at its head may have been settled before they expired."""

RANGE_BYTES = 16
"""Bytes of a range of offsets in an entry; an offset with its rank takes as many."""

OP_BYTES = 128
"""Bytes of an operation beside its columns, at most."""

EXPIRY_BYTES_MIN = 256
"""With less room nothing expires: no partition is looked at while the disk is full."""


class Expiring(NamedTuple):
    """Messages of a partition that expire in one entry."""

    topic: TopicState
    partition: Partition
    free: Int64
    """Those that are removed."""
    held: Int64
    """Those that a durable subscription holds, and that wait for another one."""
    rest: Int64
    """What stays in `overdue`: what is held, and what is beyond the bound of the entry."""
    more: bool
    """Whether others can expire at once, in another entry."""

    @property
    def place(self) -> PartitionNumbers:
        """The numbers of the topic and of the partition."""
        return self.topic.number, self.partition.number

    @property
    def total(self) -> int:
        """How many messages the entry names."""
        return len(self.free) + len(self.held)

    @property
    def bytes_max(self) -> int:
        """The most bytes of the operations: neighbours that are dropped share a range, dead letters never do."""
        readers = len(self.partition.readers)
        buried = max(1, readers) if self.topic.config.expired == "dead-letter" else 0
        ranges = 1 if len(self.free) < 2 else 1 + int(np.count_nonzero(np.diff(self.free) != 1))
        columns = ranges + buried * len(self.free) + readers * len(self.held)
        return RANGE_BYTES * columns + OP_BYTES * (1 + buried + 2 * readers)


def gathered(state: State, places: deque[PartitionNumbers], now_ms: int, most: int) -> list[Expiring]:
    """Take places, and return what expires there: up to `most` messages, with some of those of the last place.

    Places where nothing has to be removed are done.
    """
    group: list[Expiring] = []
    while places and most > 0:
        number, partition_number = places.popleft()
        topic = state.topics[number]
        each = _at(topic, topic.partitions[partition_number], now_ms, most)
        if each.total:
            group.append(each)
            most -= each.total
        else:
            each.partition.overdue = each.rest
            state.expiry_times.done(*each.place, each.partition.expiry.first_rank())
    return group


def _at(topic: TopicState, partition: Partition, now_ms: int, most: int) -> Expiring:
    """Return up to `most` messages of a partition that can expire now."""
    free, held, idle = _sorted_out(partition, partition.overdue)
    is_exhausted = False
    while not is_exhausted and (missing := most - len(free) - len(held)) > 0:
        asked = max(missing, TAKEN_MIN)
        taken = partition.expiry.take(asked, now_ms).offset
        if len(taken):
            partition.overdue = _together(free, held, idle, taken)
            free, held, idle = _sorted_out(partition, partition.overdue)
        is_exhausted = len(taken) < asked
    more = len(free) + len(held) > most or (not is_exhausted and _has_due(partition, now_ms))
    going, ending = free[:most], held[: max(0, most - len(free))]
    return Expiring(topic, partition, going, ending, _together(free[len(going) :], held, idle), more)


def _has_due(partition: Partition, now_ms: int) -> bool:
    """Return whether the index has messages that expire by now."""
    first_ms = partition.expiry.first_rank()
    return first_ms is not None and first_ms <= now_ms


def _together(*parts: Int64) -> Int64:
    """Return the offsets of all parts once each, ascending."""
    some = [part for part in parts if len(part)]
    if len(some) == 1 and len(some[0]) == 1:
        return some[0]
    return distinct(np.concatenate(some)) if some else _NONE


def _sorted_out(partition: Partition, offset: Int64) -> tuple[Int64, Int64, Int64]:
    """Sort expired messages out: free ones; held ones that wait for another subscription; held ones that do not.

    Messages that are finished by now are left out.
    """
    if len(offset) == 0 or _are_all_free(partition, offset):
        return offset, _NONE, _NONE
    offset = offset[~(partition.finished.contains(offset) | members(partition.expiry_exempt, offset))]
    held = partition.leased(offset) | partition.in_backlog(offset)
    at = offset[held]
    waits = _waits(partition, at)
    return offset[~held], at[waits], at[~waits]


def _are_all_free(partition: Partition, offset: Int64) -> bool:
    """Return True if nothing but waiting can have happened to these messages: as in a queue without consumers."""
    return (
        partition.finished.has_none_of(int(offset[0]), int(offset[-1]) + 1)
        and not partition.expiry_exempt
        and all(not reader.leased and reader.backlog is None for reader in partition.readers.values())
    )


def _waits(partition: Partition, offset: Int64) -> Mask:
    """Return which messages wait for a subscription, durable or ephemeral."""
    found = np.zeros(len(offset), np.bool_)
    if len(offset):
        for reader in (*partition.readers.values(), *partition.ephemeral.values()):
            found |= reader.keeps_waiting(offset)
    return found
