"""Subscribe after messages were published, some of them transient, with a crash during or after the backfill.

A persistent message must be delivered once in any case; a transient one at most once, and exactly once without a crash.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from random import Random

from wherry.broker.broker import Broker
from wherry.model.calls.publish import PublishOptions
from wherry.model.catalog.topic import ORDERS, Topic
from wherry.model.schema import Message
from wherry.sim.world.world import LOST, World

READERS = "latecomers"
DUE_S_MAX = 2
LATER = b"after"


async def late(world: World, random: Random) -> None:
    """Check it once for each order, each in a topic of its own."""
    for order in ORDERS:
        topic = Topic(name=f"late-{order}", order=order, partitions=random.choice((1, 2)))
        stored, passing = await _published(world, topic, random)
        if random.random() < 0.3:
            await world.call(lambda broker: broker.checkpoint())
        crashed = await _subscribed(world, topic.name, random)
        await world.call(lambda broker, name=topic.name: broker.publish(name, [LATER]))  # type: ignore[misc]
        stored.append(LATER)
        got = await world.call(lambda broker, name=topic.name: _drained(broker, name))  # type: ignore[misc]
        missing = Counter(stored if crashed else stored + passing) - Counter(got)
        surplus = Counter(got) - Counter(stored + passing)
        if missing or surplus:
            world.history.faults.append(f"late: {order}, crash {crashed}: missing {missing}, too much {surplus}")


async def _published(world: World, topic: Topic, random: Random) -> tuple[list[bytes], list[bytes]]:
    """Publish before there is a subscription; return the persistent and the transient messages."""
    names: tuple[list[bytes], list[bytes]] = ([], [])
    await world.call(lambda broker: broker.create_topic(topic))
    for number in range(random.randint(1, 12)):
        stored, name = random.random() < 0.5, b"%d" % number
        due_ms = world.clock.wall_us() // 1000 + random.randrange(1000 * DUE_S_MAX) if random.random() < 0.4 else None
        message = Message(payload=name, priority=random.randrange(4), due_ms=due_ms)
        options = PublishOptions(persistent=stored)
        await world.call(lambda broker, m=message, o=options: broker.publish(topic.name, [m], o))  # type: ignore[misc]
        names[0 if stored else 1].append(name)
    return names


async def _subscribed(world: World, topic: str, random: Random) -> bool:
    """Subscribe to the messages that are there; return whether the broker died meanwhile or soon after."""

    async def subscribe() -> None:
        await world.call(lambda broker: broker.subscribe(topic, READERS, start="earliest"))

    crash = random.random() < 0.7
    work = asyncio.create_task(subscribe())
    await asyncio.sleep(random.random() * 0.2 if crash else 1)
    if crash:
        world.end_life(power=random.random() < 0.5)
        await world.boot()
    try:
        await work
    except LOST:
        await subscribe()
    return crash


async def _drained(broker: Broker, topic: str) -> list[bytes]:
    got: list[bytes] = []
    async with await broker.consumer(topic, READERS) as consumer:
        for _ in range(2):
            while len(some := await consumer.pull(100)):
                got += some.payloads()
                await some.ack()
            await asyncio.sleep(2 * DUE_S_MAX)
    return got
