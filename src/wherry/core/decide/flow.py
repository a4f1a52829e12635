"""Decide what is special about `flow` topics: what may be published, what of a peer's messages is new, who makes room.

A peer sends the messages of each partition in the order of their offsets at their origin, and perhaps again. So one
number for each origin says which of them are here. Nothing that is refused or dropped here may have moved that number.

What the subscriptions of this node keep counts for a refusal; what is kept for peers alone does not, nor what is kept
for nobody yet. A peer that is cut off loses what it has not read, as beyond the bound that it declared itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from wherry.core.state.partition import Partition
from wherry.core.state.reader import Reader
from wherry.core.state.state import SubscriptionState, TopicState
from wherry.model import limits, ops
from wherry.model.calls.origin import HEADER, HEADER_BYTES_MAX, Origin
from wherry.model.calls.publish import PublishOptions
from wherry.model.errors import InvalidInput
from wherry.model.ops import Entry
from wherry.model.row_batch import RowBatch
from wherry.model.schema import BIT, MESSAGE, TYPES, edges, header_bytes

Int64: TypeAlias = npt.NDArray[np.int64]
Mask: TypeAlias = npt.NDArray[np.bool_]

FULL = "the topic was full of what only peers had not read"
"""Why a peer was cut off by a publish."""


def admitted(
    topic: TopicState, batch: pa.RecordBatch | RowBatch, options: PublishOptions
) -> tuple[pa.RecordBatch | RowBatch, PublishOptions]:
    """Return what of a batch is to be published, and its options; in a `flow` topic perhaps no message.

    Raise `InvalidInput` for messages that a `flow` topic does not take.
    """
    if not topic.config.flows:
        return batch, options
    check_undelayed(batch)
    if options.origin is None:
        batch = without_origin(batch)
        check_headers(batch)
        return batch, options
    if isinstance(batch, RowBatch):
        batch = batch.batch
    origin = options.origin
    origin.check(batch.num_rows)
    seen = int(np.searchsorted(origin.offsets, topic.producers.next_of(origin.place.producer)))
    if seen == 0:
        return batch, options
    return batch.slice(seen), replace(options, origin=origin.part(seen))


def check_undelayed(batch: pa.RecordBatch | RowBatch) -> None:
    """Raise `InvalidInput` if a message has a due time: it would reach a peer behind later ones, as if seen before."""
    if isinstance(batch, RowBatch):
        delayed = bool(batch.columns & BIT["due"])
    else:
        delayed = "due" in batch.schema.names and batch.column("due").null_count < batch.num_rows
    if delayed:
        raise InvalidInput("due", "a time", "none in a topic with mesh='flow'")


def check_headers(batch: pa.RecordBatch | RowBatch) -> None:
    """Raise `InvalidInput` for headers that leave no room for the one that a peer adds: no peer could store them."""
    if isinstance(batch, RowBatch):
        if batch.values.get("headers") is None:
            return
        batch = batch.batch
    if "headers" not in batch.schema.names:
        return
    headers = batch.column("headers")
    counts, sizes = np.diff(edges(headers)), header_bytes(headers)
    for found, most, what in (
        (counts, limits.HEADERS_MAX - 1, "headers"),
        (sizes, limits.HEADERS_BYTES_MAX - HEADER_BYTES_MAX, "bytes of names and values"),
    ):
        if len(found) and found.max() > most:
            row = int(np.argmax(found))
            allowed = f"at most {most} {what} in a topic with mesh='flow': peers add one"
            raise InvalidInput(f"messages[{row}].headers", f"{found[row]} {what}", allowed)


def without_origin(batch: pa.RecordBatch | RowBatch) -> pa.RecordBatch | RowBatch:
    """Return messages without the header that only the node itself may write."""
    if isinstance(batch, RowBatch):
        pairs = batch.values.get("headers")
        if pairs is None or not any(name == HEADER for each in pairs for name, _ in each or ()):
            return batch
        batch = batch.batch
    if "headers" not in batch.schema.names:
        return batch
    headers = batch.column("headers")
    if not pc.any(pc.equal(headers.keys, HEADER)).as_py():
        return batch
    left = [
        None if pairs is None else [(name, value) for name, value in pairs if name != HEADER]
        for pairs in headers.to_pylist()
    ]
    at = batch.schema.get_field_index("headers")
    return batch.set_column(at, MESSAGE.field("headers"), pa.array(left, TYPES["headers"]))


def mark(topic: TopicState, entry: Entry, origin: Origin | None) -> None:
    """Note in the publishes of an entry where they come from, and that everything up to there has come.

    In the same entry as the messages: after a crash both are there, or neither. Without an origin nothing is noted.
    """
    if origin is None:
        return
    entry.ops[:] = [
        msgspec.structs.replace(op, origin=origin.place.node, from_hub=origin.role == "hub")
        if isinstance(op, ops.Publish)
        else op
        for op in entry.ops
    ]
    count = len(origin.offsets)
    first = int(origin.offsets[-1]) + 1 - count
    entry.ops.append(ops.Sequenced(topic.number, origin.place.producer, first, count, np.empty(0, np.int64)))


class Left(NamedTuple):
    """What counts against the bounds of a topic without the peers that are cut off, and whether anybody is left."""

    cut_off: list[SubscriptionState]
    messages: int
    bytes: int
    is_read: bool
    """Whether a durable subscription is left; without one, messages wait for the next one."""


class _Unfinished(NamedTuple):
    """The messages of a partition that count, and which of them are kept so far."""

    partition: Partition
    offsets: Int64
    kept: Mask


def without_peers(topic: TopicState, messages_max: int, bytes_max: int) -> Left | None:
    """Return what is left when the peers furthest behind are cut off, as few as needed; None if that does not help.

    The bounds are those for what is left: the new messages have to fit beside it.
    """
    if topic.is_stream():  # what is there is kept by age or size, whoever has read it
        return None
    durable = [each for each in topic.subscriptions.values() if each.config.durable]
    if not durable:
        return Left([], topic.messages, topic.bytes, is_read=False)
    own = [each for each in durable if each.config.peer is None]
    behind = {each.number: each.behind() for each in durable}
    # Asked with each refusal, so answered without a look at the messages where one subscription keeps too many.
    kept = max((behind[each.number] for each in own), default=-1)
    if kept >= topic.messages or (kept > messages_max and topic.config.counted == "all"):
        return None
    found = _unfinished(topic)
    stays = list(own)
    for each in own:
        _keep(each, found)
    left = _left(topic, found, stays)
    if own and not _fits(left, messages_max, bytes_max):
        return None
    peers = sorted((each for each in durable if each.config.peer is not None), key=lambda each: behind[each.number])
    for at, peer in enumerate(peers):
        _keep(peer, found)
        more = _left(topic, found, [*stays, peer])
        if not _fits(more, messages_max, bytes_max):
            return Left(peers[at:], *(left if stays else _unread_by(topic, peers[-1])), is_read=bool(stays))
        left = more
        stays.append(peer)
    return Left([], *left, is_read=bool(stays))


def nobodys(partition: Partition, offsets: Int64, last: SubscriptionState | None) -> Int64:
    """Return the messages that are left and wait for nobody once all peers are cut off, `last` as the last one."""
    reader = None if last is None else last.readers.get(partition.number)
    if reader is not None:
        offsets = offsets[~_done(reader, offsets)]
    for each in partition.ephemeral.values():
        offsets = offsets[each.settled.contains(offsets)]
    return offsets


def _unread_by(topic: TopicState, last: SubscriptionState) -> tuple[int, int]:
    """Return the messages and bytes that count once all peers are cut off, one after the other, and nobody is left.

    A message that the last one has read goes with the end of those before it.
    """
    found = _unfinished(topic)
    _keep(last, found)
    return _kept(topic, found)


def _unfinished(topic: TopicState) -> list[_Unfinished]:
    return [
        _Unfinished(part, offsets, np.zeros(len(offsets), np.bool_))
        for part in topic.partitions.values()
        if len(offsets := part.finished.missing(0, part.next_offset))
    ]


def _keep(subscription: SubscriptionState, found: list[_Unfinished]) -> None:
    """Mark what a subscription keeps."""
    for each in found:
        reader = subscription.readers.get(each.partition.number)
        if reader is not None:
            np.logical_or(each.kept, ~_done(reader, each.offsets), out=each.kept)


def _done(reader: Reader, offsets: Int64) -> Mask:
    done = reader.settled.contains(offsets)
    return done | reader.dead.has(offsets) if len(reader.dead) else done


def _left(topic: TopicState, found: list[_Unfinished], stays: Iterable[SubscriptionState]) -> tuple[int, int]:
    """Return the messages and bytes that count while only these subscriptions stay; of none, everything counts."""
    readers = [each.readers for each in stays]
    if not readers:
        return topic.messages, topic.bytes
    messages, size = _kept(topic, found)
    if topic.config.counted == "all" or messages == 0:
        return messages, size
    held = sum(
        max((len(of[each.partition.number].leased) for of in readers if each.partition.number in of), default=0)
        for each in found
    )
    waiting = max(0, messages - held)
    return waiting, size * waiting // messages


def _kept(topic: TopicState, found: list[_Unfinished]) -> tuple[int, int]:
    messages = sum(int(each.kept.sum()) for each in found)
    return messages, topic.bytes - sum(each.partition.directory.bytes_of(each.offsets[~each.kept]) for each in found)


def _fits(left: tuple[int, int], messages_max: int, bytes_max: int) -> bool:
    return left[0] <= messages_max and left[1] <= bytes_max
