"""A disk that was full takes messages again by itself: once they are consumed, after a crash, when others let go."""

import asyncio
import itertools
from random import Random

import pytest

from tests.behaviour.small_disk import BODY, FILE, disk_of, drain, fill, opened
from wherry import StorageError
from wherry.journal.disk import disk as engines
from wherry.journal.disk.scan import survey
from wherry.sim.world.disk import DiskFaults, SimDisk
from wherry.sim.world.loop import run

HOLD = b"the one that stays"


@pytest.mark.rows("K15")
@pytest.mark.parametrize("files", [1.5, 2, 3.5, 9])
def test_a_full_disk_takes_messages_again_once_they_are_consumed(files):
    async def main():
        broker = await opened(disk_of(files))
        for _ in range(4):
            taken = await fill(broker)
            assert taken > 15
            assert await drain(broker) == taken
        await broker.close()

    run(main())


@pytest.mark.rows("K15")
@pytest.mark.parametrize("files", [1.5, 2, 3.5])
@pytest.mark.parametrize("power", [True, False])
def test_a_full_disk_takes_messages_again_after_a_crash_too(files, power):
    async def main():
        disk = disk_of(files)
        for _ in range(3):
            broker = await opened(disk)
            taken = await fill(broker)
            assert taken > 15
            assert await drain(broker) == taken
            if power:
                disk.crash()
            else:
                disk.kill()

    run(main())


def test_a_crash_while_the_only_file_is_begun_again_and_one_while_that_is_opened_leave_a_good_journal(monkeypatch):
    """Cut in the middle, that file has no header of its own: it is empty, and not damaged."""
    found = []

    async def spied(files):
        found.append(await survey(files))
        return found[-1]

    monkeypatch.setattr(engines, "survey", spied)

    async def cut_after(steps: int, steps_again: int) -> tuple[bool, bool]:
        disk = disk_of(1.5)
        broker = await opened(disk)
        assert await drain(broker) == 0 < await fill(broker) == await drain(broker)
        over = await _crashed(disk, steps, broker.checkpoint)
        over_again = await _crashed(disk, steps_again, lambda: opened(disk)) if steps_again else True
        again = await opened(disk)
        assert await drain(again) == 0
        if over_again:
            assert await fill(again) > 15
        return over, over_again

    async def main():
        steps, twice, over = 0, 0, False
        while not over:
            steps += 1
            over, _ = await cut_after(steps, 0)
            if not found[-1].kept and found[-1].last > 0:
                again = itertools.count(1)
                while not (await cut_after(steps, next(again)))[1]:
                    twice += 1
        assert steps > 10 < twice

    run(main())


async def _crashed(disk: SimDisk, steps: int, work) -> bool:
    """Cut the power after so many steps of the disk; whether the work was over by then."""
    left, reached = itertools.count(steps - 1, -1), asyncio.Event()

    def on_event(event: str) -> None:
        if not next(left):
            reached.set()

    disk.on_event = on_event
    task = asyncio.create_task(work())
    await asyncio.wait([task, asyncio.create_task(reached.wait())], return_when="FIRST_COMPLETED")
    disk.on_event = lambda event: None
    disk.crash()
    return task.done()


@pytest.mark.rows("K15")
def test_a_message_that_waits_does_not_keep_the_whole_journal():
    async def main():
        broker = await opened(disk_of(3.5))
        await broker.subscribe("t", "slow")
        await broker.publish("t", [HOLD])
        first = await fill(broker)
        assert await drain(broker) == first + 1
        async with await broker.consumer("t", "slow") as slow:
            held = await slow.pull(1)
            while len(got := await slow.pull(500)):
                await got.ack()
            await asyncio.sleep(2)
            again = await fill(broker)
            assert again > first / 2
            assert held.payloads() == [HOLD]
        await broker.close()

    run(main())


@pytest.mark.rows("K15")
def test_a_full_disk_takes_messages_again_when_others_free_what_they_filled():
    async def main():
        disk = disk_of(9)
        broker = await opened(disk)
        await broker.publish("t", [BODY])
        capacity = disk.capacity_bytes
        disk.capacity_bytes -= disk.free_bytes()
        taken = await fill(broker) + 1
        disk.capacity_bytes = capacity
        await asyncio.sleep(2)
        taken += await fill(broker)
        assert await drain(broker) == taken
        await broker.close()

    run(main())


@pytest.mark.rows("K15")
@pytest.mark.parametrize("crash", [False, True])
def test_a_full_disk_takes_messages_again_when_consumed_though_others_took_all_free_space(crash):
    async def main():
        disk = disk_of(9)
        broker = await opened(disk)
        await asyncio.sleep(3)  # the space for a checkpoint is set aside by then
        disk.capacity_bytes -= disk.free_bytes()
        taken = await fill(broker)
        if crash:
            disk.crash()
            broker = await opened(disk)
        for _ in range(3):
            assert await drain(broker) == taken
            taken = await fill(broker)
            assert taken > 15
        await broker.close()

    run(main())


@pytest.mark.rows("K15")
@pytest.mark.parametrize("files", [1.5, pytest.param(3.5, marks=pytest.mark.more)])
def test_acks_of_single_messages_never_fill_what_is_kept_back_for_them(files):
    async def main():
        broker = await opened(disk_of(files))
        small = [b"x" * 256] * 20
        for _ in range(2):
            taken = await fill(broker, small)
            assert taken > 100
            assert await drain(broker, 1) == taken
        await broker.close()

    run(main())


@pytest.mark.rows("K15")
def test_what_moved_to_segments_frees_the_journal_though_nothing_was_written_since_the_last_checkpoint():
    async def main():
        disk = disk_of(3.5)
        broker = await opened(disk)
        await broker.subscribe("t", "slow")
        await asyncio.sleep(3)
        await broker.publish("t", [HOLD])
        assert await fill(broker) > 15
        free = disk.free_bytes()
        disk.capacity_bytes -= free  # there is no room to move anything
        await drain(broker)
        slow = await broker.consumer("t", "slow")
        held = await slow.pull(1)
        while len(got := await slow.pull(500)):
            await got.ack()
        await held.release()
        await asyncio.sleep(5)
        await broker.checkpoint()
        disk.capacity_bytes += min(free, 100 << 10)  # less than a file of the journal
        await asyncio.sleep(5)
        assert await fill(broker) > 15
        assert (await slow.pull(1)).payloads() == [HOLD]
        await broker.close()

    run(main())


def test_a_close_waits_for_a_move_to_segments_that_is_under_way():
    async def main():
        disk = disk_of(3.5)
        broker = await opened(disk)
        await broker.publish("t", [HOLD])
        await fill(broker)
        reader = await broker.consumer("t", "readers")
        await reader.pull(1)
        while len(got := await reader.pull(500)):
            await got.ack()
        writes: list[str] = []
        disk.on_event = writes.append
        for _ in range(1_000):  # a call that comes too soon after the last one is refused at once
            asked = asyncio.create_task(broker.shard.reclaim())
            await asyncio.wait([asked], timeout=0.000_05)
            if not asked.done():
                break
            await asyncio.sleep(0.01)
        assert not asked.done()
        await broker.close()
        written = len(writes)
        assert asked.done() and asked.exception() is None
        await asyncio.sleep(5)
        assert len(writes) == written

    run(main())


@pytest.mark.rows("K15")
def test_space_that_was_set_aside_for_a_large_state_comes_back_to_the_journal():
    async def main():
        disk = disk_of(9)
        broker = await opened(disk)
        reserve = broker._housekeeper._reserve
        await reserve.keep(4 * FILE)
        disk.capacity_bytes -= disk.free_bytes()
        slow = await broker.consumer("t", "readers")
        taken = await fill(broker)
        held = await slow.pull(500)  # so that nothing of the journal can go
        await asyncio.sleep(2)
        assert await fill(broker) > 2 * taken
        assert len(held) == taken
        await broker.close()

    run(main())


@pytest.mark.more
@pytest.mark.parametrize("seed", [4])
def test_a_flush_of_memory_beside_publishes_that_are_short_of_room_writes_each_message_once(seed):
    """Run both at once, since they move messages to segments and may pick the same ones."""
    random = Random(seed)

    async def publish(broker) -> None:
        for _ in range(60):
            try:
                await broker.publish("t", [b"x" * random.choice([500, 4_000])])
            except StorageError:
                await asyncio.sleep(random.random() * 0.5)

    async def consume(broker) -> None:
        async with await broker.consumer("t", "readers") as reader:
            for _ in range(40):
                got = await reader.pull(random.randint(1, 8), wait_ms=200)
                if done := random.randint(0, len(got)):
                    await got.ack(range(done))

    async def main(files: float, cache_bytes: int):
        disk = SimDisk(Random(seed), DiskFaults(stalls=0.0), capacity_bytes=int(files * FILE) + (48 << 10))
        broker = await opened(disk, cache_bytes)
        await asyncio.gather(*(publish(broker) for _ in range(6)), consume(broker))
        segments = sorted(broker.shard.store.snapshot().segments, key=lambda each: each.first)
        assert all(before.last < after.first for before, after in itertools.pairwise(segments))
        waiting = broker.stats("t").messages
        assert await drain(broker) == waiting
        await broker.close()

    for files, cache_bytes in itertools.product((3.5, 5), (48 << 10, 96 << 10)):
        run(main(files, cache_bytes))
