"""Join pieces of batches, of different columns and in any order, to one batch."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from wherry.journal.bodies.places import BatchPiece
from wherry.model.schema import MESSAGE, absent, expand

Int64: TypeAlias = npt.NDArray[np.int64]

_STAMPED = ("offset", "published")


def full(pieces: list[BatchPiece], offsets: Int64) -> pa.RecordBatch:
    """Join pieces to one full batch of these offsets."""
    batch, published_us = one(pieces, len(offsets))
    return expand(batch, offsets, published_us)


def one(pieces: list[BatchPiece], count: int) -> tuple[pa.RecordBatch, int | Int64]:
    """Join pieces to one compact batch in the requested order of rows; return it and when each row was published."""
    if len(pieces) == 1 and isinstance(pieces[0].at, slice):
        return pieces[0].batch, pieces[0].published_us
    published = np.empty(count, np.int64)
    names: dict[str, None] = {}
    for piece in pieces:
        published[piece.at] = piece.published_us
        names |= dict.fromkeys(piece.batch.schema.names)
    schema = pa.schema([field for field in MESSAGE if field.name in names and field.name not in _STAMPED])
    return joined(pieces, schema, count), published


def joined(pieces: list[BatchPiece], schema: pa.Schema, count: int) -> pa.RecordBatch:
    """Join pieces to one batch of `schema` in the requested order of rows."""
    if len(pieces) == 1 and isinstance(pieces[0].at, slice):
        return _shaped([pieces[0].batch], schema)
    by_columns: dict[tuple[str, ...], list[BatchPiece]] = {}
    for piece in pieces:
        by_columns.setdefault(tuple(piece.batch.schema.names), []).append(piece)
    grouped = [piece for group in by_columns.values() for piece in group]
    shaped = [_shaped([piece.batch for piece in group], schema) for group in by_columns.values()]
    batch = pa.concat_batches(shaped) if len(shaped) > 1 else shaped[0]
    at = np.concatenate([piece.at for piece in grouped])
    if bool((at[1:] > at[:-1]).all()):
        return batch
    order = np.empty(count, np.int64)
    order[at] = np.arange(count)
    return batch.take(pa.array(order))


def _shaped(batches: list[pa.RecordBatch], schema: pa.Schema) -> pa.RecordBatch:
    batch = pa.concat_batches(batches) if len(batches) > 1 else batches[0]
    present = set(batch.schema.names)
    columns = [
        batch.column(field.name) if field.name in present else absent(field.name, batch.num_rows) for field in schema
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)
