"""Writing: each batch of a stream is a publish. Batches are decided in order, and answered in order once durable.

Batches after one that failed are refused: an idempotent producer could not repeat a batch after which others were
stored. Only the wait for the disk overlaps.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterator
from concurrent.futures import Future
from contextlib import suppress
from queue import Queue
from time import perf_counter
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
from pyarrow import flight

from wherry.broker.port.port import BrokerPort
from wherry.model.calls import given
from wherry.model.calls.publish import Published, PublishOptions
from wherry.model.catalog.topic import Mesh
from wherry.model.errors import Closed, InvalidInput, WherryError
from wherry.model.schema import edges
from wherry.wire.flight.bridge import Bridge
from wherry.wire.flight.gate import Check
from wherry.wire.flight.terms import Put

UNDER_WAY_MAX = 8
"""Most batches of one stream that are not durable yet."""

UNREAD_MAX = 65_536
"""Most answers, and places in them, that a client has not read; beyond it nothing more is read from the client."""

BATCH_BYTES = 8 << 20
BATCH_ROWS = 65_536
"""A larger batch is published as several: each has to fit one entry of the journal."""


class StoredBatch(msgspec.Struct):
    """Where one batch is stored: partition, first offset and count of each run; and the guarantee, if not staged."""

    rows: int
    placed: list[tuple[int, int, int]]
    repeated: bool = False
    mesh: Mesh | msgspec.UnsetType = msgspec.UNSET


def write(
    stream: PublishStream,
    bridge: Bridge,
    reader: flight.MetadataRecordBatchReader,
    writer: flight.FlightMetadataWriter,
    context: flight.ServerCallContext,
    check: Check,
) -> None:
    """Publish a stream, in the thread of the call. An error ends the stream: batches answered before are stored."""
    names = given.taken(reader.schema)
    answering = _Answering(bridge, writer, context)
    try:
        for chunk in reader:
            check()
            if chunk.data is None or chunk.data.num_rows == 0:
                continue
            chunk.data.validate(full=True)
            given.check_broker_columns(chunk.data)
            parts = []
            for part in pieces(chunk.data.select(names)):
                answering.wait_for_room()
                parts.append(bridge.submit(stream.publish(part)))
                answering.note(parts[-1])
            answering.answer(parts)
    finally:
        answering.end()


class PublishStream:
    """The publishes of one stream, in the order in which they are made; each is awaited on the loop."""

    def __init__(self, broker: BrokerPort, put: Put) -> None:
        if put.stage is not None and (put.producer is not None or put.sequence is not None):
            raise InvalidInput("producer, sequence", put.producer, "none with a stage, whose key is what makes it once")
        self._broker, self._put = broker, put
        self._sequence = put.sequence
        self._made = self._decided = 0
        self._one_at_a_time = asyncio.Lock()
        self._failed = False

    def publish(self, batch: pa.RecordBatch) -> Coroutine[Any, Any, StoredBatch]:
        """Return the next publish. Called in the thread of the call, which gives each its number and sequence."""
        number, sequence = self._made, self._sequence
        self._made += 1
        if sequence is not None:
            self._sequence = sequence + batch.num_rows
        return self._publish(number, batch, sequence)

    async def _publish(self, number: int, batch: pa.RecordBatch, sequence: int | None) -> StoredBatch:
        began = perf_counter()
        try:
            async with self._one_at_a_time:
                # a publish that was cancelled before it began did not set `_failed`
                if self._failed or number != self._decided:
                    raise Closed("a batch before this one was not stored, so the stream is over")
                position, answer = await self._decide(batch, sequence)
                self._decided += 1
            await self._broker.stored(position)
        except BaseException:
            self._failed = True
            raise
        metrics = self._broker.metrics
        if metrics is not None and self._put.stage is None:
            metrics.publish.observe(perf_counter() - began)
        return answer

    async def _decide(self, batch: pa.RecordBatch, sequence: int | None) -> tuple[int, StoredBatch]:
        """Publish or stage a batch; return the position to wait for, and the answer."""
        put = self._put
        if put.stage is not None:
            position = await self._broker.submit_stage(put.stage, put.topic, batch, partition=put.partition)
            return position, StoredBatch(batch.num_rows, [])
        options = PublishOptions(producer=put.producer, sequence=sequence, partition=put.partition)
        position, published = await self._broker.submit(put.topic, batch, options)
        if isinstance(published, WherryError):
            self._broker.count_refusal(put.topic, published)
            raise published
        return position, StoredBatch(batch.num_rows, places(published), published.repeated, published.mesh)


class _Answering:
    """Sends the answers of one stream from a thread of its own: many clients read none before they have written all."""

    def __init__(self, bridge: Bridge, writer: flight.FlightMetadataWriter, context: flight.ServerCallContext) -> None:
        self._bridge, self._writer, self._context = bridge, writer, context
        self._room = threading.Semaphore(UNDER_WAY_MAX)
        self._waiting: Queue[list[Future[StoredBatch]] | None] = Queue()
        self._taken = threading.Condition()
        self._unread = 0
        """The weight of answers that are done and not sent yet."""
        self._fault: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="wherry flight answers", daemon=True)
        self._thread.start()

    def wait_for_room(self) -> None:
        """Wait until little enough is under way and unread; raise what went wrong meanwhile."""
        self._room.acquire()
        with self._taken:
            self._taken.wait_for(lambda: self._unread < UNREAD_MAX or self._fault is not None)
        self._check()

    def note(self, part: Future[StoredBatch]) -> None:
        """Count a publish as under way until it is done, and as unread from then on."""
        part.add_done_callback(self._done)

    def _done(self, part: Future[StoredBatch]) -> None:
        with self._taken:
            self._unread += _weight(part)
        self._room.release()

    def answer(self, parts: list[Future[StoredBatch]]) -> None:
        """Answer a batch when all its parts are durable."""
        self._waiting.put(parts)
        self._check()

    def end(self) -> None:
        """Wait until all is answered."""
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
            except BaseException as fault:  # raised in the thread of the call, when the client writes or ends
                self._fault = fault
                self._tell(fault)
            with self._taken:
                self._unread -= sum(map(_weight, parts))
                self._taken.notify()

    def _tell(self, fault: BaseException) -> None:
        """Send the error to a client that may wait for an answer; the call itself fails only at its next step."""
        known = fault if isinstance(fault, WherryError) else WherryError(type(fault).__name__)
        with suppress(pa.ArrowException, OSError):
            word = {"fault": {"code": known.code, "detail": str(known)}}
            self._writer.write(pa.py_buffer(msgspec.json.encode(word)))


def _weight(part: Future[StoredBatch]) -> int:
    """Return the weight of a finished publish while its answer is unread."""
    failed = part.cancelled() or part.exception() is not None
    return 1 if failed else 1 + len(part.result().placed)


def _joined(answers: list[StoredBatch]) -> StoredBatch:
    placed = [place for answer in answers for place in answer.placed]
    rows, repeated = sum(answer.rows for answer in answers), all(answer.repeated for answer in answers)
    return StoredBatch(rows, placed, repeated, answers[0].mesh)


def places(published: Published) -> list[tuple[int, int, int]]:
    """Return partition, first offset and count of each run, by partition: few, however the rows were spread."""
    order = np.argsort(published.partition, kind="stable")
    partition, offset = published.partition[order], published.offset[order]
    begins = np.flatnonzero(np.append(True, (np.diff(partition) != 0) | (np.diff(offset) != 1)))
    counts = np.diff(np.append(begins, len(offset)))
    return list(zip(partition[begins].tolist(), offset[begins].tolist(), counts.tolist(), strict=True))


def pieces(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Split a batch into parts that each fit one publish; a usual batch is one part."""
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
    """Return about how many bytes the rows up to each have: payloads exactly, the rest spread evenly."""
    sizes = np.full(batch.num_rows, 1.0)
    if "payload" in batch.schema.names and pa.types.is_binary(batch.column("payload").type):
        sizes += np.diff(edges(batch.column("payload")))
    return np.cumsum(sizes * (max(batch.nbytes, 1) / sizes.sum()))
