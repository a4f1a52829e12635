"""Messages that expire while the journal has no room for that: no call fails, and they go when there is room."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.behaviour.small_disk import disk_of, drain, fill, opened
from wherry import Broker, DiskFull, Message, Retry
from wherry.broker.commit.shard import REFUSED_MS
from wherry.core.inspect.audit import audit
from wherry.model import ops
from wherry.model.ops import Entry
from wherry.sim.world.loop import run

COUNT = 500
LATER_S = 30


async def with_messages(broker: Broker, count: int = COUNT, readers: int = 1, **topic: Any) -> None:
    """Make a topic `soon` with messages that expire after `LATER_S`, and that many subscriptions."""
    await broker.create_topic("soon", **{"expired": "dead-letter", **topic})
    for number in range(readers):
        await broker.subscribe("soon", f"r{number}")
    expires_ms = broker.shard.now().wall_ms + LATER_S * 1_000
    for _ in range(count // 100):
        await broker.publish("soon", [Message(payload=b"x", expires_ms=expires_ms)] * 100)


async def use_up(broker: Broker) -> None:
    """Fill the disk, and what is kept back for settles, until nothing can be settled either."""
    await broker.subscribe("t", "failing", retry=Retry(attempts=None, first_ms=0, jitter=0.0))
    await fill(broker)
    async with await broker.consumer("t", "failing") as failing:
        with pytest.raises(DiskFull):
            while True:
                await (await failing.pull(1)).nack(delay_ms=0)


def written(broker: Broker) -> list[Entry]:
    """Return a list that gets every entry that is journaled from now on."""
    found: list[Entry] = []
    write = broker.shard._write

    def noted(encoded: Any) -> int:
        found.extend(entry for _, _, entry in encoded if not entry.volatile)
        return write(encoded)

    broker.shard._write = noted  # type: ignore[method-assign]
    return found


@pytest.mark.parametrize("partitions", [1, 3])
def test_a_full_disk_fails_no_call_that_only_looks(partitions: int):
    async def main() -> None:
        disk = disk_of(1.5)
        broker = await opened(disk)
        await with_messages(broker, partitions=partitions)
        await use_up(broker)
        spaces = spied(broker)
        entries = written(broker)
        await asyncio.sleep(LATER_S + 3)
        assert (broker.stats("soon").messages, broker.stats("soon").dead) == (COUNT, 0)
        async with await broker.consumer("soon", "r0") as reader:
            assert len(await reader.pull(10)) == 10
        assert (await broker.browse("soon", limit=5)).num_rows == 5
        assert entries == []
        assert len(spaces) >= LATER_S, "the housekeeper did not come to the space on the disk"
        assert broker.shard.trouble is None
        disk.crash()
        broker = await opened(disk)
        assert broker.stats("soon").messages == COUNT
        await broker.close()

    run(main())


def spied(broker: Broker) -> list[float]:
    """Return a list that gets the time of each look of the housekeeper at the space on the disk."""
    times: list[float] = []
    do_space = broker._housekeeper._do_space

    async def noted() -> None:
        times.append(asyncio.get_running_loop().time())
        await do_space()

    broker._housekeeper._do_space = noted  # type: ignore[method-assign]
    return times


def test_after_a_round_that_found_no_room_the_housekeeper_waits_for_the_next():
    async def main() -> None:
        broker = await opened(disk_of(1.5))
        await with_messages(broker)
        await use_up(broker)
        await asyncio.sleep(LATER_S + 3)
        spaces = spied(broker)
        await asyncio.sleep(10)
        assert 10 <= len(spaces) <= 10_000 // REFUSED_MS + 2
        await broker.close()

    run(main())


@pytest.mark.parametrize("partitions", [1, 3])
def test_messages_that_expired_on_a_full_disk_are_removed_once_there_is_room(partitions: int):
    async def main() -> None:
        disk = disk_of(1.5)
        broker = await opened(disk)
        await with_messages(broker, partitions=partitions)
        await use_up(broker)
        await asyncio.sleep(LATER_S)
        disk.capacity_bytes *= 4
        await asyncio.sleep(5)
        stats = broker.stats("soon")
        assert (stats.messages, stats.dead, stats.counters["expired"]) == (0, COUNT, COUNT)
        audit(broker.shard.state)
        await broker.close()

    run(main())


def test_what_expires_on_a_full_disk_leaves_the_room_for_acks():
    async def main() -> None:
        disk = disk_of(3.5)
        broker = await opened(disk)
        await with_messages(broker, 3_000, readers=5)
        taken = await fill(broker)
        before = broker.shard.committer.submitted
        await asyncio.sleep(LATER_S + 2)
        assert broker.shard.committer.submitted > before, "some dead letters fit"
        assert broker.stats("soon").messages > 0, "the disk was not full, so this test shows nothing"
        assert await drain(broker, 1) == taken
        await broker.close()

    run(main())


@pytest.mark.parametrize("readers", [1, 5])
@pytest.mark.parametrize("expired", ["drop", "dead-letter"])
def test_more_than_an_entry_holds_expires_in_several(readers: int, expired: str):
    """Take 5 subscriptions: dead letters of 3,000 messages are then ten times as many bytes as an entry may have."""

    async def main() -> None:
        disk = disk_of(9)
        broker = await opened(disk)
        await with_messages(broker, 3_000, readers, expired=expired)
        entries = written(broker)
        await asyncio.sleep(LATER_S + 2)
        dead = 3_000 * readers if expired == "dead-letter" else 0
        assert (broker.stats("soon").messages, broker.stats("soon").dead) == (0, dead)
        assert broker.shard.trouble is None
        if not dead:
            assert len([entry for entry in entries if any(isinstance(op, ops.Remove) for op in entry.ops)]) <= 3
        audit(broker.shard.state)
        disk.crash()
        broker = await opened(disk)
        assert (broker.stats("soon").messages, broker.stats("soon").dead) == (0, dead)
        await broker.close()

    run(main())


def test_many_that_are_given_back_after_they_expired_are_removed_in_several_entries():
    async def main() -> None:
        broker = await opened(disk_of(9))
        await with_messages(broker, 3_000)
        async with await broker.consumer("soon", "r0") as reader:
            held = await reader.pull(3_000)
            await asyncio.sleep(LATER_S + 1)
            assert broker.stats("soon").messages == 3_000
            await held.release()
            await asyncio.sleep(2)
        assert (broker.stats("soon").messages, broker.stats("soon").dead) == (0, 3_000)
        await broker.close()

    run(main())
