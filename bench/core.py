"""The queue in process: 256-byte messages, batches of 1,000, disk engine, fsync before every confirm.

Each throughput is the median of several rounds, its limit measured between the rounds: the machine is noisy.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import numpy as np
import pyarrow as pa

import wherry
from bench import memory, recovery
from bench.figure import Figure
from bench.measuring import disk
from wherry.core.index.runs import SortedRuns

SIZE = 256
ROWS = 1_000
IN_FLIGHT = 8
ROUNDS = 5


def figures(scale: int) -> list[Figure]:
    """Return everything about the core."""
    result: list[Figure] = []
    with tempfile.TemporaryDirectory(dir=disk(), prefix="bench-") as folder:
        root = Path(folder)
        result += _throughput(root, 1_000 // scale)
        for order in ("priority", "timeline"):
            result += _index(order, 1_000_000 // scale, 10_000_000 // scale)
        result += _recovery(root, 10_000_000 // scale)
        result += recovery.singles(root, 200_000 // scale)
    result += memory.figures(scale)
    return result


def messages() -> pa.RecordBatch:
    """Return one batch."""
    payloads = [os.urandom(SIZE) for _ in range(ROWS)]
    return pa.RecordBatch.from_arrays([pa.array(payloads, pa.binary())], names=["payload"])


def _throughput(root: Path, batches: int) -> list[Figure]:
    raw: dict[int, list[float]] = {1: [], IN_FLIGHT: []}
    published: dict[int, list[float]] = {1: [], IN_FLIGHT: []}
    end_to_end = []
    batch = messages()
    body = os.urandom(batch.nbytes)
    for number in range(ROUNDS):
        for at_once, rates in raw.items():
            rates.append(_raw(root / "raw", body, batches // 2, at_once))
            folder = root / f"publish-{number}-{at_once}"
            published[at_once].append(asyncio.run(_publish(folder, batch, batches // 2, at_once)))
        end_to_end.append(asyncio.run(_end_to_end(root / f"flow-{number}", batch, batches)))
    limit = {at_once: statistics.median(rates) for at_once, rates in raw.items()}
    rate = {at_once: statistics.median(rates) for at_once, rates in published.items()}
    flow = statistics.median(end_to_end)
    of_one = "raw write+fdatasync of the same bytes, one batch at a time"
    of_many = f"raw write+fdatasync of the same bytes, {IN_FLIGHT} batches at a time"
    return [
        Figure("core.publish_one", rate[1], "msgs/s, one batch under way", of_one, limit[1]),
        Figure("core.publish", rate[IN_FLIGHT], f"msgs/s, {IN_FLIGHT} batches under way", of_many, limit[IN_FLIGHT]),
        Figure("core.publish_pull_ack", flow, f"msgs/s, {IN_FLIGHT} batches under way", of_many, limit[IN_FLIGHT]),
    ]


def _raw(path: Path, body: bytes, count: int, at_once: int) -> float:
    """Return messages a second that the disk alone would take, into a file allocated first, as the journal's are."""
    fd = os.open(path, os.O_CREAT | os.O_TRUNC | os.O_WRONLY)
    try:
        os.posix_fallocate(fd, 0, count * len(body))
        os.fsync(fd)
        start = time.perf_counter()
        for group in range(count // at_once):
            os.pwritev(fd, [body] * at_once, group * at_once * len(body))
            os.fdatasync(fd)
        seconds = time.perf_counter() - start
    finally:
        os.close(fd)
        path.unlink()
    return count // at_once * at_once * ROWS / seconds


async def _publish(path: Path, batch: pa.RecordBatch, count: int, at_once: int) -> float:
    async with wherry.open(path) as broker:
        await broker.create_topic("bench")
        await broker.subscribe("bench", "reader")
        await broker.publish("bench", batch)
        start = time.perf_counter()
        await _many(lambda: broker.publish("bench", batch), count, at_once)
        seconds = time.perf_counter() - start
    shutil.rmtree(path)
    return count * ROWS / seconds


async def _many(call: Callable[[], Awaitable[object]], count: int, at_once: int = IN_FLIGHT) -> None:
    """Make so many calls, `at_once` of them at a time."""
    left = count

    async def work() -> None:
        nonlocal left
        while left > 0:
            left -= 1
            await call()

    await asyncio.gather(*(work() for _ in range(at_once)))


async def _end_to_end(path: Path, batch: pa.RecordBatch, count: int) -> float:
    async with wherry.open(path) as broker:
        await broker.create_topic("bench")
        await broker.subscribe("bench", "reader")
        consumer = await broker.consumer("bench", "reader")

        async def consume() -> None:
            left = count * ROWS
            acks: list[asyncio.Task[None]] = []
            while left:
                got = await consumer.pull(ROWS, wait_ms=None)
                left -= len(got)
                acks.append(asyncio.ensure_future(got.ack()))
                if len(acks) >= IN_FLIGHT:
                    await acks.pop(0)
            await asyncio.gather(*acks)

        start = time.perf_counter()
        await asyncio.gather(_many(lambda: broker.publish("bench", batch), count), consume())
        seconds = time.perf_counter() - start
    shutil.rmtree(path)
    return count * ROWS / seconds


def _ranks(order: str, count: int) -> np.ndarray:
    return np.random.default_rng(7).integers(0, 65_536 if order == "priority" else 10**10, count)


def _loaded(order: str, count: int) -> tuple[SortedRuns, float]:
    ranks = _ranks(order, count)
    index = SortedRuns()
    start = time.perf_counter()
    for base in range(0, count, ROWS):
        index.insert(ranks[base : base + ROWS].copy(), np.arange(base, base + ROWS, dtype=np.int64))
    return index, time.perf_counter() - start


def _index(order: str, count: int, backlog: int) -> list[Figure]:
    index, load_s = _loaded(order, count)
    start = time.perf_counter()
    for _ in range(count // ROWS):
        index.take(ROWS)
    drain_s = time.perf_counter() - start
    small = _pull_s(order, 10_000)
    large_index, _ = _loaded(order, backlog)
    weight = large_index.bytes() / len(large_index)
    large = _drain_s(large_index, min(2_000, backlog // ROWS))
    return [
        Figure(f"core.{order}_load", count / load_s, "msgs/s", "1 M msgs/s", 1e6),
        Figure(f"core.{order}_drain", count / drain_s, "msgs/s", "1 M msgs/s", 1e6),
        Figure(f"core.{order}_pull_at_10m", large * 1e6, "us per 1,000", "the same at a backlog of 10 k", small * 1e6),
        Figure(f"core.{order}_index_bytes", weight, "bytes per message", "24 bytes", 24),
    ]


def _pull_s(order: str, count: int) -> float:
    """Return seconds for a pull of 1,000 at a small backlog, over many fresh indexes."""
    return statistics.median(_drain_s(_loaded(order, count)[0], count // ROWS) for _ in range(30))


def _drain_s(index: SortedRuns, pulls: int) -> float:
    start = time.perf_counter()
    for _ in range(pulls):
        index.take(ROWS)
    return (time.perf_counter() - start) / pulls


def _recovery(root: Path, count: int) -> list[Figure]:
    """Reopen a topic in which messages wait: fifo, and priority, whose index must be rebuilt."""
    result = []
    for order in ("fifo", "priority"):
        path = root / f"recovery-{order}"
        asyncio.run(_fill(path, order, count))
        start = time.perf_counter()
        asyncio.run(_reopen(path, count))
        seconds = time.perf_counter() - start
        result.append(Figure(f"core.recovery_{order}", seconds, f"s for {count:,} waiting", "20 s", 20))
        shutil.rmtree(path)
    return result


async def _fill(path: Path, order: str, count: int) -> None:
    batch = messages()
    ranks = _ranks("priority", count)
    async with wherry.open(path) as broker:
        await broker.create_topic("bench", order=order)
        await broker.subscribe("bench", "reader")
        bases = iter(range(0, count, ROWS))

        async def one() -> None:
            base = next(bases)
            columns = [batch.column("payload"), pa.array(ranks[base : base + ROWS], pa.uint16())]
            await broker.publish("bench", pa.RecordBatch.from_arrays(columns, names=["payload", "priority"]))

        await _many(one, count // ROWS)
        # A crash, not a clean close: the directory is left as it is.
        broker.shard.writer._file.close()  # type: ignore[attr-defined]
        broker._background.cancel()
        await asyncio.gather(broker._background, return_exceptions=True)
        broker.shard.files.unlock()  # type: ignore[union-attr]


async def _reopen(path: Path, count: int) -> None:
    async with wherry.open(path) as broker:
        assert broker.stats("bench").subscriptions[0].ready == count
        consumer = await broker.consumer("bench", "reader")
        assert 0 < len(await consumer.pull(ROWS)) <= ROWS  # fewer where they are scattered over the disk
