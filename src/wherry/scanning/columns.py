"""The columns of a scan, and the cast of batches of the log to them. The names are those of Spark's data source."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from wherry.model.schema import nulls

_TIME = pa.timestamp("us", tz="UTC")

MESSAGES = pa.schema(
    [
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("id", pa.string()),
        pa.field("key", pa.string()),
        pa.field("priority", pa.int32()),
        pa.field("due", _TIME),
        pa.field("expires", _TIME),
        pa.field("published", _TIME),
        pa.field("headers", pa.map_(pa.string(), pa.string())),
        pa.field("payload", pa.binary()),
    ]
)
"""Signed numbers of 32 bits, since `priority - 40000` of an unsigned 16 bits would wrap around."""

CONSTANT = ("topic", "partition")
"""Columns with the same value in all rows of a part: they are added here instead of being read."""

DECODED = ("value", "error")
"""The columns that decoding adds: the value, and the reason where there is none."""


COUNTED_ROWS = 1 << 18


def counted(rows: int) -> Iterator[pa.RecordBatch]:
    """Yield as many rows as there are, without reading them: no column is wanted, not even the offset."""
    for at in range(0, rows, COUNTED_ROWS):
        yield pa.record_batch([pa.nulls(min(COUNTED_ROWS, rows - at), pa.int64())], names=["offset"])


def to_read(names: Sequence[str]) -> list[str]:
    """Return the columns of the log that some columns of a scan are made of."""
    wanted = [name for name in names if name not in (*CONSTANT, *DECODED)]
    if any(name in DECODED for name in names) and "payload" not in wanted:
        wanted.append("payload")
    return wanted


def cast(
    schema: pa.Schema, batch: pa.RecordBatch, topic: str, partition: int, decoded: Sequence[pa.Array] = ()
) -> pa.RecordBatch:
    """Return a batch with the columns of a schema; without any columns it still has its number of rows."""
    if not schema.names:
        return batch.select([])
    constants = {"topic": topic, "partition": partition}
    made = dict(zip(DECODED, decoded, strict=False))
    arrays = []
    for field in schema:
        if field.name in constants:
            arrays.append(pa.repeat(pa.scalar(constants[field.name], field.type), batch.num_rows))
            continue
        column = made[field.name] if field.name in made else batch.column(field.name)
        if column.type != field.type:
            column = nulls(len(column), field.type) if column.null_count == len(column) else column.cast(field.type)
        arrays.append(column)
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
