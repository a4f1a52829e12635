"""What survives: a clean close, a crash, a power cut; and what was acked stays acked."""

import asyncio
from random import Random

import pytest

from tests.behaviour.world import Home, LoopClock, VirtualClock, bodies, drain, in_loop, reader_of
from wherry import Broker, Closed, InUse, Message, PublishOptions, Retry
from wherry import open as open_broker
from wherry.broker.opening import start
from wherry.journal.disk.disk import DiskEngine
from wherry.sim.world.disk import SimDisk
from wherry.sim.world.errors import Killed
from wherry.sim.world.loop import run
from wherry.sim.world.process import Process


@pytest.mark.rows("G20", "A15", "A16")
@in_loop
async def test_everything_is_there_again_and_delivery_continues(home: Home, clock: VirtualClock, how: str):
    broker = await home.open()
    await broker.create_topic("t", partitions=3, order="priority", messages_max=1_000)
    await broker.subscribe("t", "quick", retry=Retry(first_ms=100, jitter=0.0))
    await broker.subscribe("t", "slow")
    sent = [Message(payload=b"%d" % n, key=f"k{n % 5}", priority=n % 7) for n in range(60)]
    await broker.publish("t", sent)
    reader = await broker.consumer("t", "quick")
    acked = []
    for _ in range(4):
        delivery = await reader.pull(6)
        await delivery.ack([0, 2, 4])
        acked += delivery.payloads()[0:6:2]
        await delivery.nack([1])
    broker = await home.again(how)
    assert broker.topics()[0].messages_max == 1_000
    clock.advance(100)
    rest = await drain(await broker.consumer("t", "quick"), batch=10)
    assert sorted(rest + acked) == sorted(message.payload for message in sent)
    assert sorted(await drain(await broker.consumer("t", "slow"))) == sorted(message.payload for message in sent)
    assert broker.stats("t").messages == 0


@pytest.mark.rows("A16")
@in_loop
async def test_what_was_acked_stays_acked_through_many_restarts(home: Home):
    random = Random(11)
    broker = await home.open()
    await broker.create_topic("t", partitions=2)
    names = ("one", "other")
    for name in names:
        await broker.subscribe("t", name, retry=Retry(attempts=None, first_ms=0, jitter=0.0))
    open_for: dict[str, set[bytes]] = {name: set() for name in names}
    for life in range(9):
        fresh = [b"%d/%d" % (life, n) for n in range(20)]
        await broker.publish("t", fresh)
        for name in names:
            open_for[name] |= set(fresh)
            reader = await broker.consumer("t", name)
            for _ in range(4):
                delivery = await reader.pull(random.randrange(1, 9))
                if not len(delivery):
                    continue
                got = delivery.payloads()
                assert set(got) <= open_for[name], "acked before, delivered again"
                rows = [row for row in range(len(got)) if random.random() < 0.6]
                if rows:
                    await delivery.ack(rows)
                    open_for[name] -= {got[row] for row in rows}
                if len(rows) < len(got) and random.random() < 0.5:
                    await delivery.nack()
        broker = await home.again(random.choice(["closed", "crashed", "checkpointed and crashed"]))
    for name in names:
        assert set(await drain(await broker.consumer("t", name))) == open_for[name]


@pytest.mark.rows("G20")
@in_loop
async def test_a_backlog_in_segments_and_in_the_journal_comes_back_as_one(home: Home, how: str):
    broker = await home.open(cache_bytes=1 << 20)
    await broker.create_topic("t", order="priority")
    reader = await reader_of(broker, "t")
    for number in range(60):
        await broker.publish("t", [Message(payload=b"%d" % number + b"." * 50_000, priority=number * 37 % 60)])
    await (await reader.pull(7)).ack()
    for _ in range(500):
        if any(home.path.rglob("*.arrow")):
            break
        await asyncio.sleep(0.01)
    assert any(home.path.rglob("*.arrow"))
    broker = await home.again(how)
    await broker.publish("t", [Message(payload=b"last", priority=65_535)])
    seen = await drain(await broker.consumer("t", "readers"), batch=9)
    ranks = [int(body.rstrip(b".")) * 37 % 60 for body in seen[:-1]]
    assert ranks == list(range(7, 60))
    assert seen[-1] == b"last"


@pytest.mark.rows("G20")
@in_loop
async def test_a_restart_of_nothing_and_of_nothing_but_names(home: Home, how: str):
    await home.open()
    broker = await home.again(how)
    assert broker.topics() == []
    await broker.create_topic("t")
    await broker.subscribe("t", "readers")
    broker = await home.again(how)
    broker = await home.again(how)
    assert await drain(await broker.consumer("t", "readers")) == []
    await broker.publish("t", [b"x"])
    assert await drain(await broker.consumer("t", "readers")) == [b"x"]


@in_loop
async def test_a_second_broker_on_the_directory_is_refused_and_the_first_continues(home: Home):
    broker = await home.open()
    await broker.create_topic("t")
    with pytest.raises(InUse):
        async with open_broker(home.path):
            pass
    await broker.publish("t", [b"x"])


@in_loop
async def test_a_closed_broker_fails_all_calls_and_waits(home: Home):
    broker = await home.open()
    await broker.create_topic("t")
    reader = await reader_of(broker, "t")
    waiting = asyncio.create_task(reader.pull(wait_ms=None))
    await asyncio.sleep(0.01)
    await home.close()
    with pytest.raises(Closed):
        await asyncio.wait_for(waiting, 5)
    with pytest.raises(Closed):
        await broker.publish("t", [b"x"])
    with pytest.raises(Closed):
        await reader.pull()


# Power cuts, on the simulated disk: what was not synced is lost or torn.


class Machine:
    """A broker on a disk that loses its power: what it confirmed before is remembered here."""

    def __init__(self, seed: int) -> None:
        self.disk = SimDisk(Random(seed))
        self.confirmed: list[bytes] = []
        self.acking: list[bytes] = []
        self.acked: list[bytes] = []

    async def boot(self) -> Broker:
        files = self.disk.open()
        engine = DiskEngine(
            files, file_bytes=64 << 10, reserve_bytes=8 << 10, entry_bytes_max=16 << 10, new_seed=lambda: 7
        )
        return await start(engine, files, LoopClock(), cache_bytes=16 << 10, checkpoint_bytes=8 << 10)

    async def work(self) -> None:
        """Publish and ack, and note each call when it has returned."""
        broker = await self.boot()
        await broker.create_topic("t", partitions=2)
        await broker.subscribe("t", "readers")
        reader = await broker.consumer("t", "readers")

        async def produce(name: int) -> None:
            for number in range(12):
                sent = [b"%d/%d/%d" % (name, number, row) + b"." * 400 for row in range(3)]
                await broker.publish("t", sent, PublishOptions(partition=name % 2))
                self.confirmed += sent

        async def consume() -> None:
            for _ in range(20):
                delivery = await reader.pull(2, wait_ms=50)
                if len(delivery):
                    self.acking += delivery.payloads()  # whether these are acked is open until the ack returns
                    await delivery.ack()
                    self.acked += delivery.payloads()

        await asyncio.gather(produce(0), produce(1), consume())

    async def remains(self) -> list[bytes]:
        """Return everything that is delivered after the power is back."""
        broker = await self.boot()
        if "t" not in [topic.name for topic in broker.topics()]:
            return []
        await broker.subscribe("t", "readers")
        left = await drain(await broker.consumer("t", "readers"))
        await broker.close()
        return left


def cut_power(machine: Machine, at_step: int) -> bool:
    """Run until the step or the end; whether the power was cut before the end."""
    process = Process("broker")

    def cut(step: int) -> None:
        if step == at_step:
            machine.disk.crash()
            process.kill()

    async def main() -> bool:
        try:
            await process.call(machine.work())
        except Killed:
            return True
        machine.disk.crash()
        process.kill()
        return False

    return run(main(), on_step=cut)


@pytest.mark.more
@pytest.mark.rows("A15", "A16", "G20")
def test_a_power_cut_loses_nothing_confirmed_and_brings_nothing_back_that_was_acked():
    cuts = 0
    for seed in range(60):
        machine = Machine(seed)
        cuts += cut_power(machine, at_step=20 + seed * 8)
        left = run(machine.remains())
        assert set(machine.confirmed) <= {*left, *machine.acking}, f"seed {seed}: confirmed, and lost"
        assert not set(machine.acked) & set(left), f"seed {seed}: acked, and delivered again"
        assert len(left) == len(set(left))
    assert cuts > 50


@pytest.mark.rows("A15")
def test_a_sync_that_is_skipped_is_noticed():
    for seed in range(60):
        machine = Machine(seed)
        machine.disk.skip_sync = True
        cut_power(machine, at_step=20 + seed * 9)
        machine.disk.skip_sync = False
        try:
            left = run(machine.remains())
        except Exception:  # a hole in the middle is noticed as well
            return
        if not set(machine.confirmed) <= {*left, *machine.acking} or set(machine.acked) & set(left):
            return
    pytest.fail("60 power cuts without a single sync were not noticed")


@in_loop
async def test_the_public_door_opens_a_directory_and_memory(home: Home):
    async with open_broker(home.path, clock=home.clock) as broker:
        await broker.create_topic("t")
        await broker.publish("t", bodies(1))
    async with open_broker(str(home.path), clock=home.clock) as broker:
        assert await drain(await reader_of(broker, "t")) == bodies(1)
    async with open_broker(clock=home.clock) as broker:
        assert broker.topics() == []
