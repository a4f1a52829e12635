"""W3C trace context: messages get that of their request, unless they have their own."""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from wherry.model.errors import TooLarge
from wherry.model.schema import MESSAGE, edges

STATE_BYTES_MAX = 512
"""Longest `tracestate` that is passed on, the length that W3C requires. A longer one is dropped, as W3C allows."""

ADDED_BYTES_MAX = 64 << 20
"""Most bytes that the context may add to the messages of one call: each message gets a copy."""

NAMES = ("traceparent", "tracestate")
_PARENT = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")
_TYPE = MESSAGE.field("headers").type


def carried(batch: pa.RecordBatch, request: Mapping[str, str]) -> pa.RecordBatch:
    """Return the messages, with the trace context of their request in the headers of each that has none."""
    if "traceparent" not in request or not _PARENT.fullmatch(request["traceparent"]):
        return batch
    pairs = [(name, request[name]) for name in NAMES if request.get(name)]
    if len(request.get("tracestate", "").encode("utf-8", "replace")) > STATE_BYTES_MAX:
        del pairs[1]
    added = sum(len(text) for pair in pairs for text in pair) * batch.num_rows
    if added > ADDED_BYTES_MAX:
        raise TooLarge("the trace context of all messages", added, ADDED_BYTES_MAX)
    if "headers" not in batch.schema.names:
        column = pa.repeat(pa.scalar(pairs, _TYPE), batch.num_rows)
        return batch.append_column("headers", column)
    column = _added(batch.column("headers"), pairs)
    return batch.set_column(batch.schema.get_field_index("headers"), "headers", column)


def _added(column: pa.Array, pairs: list[tuple[str, str]]) -> pa.Array:
    """Return a map column with these pairs at the end of each row that has no `traceparent`."""
    if column.type != _TYPE:
        column = column.cast(_TYPE)
    ends = edges(column)
    keys = column.keys.slice(ends[0], ends[-1] - ends[0])
    items = column.items.slice(ends[0], ends[-1] - ends[0])
    owner = np.repeat(np.arange(len(column)), np.diff(ends))
    bare = np.ones(len(column), np.bool_)
    bare[owner[np.flatnonzero(pc.equal(keys, NAMES[0]).fill_null(False))]] = False
    new = np.flatnonzero(bare)
    order = pa.array(np.argsort(np.concatenate((owner, np.repeat(new, len(pairs)))), kind="stable"))
    names, texts = (pa.array([pair[place] for pair in pairs] * len(new), pa.string()) for place in (0, 1))
    sizes = np.diff(ends) + bare * len(pairs)
    offsets = np.concatenate(([0], np.cumsum(sizes))).astype(np.int32)
    return pa.MapArray.from_arrays(
        pa.array(offsets), pa.concat_arrays([keys, names]).take(order), pa.concat_arrays([items, texts]).take(order)
    )
