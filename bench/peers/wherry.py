"""Wherry itself, by its Python client: column batches, and message by message."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from bench.peers.peer import SIZE, Peer, age_ms, free_port, message

TOPIC, SUBSCRIPTION = "bench", "workers"
ROWS = 1_000
IN_FLIGHT = 4

T = TypeVar("T")

Settings = dict[str, Any]


class WherryNode(Peer):
    """`wherry serve` on a directory, as it is without settings, fsync before every confirm."""

    name = "Wherry"
    promise = "fdatasync before the answer"
    clients = ("wherry.client.client", "uvloop")  # `wherry` alone loads its names when they are used

    def start(self) -> None:
        command = (sys.executable, "-m", "wherry.node", "--data", str(self.folder / "data"), "--port", str(self.port))
        # Ports that this run does not use are the system's choice: another node may serve on this machine.
        others = {f"WHERRY_{wire}_PORT": "0" for wire in ("FLIGHT", "AMQP", "STOMP")}
        self.run(*command, "--log-level", "warning", env={**others, **os.environ, **self.environment()})
        self.wait_until(self.accepts)
        self.create({TOPIC: {}}, {SUBSCRIPTION: {}})

    def environment(self) -> dict[str, str]:
        """Return what its process has in its environment beside ours."""
        return {}

    def create(self, topics: Mapping[str, Settings], subscriptions: Mapping[str, Settings]) -> None:
        """Create topics with their settings, and subscriptions of each; those that are there stay."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port)
        for topic, fields in topics.items():
            place = f"/v1/topics/{topic}"
            wanted = {place: fields} | {f"{place}/subscriptions/{name}": each for name, each in subscriptions.items()}
            for path, body in wanted.items():
                connection.request("PUT", path, json.dumps(body), {"Content-Type": "application/json"})
                answer = connection.getresponse()
                assert answer.status in (200, 201), answer.read()
                answer.read()
        connection.close()

    def resident_bytes(self) -> int:
        """Return the memory of the server."""
        assert self.server is not None
        pages = Path(f"/proc/{self.server.pid}/statm").read_text().split()[1]
        return int(pages) * os.sysconf("SC_PAGESIZE")


class WherryBatches(WherryNode):
    """Arrow batches of a thousand; each message is made and read in Python, as with the peers."""

    name = "Wherry, batches of 1,000"

    @staticmethod
    def produce(port: int, count: int, rate: int | None) -> None:
        _run(_produce_batches(port, count, _made_one_by_one))

    @staticmethod
    def consume(port: int, count: int) -> list[float]:
        return _run(_consume_batches(port, count, _ages_one_by_one))


class WherryColumns(WherryNode):
    """The same batches; each message is made and read too, but a column at a time, as programs with data do."""

    name = "Wherry, columns of 1,000"

    @staticmethod
    def produce(port: int, count: int, rate: int | None) -> None:
        _run(_produce_batches(port, count, _made_by_column))

    @staticmethod
    def consume(port: int, count: int) -> list[float]:
        return _run(_consume_batches(port, count, _ages_by_column))


class WherryMessages(WherryNode):
    """`publish()` and `async for`, message by message."""

    name = "Wherry, message by message"

    @staticmethod
    def produce(port: int, count: int, rate: int | None) -> None:
        _run(_produce_messages(port, count, rate))

    @staticmethod
    def consume(port: int, count: int) -> list[float]:
        return _run(_consume_messages(port, count))


class WherryAmqp(WherryNode):
    """A node, reached over AMQP."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.amqp_port = free_port()

    @property
    def reached_at(self) -> int:
        return self.amqp_port

    def environment(self) -> dict[str, str]:
        return {"WHERRY_AMQP_PORT": str(self.amqp_port)}


class WherryLone(WherryNode):
    """`await client.publish()`, `async for` and `await ack()`, one after the other, over the native wire."""

    name = "Wherry, one by one"
    wire = "native"

    @classmethod
    def produce(cls, port: int, count: int, rate: int | None) -> None:
        _run(_produce_alone(port, count, rate, cls.wire))

    @classmethod
    def consume(cls, port: int, count: int) -> list[float]:
        return _run(_consume_alone(port, count, cls.wire))


class WherryLoneHttp(WherryLone):
    """The same over HTTP, as where a proxy refuses the upgrade."""

    name = "Wherry, one by one over HTTP"
    wire = "http"


async def at_pace(count: int, rate: int | None) -> AsyncIterator[int]:
    """Count steps, at most `rate` a second; the loop runs on meanwhile."""
    loop = asyncio.get_running_loop()
    start = loop.time()
    for number in range(count):
        wait = 0.0 if rate is None else start + number / rate - loop.time()
        if wait > 0:
            await asyncio.sleep(wait)
        yield number


def _run(work: Coroutine[Any, Any, T]) -> T:
    import uvloop

    return uvloop.run(work)


def _made_one_by_one() -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([message() for _ in range(ROWS)], pa.binary())], names=["payload"])


def _ages_one_by_one(batch: pa.RecordBatch) -> list[float]:
    return [age_ms(payload) for payload in batch.column("payload").to_pylist()]


def _made_by_column() -> pa.RecordBatch:
    """Make a thousand messages at once; the first eight bytes of each are the time, as in `message`."""
    bodies = np.empty((ROWS, SIZE), np.uint8)
    bodies[:] = np.frombuffer(message(), np.uint8)
    ends = np.arange(0, (ROWS + 1) * SIZE, SIZE, dtype=np.int32)
    column = pa.Array.from_buffers(pa.binary(), ROWS, [None, pa.py_buffer(ends), pa.py_buffer(bodies)])
    return pa.RecordBatch.from_arrays([column], names=["payload"])


def _ages_by_column(batch: pa.RecordBatch) -> list[float]:
    """Read the time out of every message at once; a message of another length would fail the reshape."""
    column = batch.column("payload")
    first = column.offset
    ends = np.frombuffer(column.buffers()[1], np.int32)[first : first + len(column) + 1]
    bodies = np.frombuffer(column.buffers()[2], np.uint8)[ends[0] : ends[-1]].reshape(-1, SIZE)
    stamps = np.ascontiguousarray(bodies[:, :8]).view(np.int64).ravel()
    ages: list[float] = ((time.monotonic_ns() - stamps) / 1e6).tolist()
    return ages


async def _produce_batches(port: int, count: int, made: Callable[[], pa.RecordBatch]) -> None:
    import wherry

    left = count // ROWS
    async with wherry.connect(f"http://127.0.0.1:{port}") as client:

        async def work() -> None:
            nonlocal left
            while left > 0:
                left -= 1
                await client.publish(TOPIC, made())

        await asyncio.gather(*(work() for _ in range(IN_FLIGHT)))


async def _consume_batches(port: int, count: int, read: Callable[[pa.RecordBatch], list[float]]) -> list[float]:
    import wherry

    ages: list[float] = []
    acks: list[asyncio.Task[None]] = []
    async with (
        wherry.connect(f"http://127.0.0.1:{port}") as client,
        client.consumer(TOPIC, SUBSCRIPTION) as consumer,
    ):
        async for batch in consumer.consume_batches():
            ages += read(batch.data)
            acks.append(asyncio.ensure_future(batch.ack()))
            if len(acks) >= IN_FLIGHT:
                await acks.pop(0)
            if len(ages) >= count:
                break
        await asyncio.gather(*acks)
    return ages


async def _produce_messages(port: int, count: int, rate: int | None) -> None:
    import wherry

    async with (
        wherry.connect(f"http://127.0.0.1:{port}") as client,
        client.producer(TOPIC) as producer,
    ):
        async for _ in at_pace(count, rate):
            await producer.publish(message())


async def _consume_messages(port: int, count: int) -> list[float]:
    import wherry

    ages: list[float] = []
    async with (
        wherry.connect(f"http://127.0.0.1:{port}") as client,
        client.consumer(TOPIC, SUBSCRIPTION) as consumer,
    ):
        async for each in consumer:
            ages.append(age_ms(each.payload))
            each.ack_later()
            if len(ages) == count:
                break
    return ages


async def _produce_alone(port: int, count: int, rate: int | None, wire: Any) -> None:
    import wherry

    async with wherry.connect(f"http://127.0.0.1:{port}", wire=wire) as client:
        async for _ in at_pace(count, rate):
            await client.publish(TOPIC, message())


async def _consume_alone(port: int, count: int, wire: Any) -> list[float]:
    import wherry

    ages: list[float] = []
    async with (
        wherry.connect(f"http://127.0.0.1:{port}", wire=wire) as client,
        client.consumer(TOPIC, SUBSCRIPTION) as consumer,
    ):
        async for each in consumer:
            ages.append(age_ms(each.payload))
            await each.ack()
            if len(ages) == count:
                break
    return ages
