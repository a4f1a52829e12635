"""Wherry itself, by its Python client: column batches, and message by message."""

from __future__ import annotations

import asyncio
import http.client
import os
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from bench.peers.peer import SIZE, Peer, age_ms, message

TOPIC, SUBSCRIPTION = "bench", "workers"
ROWS = 1_000
IN_FLIGHT = 4

T = TypeVar("T")


class WherryNode(Peer):
    """`wherry serve` on a directory, fsync before every confirm."""

    promise = "fdatasync before the answer"
    rows = ROWS
    cache_bytes = 1 << 30

    @staticmethod
    def is_installed() -> bool:
        return True

    def start(self) -> None:
        command = (sys.executable, "-m", "wherry.node", "--data", str(self.folder / "data"), "--port", str(self.port))
        self.run(*command, "--cache-bytes", str(self.cache_bytes), "--log-level", "warning")
        self.wait_until(self.accepts)
        connection = http.client.HTTPConnection("127.0.0.1", self.port)
        for path in (f"/v1/topics/{TOPIC}", f"/v1/topics/{TOPIC}/subscriptions/{SUBSCRIPTION}"):
            connection.request("PUT", path)
            answer = connection.getresponse()
            assert answer.status in (200, 201), answer.read()
            answer.read()
        connection.close()

    def resident_bytes(self) -> int:
        """Memory of the server."""
        assert self.server is not None
        pages = Path(f"/proc/{self.server.pid}/statm").read_text().split()[1]
        return int(pages) * os.sysconf("SC_PAGESIZE")


class WherryBatches(WherryNode):
    """Arrow batches of a thousand."""

    name = "Wherry, batches of 1,000"

    @staticmethod
    def produce(port: int, count: int, rate: int | None) -> None:
        _run(_produce_batches(port, count, ROWS))

    @staticmethod
    def consume(port: int, count: int) -> list[float]:
        return _run(_consume_batches(port, count))


class WherryMessages(WherryNode):
    """`publish()` and `async for`, message by message."""

    name = "Wherry, message by message"

    @staticmethod
    def produce(port: int, count: int, rate: int | None) -> None:
        _run(_produce_messages(port, count, rate))

    @staticmethod
    def consume(port: int, count: int) -> list[float]:
        return _run(_consume_messages(port, count))


def _run(work: Coroutine[Any, Any, T]) -> T:
    import uvloop

    return uvloop.run(work)


async def _produce_batches(port: int, count: int, rows: int) -> None:
    import wherry

    payloads = np.frombuffer(message() * rows, np.uint8)
    ends = np.arange(0, (rows + 1) * SIZE, SIZE, dtype=np.int32)
    column = pa.Array.from_buffers(pa.binary(), rows, [None, pa.py_buffer(ends), pa.py_buffer(payloads)])
    batch = pa.RecordBatch.from_arrays([column], names=["payload"])
    left = count // rows
    async with wherry.connect(f"http://127.0.0.1:{port}") as client:

        async def work() -> None:
            nonlocal left
            while left > 0:
                left -= 1
                await client.publish(TOPIC, batch)

        await asyncio.gather(*(work() for _ in range(IN_FLIGHT)))


async def _consume_batches(port: int, count: int) -> list[float]:
    import wherry

    got = 0
    acks: list[asyncio.Task[None]] = []
    async with (
        wherry.connect(f"http://127.0.0.1:{port}") as client,
        client.consumer(TOPIC, SUBSCRIPTION) as consumer,
    ):
        async for batch in consumer.consume_batches():
            got += len(batch)
            acks.append(asyncio.ensure_future(batch.ack()))
            if len(acks) >= IN_FLIGHT:
                await acks.pop(0)
            if got >= count:
                break
        await asyncio.gather(*acks)
    return []


async def _produce_messages(port: int, count: int, rate: int | None) -> None:
    import wherry

    async with (
        wherry.connect(f"http://127.0.0.1:{port}") as client,
        client.producer(TOPIC) as producer,
    ):
        if rate is None:
            payload = message()
            for _ in range(count):
                await producer.publish(payload)
            return
        start = asyncio.get_running_loop().time()
        for number in range(count):
            wait = start + number / rate - asyncio.get_running_loop().time()
            if wait > 0:
                await asyncio.sleep(wait)
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
