"""Conversion between batches and fields of single messages, for JSON, Avro and HTTP headers: column by column.

Fields are named as in docs/http.md: times end in `_ms` and are Unix milliseconds, `receipt` settles a message.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from operator import add
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from wherry.model import limits
from wherry.model.errors import InvalidInput
from wherry.model.schema import MESSAGE, Int64

Fields: TypeAlias = dict[str, list[Any]]
"""A value for each message, by name."""

COLUMN_OF = {"due_ms": "due", "expires_ms": "expires"} | {n: n for n in ("id", "key", "priority", "headers", "payload")}
"""Fields that a producer may give, and their columns."""

_TYPE_OF = {name: MESSAGE.field(column).type for name, column in COLUMN_OF.items()}
_HIGHEST = {
    "priority": limits.PRIORITY_MAX,
    "due_ms": limits.TIME_MS_MAX,
    "expires_ms": limits.TIME_MS_MAX,
}
_PLACE = re.compile(r"messages\[(\d+)\]")
_UNSEEN = frozenset({"envelope", "blob", "mac"})
"""Columns that only whole batches show: bytes of other wires, and values that the broker needs itself."""


def to_batch(fields: Fields) -> pa.RecordBatch:
    """Return fields as a batch for `compact`; fields that are None throughout are left out."""
    columns = {}
    for name, values in fields.items():
        if name != "payload" and values.count(None) == len(values):
            continue
        wanted = _TYPE_OF[name]
        if name in _HIGHEST:
            columns[COLUMN_OF[name]] = _whole(name, values).cast(wanted)
        else:
            columns[COLUMN_OF[name]] = pa.array(values, wanted)
    return pa.RecordBatch.from_arrays(list(columns.values()), list(columns))


@contextmanager
def counted_from(before: int) -> Iterator[None]:
    """Renumber the message in a fault: the fault counts within a part of the body, after `before` messages."""
    try:
        yield
    except InvalidInput as fault:
        found = _PLACE.match(fault.field)
        if not before or found is None:
            raise
        place = f"messages[{before + int(found[1])}]{fault.field[found.end() :]}"
        raise InvalidInput(place, fault.given, fault.allowed) from None


def joined(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """Join batches of `to_batch` into one that has the columns of all; `InvalidInput` if there are no messages."""
    if not batches:
        raise InvalidInput("messages", 0, f"1 to {limits.BATCH_MESSAGES_MAX} messages in one call")
    names = dict.fromkeys(name for batch in batches for name in batch.schema.names)
    if len(batches) == 1:
        return batches[0]
    return pa.concat_batches([_with_columns(batch, list(names)) for batch in batches])


def _with_columns(batch: pa.RecordBatch, names: list[str]) -> pa.RecordBatch:
    if batch.schema.names == names:
        return batch
    there = set(batch.schema.names)
    columns = [
        batch.column(name) if name in there else pa.nulls(batch.num_rows, MESSAGE.field(name).type) for name in names
    ]
    return pa.RecordBatch.from_arrays(columns, names)


def _whole(name: str, values: Sequence[int | None]) -> pa.Array:
    numbers = pa.array(values, pa.int64())
    plain = numbers.fill_null(0).to_numpy(zero_copy_only=False)
    bad = (plain < 0) | (plain > _HIGHEST[name])
    if bad.any():
        index = int(np.argmax(bad))
        raise InvalidInput(f"messages[{index}].{name}", values[index], f"a whole number from 0 to {_HIGHEST[name]}")
    return numbers


def to_fields(batch: pa.RecordBatch, leases: Int64 | None) -> Fields:
    """Return a batch with any columns as fields; columns that are null throughout are left out."""
    fields: Fields = {}
    rows, names = batch.num_rows, batch.schema.names
    offsets = list(map(str, batch.column("offset").to_pylist()))
    if leases is not None:
        fields["receipt"] = _prefixed(leases, ":", offsets)
    if "partition" in names:
        fields["id"] = _prefixed(batch.column("partition").to_numpy(), "-", offsets)
    for name, column in zip(names, batch.columns, strict=True):
        if column.null_count == rows or name in _UNSEEN:
            continue
        if name == "id":
            fields["id"] = _given_ids(column, fields.get("id"))
        elif pa.types.is_timestamp(column.type):
            scale = 1_000 if column.type.unit == "us" else 1
            stamps = column.view(pa.int64()).to_pylist()
            fields[f"{name}_ms"] = [None if s is None else s // scale for s in stamps] if scale > 1 else stamps
        elif name == "headers":
            fields[name] = [None if pairs is None else dict(pairs) for pairs in column.to_pylist()]
        else:
            fields[name] = column.to_pylist()
    return fields


def _given_ids(column: pa.Array, places: list[str] | None) -> list[str | None]:
    """Return the ids that producers gave, and the places of the other messages."""
    given: list[str | None] = column.to_pylist()
    if places is None or not column.null_count:
        return given
    return [place if name is None else name for name, place in zip(given, places, strict=True)]


def _prefixed(numbers: Int64, mark: str, texts: list[str]) -> list[str]:
    """Return each number joined with `mark` and its text; few numbers differ, as they are leases or partitions."""
    listed = numbers.tolist()
    heads = {number: f"{number}{mark}" for number in dict.fromkeys(listed)}
    return list(map(add, map(heads.__getitem__, listed), texts))
