"""Decide transactions: publishes and settles are staged under a key, then committed or aborted as a whole."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from wherry.core.decide import flow
from wherry.core.decide.leasing import held_lease
from wherry.core.decide.publishing import (
    check_distinct,
    check_ids,
    check_new_ids,
    split,
)
from wherry.core.decide.room import make_room
from wherry.core.decide.settling import rows_of
from wherry.core.decide.volatile import separate
from wherry.core.index.offsets import distinct
from wherry.core.state.lease import Lease, Rows
from wherry.core.state.stages import (
    STAGE_BYTES_MAX,
    STAGES_MAX,
    OpenStage,
    StagedBatch,
    StagedSettle,
)
from wherry.core.state.state import State, TopicState
from wherry.model import check, limits, ops
from wherry.model.errors import LimitReached, NotFound, StageLost
from wherry.model.ops import AnyOp, Entry, to_ranges
from wherry.model.schema import content_bytes, presence

Int64: TypeAlias = npt.NDArray[np.int64]


def check_key(key: str) -> str:
    """Return a stage key, or raise `InvalidInput`."""
    return check.name("key", key, limits.STAGE_KEY_CHARS_MAX)


def stage_publish(
    state: State, key: str, topic: TopicState, batch: pa.RecordBatch, partition: int | None, now_us: int
) -> list[Entry]:
    """Stage messages under a key. They get offsets when the stage is committed."""
    check.optional_integer("partition", partition, 0, topic.config.partitions - 1)
    _check_open(state, key)
    check_new_ids(batch)
    if topic.config.flows:
        flow.check_undelayed(batch)
        batch = flow.without_origin(batch)
        flow.check_headers(batch)
    size = content_bytes(batch)
    total = state.stages.bytes() + size
    if total > STAGE_BYTES_MAX:
        raise LimitReached("bytes of open stages", STAGE_BYTES_MAX, total)
    entry = Entry(now_us, [])
    for part in split(topic, batch, partition):
        weight = content_bytes(part.batch)
        rows = part.batch.num_rows
        entry.ops.append(ops.Stage(key, topic.number, part.partition, rows, presence(part.batch), weight))
        entry.batches.append(part.batch)
    return [entry]


def stage_settle(state: State, key: str, token: int, offsets: Int64 | None, now_us: int) -> list[Entry]:
    """Stage an ack. The lease continues until the commit, and must still hold the messages then."""
    _check_open(state, key)
    lease = held_lease(state, token)
    rows_of(lease, offsets)
    stage = state.stages.open.get(key)
    if stage is not None and stage.held_settles:
        stage.settles.append(StagedSettle(token, lease.offset if offsets is None else offsets))
        return []
    return [Entry(now_us, [ops.Stage(key, 0, 0, 0, 0, 0)])]


def note_settle(state: State, key: str, token: int, offsets: Int64 | None) -> None:
    """Record the first staged ack of a stage, after the entry that opened the stage was applied. Volatile."""
    lease = held_lease(state, token)
    state.stages.open[key].settles.append(StagedSettle(token, lease.offset if offsets is None else offsets))


def _check_open(state: State, key: str) -> None:
    check_key(key)
    _check_in_time(state, key)
    if key in state.stages.committed:
        raise StageLost(key, "it was committed before; choose another key")
    if key in state.stages.open:
        _check_whole(state.stages.open[key])
    if key not in state.stages.open and len(state.stages.open) >= STAGES_MAX:
        raise LimitReached("open stages", STAGES_MAX, len(state.stages.open) + 1)


def _check_in_time(state: State, key: str) -> None:
    if key in state.stages.expired:
        raise StageLost(key, "it was not committed in time, and is gone; choose another key")


def _check_whole(stage: OpenStage) -> None:
    if stage.lost:
        raise StageLost(stage.key, "it held leases, and a restart ended them")


class Committed(NamedTuple):
    """Result of a commit: `topic, partition, base, count` for each part, and the rows that leave each lease."""

    placed: Int64
    settled: list[tuple[Lease, Rows | None]]

    def end_leases(self, state: State) -> None:
        """Take the settled rows out of their leases, after the entries were applied.

        The decision itself changes nothing, because it may be made twice.
        """
        for lease, rows in self.settled:
            if state.leases.get(lease.token) is lease:
                state.take_out(lease, rows)


def commit(state: State, key: str, now_us: int, stages: Sequence[str] | None = None) -> tuple[list[Entry], Committed]:
    """Commit everything staged under a key by one entry; with `stages`, under several keys as one commit named `key`.

    A key that was committed before succeeds and changes nothing; `stages` that were staged again for it are aborted.
    May raise `Cold`.
    """
    check_key(key)
    keys = [key] if stages is None else list(dict.fromkeys(map(check_key, stages)))
    before = state.stages.committed.get(key)
    if before is not None:
        again = [ops.Abort(each, "committed before") for each in keys if each in state.stages.open]
        return [Entry(now_us, [*again])] if again else [], Committed(before, [])
    together = [_open(state, each) for each in keys]
    staged: dict[int, list[Int64]] = {}
    for settle in (settle for stage in together for settle in stage.settles):
        staged.setdefault(settle.token, []).append(settle.offsets)
    settled: list[tuple[Lease, Rows | None]] = []
    settles: list[ops.Settle] = []
    for token, some in staged.items():
        lease = held_lease(state, token)
        offsets = distinct(np.concatenate(some))
        settled.append((lease, rows_of(lease, offsets)))
        settles.append(ops.Settle(lease.subscription, lease.partition, to_ranges(offsets), "acked"))
    parts = [part for stage in together for part in stage.parts]
    removals, bases = _place(state, parts)
    # A peer that makes room here is gone before its settles; they end with it.
    gone = {op.number for op in removals if isinstance(op, ops.DeleteSubscription)}
    settles = [op for op in settles if op.subscription not in gone]
    placed = [
        n
        for part, base in zip(parts, bases, strict=True)
        for n in (part.topic, part.partition, base, part.messages)
        if base >= 0
    ]
    # One list of operations: a commit appended later could be separated from the durable settles by a volatile one.
    last = ops.Commit(key, np.array(bases, np.int64), None if stages is None else keys)
    entries = separate(state, now_us, [*removals, *settles, last])
    return entries, Committed(np.array(placed, np.int64), settled)


def _open(state: State, key: str) -> OpenStage:
    """Return the open stage of a key. Raises `NotFound`, or `StageLost` if it is incomplete."""
    _check_in_time(state, key)
    stage = state.stages.open.get(key)
    if stage is None:
        raise NotFound("stage", key)
    _check_whole(stage)
    return stage


def _place(state: State, parts: list[StagedBatch]) -> tuple[list[AnyOp], list[int]]:
    """Return a base offset for each part (-1 if its topic was deleted), and the operations that make room."""
    removals: list[AnyOp] = []
    nexts: dict[tuple[int, int], int] = {}
    bases, totals = [], dict[int, tuple[int, int]]()
    ids: dict[int, list[pa.Array]] = {}
    for part in parts:
        topic = state.topics.get(part.topic)
        if topic is None:
            bases.append(-1)
            continue
        check_ids(state, topic, part.batch)
        if "id" in part.batch.schema.names:
            ids.setdefault(part.topic, []).append(part.batch.column("id"))
        base = nexts.get((part.topic, part.partition), topic.next_offset(part.partition))
        nexts[part.topic, part.partition] = base + part.messages
        bases.append(base)
        messages, size = totals.get(part.topic, (0, 0))
        totals[part.topic] = (messages + part.messages, size + part.bytes)
    for columns in ids.values():
        check_distinct(pa.concat_arrays(columns))
    for number, (messages, size) in totals.items():
        live = make_room(state.topics[number], removals, messages, size)
        if live < messages:
            config = state.topics[number].config
            raise LimitReached("the topic", config.messages_max or config.bytes_max or 0, messages)
    return removals, bases


def abort(state: State, key: str, now_us: int) -> list[Entry]:
    """Abort a stage. A key under which nothing is staged is not an error."""
    check_key(key)
    if key not in state.stages.open:
        return []
    return [Entry(now_us, [ops.Abort(key, "asked for")])]
