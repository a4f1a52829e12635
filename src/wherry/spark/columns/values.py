"""Reads a column of payloads into a column of values and one of errors. A bad row has null and the reason.

It needs no Spark: the type of the values is one of Arrow.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa

ERROR_CHARS_MAX = 500

Read = Callable[[bytes], Any]
Columns = tuple[pa.Array, pa.Array]


def texts(payloads: pa.Array) -> Columns:
    """Decode the whole column at once, or one by one if a payload is not text."""
    try:
        return payloads.cast(pa.string()), pa.nulls(len(payloads), pa.string())
    except pa.ArrowInvalid:
        return values_of(bytes.decode, payloads, pa.string())


def values_of(read: Read, payloads: pa.Array, wanted: pa.DataType) -> Columns:
    """Return the values that `read` makes of payloads, as a column of a type, and the reasons where it raised."""
    values: list[Any] = []
    errors: dict[int, str] = {}
    add = values.append
    for payload in payloads.to_pylist():
        try:
            add(read(payload))
        except Exception as fault:  # noqa: BLE001, RUF100 - no bad payload may fail the query
            errors[len(values)] = _reason(fault)
            add(None)
    try:
        column = pa.array(values, wanted)
    except (pa.ArrowException, OverflowError, TypeError, ValueError):
        column = _one_by_one(values, wanted, errors)
    reasons = pa.nulls(len(values), pa.string())
    if errors:
        reasons = pa.array([errors.get(row) for row in range(len(values))], pa.string())
    return column, reasons


def _one_by_one(values: list[Any], wanted: pa.DataType, errors: dict[int, str]) -> pa.Array:
    """Build the column again, with an error for each value that is well formed but does not fit its type.

    This is rare: a decimal that is too long, for example.
    """
    for row, value in enumerate(values):
        try:
            pa.array([value], wanted)
        except (pa.ArrowException, OverflowError, TypeError, ValueError) as fault:
            errors[row], values[row] = _reason(fault), None
    return pa.array(values, wanted)


def _reason(fault: Exception) -> str:
    return f"{type(fault).__name__}: {fault}"[:ERROR_CHARS_MAX]
