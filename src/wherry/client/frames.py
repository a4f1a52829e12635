"""Batches of messages as bodies of requests and answers: Arrow IPC streams, whose payloads the client never copies."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
import pyarrow as pa

from wherry.client.link.transport import Bytes, ClientResponse
from wherry.model import ipc
from wherry.model.errors import InvalidInput, Unavailable
from wherry.model.limits import BATCH_MESSAGES_MAX
from wherry.model.schema import Publishable, compact, content_sizes

PART_BYTES_MAX = 32 << 20
"""Half of what a broker takes as one body by default: columns are larger than the values in them."""

COPIED_BYTES_MAX = 16 << 10
"""A smaller batch is copied into one buffer, which is cheaper than writing its parts."""


@runtime_checkable
class ArrowStream(Protocol):
    """A table of another library: polars, pandas and DuckDB export their columns this way."""

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Return the columns as a stream of batches."""


@runtime_checkable
class ArrowArray(Protocol):
    """One batch of another library."""

    def __arrow_c_array__(self, requested_schema: object = None) -> object:
        """Return the columns as one struct array."""


Columns: TypeAlias = Publishable | ArrowStream | ArrowArray


def batch_of(given: Columns) -> pa.RecordBatch:
    """Return anything publishable as one checked batch."""
    return compact(_adopted(given))


def parts_of(given: Columns, messages: int, size: int, count_max: int | None = None) -> list[pa.RecordBatch]:
    """Cut anything publishable into checked batches of at most so many messages and bytes; the same cuts each time.

    If they may be no more than `count_max` they grow, as far as one call goes; `InvalidInput` if that is not enough.
    """
    blocks = [compact(block) for block in _blocks(_adopted(given))]
    while True:
        parts = [part for block in blocks for part in _cut(block, messages, size)]
        if count_max is None or len(parts) <= count_max:
            return parts
        if messages >= BATCH_MESSAGES_MAX and size >= PART_BYTES_MAX:
            allowed = f"{count_max} calls of {BATCH_MESSAGES_MAX} messages and {PART_BYTES_MAX >> 20} MiB"
            raise InvalidInput("data", f"{len(parts)} calls", f"at most {allowed} under a producer's name")
        messages, size = min(2 * messages, BATCH_MESSAGES_MAX), min(2 * size, PART_BYTES_MAX)


def _blocks(given: Publishable) -> Iterator[Publishable]:
    """Cut data that is longer than one call may be into pieces that are not."""
    if isinstance(given, pa.RecordBatch | pa.Table | list) and len(given) > BATCH_MESSAGES_MAX:
        for start in range(0, len(given), BATCH_MESSAGES_MAX):
            stop = start + BATCH_MESSAGES_MAX
            yield given[start:stop] if isinstance(given, list) else given.slice(start, BATCH_MESSAGES_MAX)
    else:
        yield given


def _cut(batch: pa.RecordBatch, messages: int, size: int) -> Iterator[pa.RecordBatch]:
    ends = np.cumsum(content_sizes(batch))
    start = before = 0
    while start < len(ends):
        fits = int(np.searchsorted(ends, before + size, "right"))
        stop = max(start + 1, min(start + messages, fits))
        yield batch.slice(start, stop - start)
        start, before = stop, int(ends[stop - 1])


def _adopted(given: Any) -> Publishable:
    if isinstance(given, pa.RecordBatch | pa.Table):
        return given
    if type(given).__module__.partition(".")[0] == "pandas":
        return pa.Table.from_pandas(given, preserve_index=False)
    if isinstance(given, ArrowStream | ArrowArray):
        return pa.table(given)
    return given


def encode(batch: pa.RecordBatch) -> list[Bytes]:
    """Return a batch as the parts of an Arrow stream."""
    return [b"".join(ipc.copied(batch))] if batch.nbytes < COPIED_BYTES_MAX else [*ipc.stream(batch)]


def decode(answer: ClientResponse) -> pa.RecordBatch:
    """Return the messages of an answer as one batch, in the memory that the answer was read into."""
    return decode_stream(answer.body)


def decode_stream(body: Bytes) -> pa.RecordBatch:
    """Return the messages of an Arrow stream as one batch, without a copy."""
    try:
        with pa.ipc.open_stream(pa.py_buffer(body)) as stream:
            batches = list(stream)
            return batches[0] if len(batches) == 1 else pa.Table.from_batches(batches, stream.schema).to_batch()
    except (pa.ArrowException, OSError) as fault:
        raise Unavailable(f"the answer is not an Arrow stream: {fault}") from fault
