"""Batches as Arrow IPC bytes, every buffer from where it lies: fresh memory costs more than the way out."""

from __future__ import annotations

from functools import lru_cache
from typing import TypeAlias

import pyarrow as pa

Chunk: TypeAlias = bytes | memoryview | pa.Buffer
Chunks: TypeAlias = list[Chunk]

END = b"\xff\xff\xff\xff\0\0\0\0"
"""What a stream ends with."""

_OPTIONS = pa.ipc.IpcWriteOptions()


def stream(batch: pa.RecordBatch) -> Chunks:
    """A whole IPC stream: schema, batch, end."""
    sink = _Sink()
    with pa.ipc.new_stream(sink, batch.schema, options=_OPTIONS) as writer:
        writer.write_batch(batch)
    return sink.parts


def copied(batch: pa.RecordBatch) -> Chunks:
    """The same stream with the batch in one new buffer: cheaper than many small parts."""
    return [_schema_message(batch.schema), batch.serialize(), END]


def message(batch: pa.RecordBatch) -> Chunks:
    """The batch alone, for readers that know its schema: the bytes of `batch.serialize()`."""
    sink = _Sink()
    writer = pa.ipc.new_stream(sink, batch.schema, options=_OPTIONS)
    writer.write_batch(batch)
    parts, skipped = sink.parts, _schema_message(batch.schema).size
    while skipped:
        skipped -= len(parts.pop(0))
    return parts


@lru_cache(maxsize=1024)
def _schema_message(schema: pa.Schema) -> pa.Buffer:
    """What a stream begins with."""
    return schema.serialize()


class _Sink:
    """Takes what Arrow writes, buffers as they are. To Arrow it looks like a file, and never is one."""

    closed = False

    def __init__(self) -> None:
        self.parts: Chunks = []

    def write(self, part: Chunk) -> int:
        self.parts.append(part)
        return len(part)

    def readable(self) -> bool:
        return False

    def writable(self) -> bool:
        return True

    def flush(self) -> None:
        """Nothing is held back."""

    def close(self) -> None:
        """The parts stay."""
