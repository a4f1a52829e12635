"""Messages that wait on disk: pulls with little memory, disk space that comes back, and crashes in between."""

import asyncio
from random import Random

import pytest

from tests.behaviour.world import Home, LoopClock, drain, in_loop, reader_of
from wherry import Broker, Message, PublishOptions
from wherry.broker.opening import start
from wherry.broker.upkeep import housekeeping
from wherry.journal.bodies import groups
from wherry.journal.bodies.segments import segment
from wherry.journal.disk.disk import DiskEngine
from wherry.sim.world.disk import SimDisk
from wherry.sim.world.errors import Killed
from wherry.sim.world.loop import run
from wherry.sim.world.process import Process


@pytest.mark.parametrize("key_order", [pytest.param(False, marks=pytest.mark.more), True])
@pytest.mark.parametrize("partitions", [pytest.param(1, marks=pytest.mark.more), 4])
@pytest.mark.parametrize("order", ["fifo", "priority"])
@in_loop
async def test_a_pull_of_scattered_messages_with_memory_for_one_block_gets_on_in_order(
    home: Home, monkeypatch: pytest.MonkeyPatch, order: str, partitions: int, key_order: bool
):
    monkeypatch.setattr(segment, "BLOCK_ROWS_MAX", 5)
    broker = await home.open()
    await broker.create_topic("t", order=order, partitions=partitions)
    reader = await reader_of(broker, "t", key_order=key_order)
    random = Random(1)
    ranks = [random.randrange(1_000) for _ in range(200)]
    for number, rank in enumerate(ranks):
        message = Message(payload=b"%03d/%d" % (rank, number), priority=rank, key=f"k{number % 50}")
        await broker.publish("t", [message], PublishOptions(partition=number % partitions))
    store = broker.shard.store
    store.cache_bytes_max, store.read_cache.bytes_max = 1, 1
    for group in store.overflow(broker.shard.committer.durable):
        await store.seal(group, broker.shard.wanted)
    assert store.cached_bytes == 0
    seen: list[list[bytes]] = [[] for _ in range(partitions)]
    async with asyncio.timeout(30):
        while sum(map(len, seen)) < 200:
            delivery = await reader.pull(200)
            for got in delivery.messages():
                seen[got.partition].append(got.payload)
            await delivery.ack()
    for number, payloads in enumerate(seen):
        sent = [b"%03d/%d" % (rank, place) for place, rank in enumerate(ranks) if place % partitions == number]
        expected = sent if order == "fifo" else sorted(sent, key=lambda payload: int(payload[:3]))
        assert sorted(payloads) == sorted(sent)
        if not key_order:
            assert payloads == expected


class Machine:
    """A broker on a simulated disk: most of what it published is acked, and one in ten waits."""

    def __init__(self, seed: int) -> None:
        self.disk = SimDisk(Random(seed))
        self.left: list[bytes] = []
        self.sent = 0

    def segment_bytes(self) -> int:
        """Return the bytes of segments on the disk."""
        return sum(len(file.cached) for path, file in self.disk.names.cached.items() if path.startswith("segments/"))

    async def boot(self) -> Broker:
        files = self.disk.open()
        engine = DiskEngine(
            files, file_bytes=64 << 10, reserve_bytes=8 << 10, entry_bytes_max=16 << 10, new_seed=lambda: 7
        )
        return await start(engine, files, LoopClock(), cache_bytes=32 << 10, checkpoint_bytes=16 << 10)

    async def fill(self) -> None:
        """Publish until most of the messages are in segments."""
        broker = await self.boot()
        await broker.create_topic("t")
        await broker.subscribe("t", "readers")
        for number in range(40):
            sent = [b"%d/%d" % (number, row) + b"." * 500 for row in range(5)]
            await broker.publish("t", sent)
            self.left += sent
        await asyncio.sleep(2)
        await broker.close()

    async def settle(self) -> None:
        """Ack most of it, then only wait: the disk must get emptier by itself."""
        broker = await self.boot()
        reader = await broker.consumer("t", "readers")
        delivery = await reader.pull(1_000)
        while len(delivery):
            waits = [row for row, payload in enumerate(delivery.payloads()) if not payload.startswith((b"3/", b"21/1"))]
            self.left = [payload for payload in self.left if payload.startswith((b"3/", b"21/1"))]
            if waits:
                await delivery.ack(waits)
            delivery = await reader.pull(1_000)
        await reader.close()  # what the consumer still held waits again
        await asyncio.sleep(60)
        await broker.close()

    async def remains(self) -> list[bytes]:
        """Return everything that is delivered now."""
        broker = await self.boot()
        left = await drain(await broker.consumer("t", "readers"))
        await broker.close()
        return left


def test_a_few_messages_that_wait_do_not_keep_the_disk_full():
    machine = Machine(1)
    run(machine.fill())
    full = machine.segment_bytes()
    run(machine.settle())
    assert len(machine.left) == 6
    assert 0 < machine.segment_bytes() < full / 8
    assert run(machine.remains()) == machine.left


@pytest.mark.more
def test_a_power_cut_while_segments_are_written_again_loses_nothing():
    cuts = rewritten = 0
    for seed in range(50):
        machine = Machine(seed)
        run(machine.fill())
        sent, full, process = list(machine.left), machine.segment_bytes(), Process("broker")

        def cut(step: int, machine: Machine = machine, process: Process = process, at: int = 60 + 6 * seed) -> None:
            if step == at:
                machine.disk.crash()
                process.kill()

        async def main(machine: Machine = machine, process: Process = process) -> bool:
            try:
                await process.call(machine.settle())
            except Killed:
                return True
            return False

        cuts += run(main(), on_step=cut)
        rewritten += machine.segment_bytes() < full
        left = run(machine.remains())
        kept = [payload for payload in sent if payload.startswith((b"3/", b"21/1"))]
        assert set(kept) <= set(left) <= set(sent) and len(left) == len(set(left)), f"seed {seed}"
        assert [payload for payload in left if payload in set(kept)] == kept
    assert cuts > 25 and rewritten > 10


@pytest.mark.parametrize("waits", [False, True])
def test_dead_segments_are_deleted_together_and_soon_however_many_there_are(monkeypatch, waits):
    """Delete dead segments not one by one nor all at the end, but at a checkpoint when there is much to win."""
    monkeypatch.setattr(housekeeping, "GARBAGE_BYTES", 1 << 10)
    monkeypatch.setattr(housekeeping, "GAIN_BYTES", 1 << 10)
    monkeypatch.setattr(groups, "SEGMENT_BYTES_MAX", 4 << 10)

    async def main():
        machine = Machine(3)
        broker = await machine.boot()
        await broker.create_topic("t")
        await broker.subscribe("t", "readers")
        for _ in range(150):
            await broker.publish("t", [b"." * 500] * 5)
        await asyncio.sleep(2)
        count = len(broker.shard.store.segment_paths())
        assert count > 60
        reader = await broker.consumer("t", "readers")
        held = []
        while len(got := await reader.pull(50)):
            await got.ack(range(1, len(got)) if waits else None)
            held += [got] if waits else []
        await asyncio.sleep(6)
        paths = [path for path in machine.disk.names.cached if path.startswith("segments/")]
        assert len(paths) < count / 2
        assert machine.segment_bytes() < 60_000
        await broker.close()

    run(main())
