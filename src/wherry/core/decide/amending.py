"""Decide changes of one message by its id: cancel and amend.

A message is either waiting or leased, so a cancel or an amend and a delivery exclude each other.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from wherry.core.decide.publishing import reserve
from wherry.core.decide.room import make_room
from wherry.core.decide.volatile import joined, separate
from wherry.core.index.offsets import distinct
from wherry.core.inspect.by_id import Found, find
from wherry.core.state.state import State, TopicState
from wherry.model import check, ops
from wherry.model.calls.amendment import Amended, Amendment
from wherry.model.errors import InvalidInput, NotWaiting, VersionConflict
from wherry.model.ops import AnyOp, Entry, to_ranges
from wherry.model.schema import MESSAGE, STORED, Message, compact, content_bytes, presence

Int64: TypeAlias = npt.NDArray[np.int64]


def check_waiting(topic: TopicState, found: Found, message_id: str, now_ms: int) -> None:
    """Raise `NotWaiting` unless some subscription still has to deliver the message and no consumer holds it."""
    partition = topic.partitions[found.partition]
    if partition.dead.has(np.array([found.offset], np.int64))[0] and found.offset in partition.finished:
        raise NotWaiting(message_id, "dead")
    states = [reader.state_of(found.offset, now_ms) for reader in partition.readers.values()]
    if partition.leased_by_anyone(np.array([found.offset], np.int64))[0]:
        raise NotWaiting(message_id, "leased to a consumer")
    if states and all(state in ("settled", "dead") for state in states):
        raise NotWaiting(message_id, states[0])


def cancel(state: State, topic: TopicState, message_ids: list[str], now_us: int) -> list[Entry]:
    """Decide to remove waiting messages: all of them or, if one of them is not waiting, none."""
    by_partition: dict[int, list[int]] = {}
    for message_id in dict.fromkeys(message_ids):
        found = find(state, topic, message_id)
        check_waiting(topic, found, message_id, now_us // 1000)
        by_partition.setdefault(found.partition, []).append(found.offset)
    removals: list[AnyOp] = [
        ops.Remove(topic.number, number, to_ranges(distinct(np.array(offsets, np.int64))), "cancelled")
        for number, offsets in by_partition.items()
    ]
    return separate(state, now_us, removals)


def amend(
    state: State, topic: TopicState, message_id: str, change: Amendment, version: int | None, now_us: int
) -> tuple[list[Entry], Amended]:
    """Decide to replace a waiting message by a changed copy, which keeps the id and the place in a fifo.

    The old message is not rewritten in the log: the copy is a new message at a new offset. `version` is the version
    that the caller read; None accepts any version. May raise `Cold`.
    """
    if not isinstance(change, Amendment) or all(getattr(change, name) is None for name in change.__slots__):
        raise InvalidInput("change", change, "an Amendment with at least one field to change")
    check.optional_integer("version", version, 1, 1 << 62)
    if topic.config.flows:
        raise InvalidInput("topic", topic.config.name, "one with mesh='safe': other nodes may have the message already")
    found = find(state, topic, message_id)
    check_waiting(topic, found, message_id, now_us // 1000)
    partition = topic.partitions[found.partition]
    at = np.array([found.offset], np.int64)
    if partition.dead.has(at)[0] or any(reader.dead.has(at)[0] for reader in partition.readers.values()):
        raise NotWaiting(message_id, "a dead letter of another subscription")
    actual = partition.version(found.offset)
    if version is not None and version != actual:
        raise VersionConflict(message_id, version, actual)
    batch = _changed(state, topic, found, change)
    size = content_bytes(batch)
    removals: list[AnyOp] = []
    growth = size - partition.directory.bytes_of(np.array([found.offset], np.int64))
    if growth > 0:
        make_room(topic, removals, 0, growth, spared=found)
    base = partition.next_offset
    publish = ops.Publish(topic.number, found.partition, base, 1, presence(batch), size)
    replace = ops.Replace(topic.number, found.partition, found.offset, actual + 1, publish)
    transient = found.offset in partition.transient
    before = separate(state, now_us, removals)
    if transient:
        before += reserve(topic, [(found.partition, base + 1)], now_us)
    entries = joined([*before, Entry(now_us, [replace], [batch], volatile=transient)])
    return entries, Amended(batch.column("id")[0].as_py(), found.partition, base, actual + 1)


def _changed(state: State, topic: TopicState, found: Found, change: Amendment) -> pa.RecordBatch:
    """Return the old body with the changed fields. A message without an id of its own keeps its default id."""
    at = np.array([found.offset], np.int64)
    old = state.bodies.take(topic.number, found.partition, at, STORED)
    new = compact(
        [
            Message(
                payload=b"" if change.payload is None else change.payload,
                priority=change.priority,
                due_ms=change.due_ms,
                expires_ms=change.expires_ms,
                headers=change.headers,
            )
        ],
        topic.config.payload_bytes_max,
    )
    columns = {name: old.column(name) for name in old.schema.names if old.column(name).null_count == 0}
    for name in new.schema.names:
        if name != "payload" or change.payload is not None:
            columns[name] = new.column(name)
    columns.setdefault("id", pa.array([f"{found.partition}-{found.offset}"], pa.string()))
    kept = [name for name in STORED if name in columns]
    schema = pa.schema([MESSAGE.field(name) for name in kept])
    return pa.RecordBatch.from_arrays([columns[name] for name in kept], schema=schema)
