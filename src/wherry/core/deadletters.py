"""Dead letters: a state of a message, not a place. Look at them, send them back, or throw them away."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from wherry.core.partition import Partition
from wherry.core.state import State, TopicState
from wherry.core.table import OffsetTable
from wherry.core.volatile import joined, separate
from wherry.model import check, limits, ops
from wherry.model.errors import InvalidInput, LimitReached
from wherry.model.ops import AnyOp, Entry
from wherry.model.schema import STORED, content_bytes, presence, shrink

Int64: TypeAlias = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadFilter:
    """Which dead letters are meant; None for any.

    Parameters
    ----------
    subscription
        The name of a subscription; an empty one for messages that died before any (they did not fit, or expired).
    reason
        Text that the reason or the error contains.
    from_ms, to_ms
        When they died, Unix milliseconds, the end not included.
    partition, offsets
        Exactly these messages.
    limit
        At most so many, oldest offsets first.
    """

    subscription: str | None = None
    reason: str | None = None
    from_ms: int | None = None
    to_ms: int | None = None
    partition: int | None = None
    offsets: tuple[int, ...] | None = None
    limit: int = 1_000_000

    def checked(self) -> DeadFilter:
        """This filter, or `InvalidInput`."""
        for name in ("subscription", "reason"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, str):
                raise InvalidInput(name, value, "text")
        for name in ("from_ms", "to_ms"):
            check.optional_integer(name, getattr(self, name), 0, limits.TIME_MS_MAX)
        check.optional_integer("partition", self.partition, 0, limits.PARTITIONS_MAX - 1)
        check.integer("limit", self.limit, 1, 1 << 48)
        return self


@dataclass(frozen=True, slots=True)
class DeadGroup:
    """Dead letters of one subscription (0: of none) in one partition, by offset."""

    subscription: int
    name: str
    partition: int
    rows: Int64
    """The table's columns: the offset, then those of `DEAD`."""

    @property
    def offsets(self) -> Int64:
        """Their offsets."""
        return self.rows[0]


def select(state: State, topic: TopicState, wanted: DeadFilter) -> list[DeadGroup]:
    """Dead letters that a filter means."""
    wanted.checked()
    if wanted.subscription:
        state.subscription(topic.config.name, wanted.subscription)
    groups, left = [], wanted.limit
    for partition in topic.partitions.values():
        if wanted.partition is not None and partition.number != wanted.partition:
            continue
        for number, name, table in _tables(topic, partition):
            if left > 0 and (wanted.subscription is None or wanted.subscription == name) and len(table):
                rows = table.columns()
                rows = rows[:, _matching(state, rows, wanted)][:, :left]
                left -= rows.shape[1]
                if rows.shape[1]:
                    groups.append(DeadGroup(number, name, partition.number, rows))
    return groups


def _tables(topic: TopicState, partition: Partition) -> list[tuple[int, str, OffsetTable]]:
    subscriptions = topic.subscriptions
    own = [(n, subscriptions[n].config.name, reader.dead) for n, reader in partition.readers.items()]
    return [(0, "", partition.dead), *own]


def _matching(state: State, rows: Int64, wanted: DeadFilter) -> npt.NDArray[np.bool_]:
    dead_ms, reason, error = rows[4], rows[6], rows[7]
    mask = np.ones(rows.shape[1], np.bool_)
    if wanted.reason is not None:
        hits = np.array([wanted.reason in text for text in state.texts.texts])
        mask &= hits[reason] | hits[error]
    if wanted.from_ms is not None:
        mask &= dead_ms >= wanted.from_ms
    if wanted.to_ms is not None:
        mask &= dead_ms < wanted.to_ms
    if wanted.offsets is not None:
        mask &= np.isin(rows[0], np.array(wanted.offsets, np.int64))
    return mask


def redrive(state: State, topic: TopicState, groups: list[DeadGroup], by: str, now_us: int) -> list[Entry]:
    """Dead letters wait again. Those that died before any subscription are published anew. May raise `Cold`."""
    _check_room(topic, groups)
    steps: list[AnyOp] = []
    entry = Entry(now_us, [])
    bases: dict[int, int] = {}
    for group in groups:
        if group.subscription:
            steps.append(ops.Redrive(topic.number, group.subscription, group.partition, group.offsets, by))
        else:
            _publish_anew(state, topic, group, by, entry, bases)
    return joined([*separate(state, now_us, steps), *([entry] if entry.ops else [])])


def _publish_anew(
    state: State, topic: TopicState, group: DeadGroup, by: str, entry: Entry, bases: dict[int, int]
) -> None:
    batch = shrink(state.bodies.take(topic.number, group.partition, group.offsets, STORED))
    base = bases.get(group.partition, topic.partitions[group.partition].next_offset)
    bases[group.partition] = base + batch.num_rows
    size = content_bytes(batch)
    entry.ops.append(ops.Discard(topic.number, 0, group.partition, group.offsets, by))
    entry.ops.append(ops.Publish(topic.number, group.partition, base, batch.num_rows, presence(batch), size))
    entry.batches.append(batch)


def _check_room(topic: TopicState, groups: list[DeadGroup]) -> None:
    """A redrive must not push the topic over its bounds."""
    config = topic.config
    count = sum(len(group.offsets) for group in groups)
    if config.messages_max is not None and topic.messages + count > config.messages_max:
        raise LimitReached("messages of the topic", config.messages_max, topic.messages + count)
    size = sum(topic.partitions[group.partition].directory.share_of(group.offsets) for group in groups)
    if config.bytes_max is not None and topic.bytes + size > config.bytes_max:
        raise LimitReached("bytes of the topic", config.bytes_max, topic.bytes + size)


def discard(state: State, topic: TopicState, groups: list[DeadGroup], by: str, now_us: int) -> list[Entry]:
    """Dead letters are thrown away."""
    steps: list[AnyOp] = [
        ops.Discard(topic.number, group.subscription, group.partition, group.offsets, by) for group in groups
    ]
    return separate(state, now_us, steps)
