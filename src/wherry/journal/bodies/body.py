"""Batches as Arrow IPC bytes, without a copy of the payloads.

Fresh memory is the dearest thing on the way of a message: touching it first costs more than writing it to disk. So the
journal writes payloads from where the producer put them, and memory keeps that same batch until it is flushed. Arrow
data is immutable, so this is safe. All numbers are copied (the other columns, and where each payload begins), since
they often lie in the memory of a numpy array, which its owner may fill again.
"""

from __future__ import annotations

from typing import TypeAlias

import pyarrow as pa

from wherry.model import ipc
from wherry.model.schema import raw_edges

Chunks: TypeAlias = ipc.Chunks

COPIED_BYTES_MAX = 32 << 10
"""A smaller batch is copied: cheaper than looking at its buffers."""

HELD_FACTOR = 2
"""A batch that holds on to more than so many times its payloads is copied: a few rows may be cut from a huge table."""


def adopt(batch: pa.RecordBatch) -> tuple[pa.RecordBatch, Chunks, int]:
    """The batch to keep, its bytes as parts to write, and their size."""
    if batch.nbytes < COPIED_BYTES_MAX or _held_bytes(batch.column("payload")) > HELD_FACTOR * batch.nbytes:
        body = batch.serialize()
        return pa.ipc.read_record_batch(body, batch.schema), [body], body.size
    kept = _with_own_numbers(batch)
    parts = ipc.message(kept)
    return kept, parts, sum(map(len, parts))


def _with_own_numbers(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The batch with everything its own but the bytes of its payloads."""
    small = batch.drop_columns(["payload"])
    copied = pa.ipc.read_record_batch(small.serialize(), small.schema) if small.num_columns else small
    columns = {name: copied.column(name) for name in small.schema.names}
    columns["payload"] = _with_own_edges(batch.column("payload"))
    return pa.RecordBatch.from_arrays([columns[name] for name in batch.schema.names], schema=batch.schema)


def _with_own_edges(column: pa.Array) -> pa.Array:
    """Where each payload begins is a number too; it must not move once it was checked."""
    own = pa.py_buffer(raw_edges(column).tobytes())
    return pa.Array.from_buffers(column.type, len(column), [None, own, column.buffers()[2]], 0)


def _held_bytes(column: pa.Array) -> int:
    """Memory that a column keeps from being freed."""
    roots: dict[int, int] = {}
    for buffer in filter(None, column.buffers()):
        root = buffer
        while root.parent is not None:
            root = root.parent
        roots[root.address] = root.size
    return sum(roots.values())
