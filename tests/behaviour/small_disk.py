"""A broker on a simulated disk that is small, and gets full."""

from __future__ import annotations

from random import Random

from wherry import Broker, DiskFull
from wherry.broker.opening import start
from wherry.journal.disk.disk import DiskEngine
from wherry.sim.world.clock import SimClock
from wherry.sim.world.disk import DiskFaults, SimDisk

FILE = 128 << 10
BODY = b"x" * 4_000


async def opened(disk: SimDisk, cache_bytes: int = 64 << 20):
    files = disk.open()
    engine = DiskEngine(files, file_bytes=FILE, reserve_bytes=24 << 10, entry_bytes_max=32 << 10)
    broker = await start(engine, files, SimClock(Random(1)), cache_bytes=cache_bytes)
    await broker.create_topic("t")
    await broker.subscribe("t", "readers")
    return broker


async def fill(broker: Broker, batch: tuple[bytes, ...] | list[bytes] = (BODY,)) -> int:
    """Publish until the disk is full, and return how many messages were taken."""
    for count in range(10_000):
        try:
            await broker.publish("t", list(batch))
        except DiskFull:
            return count * len(batch)
    raise AssertionError("the disk never filled up")


async def drain(broker: Broker, size: int = 500) -> int:
    """Consume everything, so many messages at a time; how many there were."""
    async with await broker.consumer("t", "readers") as reader:
        drained = 0
        while len(got := await reader.pull(size)):
            drained += len(got)
            await got.ack()
        return drained


def disk_of(files: float) -> SimDisk:
    """Make a disk with space for so many files of the journal."""
    return SimDisk(Random(5), DiskFaults(stalls=0.0), capacity_bytes=int(files * FILE) + (48 << 10))
