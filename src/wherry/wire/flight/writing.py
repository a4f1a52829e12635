"""Writing: each batch of a stream is a publish, several of them under way, answered in order when they are durable."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import suppress
from queue import Queue
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
from pyarrow import flight

from wherry.broker.broker import Broker
from wherry.core.publishing import Published, PublishOptions
from wherry.model.errors import InvalidInput, WherryError
from wherry.model.schema import edges
from wherry.wire.flight.bridge import Bridge
from wherry.wire.flight.terms import Put

UNDER_WAY_MAX = 8
"""Batches of one stream that are not durable yet."""

ANSWERS_MAX = 65_536
"""Answers that a client has not read; beyond it nothing more is read from the client."""

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
    answering = _Answering(bridge, writer, context)
    sequence = put.sequence
    try:
        for chunk in reader:
            if chunk.data is None or chunk.data.num_rows == 0:
                continue
            parts = []
            for part in pieces(chunk.data):
                answering.wait_for_room()
                parts.append(bridge.submit(_publish(broker, put, part, sequence)))
                answering.note(parts[-1])
                sequence = None if sequence is None else sequence + part.num_rows
            answering.answer(parts)
    finally:
        answering.end()


class _Answering:
    """The answers of one stream, in a thread of their own: many clients read none before they have written all."""

    def __init__(self, bridge: Bridge, writer: flight.FlightMetadataWriter, context: flight.ServerCallContext) -> None:
        self._bridge, self._writer, self._context = bridge, writer, context
        self._room = threading.Semaphore(UNDER_WAY_MAX)
        self._waiting: Queue[list[Future[Answer]] | None] = Queue(ANSWERS_MAX)
        self._fault: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="wherry flight answers", daemon=True)
        self._thread.start()

    def wait_for_room(self) -> None:
        """Until not too much is under way; raises what went wrong meanwhile."""
        self._room.acquire()
        self._check()

    def note(self, part: Future[Answer]) -> None:
        """It is under way until it is done."""
        part.add_done_callback(lambda _: self._room.release())

    def answer(self, parts: list[Future[Answer]]) -> None:
        """Answer a batch when all its parts are durable."""
        self._waiting.put(parts)
        self._check()

    def end(self) -> None:
        """Until all is answered."""
        self._waiting.put(None)
        self._thread.join()
        self._check()

    def _check(self) -> None:
        if self._fault is not None:
            raise self._fault

    def _run(self) -> None:
        while (parts := self._waiting.get()) is not None:
            if self._fault is not None:
                continue
            try:
                answers = [self._bridge.wait(part, self._context) for part in parts]
                self._writer.write(pa.py_buffer(msgspec.json.encode(_joined(answers))))
            except BaseException as fault:  # for the thread of the call, when the client writes or ends
                self._fault = fault
                self._tell(fault)

    def _tell(self, fault: BaseException) -> None:
        """The call fails with its next step; a client that waits for an answer before it takes one must know."""
        told = fault if isinstance(fault, WherryError) else WherryError(type(fault).__name__)
        with suppress(pa.ArrowException, OSError):
            word = {"fault": {"code": told.code, "detail": str(told)}}
            self._writer.write(pa.py_buffer(msgspec.json.encode(word)))


def _joined(answers: list[Answer]) -> Answer:
    placed = [place for answer in answers for place in answer.placed]
    return Answer(sum(answer.rows for answer in answers), placed, all(answer.repeated for answer in answers))


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
