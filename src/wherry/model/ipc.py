"""Batches as Arrow IPC bytes without copying the buffers: copying costs more than sending."""

from __future__ import annotations

from functools import lru_cache
from typing import TypeAlias

import pyarrow as pa

ByteChunk: TypeAlias = bytes | memoryview | pa.Buffer
ByteChunks: TypeAlias = list[ByteChunk]

END = b"\xff\xff\xff\xff\0\0\0\0"
"""How a stream ends."""

_OPTIONS = pa.ipc.IpcWriteOptions()


def stream(batch: pa.RecordBatch) -> ByteChunks:
    """Return a whole IPC stream as chunks: schema, batch, end."""
    sink = _Sink()
    with pa.ipc.new_stream(sink, batch.schema, options=_OPTIONS) as writer:
        writer.write_batch(batch)
    return sink.parts


def copied(batch: pa.RecordBatch) -> ByteChunks:
    """Return the same stream with the batch in one new buffer: cheaper than many small chunks."""
    return [_schema_message(batch.schema), batch.serialize(), END]


def message(batch: pa.RecordBatch) -> ByteChunks:
    """Return the batch alone, for readers that know its schema: the bytes of `batch.serialize()`."""
    sink = _Sink()
    writer = pa.ipc.new_stream(sink, batch.schema, options=_OPTIONS)
    writer.write_batch(batch)
    parts, skipped = sink.parts, _schema_message(batch.schema).size
    while skipped:
        skipped -= len(parts.pop(0))
    return parts


@lru_cache(maxsize=1024)
def _schema_message(schema: pa.Schema) -> pa.Buffer:
    """Return how a stream begins."""
    return schema.serialize()


class _Sink:
    """Collects what Arrow writes, without a copy. Arrow uses it as a file."""

    closed = False

    def __init__(self) -> None:
        self.parts: ByteChunks = []

    def write(self, part: ByteChunk) -> int:
        self.parts.append(part)
        return len(part)

    def readable(self) -> bool:
        return False

    def writable(self) -> bool:
        return True

    def flush(self) -> None:
        """Do nothing: no data is buffered."""

    def close(self) -> None:
        """Do nothing: the chunks stay."""
