"""Message batches as bodies of requests and answers: Arrow IPC streams, payloads never copied on this side."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol, TypeAlias, runtime_checkable

import pyarrow as pa

from wherry.client.link.transport import Answer, Bytes
from wherry.model import ipc
from wherry.model.errors import Unavailable
from wherry.model.schema import Publishable, compact, content_bytes

COPIED_BYTES_MAX = 16 << 10
"""A smaller batch is copied into one buffer: cheaper than handing over its parts."""


@runtime_checkable
class ArrowStream(Protocol):
    """A table of another library: polars, pandas, DuckDB and friends hand over their columns this way."""

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """The columns, as a stream of batches."""


@runtime_checkable
class ArrowArray(Protocol):
    """One batch of another library."""

    def __arrow_c_array__(self, requested_schema: object = None) -> object:
        """The columns, as one struct array."""


Columns: TypeAlias = Publishable | ArrowStream | ArrowArray


def batch_of(given: Columns) -> pa.RecordBatch:
    """Anything publishable as one checked batch."""
    return compact(_adopted(given))


def batches_of(given: Columns, messages: int, size: int) -> Iterator[pa.RecordBatch]:
    """Anything publishable as checked batches, each of at most so many messages and about so many bytes."""
    batch = batch_of(given)
    rows = batch.num_rows
    step = max(1, min(messages, rows * size // max(1, content_bytes(batch))))
    for start in range(0, rows, step):
        yield batch.slice(start, step)


def _adopted(given: Any) -> Publishable:
    if isinstance(given, pa.RecordBatch | pa.Table):
        return given
    if type(given).__module__.partition(".")[0] == "pandas":
        return pa.Table.from_pandas(given, preserve_index=False)
    if isinstance(given, ArrowStream | ArrowArray):
        return pa.table(given)
    return given


def encode(batch: pa.RecordBatch) -> list[Bytes]:
    """A batch as the parts of a stream."""
    parts: list[Bytes] = [*ipc.stream(batch)]
    return [b"".join(parts)] if batch.nbytes < COPIED_BYTES_MAX else parts


def decode(answer: Answer) -> pa.RecordBatch:
    """The messages of an answer as one batch, in the memory that the answer was read into."""
    try:
        with pa.ipc.open_stream(pa.py_buffer(answer.body)) as stream:
            batches = list(stream)
            return batches[0] if len(batches) == 1 else pa.Table.from_batches(batches, stream.schema).to_batch()
    except pa.ArrowInvalid as fault:
        raise Unavailable(f"the answer is not an Arrow stream: {fault}") from fault
