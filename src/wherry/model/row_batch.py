"""A few messages as Python values, column by column: a compact batch without Arrow.

Making, writing and reading an Arrow object costs some microseconds each, whatever it holds. That is nothing for a batch
of a thousand messages, and most of the price of a lone one. So a few messages stay Python values on their whole way:
decided, journaled, applied, leased and delivered. Code that needs columns reads `batch`, which makes them once.

    columns   bit set of the columns, as `schema.presence` gives it
    values    by name of the column, in the order of `schema.STORED`: one Python value for each message

Values are checked before they come here. No column is without any value, and there is no `id`, `blob` or `mac`: an id,
which has to be compared with others, is published as columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa

from wherry.model.calls.lease import DeliveredRow
from wherry.model.limits import ATTEMPT_SHOWN_MAX, PRIORITY_DEFAULT
from wherry.model.schema import BIT, DELIVERED, STORED, TYPES, delivered, stored_schema

ROWS_MAX: Final = 64
"""Most messages of a row batch: from about here on, columns are cheaper."""

ROWS_BYTES_MAX: Final = 64 << 10
"""Most content bytes of a row batch."""

AS_ROWS: Final = 1 << 15
"""Set beside the bits of the columns in the operation of a publish whose body is a row batch, not Arrow."""

_OVERHEAD_BYTES: Final = 64
"""About what the Python values of a message cost beside its content."""

_PLAIN: Final = BIT["payload"]
_TIMES: Final = BIT["due"] | BIT["expires"]


class RowBatch:
    """Messages of one publish, as values. Immutable."""

    __slots__ = ("_batch", "columns", "num_rows", "size", "sizes", "values")

    def __init__(self, columns: int, values: dict[str, list[Any]], sizes: list[int]) -> None:
        self.columns = columns
        self.values = values
        self.sizes = sizes
        """Content bytes of each message, as `schema.content_sizes` counts them."""
        self.size = sizes[0] if len(sizes) == 1 else sum(sizes)
        self.num_rows = len(sizes)
        self._batch: pa.RecordBatch | None = None

    @property
    def has_times(self) -> bool:
        """Whether a message is due or expires at a time of its own: all else in a row is only kept and handed over."""
        return bool(self.columns & _TIMES)

    @property
    def nbytes(self) -> int:
        """About the memory that it takes."""
        return self.size + _OVERHEAD_BYTES * self.num_rows

    @property
    def batch(self) -> pa.RecordBatch:
        """The same messages as a compact batch; made when it is first asked for."""
        if self._batch is None:
            arrays = [pa.array(values, TYPES[name]) for name, values in self.values.items()]
            self._batch = pa.RecordBatch.from_arrays(arrays, schema=stored_schema(self.columns))
        return self._batch

    def bodies(self) -> list[list[Any]]:
        """Return the values as the journal stores them: a list for each column, in the order of `schema.STORED`."""
        return list(self.values.values())


def of_payloads(payloads: list[bytes]) -> RowBatch:
    """Return messages that have nothing but a payload."""
    sizes = [len(payloads[0])] if len(payloads) == 1 else list(map(len, payloads))
    return RowBatch(_PLAIN, {"payload": payloads}, sizes)


def of_columns(columns: dict[str, list[Any]]) -> RowBatch:
    """Return messages by column, in any order; headers are lists of pairs."""
    values = {name: columns[name] for name in STORED if name in columns}
    return RowBatch(sum(BIT[name] for name in values), values, _sizes(values))


def of_bodies(columns: int, bodies: Sequence[list[Any]]) -> RowBatch:
    """Return what `RowBatch.bodies` gave; raise `ValueError` if it is not that."""
    names = [name for name in STORED if BIT[name] & columns]
    values = dict(zip(names, bodies, strict=True))
    if len({len(each) for each in bodies}) != 1:
        raise ValueError("the columns of a row batch have different lengths")
    if "headers" in values:
        values["headers"] = [None if pairs is None else [tuple(pair) for pair in pairs] for pairs in values["headers"]]
    return RowBatch(columns & ~AS_ROWS, values, _sizes(values))


def _sizes(values: dict[str, list[Any]]) -> list[int]:
    sizes = list(map(len, values["payload"]))
    if "envelope" in values:
        sizes = [size + len(envelope or b"") for size, envelope in zip(sizes, values["envelope"], strict=True)]
    if "key" in values:
        sizes = [size + len((key or "").encode()) for size, key in zip(sizes, values["key"], strict=True)]
    if "headers" in values:
        sizes = [size + _header_bytes(pairs) for size, pairs in zip(sizes, values["headers"], strict=True)]
    return sizes


def _header_bytes(pairs: list[tuple[str, str]] | None) -> int:
    return sum(len(name.encode()) + len(value.encode()) for name, value in pairs or ())


def delivered_row(
    rows: RowBatch, at: int, offset: int, partition: int, attempt: int, published_us: int
) -> DeliveredRow:
    """Return one message of a row batch as a consumer gets it."""
    shown = min(attempt, ATTEMPT_SHOWN_MAX)
    values = rows.values
    if rows.columns == _PLAIN:
        return DeliveredRow(offset, partition, shown, published_us, values["payload"][at])
    return DeliveredRow(offset, partition, shown, published_us, **{name: each[at] for name, each in values.items()})


def columns_of_rows(delivered_rows: list[DeliveredRow]) -> pa.RecordBatch:
    """Return delivered messages of one partition as columns, without columns that have no values."""
    if not delivered_rows:
        return pa.RecordBatch.from_pylist([], DELIVERED)
    columns: dict[str, list[Any]] = {"payload": [row.payload for row in delivered_rows]}
    for name, absent in _ABSENT.items():
        values = [getattr(row, name) for row in delivered_rows]
        if any(value != absent for value in values):
            columns[name] = values
    offsets, published, attempts = (np.array([row[at] for row in delivered_rows], np.int64) for at in (0, 3, 2))
    return delivered(of_columns(columns).batch, offsets, published, delivered_rows[0].partition, attempts)


_ABSENT: Final = {
    "key": None,
    "priority": PRIORITY_DEFAULT,
    "due": None,
    "expires": None,
    "headers": None,
    "envelope": None,
}
"""Columns that a delivered row may lack, and the value that says so."""
