"""Single messages as rows of the native wire: what a caller publishes, and what the broker pushes.

Few messages go and come without an Arrow object; columns are made when a caller asks for them.
"""

from __future__ import annotations

from dataclasses import replace
from operator import attrgetter
from typing import Any

import numpy as np
import pyarrow as pa

from wherry.client.batch import LEASE, Batch, BatchRequests, Int64, Leased
from wherry.model import limits
from wherry.model.calls.rows import single_row
from wherry.model.schema import DELIVERED, Message
from wherry.wire.native.codec.rows import PLAIN, DeliveredRow, RowFields

ROWS_FEW = 64
"""More messages than this are columns: by then these cost less on both sides."""

ROWS_BYTES_MAX = 64 << 10
"""Larger payloads are sent as columns, without a copy."""

Rows = tuple[list[bytes], list[RowFields] | None]

_GIVEN = {
    "id": attrgetter("fields.id"),
    "key": attrgetter("fields.key"),
    "priority": attrgetter("fields.priority"),
    "due": attrgetter("fields.due_ms"),
    "expires": attrgetter("fields.expires_ms"),
    "headers": attrgetter("fields.headers"),
    "envelope": attrgetter("fields.envelope"),
}
_ALWAYS = {
    LEASE: attrgetter("token"),
    "partition": attrgetter("partition"),
    "offset": attrgetter("offset"),
    "published": attrgetter("published_us"),
    "attempt": attrgetter("attempt"),
    "payload": attrgetter("payload"),
}
_AS_GIVEN = frozenset({*_GIVEN, *_ALWAYS} - {"due", "expires", "published"})
"""Columns whose values are the same in rows and in Arrow; times are not."""


def rows_of(given: object) -> Rows | None:
    """Return what a caller publishes as rows, or None if it is many, large, or not obviously right.

    What is not obviously right becomes columns, whose checks name what is wrong with it.
    """
    if type(given) is bytes:
        return ([given], None) if len(given) <= ROWS_BYTES_MAX else None
    if type(given) is not list:
        given = [given]
    if not 1 <= len(given) <= ROWS_FEW:
        return None
    payloads: list[bytes] = []
    fields: list[RowFields] = []
    for each in given:
        payload, more = (each, PLAIN) if type(each) is bytes else _row_of(each)
        if payload is None:
            return None
        payloads.append(payload)
        fields.append(more)
    if sum(map(len, payloads)) > ROWS_BYTES_MAX:
        return None
    return payloads, None if all(more is PLAIN for more in fields) else fields


def _row_of(each: object) -> tuple[bytes | None, RowFields]:
    if type(each) is str:
        try:
            return each.encode(), PLAIN
        except UnicodeEncodeError:
            return None, PLAIN
    if type(each) is not Message:
        return None, PLAIN
    name = each.id
    if name is not None and not _is_id(name):
        return None, PLAIN
    row = single_row(each if name is None else replace(each, id=None))
    if row is None:
        return None, PLAIN
    rows = row.rows
    return rows.payloads[0], RowFields(rows.key, rows.headers, row.priority, row.due, row.expires, name, rows.envelope)


def _is_id(name: object) -> bool:
    return type(name) is str and name.isascii() and 0 < len(name) <= limits.MESSAGE_ID_BYTES_MAX


class PushedRows(Batch):
    """Messages on lease that came as rows."""

    __slots__ = ("_rows",)

    def __init__(self, requests: BatchRequests, rows: list[DeliveredRow], *, acks: bool) -> None:
        super().__init__(requests, None, len(rows), acks=acks)
        self._rows = rows

    def messages(self) -> list[Leased]:
        """Return the messages one by one."""
        return [Leased(self, number, row.payload) for number, row in enumerate(self._rows)]

    def column(self, name: str) -> list[Any]:
        """Return a column as a list; all None if no message has it."""
        if name not in _AS_GIVEN:
            return super().column(name)
        found = self._columns.get(name)
        if found is None:
            found = self._columns[name] = list(map(_ALWAYS.get(name) or _GIVEN[name], self._rows))
        return found

    def lease_of(self, row: int) -> tuple[int, list[tuple[int, int]]]:
        """Return one row as a part of its lease."""
        found = self._rows[row]
        return found[0], [(found[2], 1)]

    def _int64(self, name: str) -> Int64:
        return np.array(self.column(name), np.int64)

    @property
    def _table(self) -> pa.RecordBatch:
        """The messages in columns, made when they are asked for."""
        if self._pulled is None:
            self._pulled = _columns_of(self._rows)
        return self._pulled


def _columns_of(rows: list[DeliveredRow]) -> pa.RecordBatch:
    """Return rows as a delivered batch, without the columns that no message has."""
    values = {name: list(map(value, rows)) for name, value in _ALWAYS.items()}
    for name, value in _GIVEN.items():
        given = list(map(value, rows))
        if any(each is not None for each in given):
            default = limits.PRIORITY_DEFAULT if name == "priority" else None
            values[name] = [default if each is None else each for each in given]
    fields = [field for field in DELIVERED if field.name in values]
    columns = [_array(values[field.name], field.type) for field in fields]
    schema = pa.schema([*fields, pa.field(LEASE, pa.int64())], metadata=DELIVERED.metadata)
    return pa.RecordBatch.from_arrays([*columns, pa.array(values[LEASE], pa.int64())], schema=schema)


def _array(values: list[Any], kind: pa.DataType) -> pa.Array:
    return pa.array(values, pa.int64()).view(kind) if pa.types.is_timestamp(kind) else pa.array(values, kind)
