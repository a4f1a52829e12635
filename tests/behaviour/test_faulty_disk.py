"""A disk that is full, that fails, or that another process has locked: what clients see, and that nothing is lost."""

import asyncio
import shutil
from dataclasses import replace
from random import Random

import pytest

import wherry
from wherry import Closed, DiskFull, InUse, StorageError, WriterFailed
from wherry.broker.opening import start
from wherry.journal.disk.disk import DiskEngine
from wherry.sim.world.clock import SimClock
from wherry.sim.world.disk import DiskFaults, SimDisk
from wherry.sim.world.loop import run

CAPACITY = 2 << 20
BODY = b"x" * 4_000


def world() -> SimDisk:
    return SimDisk(Random(5), DiskFaults(stalls=0.0), capacity_bytes=CAPACITY)


async def opened(disk: SimDisk, cache_bytes: int = 256 << 20):
    files = disk.open()
    engine = DiskEngine(files, file_bytes=128 << 10, reserve_bytes=24 << 10, entry_bytes_max=32 << 10)
    broker = await start(engine, files, SimClock(Random(1)), cache_bytes=cache_bytes)
    await broker.create_topic("t")
    await broker.subscribe("t", "readers")
    return broker


async def fill(broker) -> int:
    """Publish until the disk is full, and return how many messages were taken."""
    for count in range(10_000):
        try:
            await broker.publish("t", [BODY])
        except DiskFull as fault:
            assert "nothing was stored" in str(fault)
            return count
    raise AssertionError("the disk never filled up")


@pytest.mark.rows("K15")
def test_a_full_disk_refuses_publishes_while_consuming_continues_and_recovers_when_space_returns():
    async def main():
        disk = world()
        broker = await opened(disk)
        taken = await fill(broker)
        assert taken > 50
        reader = await broker.consumer("t", "readers")
        for _ in range(10):
            got = await reader.pull(3)
            assert got.payloads() == [BODY] * 3
            await got.ack()
        with pytest.raises(DiskFull):
            for _ in range(50):
                await broker.publish("t", [BODY])
        disk.capacity_bytes = 4 * CAPACITY
        await asyncio.sleep(5)
        await broker.publish("t", [b"again"])
        rest = []
        while len(got := await reader.pull(500)):
            rest += got.payloads()
            await got.ack()
        assert len(rest) >= taken - 30 + 1
        assert rest[-1] == b"again"
        await broker.close()

    run(main())


@pytest.mark.parametrize("cache_bytes", [256 << 20, 1 << 20])
def test_what_a_full_disk_took_is_there_after_a_power_cut(cache_bytes):
    async def main():
        disk = world()
        broker = await opened(disk, cache_bytes)
        taken = await fill(broker)
        reader = await broker.consumer("t", "readers")
        await (await reader.pull(7)).ack()
        disk.crash()
        again = await opened(disk, cache_bytes)
        assert again.stats("t").subscriptions[0].ready == taken - 7

    run(main())


def test_a_failed_sync_stops_the_writer_for_good_and_is_reported():
    async def main():
        disk = world()
        broker = await opened(disk)
        await broker.publish("t", [b"safe"])
        disk.faults = replace(disk.faults, sync_fails=1.0)
        with pytest.raises(WriterFailed, match="open it again"):
            await broker.publish("t", [b"lost"])
        disk.faults = DiskFaults(stalls=0.0)
        for call in (broker.publish("t", [b"no"]), broker.create_topic("u"), broker.consumer("t", "readers")):
            with pytest.raises(WriterFailed):
                await call
        await broker.close()
        await asyncio.sleep(1)  # for what the disk was still at: a real one is waited for by closing
        again = await opened(disk)
        reader = await again.consumer("t", "readers")
        assert b"safe" in (await reader.pull()).payloads()

    run(main())


def test_memory_that_cannot_be_moved_to_disk_is_an_error_and_not_a_hang():
    async def main():
        disk = world()
        broker = await opened(disk, cache_bytes=64 << 10)
        disk.faults = replace(disk.faults, write_fails=0.0)
        disk.capacity_bytes = CAPACITY - disk.free_bytes() + (300 << 10)
        with pytest.raises(StorageError):
            for _ in range(2_000):
                await broker.publish("t", [BODY])
        disk.capacity_bytes = 16 * CAPACITY
        await asyncio.sleep(5)
        await broker.publish("t", [b"again"])
        await broker.close()

    run(main())


def test_a_second_broker_on_the_same_directory_is_refused(tmp_path):
    async def main():
        async with wherry.open(tmp_path / "data"):
            with pytest.raises(InUse, match="one process at a time"):
                async with wherry.open(tmp_path / "data"):
                    pass
        async with wherry.open(tmp_path / "data") as broker:
            assert broker.topics() == []
        with pytest.raises(Closed):
            await broker.create_topic("late")

    asyncio.run(main())


def test_a_flipped_bit_in_the_middle_of_the_journal_is_refused_with_file_and_place(tmp_path):
    async def write():
        async with wherry.open(tmp_path / "data") as broker:
            await broker.create_topic("t")
            for number in range(20):
                await broker.publish("t", [f"message {number}".encode()])
            shutil.copytree(tmp_path / "data", tmp_path / "crashed")

    asyncio.run(write())
    (journal,) = (tmp_path / "crashed" / "journal").glob("0*.log")
    data = bytearray(journal.read_bytes())
    at = data.index(b"message 7")
    data[at] ^= 4
    journal.write_bytes(data)

    async def reopen():
        async with wherry.open(tmp_path / "crashed"):
            pass

    with pytest.raises(wherry.Corrupt, match=journal.name) as found:
        asyncio.run(reopen())
    assert at - 1_000 < found.value.at < at
    assert journal.read_bytes() == data, "a damaged journal must be left as it is"


def test_nothing_is_handed_out_before_it_is_durable_also_from_memory_that_is_over_its_budget(tmp_path):
    async def main():
        async with wherry.open(tmp_path, cache_bytes=1 << 20) as broker:
            await broker.create_topic("t")
            await broker.subscribe("t", "readers")
            reader = await broker.consumer("t", "readers")
            append, go = broker.shard.writer.append, asyncio.Event()

            async def held_back(bodies, expected):
                await go.wait()
                return await append(bodies, expected)

            broker.shard.writer.append = held_back  # type: ignore[method-assign]
            broker.shard.writer.append_at_once = lambda *_: None  # type: ignore[method-assign]
            publishing = [asyncio.create_task(broker.publish("t", [b"x" * 1_000] * 500)) for _ in range(4)]
            pulling = asyncio.create_task(reader.pull(100, wait_ms=None))
            await asyncio.sleep(0.3)
            assert not pulling.done()
            assert not any(task.done() for task in publishing)
            go.set()
            assert len(await pulling) == 100
            await asyncio.gather(*publishing)

    asyncio.run(main())
