"""Batches as Arrow IPC bytes, without a copy of the payloads.

Allocating memory is the largest cost of a message: touching fresh pages takes longer than writing them to disk. So the
journal writes payloads from the memory where the producer put them, and the store keeps that same batch until it is
flushed. That is safe because Arrow data is immutable. All numbers (the other columns, and where each payload begins)
are copied, because they are often in the memory of a numpy array that its owner may change.
"""

from __future__ import annotations

import pyarrow as pa

from wherry.model import ipc
from wherry.model.schema import raw_edges

COPIED_BYTES_MAX = 32 << 10
"""A smaller batch is copied: that is cheaper than examining its buffers."""

HELD_FACTOR = 2
"""A batch that keeps more than so many times its size in memory is copied: it may be a few rows of a huge table."""


def adopt(batch: pa.RecordBatch) -> tuple[pa.RecordBatch, ipc.ByteChunks, int]:
    """Return the batch to keep, its bytes as chunks to write, and their size."""
    if batch.nbytes < COPIED_BYTES_MAX or _held_bytes(batch.column("payload")) > HELD_FACTOR * batch.nbytes:
        body = batch.serialize()
        return pa.ipc.read_record_batch(body, batch.schema), [body], body.size
    kept = _with_own_numbers(batch)
    parts = ipc.message(kept)
    return kept, parts, sum(map(len, parts))


def _with_own_numbers(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the batch with copies of everything but the bytes of the payloads."""
    small = batch.drop_columns(["payload"])
    copied = pa.ipc.read_record_batch(small.serialize(), small.schema) if small.num_columns else small
    columns = {name: copied.column(name) for name in small.schema.names}
    columns["payload"] = _with_own_edges(batch.column("payload"))
    return pa.RecordBatch.from_arrays([columns[name] for name in batch.schema.names], schema=batch.schema)


def _with_own_edges(column: pa.Array) -> pa.Array:
    """Copy where each payload begins: these numbers must not change after they were checked."""
    own = pa.py_buffer(raw_edges(column).tobytes())
    return pa.Array.from_buffers(column.type, len(column), [None, own, column.buffers()[2]], 0)


def _held_bytes(column: pa.Array) -> int:
    """Return the memory that a column keeps from being freed."""
    roots: dict[int, int] = {}
    for buffer in filter(None, column.buffers()):
        root = buffer
        while root.parent is not None:
            root = root.parent
        roots[root.address] = root.size
    return sum(roots.values())
