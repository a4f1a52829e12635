"""Decide what happens to dead letters: select, redrive (send back), discard.

A dead letter is a message in the state "dead". It stays in its partition; there is no separate queue.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from wherry.core.apply.publishes import ranks
from wherry.core.decide.publishing import reserve
from wherry.core.decide.volatile import joined, separate
from wherry.core.index.offsets import members
from wherry.core.index.table import OffsetTable
from wherry.core.inspect.dead_kinds import DeadGroup
from wherry.core.state.partition import Partition
from wherry.core.state.reader import DEAD, UNKNOWN_RANK
from wherry.core.state.state import State, TopicState
from wherry.model import check, ops
from wherry.model.calls.dead import DeadFilter
from wherry.model.errors import InvalidInput, LimitReached
from wherry.model.limits import ERROR_CHARS_MAX
from wherry.model.ops import AnyOp, Entry
from wherry.model.schema import STORED, content_bytes, integers, presence, shrink

Int64: TypeAlias = npt.NDArray[np.int64]


def select(state: State, topic: TopicState, wanted: DeadFilter) -> list[DeadGroup]:
    """Return the dead letters that match a filter, grouped by subscription and partition."""
    if not isinstance(wanted, DeadFilter):
        raise InvalidInput("wanted", wanted, "a DeadFilter")
    wanted.checked()
    if wanted.subscription:
        state.subscription(topic.config.name, wanted.subscription)
    exact = None if wanted.offsets is None else np.unique(np.array(wanted.offsets, np.int64))
    groups, left = [], wanted.limit
    for partition in topic.partitions.values():
        if wanted.partition is not None and partition.number != wanted.partition:
            continue
        for number, name, table in _tables(topic, partition):
            if left > 0 and (wanted.subscription is None or wanted.subscription == name) and len(table):
                rows = table.columns() if exact is None else table.rows_of(exact)
                rows = rows[:, _matching(state, rows, wanted)][:, :left]
                left -= rows.shape[1]
                if rows.shape[1]:
                    groups.append(DeadGroup(number, name, partition.number, rows))
    return groups


def _tables(topic: TopicState, partition: Partition) -> list[tuple[int, str, OffsetTable]]:
    # Subscription 0 stands for dead letters that belong to no subscription.
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
    return mask


def redrive(state: State, topic: TopicState, groups: list[DeadGroup], by: str, now_us: int) -> list[Entry]:
    """Decide to send dead letters back to their subscriptions. May raise `Cold`.

    A dead letter that belongs to no subscription has no place to return to, so it is published again for all of them.
    """
    by = check.text("by", by)[:ERROR_CHARS_MAX]
    _check_room(topic, groups)
    steps: list[AnyOp] = [
        ops.Redrive(topic.number, group.subscription, group.partition, group.offsets, *_places(state, topic, group), by)
        for group in groups
        if group.subscription
    ]
    anew = [group for group in groups if not group.subscription]
    ends: dict[int, int] = {}
    lasting = _published_anew(state, topic, anew, by, Entry(now_us, []), ends)
    passing = _published_anew(state, topic, anew, by, Entry(now_us, [], volatile=True), ends)
    reserved = reserve(topic, list(ends.items()), now_us) if passing.ops else []
    return joined([*separate(state, now_us, steps), *reserved, *(entry for entry in (lasting, passing) if entry.ops)])


def _places(state: State, topic: TopicState, group: DeadGroup) -> tuple[Int64, Int64]:
    """Return the rank and the due time of each dead letter.

    Reads the bodies where the rank is unknown, because the message died while it waited, or where a due time is
    possible.
    """
    rank = group.rows[1 + DEAD.index("rank")].copy()
    due_ms = np.full(len(rank), -1, np.int64)
    unknown = rank == UNKNOWN_RANK
    if unknown.any() or topic.partitions[group.partition].has_due:
        batch = state.bodies.take(topic.number, group.partition, group.offsets, ("priority", "due"))
        due_ms = integers(batch, "due", -1)
        if unknown.any():
            published_ms = topic.partitions[group.partition].directory.published_of(group.offsets) // 1000
            times = np.where(due_ms >= 0, due_ms, published_ms) if topic.config.order == "timeline" else None
            rank[unknown] = (ranks(topic, 0, batch, 0) if times is None else times)[unknown]
    return rank, due_ms


def _published_anew(
    state: State, topic: TopicState, groups: list[DeadGroup], by: str, entry: Entry, ends: dict[int, int]
) -> Entry:
    """Add to an entry a new publish of each dead letter, and the discard of the old message.

    Takes transient messages if the entry is volatile, and journaled messages if it is not. `ends` collects the next
    offset of each partition over several calls.
    """
    for group in groups:
        partition = topic.partitions[group.partition]
        offsets = group.offsets[members(partition.transient, group.offsets) == entry.volatile]
        if len(offsets) == 0:
            continue
        batch = _with_free_ids(state.bodies.take(topic.number, group.partition, offsets, STORED), partition, offsets)
        base = ends.get(group.partition, partition.next_offset)
        ends[group.partition] = base + batch.num_rows
        size = content_bytes(batch)
        entry.ops.append(ops.Discard(topic.number, 0, group.partition, offsets, by, redriven=True))
        entry.ops.append(ops.Publish(topic.number, group.partition, base, batch.num_rows, presence(batch), size))
        entry.batches.append(batch)
    return entry


def _with_free_ids(batch: pa.RecordBatch, partition: Partition, offsets: Int64) -> pa.RecordBatch:
    """Return the messages for a new publish, without those ids that are still taken.

    The old message keeps its id while a subscription still has it to deliver or as a dead letter.
    """
    gone = np.isin(offsets, partition.unwanted(offsets))
    index = batch.schema.get_field_index("id")
    if index >= 0 and not gone.all():
        ids = pc.if_else(pa.array(gone), batch.column(index), pa.scalar(None, batch.schema.field(index).type))
        batch = batch.set_column(index, batch.schema.field(index), ids)
    return shrink(batch)


def _check_room(topic: TopicState, groups: list[DeadGroup]) -> None:
    """Raise `LimitReached` if a redrive would push the topic over its bounds."""
    config = topic.config
    count = sum(len(group.offsets) for group in groups)
    if config.messages_max is not None and topic.messages + count > config.messages_max:
        raise LimitReached("messages of the topic", config.messages_max, topic.messages + count)
    size = sum(topic.partitions[group.partition].directory.share_of(group.offsets) for group in groups)
    if config.bytes_max is not None and topic.bytes + size > config.bytes_max:
        raise LimitReached("bytes of the topic", config.bytes_max, topic.bytes + size)


def forward(state: State, topic: TopicState, groups: list[DeadGroup], by: str, now_us: int) -> list[Entry]:
    """Decide to discard dead letters whose copies are published elsewhere in the same entry."""
    by = check.text("by", by)[:ERROR_CHARS_MAX]
    steps: list[AnyOp] = [
        ops.Discard(topic.number, group.subscription, group.partition, group.offsets, by, redriven=True)
        for group in groups
    ]
    return separate(state, now_us, steps)


def discard(state: State, topic: TopicState, groups: list[DeadGroup], by: str, now_us: int) -> list[Entry]:
    """Decide to delete dead letters."""
    by = check.text("by", by)[:ERROR_CHARS_MAX]
    steps: list[AnyOp] = [
        ops.Discard(topic.number, group.subscription, group.partition, group.offsets, by) for group in groups
    ]
    return separate(state, now_us, steps)
