"""Batches as Arrow IPC bytes, without a copy of the payloads.

Fresh memory is the dearest thing on the way of a message: touching it first costs more than writing it to disk. So the
journal writes payloads from where the producer put them, and memory keeps that same batch until it is flushed. Arrow
data is immutable, so this is safe; the small columns are copied all the same, since numbers often lie in the memory of
a numpy array, which its owner may fill again.
"""

from __future__ import annotations

from typing import TypeAlias

import pyarrow as pa

from wherry.model import ipc

Parts: TypeAlias = ipc.Parts

COPIED_BYTES_MAX = 32 << 10
"""A smaller batch is copied: cheaper than looking at its buffers."""

HELD_FACTOR = 2
"""A batch that holds on to more than so many times its payloads is copied: a few rows may be cut from a huge table."""


def adopt(batch: pa.RecordBatch) -> tuple[pa.RecordBatch, Parts, int]:
    """The batch to keep, its bytes as parts to write, and their size."""
    if batch.nbytes < COPIED_BYTES_MAX or _held_bytes(batch.column("payload")) > HELD_FACTOR * batch.nbytes:
        body = batch.serialize()
        return pa.ipc.read_record_batch(body, batch.schema), [body], body.size
    kept = _with_own_small_columns(batch)
    parts = ipc.message(kept)
    return kept, parts, sum(map(len, parts))


def _with_own_small_columns(batch: pa.RecordBatch) -> pa.RecordBatch:
    names = [name for name in batch.schema.names if name != "payload"]
    if not names:
        return batch
    small = batch.select(names)
    copied = pa.ipc.read_record_batch(small.serialize(), small.schema)
    columns = [batch.column(name) if name == "payload" else copied.column(name) for name in batch.schema.names]
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema)


def _held_bytes(column: pa.Array) -> int:
    """Memory that a column keeps from being freed."""
    roots: dict[int, int] = {}
    for buffer in filter(None, column.buffers()):
        root = buffer
        while root.parent is not None:
            root = root.parent
        roots[root.address] = root.size
    return sum(roots.values())
