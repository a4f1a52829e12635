"""Decide what is special about `flow` topics: what may be published there, and what of a peer's messages is new.

A peer sends the messages of each partition in the order of their offsets at their origin, and perhaps again. So one
number for each origin says which of them are here. Nothing that is refused or dropped here may have moved that number.
"""

from __future__ import annotations

from dataclasses import replace

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from wherry.core.state.state import TopicState
from wherry.model import limits, ops
from wherry.model.calls.origin import HEADER, HEADER_BYTES_MAX, Origin
from wherry.model.calls.publish import PublishOptions
from wherry.model.errors import InvalidInput
from wherry.model.ops import Entry
from wherry.model.row_batch import RowBatch
from wherry.model.schema import BIT, MESSAGE, TYPES, edges, header_bytes


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
