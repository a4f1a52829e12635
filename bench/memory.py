"""What waiting messages and consumers cost in memory: resident bytes of a fresh process, not a formula.

`python -m bench.memory CASE FEW MANY` measures one case and prints bytes for each: the growth of the process between
FEW and MANY, so that what the broker takes at its start does not count. Bodies are 16 bytes and the cache is 1 MiB, so
that bodies are on disk and what remains is the index. At a tenth of the size the figures are mostly noise.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from itertools import repeat
from pathlib import Path

import pyarrow as pa

import wherry
from bench.figure import Figure
from wherry.broker.broker import Broker
from wherry.model.calls.publish import PublishOptions

ROWS = 1_000
IN_FLIGHT = 256
BODY = bytes(16)
TOPIC, SUBSCRIPTION = "bench", "reader"

Grow = Callable[[Broker, int, int], Awaitable[Sequence[object]]]
"""Takes a broker from so many messages or consumers to so many; what it returns is kept until the end."""


def figures(scale: int) -> list[Figure]:
    """Return every case, each measured in a process of its own."""
    return [
        Figure(f"core.{name}", measured(name, few // scale, many // scale), unit, against, limit)
        for name, few, many, unit, against, limit in (
            ("fifo_bytes", 1_000_000, 5_000_000, "bytes a waiting message, batches of 1,000", "1 byte", 1.0),
            ("fifo_bytes_single", 20_000, 100_000, "bytes a waiting message, published alone", "24 bytes", 24.0),
            ("priority_bytes", 1_000_000, 5_000_000, "bytes a waiting message, batches of 1,000", "24 bytes", 24.0),
            ("consumer_bytes", 50_000, 250_000, "bytes a consumer that joined", "1 KiB", 1024.0),
            ("waiting_pull_bytes", 10_000, 50_000, "bytes a consumer whose pull waits", "2 KiB", 2048.0),
        )
    ]


def measured(name: str, few: int, many: int) -> float:
    """Measure one case in a process of its own; return bytes for each message or consumer."""
    command = [sys.executable, "-m", "bench.memory", name, str(few), str(many)]
    # The pool of Arrow keeps some megabytes for each thread that ever encoded a segment: noise of 30 bytes a message.
    environment = {**os.environ, "ARROW_DEFAULT_MEMORY_POOL": "system"}
    return float(subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout)


async def _batches(broker: Broker, start: int, end: int) -> Sequence[object]:
    payload, priority = pa.array([BODY] * ROWS, pa.binary()), pa.array(range(ROWS), pa.uint16())
    batch = pa.RecordBatch.from_arrays([payload, priority], names=["payload", "priority"])
    for _ in range(start, end, ROWS):
        await broker.publish(TOPIC, batch)
    return ()


async def _singles(broker: Broker, start: int, end: int) -> Sequence[object]:
    for _ in range(start, end, IN_FLIGHT):
        position = 0
        for _ in range(IN_FLIGHT):  # `publish` would make one batch of all calls that wait together
            position, _ = await broker.submit(TOPIC, [BODY], PublishOptions())
        await broker.stored(position)
    return ()


async def _consumers(broker: Broker, start: int, end: int) -> Sequence[object]:
    return [await broker.consumer(TOPIC, SUBSCRIPTION, f"consumer-{number}") for number in range(start, end)]


async def _waiting(broker: Broker, start: int, end: int) -> Sequence[object]:
    joined = [await broker.consumer(TOPIC, SUBSCRIPTION, f"consumer-{number}") for number in range(start, end)]
    pulls = [asyncio.create_task(consumer.pull(1, wait_ms=None)) for consumer in joined]
    await asyncio.sleep(0)
    return pulls


CASES: dict[str, tuple[str, Grow]] = {
    "fifo_bytes": ("fifo", _batches),
    "fifo_bytes_single": ("fifo", _singles),
    "priority_bytes": ("priority", _batches),
    "consumer_bytes": ("fifo", _consumers),
    "waiting_pull_bytes": ("fifo", _waiting),
}


async def _growth(folder: Path, order: str, grow: Grow, few: int, many: int) -> float:
    """Return the bytes by which the process grows for each one between few and many."""
    async with wherry.open(folder, cache_bytes=1 << 20) as broker:
        await broker.create_topic(TOPIC, order=order)
        await broker.subscribe(TOPIC, SUBSCRIPTION)
        kept = [await grow(broker, 0, few)]
        await _flushed(broker)
        before = _resident()
        kept.append(await grow(broker, few, many))
        await _flushed(broker)
        after = _resident()
        pulls = [each for some in kept for each in some if isinstance(each, asyncio.Task)]
        for pull in pulls:
            pull.cancel()
        await asyncio.gather(*pulls, return_exceptions=True)
    return (after - before) / (many - few)


async def _flushed(broker: Broker) -> None:
    """Wait until the bodies that do not fit the cache are on disk, and no checkpoint holds them any more."""
    for pause in repeat(0.05):
        if not broker.shard.store.is_over():
            await broker.checkpoint()
            return
        await asyncio.sleep(pause)


def _resident() -> int:
    """Measure the bytes in use, after the allocators gave back what they do not use."""
    gc.collect()
    pa.default_memory_pool().release_unused()
    ctypes.CDLL(None).malloc_trim(0)
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def main() -> None:
    """Measure one case, and exit without tidying up: a hundred thousand consumers would take long to leave."""
    name, few, many = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    order, grow = CASES[name]
    with tempfile.TemporaryDirectory(prefix="bench-memory-") as folder:
        print(asyncio.run(_growth(Path(folder), order, grow, few, many)), flush=True)


if __name__ == "__main__":
    main()
