"""Writing: each batch of a stream is a publish, several of them under way, answered in order when they are durable."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
from pyarrow import flight

from wherry.broker.broker import Broker
from wherry.core.publishing import Published, PublishOptions
from wherry.model.errors import InvalidInput
from wherry.model.schema import edges
from wherry.wire.flight.bridge import Bridge
from wherry.wire.flight.terms import Put

UNDER_WAY_MAX = 8
"""Batches of one stream that are not durable yet."""

BATCH_BYTES = 8 << 20
BATCH_ROWS = 65_536
"""A larger batch is published in several: each has to fit one entry of the journal."""


class Answer(msgspec.Struct):
    """What became of one batch."""

    rows: int
    placed: list[tuple[int, int, int]]
    repeated: bool = False


def write(
    broker: Broker,
    bridge: Bridge,
    put: Put,
    reader: flight.MetadataRecordBatchReader,
    writer: flight.FlightMetadataWriter,
    context: flight.ServerCallContext,
) -> None:
    """Publish a stream. In the thread of the call. An error ends it: what was answered before is stored."""
    if put.stage is not None and (put.producer is not None or put.sequence is not None):
        raise InvalidInput("producer, sequence", put.producer, "none with a stage, whose key is what makes it once")
    under_way: deque[list[Future[Answer]]] = deque()
    sequence = put.sequence
    for chunk in reader:
        if chunk.data is None or chunk.data.num_rows == 0:
            continue
        parts = []
        for part in pieces(chunk.data):
            parts.append(bridge.submit(_publish(broker, put, part, sequence)))
            sequence = None if sequence is None else sequence + part.num_rows
        under_way.append(parts)
        while len(under_way) >= UNDER_WAY_MAX:
            _answer(bridge, under_way.popleft(), writer, context)
    while under_way:
        _answer(bridge, under_way.popleft(), writer, context)


def _answer(
    bridge: Bridge, parts: list[Future[Answer]], writer: flight.FlightMetadataWriter, context: flight.ServerCallContext
) -> None:
    answers = [bridge.wait(part, context) for part in parts]
    placed = [place for answer in answers for place in answer.placed]
    whole = Answer(sum(answer.rows for answer in answers), placed, all(answer.repeated for answer in answers))
    writer.write(pa.py_buffer(msgspec.json.encode(whole)))


async def _publish(broker: Broker, put: Put, batch: pa.RecordBatch, sequence: int | None) -> Answer:
    if put.stage is not None:
        await broker.stage(put.stage, put.topic, batch, partition=put.partition)
        return Answer(batch.num_rows, [])
    options = PublishOptions(producer=put.producer, sequence=sequence, partition=put.partition)
    published = await broker.publish(put.topic, batch, options)
    return Answer(batch.num_rows, places(published), published.repeated)


def places(published: Published) -> list[tuple[int, int, int]]:
    """Partition, first offset and count of each run of neighbours."""
    partition, offset = published.partition, published.offset
    begins = np.flatnonzero(np.append(True, (np.diff(partition) != 0) | (np.diff(offset) != 1)))
    counts = np.diff(np.append(begins, len(offset)))
    return list(zip(partition[begins].tolist(), offset[begins].tolist(), counts.tolist(), strict=True))


def pieces(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """A batch in parts that each fit one publish; a usual one is one part."""
    if batch.num_rows <= BATCH_ROWS and batch.nbytes <= BATCH_BYTES:
        yield batch
        return
    start, ends = 0, _weights(batch)
    while start < batch.num_rows:
        before = int(ends[start - 1]) if start else 0
        stop = int(np.searchsorted(ends, before + BATCH_BYTES, "right"))
        stop = min(max(stop, start + 1), start + BATCH_ROWS, batch.num_rows)
        yield batch.slice(start, stop - start)
        start = stop


def _weights(batch: pa.RecordBatch) -> Any:
    """About how many bytes the rows up to each have: payloads as they are, the rest spread evenly."""
    sizes = np.full(batch.num_rows, 1.0)
    if "payload" in batch.schema.names and pa.types.is_binary(batch.column("payload").type):
        sizes += np.diff(edges(batch.column("payload")))
    return np.cumsum(sizes * (max(batch.nbytes, 1) / sizes.sum()))
