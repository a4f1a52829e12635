"""Single messages of batches in memory as values: a lone message needs no take, no join and no Arrow object.

What a message of columns has is read from the buffers of its batch, which are looked up once for each batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa

from wherry.model.calls.lease import DeliveredRow
from wherry.model.limits import ATTEMPT_SHOWN_MAX
from wherry.model.row_batch import RowBatch, delivered_row
from wherry.model.schema import VARIABLE, raw_edges

if TYPE_CHECKING:
    from wherry.journal.bodies.partition import CachedBatch, PartitionBodies

_NOT_IN_ROWS = frozenset({"id", "blob", "mac"})
"""Columns that a delivered row does not have."""

Numbers: TypeAlias = "memoryview[int]"


class Columns:
    """A compact batch, ready to be read message by message."""

    __slots__ = ("_edges", "_headers", "_payload", "_payload_edges", "_rest")

    def __init__(self, batch: pa.RecordBatch) -> None:
        columns = dict(zip(batch.schema.names, batch.columns, strict=True))
        self._edges: list[Numbers] = [raw_edges(columns[name]).data for name in VARIABLE if name in columns]
        self._headers: list[Numbers] = []
        """Where the pairs of each message begin, then where each name and each value begins."""
        if "headers" in columns:
            pairs = columns["headers"]
            self._headers = [raw_edges(each).data for each in (pairs, pairs.keys, pairs.items)]
        payload = columns.pop("payload")
        self._payload = memoryview(payload.buffers()[2] or b"")
        self._payload_edges: Numbers = raw_edges(payload).data
        self._rest = [(name, *_read(name, column)) for name, column in columns.items()]

    def size(self, at: int) -> int:
        """Return the content bytes of a message."""
        size = 0
        for edges in self._edges:
            size += edges[at + 1] - edges[at]
        if self._headers:
            pairs, names, values = self._headers
            low, high = pairs[at], pairs[at + 1]
            size += names[high] - names[low] + values[high] - values[low]
        return size

    def row(self, at: int, offset: int, partition: int, attempt: int, published_us: int) -> DeliveredRow:
        """Return a message as a consumer gets it."""
        payload = self._payload[self._payload_edges[at] : self._payload_edges[at + 1]].tobytes()
        rest: dict[str, Any] = {}
        for name, numbers, column in self._rest:
            rest[name] = numbers[at] if numbers is not None else column[at].as_py()
        return DeliveredRow(offset, partition, min(attempt, ATTEMPT_SHOWN_MAX), published_us, payload, **rest)


def _read(name: str, column: pa.Array) -> tuple[Numbers | None, pa.Array]:
    """Return a column, times as numbers; and its numbers, if it has no nulls, to be read without Arrow."""
    if name not in ("priority", "due", "expires"):
        return None, column
    kind: type[np.integer[Any]] = np.uint16 if name == "priority" else np.int64
    column = column if name == "priority" else column.view(pa.int64())
    if column.null_count:
        return None, column
    found = np.frombuffer(column.buffers()[1], kind, len(column), column.offset * np.dtype(kind).itemsize)
    return found.data, column


class Single(NamedTuple):
    """One message of a batch in memory."""

    values: RowBatch | Columns
    at: int
    published_us: int
    gate: int

    def size(self) -> int:
        """Return the content bytes."""
        values = self.values
        return values.sizes[self.at] if isinstance(values, RowBatch) else values.size(self.at)

    def row(self, offset: int, partition: int, attempt: int) -> DeliveredRow:
        """Return the message as a consumer gets it."""
        values, published_us = self.values, self.published_us
        if isinstance(values, RowBatch):
            return delivered_row(values, self.at, offset, partition, attempt, published_us)
        return values.row(self.at, offset, partition, attempt, published_us)


def singles_at(bodies: PartitionBodies, offsets: list[int]) -> list[Single] | None:
    """Return a few messages; None unless all are in memory and can be delivered as rows."""
    found: list[Single] = []
    cached: CachedBatch | None = None
    for offset in offsets:
        if cached is None or not cached.base <= offset < cached.base + cached.count:
            cached = bodies.holder(offset)
            if cached is None:
                return None
        values = cached.values
        if values is None:
            return None
        found.append(Single(values, offset - cached.base, cached.published_us, cached.gate))
    return found


def columns_of(batch: pa.RecordBatch) -> Columns | None:
    """Return a batch ready to be read message by message; None if rows cannot have what its messages have."""
    return None if _NOT_IN_ROWS.intersection(batch.schema.names) else Columns(batch)
