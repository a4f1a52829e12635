"""Deciding a publish: where each message goes, whether it was seen before, whether it fits."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from wherry.core.decide.room import make_room
from wherry.core.decide.volatile import joined, separate
from wherry.core.index.hashing import hash_strings, ranks_of
from wherry.core.index.offsets import starts
from wherry.core.inspect.by_id import candidates
from wherry.core.state.producers import ProducerCall
from wherry.core.state.state import State, TopicState
from wherry.model import check, limits, ops
from wherry.model.calls.publish import Published, PublishOptions
from wherry.model.errors import DuplicateId, InvalidInput, OutOfSequence
from wherry.model.ops import AnyOp, Entry
from wherry.model.schema import content_bytes, presence

Int64: TypeAlias = npt.NDArray[np.int64]

TRANSIENT_RESERVE = 1 << 20
"""Offsets reserved at a time for transient messages: one small journal entry per million of them."""

DEFAULT_ID = r"^[0-9]+-[0-9]+$"
CONTROL = r"[\x00-\x1f\x7f]"


class PartitionBatch(NamedTuple):
    """Messages of one call for one partition: which rows, and the batch of them."""

    partition: int
    rows: Int64 | None
    batch: pa.RecordBatch


def decide(
    state: State, topic: TopicState, batch: pa.RecordBatch, options: PublishOptions, now_us: int
) -> tuple[list[Entry], Published]:
    """The entries that a publish writes (none for a repeat), and the answer. Raises `Cold` when bodies are needed."""
    options.checked(topic.config)
    if options.callback is not None:
        topic.outbox.check(options.callback)
    persistent = topic.config.persistent if options.persistent is None else options.persistent
    if options.producer is not None and options.sequence is not None:
        earlier = topic.producers.repeated(options.producer, options.sequence, batch.num_rows, options.fingerprint or 0)
        if earlier is not None:
            answer = _answer_again(topic, batch, options.producer, earlier)
            answer.durable = persistent
            return [], answer
    parts = split(topic, batch, options.partition)
    check_ids(state, topic, batch)
    sizes = [content_bytes(part.batch) for part in parts]
    removals: list[AnyOp] = []
    live = make_room(topic, removals, batch.num_rows, sum(sizes), [part.batch for part in parts])
    entry = Entry(now_us, [], volatile=not persistent)
    before = separate(state, now_us, removals)
    bases = _place(topic, parts, sizes, live, entry)
    if not persistent:
        ends = [(part.partition, base + part.batch.num_rows) for part, base in zip(parts, bases, strict=True)]
        before += reserve(topic, ends, now_us)
    if options.producer is not None and options.sequence is not None:
        placed = [
            n for part, base in zip(parts, bases, strict=True) for n in (part.partition, base, part.batch.num_rows)
        ]
        placed_at = np.array(placed, np.int64)
        partitions = topic.config.partitions if len(parts) > 1 else 0
        call = (options.sequence, batch.num_rows, placed_at, options.fingerprint or 0, partitions)
        entry.ops.append(ops.Sequenced(topic.number, options.producer, *call))
    if options.callback is not None:
        entry.ops += [
            ops.Watch(topic.number, part.partition, base, part.batch.num_rows, options.callback)
            for part, base in zip(parts, bases, strict=True)
        ]
    answer = _answer(batch.num_rows, parts, bases, repeated=False)
    answer.dead, answer.durable = batch.num_rows - live, persistent
    return joined([*before, entry]) if before else [entry], answer


def split(topic: TopicState, batch: pa.RecordBatch, partition: int | None) -> list[PartitionBatch]:
    """Rows by partition: as told, else by key, else round the partitions, one step a call."""
    count = topic.config.partitions
    if partition is not None or count == 1:
        return [PartitionBatch(partition or 0, None, batch)]
    topic.turn += 1
    return _split_by_key(batch, count, (topic.turn - 1) % count)


def _split_by_key(batch: pa.RecordBatch, count: int, turn: int) -> list[PartitionBatch]:
    """Rows by key over `count` partitions; those without one go to partition `turn`."""
    if "key" not in batch.schema.names:
        return [PartitionBatch(turn, None, batch)]
    keys = batch.column("key")
    to = (hash_strings(keys) % np.uint64(count)).astype(np.int64)
    if keys.null_count:
        to = np.where(keys.is_null().to_numpy(zero_copy_only=False), turn, to)
    order = np.argsort(to, kind="stable")
    grouped = batch.take(pa.array(order))
    begins = starts(to[order])
    stops = np.append(begins[1:], len(order))
    return [
        PartitionBatch(int(number), order[start:stop], grouped.slice(start, stop - start))
        for number, start, stop in zip(to[order[begins]].tolist(), begins.tolist(), stops.tolist(), strict=True)
    ]


def check_ids(state: State, topic: TopicState, batch: pa.RecordBatch) -> None:
    """`DuplicateId` if an id is in the topic already, or twice in the batch."""
    if "id" not in batch.schema.names:
        return
    check_new_ids(batch)
    given = batch.column("id").drop_null()
    rows, places = topic.ids.find(ranks_of(hash_strings(given)))
    taken = [text for row, text in candidates(state, topic, rows, places) if given[row].as_py() == text]
    if taken:
        raise DuplicateId(taken)


def check_new_ids(batch: pa.RecordBatch) -> None:
    """`InvalidInput` or `DuplicateId` if the ids of a batch cannot be right, whatever is in the topic."""
    if "id" not in batch.schema.names:
        return
    ids = batch.column("id")
    reserved = pc.match_substring_regex(ids, DEFAULT_ID)
    if pc.any(reserved).as_py():
        row = pc.index(reserved, True).as_py()
        allowed = "an id that does not look like a default id (digits, a dash, digits)"
        raise InvalidInput(f"messages[{row}].id", ids[row].as_py(), allowed)
    control = pc.match_substring_regex(ids, CONTROL)
    if pc.any(control).as_py():
        row = pc.index(control, True).as_py()
        raise InvalidInput(f"messages[{row}].id", ids[row].as_py(), "an id without control characters")
    check_distinct(ids)


def check_distinct(ids: pa.Array) -> None:
    """`DuplicateId` if an id is there twice."""
    counts = pc.value_counts(ids.drop_null())
    twice = pc.filter(counts.field(0), pc.greater(counts.field(1), 1))
    if len(twice):
        raise DuplicateId(twice.to_pylist())


def _place(topic: TopicState, parts: list[PartitionBatch], sizes: list[int], live: int, entry: Entry) -> list[int]:
    """Offsets for each part; rows beyond `live` go to the dead letters."""
    bases, left = [], live
    for part, size in zip(parts, sizes, strict=True):
        base = topic.next_offset(part.partition)
        bases.append(base)
        fit = min(left, part.batch.num_rows)
        left -= fit
        if fit == part.batch.num_rows:
            _add(entry, topic, part.partition, base, part.batch, size, "")
            continue
        for batch, dead in ((part.batch.slice(0, fit), ""), (part.batch.slice(fit), "overflow")):
            if batch.num_rows:
                _add(entry, topic, part.partition, base, batch, content_bytes(batch), dead)
                base += batch.num_rows
    return bases


def reserve(topic: TopicState, ends: list[tuple[int, int]], now_us: int) -> list[Entry]:
    """Transient messages leave no trace, so their offsets are reserved ahead, and never given twice.

    `ends` are partitions, and the offset after the last new one in each.
    """
    reserves: list[AnyOp] = [
        ops.Reserve(topic.number, number, end + TRANSIENT_RESERVE)
        for number, end in ends
        if number not in topic.partitions or end > topic.partitions[number].reserved
    ]
    return [Entry(now_us, reserves)] if reserves else []


def _add(
    entry: Entry, topic: TopicState, partition: int, base: int, batch: pa.RecordBatch, size: int, dead: str
) -> None:
    check.integer("offset", base + batch.num_rows, 0, limits.OFFSET_MAX)
    entry.ops.append(ops.Publish(topic.number, partition, base, batch.num_rows, presence(batch), size, dead))
    entry.batches.append(batch)


def _answer_again(topic: TopicState, batch: pa.RecordBatch, producer: str, earlier: ProducerCall) -> Published:
    """The answer of the first call: its turn is not known any more, but only one turn leads to the same places."""
    placed = np.reshape(earlier.placed, (-1, 3)).tolist()
    if len(placed) == 1:
        return _answer(batch.num_rows, [PartitionBatch(placed[0][0], None, batch)], [placed[0][1]], repeated=True)
    for turn, _, _ in placed:
        parts = _split_by_key(batch, earlier.partitions or topic.config.partitions, turn)
        if [(part.partition, part.batch.num_rows) for part in parts] == [(row[0], row[2]) for row in placed]:
            return _answer(batch.num_rows, parts, [row[1] for row in placed], repeated=True)
    raise OutOfSequence(producer, earlier.first, "was used before with messages of other keys")


def _answer(count: int, parts: list[PartitionBatch], bases: list[int], *, repeated: bool) -> Published:
    if len(parts) == 1 and parts[0].rows is None:
        return Published(np.full(count, parts[0].partition), np.arange(bases[0], bases[0] + count), repeated)
    partition, offset = np.empty(count, np.int64), np.empty(count, np.int64)
    for part, base in zip(parts, bases, strict=True):
        rows = slice(None) if part.rows is None else part.rows
        partition[rows] = part.partition
        offset[rows] = np.arange(base, base + part.batch.num_rows)
    return Published(partition, offset, repeated)
