"""Decide a publish: the partition and offset of each message, whether the call is a repeat, whether it fits."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from wherry.core.decide import flow
from wherry.core.decide.room import make_room
from wherry.core.decide.volatile import joined, separate
from wherry.core.index.hashing import hash_strings, ranks_of
from wherry.core.index.offsets import starts
from wherry.core.inspect.by_id import candidates
from wherry.core.state.plan import Plan
from wherry.core.state.producers import ProducerCall
from wherry.core.state.state import State, TopicState
from wherry.model import check, limits, ops
from wherry.model.calls.publish import Published, PublishOptions
from wherry.model.errors import DuplicateId, InvalidInput, OutOfSequence
from wherry.model.ops import AnyOp, Entry
from wherry.model.row_batch import AS_ROWS, RowBatch
from wherry.model.schema import content_bytes, presence

Int64: TypeAlias = npt.NDArray[np.int64]

TRANSIENT_RESERVE = 1 << 20
"""Offsets reserved at a time for transient messages: one small journal entry for about a million messages."""

DEFAULT_ID = r"^[0-9]+-[0-9]+$"
_NONE = np.empty(0, np.int64)
CONTROL = r"[\x00-\x1f\x7f]"


class PartitionBatch(NamedTuple):
    """Messages of one call that go to the same partition. `rows` are their rows in the call; None means all rows."""

    partition: int
    rows: Int64 | None
    batch: pa.RecordBatch


def decide(
    state: State, topic: TopicState, batch: pa.RecordBatch | RowBatch, options: PublishOptions, now_us: int
) -> tuple[list[Entry], Published]:
    """Return the entries that a publish writes (none for a repeat) and the answer to the producer.

    Raises `Cold` when bodies are needed to compare ids. Changes nothing but the round-robin counter of the topic.
    """
    options.checked(topic.config)
    batch, options = flow.admitted(topic, batch, options)
    if batch.num_rows == 0:  # all of it came from a peer before
        return [], Published(_NONE, _NONE, repeated=True, mesh="flow")
    if isinstance(batch, RowBatch):
        if _are_simple(topic, batch, options):
            return _decide_rows(topic, batch, options, now_us)
        batch = batch.batch
    if options.callback is not None:
        topic.outbox.check(options.callback)
    persistent = topic.config.persistent if options.persistent is None else options.persistent
    # A repeat is answered before ids and bounds are checked: the first call has taken its ids, and by now the topic may
    # be full.
    if options.producer is not None and options.sequence is not None:
        earlier = topic.producers.repeated(options.producer, options.sequence, batch.num_rows, options.fingerprint or 0)
        if earlier is not None:
            answer = _answer_again(topic, batch, options.producer, earlier)
            answer.durable, answer.mesh = persistent, topic.config.mesh
            return [], answer
    # From here on the call is new. Ids come before bounds: a duplicate id is reported even if the topic is full.
    parts = split(topic, batch, options.partition)
    check_ids(state, topic, batch)
    sizes = [content_bytes(part.batch) for part in parts]
    # `live` messages fit and wait; the rest become dead letters (overflow "dead-letter"). `removals` delete older
    # messages where the topic makes room for new ones (overflow "drop-oldest").
    removals: list[AnyOp] = []
    live = make_room(topic, removals, batch.num_rows, sum(sizes), [part.batch for part in parts])
    entry = Entry(now_us, [], volatile=not persistent)
    # Removals may concern journaled messages although this publish is transient, and the other way round. So they are
    # split by what they remove. They come first, so that no entry leaves the topic over its bounds.
    before = separate(state, now_us, removals)
    bases = _place(topic, parts, sizes, live, entry)
    flow.mark(topic, entry, options.origin)
    # Transient messages are not in the journal. Their offsets are reserved there first, so that no offset is used again
    # after a restart.
    if not persistent:
        ends = [(part.partition, base + part.batch.num_rows) for part, base in zip(parts, bases, strict=True)]
        before += reserve(topic, ends, now_us)
    # In the same entry as the messages: after a crash the sequence numbers are known if and only if the messages are.
    if options.producer is not None and options.sequence is not None:
        call = (options.producer, options.sequence, batch.num_rows, options.fingerprint or 0)
        entry.ops.append(_sequenced(topic, call, parts, bases))
    entry.ops += _watches(topic, options.callback, parts, bases)
    answer = _answer(batch.num_rows, parts, bases, repeated=False)
    answer.dead, answer.durable, answer.mesh = batch.num_rows - live, persistent, topic.config.mesh
    return joined([*before, entry]) if before else [entry], answer


def _watches(topic: TopicState, callback: str | None, parts: list[PartitionBatch], bases: list[int]) -> list[ops.Watch]:
    """Return the operations that watch every message of a call for a callback, if there is one.

    Also those that became dead letters: their outcome is sent at once.
    """
    if callback is None:
        return []
    return [
        ops.Watch(topic.number, part.partition, base, part.batch.num_rows, callback)
        for part, base in zip(parts, bases, strict=True)
    ]


def _are_simple(topic: TopicState, rows: RowBatch, options: PublishOptions) -> bool:
    """Return whether rows are published without a choice: one partition, no sequence, callback or bound in the way."""
    config = topic.config
    return (
        config.partitions == 1
        and options.producer is None
        and options.callback is None
        and options.origin is None
        and (config.messages_max is None or topic.messages + rows.num_rows <= config.messages_max)
        and (config.bytes_max is None or topic.bytes + rows.size <= config.bytes_max)
    )


def _decide_rows(
    topic: TopicState, rows: RowBatch, options: PublishOptions, now_us: int
) -> tuple[list[Entry], Published]:
    """Decide as `decide` does where every answer is known: all messages wait in partition 0, at the next offsets."""
    persistent = topic.config.persistent if options.persistent is None else options.persistent
    base, count = topic.next_offset(0), rows.num_rows
    if base + count > limits.OFFSET_MAX:
        check.integer("offset", base + count, 0, limits.OFFSET_MAX)
    publish = ops.Publish(topic.number, 0, base, count, rows.columns | AS_ROWS, rows.size)
    entry = Entry(now_us, [publish], [rows], volatile=not persistent)
    answer = Published.run(0, base, count, durable=persistent, mesh=topic.config.mesh)
    before = [] if persistent else reserve(topic, [(0, base + count)], now_us)
    return joined([*before, entry]) if before else [entry], answer


def planned_publish(plan: Plan, rows: RowBatch) -> ops.Publish | None:
    """Return what `decide` returns for persistent rows without times, of a plain topic, without options: one operation.

    Returns None if the general way has to look: the offsets are at their end, or a payload may be too large.
    """
    topic, base, count = plan.topic, plan.partition.next_offset, rows.num_rows
    if base + count > limits.OFFSET_MAX or rows.size > topic.config.payload_bytes_max:
        return None
    return ops.Publish(topic.number, 0, base, count, rows.columns | AS_ROWS, rows.size)


def _sequenced(
    topic: TopicState, call: tuple[str, int, int, int], parts: list[PartitionBatch], bases: list[int]
) -> ops.Sequenced:
    """Return the operation that remembers a call: producer, first sequence number, count and fingerprint."""
    producer, first, count, fingerprint = call
    placed = [n for part, base in zip(parts, bases, strict=True) for n in (part.partition, base, part.batch.num_rows)]
    # A call of several parts is spread by key. The number of partitions is kept, because a repeat has to be spread in
    # the same way, even if the topic has more partitions by then.
    partitions = topic.config.partitions if len(parts) > 1 else 0
    return ops.Sequenced(topic.number, producer, first, count, np.array(placed, np.int64), fingerprint, partitions)


def split(topic: TopicState, batch: pa.RecordBatch, partition: int | None) -> list[PartitionBatch]:
    """Split a batch by partition: the given one, else by key, else one partition after the other, a step a call."""
    count = topic.config.partitions
    if partition is not None or count == 1:
        return [PartitionBatch(partition or 0, None, batch)]
    topic.rotation += 1
    return _split_by_key(batch, count, (topic.rotation - 1) % count)


def _split_by_key(batch: pa.RecordBatch, count: int, keyless: int) -> list[PartitionBatch]:
    """Split rows by key over `count` partitions; rows without a key go to partition `keyless`."""
    if "key" not in batch.schema.names:
        return [PartitionBatch(keyless, None, batch)]
    keys = batch.column("key")
    to = (hash_strings(keys) % np.uint64(count)).astype(np.int64)
    if keys.null_count:
        to = np.where(keys.is_null().to_numpy(zero_copy_only=False), keyless, to)
    order = np.argsort(to, kind="stable")
    grouped = batch.take(pa.array(order))
    begins = starts(to[order])
    stops = np.append(begins[1:], len(order))
    return [
        PartitionBatch(int(number), order[start:stop], grouped.slice(start, stop - start))
        for number, start, stop in zip(to[order[begins]].tolist(), begins.tolist(), stops.tolist(), strict=True)
    ]


def check_ids(state: State, topic: TopicState, batch: pa.RecordBatch) -> None:
    """Raise `DuplicateId` if an id of the batch is already in the topic, or twice in the batch."""
    if "id" not in batch.schema.names:
        return
    check_new_ids(batch)
    given = batch.column("id").drop_null()
    rows, packed = topic.ids.find(ranks_of(hash_strings(given)))
    taken = [text for row, text in candidates(state, topic, rows, packed) if given[row].as_py() == text]
    if taken:
        raise DuplicateId(taken)


def check_new_ids(batch: pa.RecordBatch) -> None:
    """Raise `InvalidInput` or `DuplicateId` if the ids of a batch are wrong by themselves, whatever is in the topic."""
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
    """Raise `DuplicateId` if an id occurs twice."""
    counts = pc.value_counts(ids.drop_null())
    twice = pc.filter(counts.field(0), pc.greater(counts.field(1), 1))
    if len(twice):
        raise DuplicateId(twice.to_pylist())


def _place(topic: TopicState, parts: list[PartitionBatch], sizes: list[int], live: int, entry: Entry) -> list[int]:
    """Add the publishes of each part to an entry, and return the base offset of each part.

    The first `live` rows wait; the others are published as dead letters.
    """
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
    """Return an entry that reserves offsets for transient messages, or nothing while the last reservation suffices.

    Transient messages are not journaled, so without a reservation a restart would give their offsets to other messages.
    `ends` holds partitions, each with the offset after its last new message.
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
    """Return the answer of the first call.

    The partition of the rows without a key was not recorded. Only one choice spreads the rows over the recorded
    partitions in the recorded numbers, so each is tried.
    """
    placed = np.reshape(earlier.placed, (-1, 3)).tolist()
    if len(placed) == 1:
        return _answer(batch.num_rows, [PartitionBatch(placed[0][0], None, batch)], [placed[0][1]], repeated=True)
    for keyless, _, _ in placed:
        parts = _split_by_key(batch, earlier.partitions or topic.config.partitions, keyless)
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
