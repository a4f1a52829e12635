"""Checks at the end of a run: a full disk, cancelled pulls, late subscriptions.

The first two must leave the broker as it was. After the disk was full, even without a free byte and after a crash, the
broker accepts messages again once the old ones are consumed. Messages that expire meanwhile fail no call, and go when
there is room, in as many entries as it takes. A cancelled pull that got nothing returns its credit.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from random import Random

from wherry.broker.broker import Broker
from wherry.broker.calls.consumer import Consumer
from wherry.model.errors import DiskFull, StorageError, WherryError
from wherry.model.schema import Message
from wherry.sim.clients.late import late
from wherry.sim.world.world import CAPACITY_BYTES, World

TOPIC, READERS = "aftermath", "readers"
BODY = bytes(900)
SOON, SOON_COUNT, SOON_READERS = "soon", 300, 4
"""A topic with messages that expire while the disk is full: their dead letters do not fit one entry."""
SOON_S = 3
FILL_MAX = 2_000
"""Publishes at most: more than the disk of any run can store."""
PATIENCE_S = 5
CREDIT = 5
FULL = (DiskFull, StorageError)
"""No space for the journal, or none for the segments that would relieve memory."""


async def aftermath(world: World) -> None:
    """Fill the disk and cancel pulls, after the topics and open stages of the run are deleted."""
    random = Random(f"{world.seed}/aftermath")
    try:
        await world.call(_cleared)
        await _full_disk(world, random)
        await _expiry_on_a_full_disk(world, Random(f"{world.seed}/soon"))
        await _given_up_pulls(world, random)
        await late(world, random)
    except WherryError as fault:
        world.history.faults.append(f"aftermath: {type(fault).__name__}: {fault}")


async def _cleared(broker: Broker) -> None:
    for topic in broker.topics():
        await broker.delete_topic(topic.name)
    for key in list(broker.shard.state.stages.open):
        await broker.abort(key)
    await broker.create_topic(TOPIC)
    await broker.subscribe(TOPIC, READERS)
    await asyncio.sleep(2)
    await broker.checkpoint()  # reserves space for the next checkpoint


async def _full_disk(world: World, random: Random) -> None:
    disk = world.disk
    disk.capacity_bytes -= disk.free_bytes()
    for number in range(2):
        taken = await world.call(_fill)
        if random.random() < 0.5:
            world.end_life(power=random.random() < 0.5)
            await world.boot()
        drained = await world.call(_drain)
        if drained != taken:
            world.history.faults.append(f"full_disk: {taken} messages were accepted, and {drained} were delivered")
        if not await world.call(_takes_again):
            world.history.faults.append(f"full_disk: the broker accepts no message after drain {number + 1}")
    disk.capacity_bytes = CAPACITY_BYTES


async def _expiry_on_a_full_disk(world: World, random: Random) -> None:
    disk = world.disk
    await world.call(_soon)
    disk.capacity_bytes -= disk.free_bytes()
    taken = await world.call(_fill)
    await asyncio.sleep(random.random() * 2 * SOON_S)
    drained = await world.call(_drain)
    if drained != taken:
        world.history.faults.append(f"full_disk: {taken} messages were accepted, and {drained} were delivered")
    disk.capacity_bytes = CAPACITY_BYTES
    await asyncio.sleep(2 * SOON_S)
    left, dead = await world.call(_soon_left)
    if (left, dead) != (0, SOON_COUNT * SOON_READERS):
        world.history.faults.append(f"full_disk: {left} messages have not expired, {dead} are dead letters")
    await world.call(lambda broker: broker.delete_topic(SOON))


async def _soon(broker: Broker) -> None:
    """Publish messages that expire soon."""
    await broker.create_topic(SOON, expired="dead-letter")
    for number in range(SOON_READERS):
        await broker.subscribe(SOON, f"{READERS}-{number}")
    expires_ms = broker.shard.clock.wall_us() // 1_000 + SOON_S * 1_000
    for _ in range(SOON_COUNT // 100):
        await broker.publish(SOON, [Message(payload=b"", expires_ms=expires_ms)] * 100)


async def _soon_left(broker: Broker) -> tuple[int, int]:
    stats = broker.stats(SOON)
    return stats.messages, stats.dead


async def _fill(broker: Broker) -> int:
    for count in range(FILL_MAX):
        try:
            await broker.publish(TOPIC, [BODY])
        except FULL:
            return count
    return FILL_MAX


async def _drain(broker: Broker) -> int:
    drained = 0
    async with await broker.consumer(TOPIC, READERS) as consumer:
        while len(got := await consumer.pull(7)):
            drained += len(got)
            await got.ack()
    return drained


async def _takes_again(broker: Broker) -> bool:
    """Publish more than one journal file holds, since the last file may have free space left; consume all of it."""
    for _ in range(PATIENCE_S):
        full = False
        try:
            for _ in range(10):
                await broker.publish(TOPIC, [BODY])
        except FULL:
            full = True
        await _drain(broker)
        if not full:
            return True
        await asyncio.sleep(1)  # the messages were in the only file, which now holds nothing that is needed
    return False


async def _given_up_pulls(world: World, random: Random) -> None:
    world.disk.faults = replace(world.disk.faults, delay_us_min=5_000, delay_us_max=50_000)
    await world.call(lambda broker: _give_up(world, broker, random))


async def _give_up(world: World, broker: Broker, random: Random) -> None:
    async with await broker.consumer(TOPIC, READERS) as consumer:
        consumer.grant(CREDIT)
        for _ in range(6):
            await _one_given_up(broker, consumer, random.random() * 0.1)
            got = await consumer.pull(CREDIT)
            if consumer.unsettled_messages != len(got):
                world.history.faults.append(
                    f"credit: {consumer.unsettled_messages} are held, and {len(got)} were delivered"
                )
            if len(got) < CREDIT:
                world.history.faults.append(
                    f"credit: {len(got)} were delivered of {CREDIT} that wait and are within the credit"
                )
            await got.ack()
            consumer.grant(CREDIT)


async def _one_given_up(broker: Broker, consumer: Consumer, after_s: float) -> None:
    """Pull messages during their publish, and cancel the pull, mostly before they are durable; release what came."""
    publishing = asyncio.create_task(broker.publish(TOPIC, [BODY] * CREDIT))
    pulling = asyncio.create_task(consumer.pull(CREDIT, wait_ms=None))
    await asyncio.sleep(after_s)
    pulling.cancel()
    await asyncio.wait([pulling])
    if not pulling.cancelled():
        pulling.result().take_back()
    await publishing
