"""`python -m bench.lone.sides.redis CASE produce|consume PORT COUNT`: Redis, by redis-py."""

from __future__ import annotations

import asyncio
import random
import struct
import sys
import time
from collections.abc import AsyncIterator, Iterator

import redis
import redis.asyncio

from bench.flow import Found, Steps, play_steps
from bench.lone.shapes import DELAY_LEAD_S, DELAY_S, PRIORITIES, PULL, RATE, SUBSCRIBERS, queue
from bench.lone.sides import crowd
from bench.peers.peer import SIZE, age_ms, message, paced
from bench.peers.redis import GROUP, STREAM

POLL_S = 0.001
BLOCK_MS = 10_000
_NUMBER = struct.Struct("<q")


# ----------------------------------------------------------------------------------------------------------------- many


async def many_produce(port: int, count: int) -> AsyncIterator[Found]:
    """Send XADD from many tasks, each over a connection of its own."""
    async with redis.asyncio.Redis(port=port) as client:
        yield None
        yield {"confirm": await crowd.produce(count, lambda: client.xadd(STREAM, {"m": message()}))}


async def many_consume(port: int, count: int) -> AsyncIterator[Found]:
    """Send XREADGROUP by many consumers, each over a connection of its own; XACK message by message."""
    arrivals = crowd.Arrivals(count)
    async with redis.asyncio.Redis(port=port) as client:

        async def take(name: str) -> None:
            while True:
                found = await client.xreadgroup(GROUP, name, {STREAM: ">"}, count=crowd.AHEAD, block=BLOCK_MS)
                for number, fields in (entry for _, entries in found for entry in entries):
                    age = age_ms(fields[b"m"])
                    await client.xack(STREAM, GROUP, number)
                    arrivals.add(age)

        tasks = crowd.started(take(f"consumer-{number}") for number in range(crowd.WORKERS))
        await asyncio.sleep(0.2)  # until all wait
        yield None
        await arrivals.wait(tasks)
        yield {"age": arrivals.ages}
        await crowd.stop(tasks)


# --------------------------------------------------------------------------------------------------------------- queues


def queues_produce(port: int, count: int, queues: str) -> Iterator[Found]:
    """Send XADD to one stream after the other, at an even pace."""
    with redis.Redis(port=port) as client:
        yield None
        for number, _ in enumerate(paced(count, RATE)):
            client.xadd(queue(number % int(queues)), {"m": message()})
        yield None


def queues_consume(port: int, count: int, queues: str) -> Iterator[Found]:
    """Send XREADGROUP of all streams at once; XACK message by message."""
    ages: list[float] = []
    names = [queue(number) for number in range(int(queues))]
    with redis.Redis(port=port) as client:
        for name in names:
            if not client.exists(name):
                client.xgroup_create(name, GROUP, id="0", mkstream=True)
        wanted = dict.fromkeys(names, ">")
        yield None
        while len(ages) < count:
            for name, entries in client.xreadgroup(GROUP, "one", wanted, count=crowd.AHEAD, block=BLOCK_MS):
                for number, fields in entries:
                    ages.append(age_ms(fields[b"m"]))
                    client.xack(name, GROUP, number)
        yield {"age": ages}


# ------------------------------------------------------------------------------------------------- delays and priority


def delays_produce(port: int, count: int) -> Iterator[Found]:
    """Send ZADD with the due time as score, in random order, a thousand in a pipeline."""
    with redis.Redis(port=port) as client:
        yield None
        now_ns = time.monotonic_ns()
        dues = [now_ns + int((DELAY_LEAD_S + DELAY_S * number / count) * 1e9) for number in range(count)]
        random.Random(7).shuffle(dues)
        _add(client, "delays", [(message(due), due) for due in dues])
        yield None


def delays_consume(port: int, count: int) -> Iterator[Found]:
    """Poll for what is due, each millisecond, and remove it."""
    lates: list[float] = []
    with redis.Redis(port=port) as client:
        yield None
        while len(lates) < count:
            due = client.zrangebyscore("delays", "-inf", time.monotonic_ns(), 0, PULL)
            if due:
                lates += [age_ms(member) for member in due]
                client.zrem("delays", *due)
            else:
                time.sleep(POLL_S)
        yield {"late": lates}


def priority_produce(port: int, count: int) -> Iterator[Found]:
    """Send ZADD with a random priority as score, a thousand in a pipeline."""
    chance = random.Random(7)
    with redis.Redis(port=port) as client:
        # A sorted set has each member once: the number makes each message another member.
        members = [(_NUMBER.pack(number) + message()[8:], chance.randrange(PRIORITIES)) for number in range(count)]
        yield None
        _add(client, "ranked", members)
        yield None


def priority_consume(port: int, count: int) -> Iterator[Found]:
    """Send ZPOPMIN of a thousand: what is popped is gone, so there is nothing to ack."""
    with redis.Redis(port=port) as client:
        yield None
        while count > 0:
            got = client.zpopmin("ranked", PULL)
            assert got, f"{count} messages are missing"
            assert all(len(member) == SIZE for member, _ in got)
            count -= len(got)
        yield None


def _add(client: redis.Redis, name: str, members: list[tuple[bytes, int]]) -> None:
    for base in range(0, len(members), PULL):
        pipeline = client.pipeline(transaction=False)
        for member, score in members[base : base + PULL]:
            pipeline.zadd(name, {member: score})
        pipeline.execute()


# --------------------------------------------------------------------------------------------------------------- fanout


async def fanout_produce(port: int, count: int, channel: str) -> AsyncIterator[Found]:
    """Send PUBLISH in pipelines: one by one each would wait for its answer, which has nothing about subscribers."""
    async with redis.asyncio.Redis(port=port) as client:
        yield None
        for base in range(0, count, PULL):
            pipeline = client.pipeline(transaction=False)
            for _ in range(min(PULL, count - base)):
                pipeline.publish(channel, message())
            await pipeline.execute()
        yield None


async def fanout_consume(port: int, count: int, channel: str) -> AsyncIterator[Found]:
    """Send SUBSCRIBE by several subscribers, each over a connection of its own."""
    arrivals = crowd.Arrivals(count * SUBSCRIBERS)
    async with redis.asyncio.Redis(port=port) as client:

        async def take(subscription: redis.asyncio.client.PubSub) -> None:
            async for each in subscription.listen():
                if each["type"] == "message":
                    arrivals.add(age_ms(each["data"]))

        subscriptions = [client.pubsub() for _ in range(SUBSCRIBERS)]
        for each in subscriptions:
            await each.subscribe(channel)
        tasks = crowd.started(map(take, subscriptions))
        yield None
        await arrivals.wait(tasks)
        yield None
        await crowd.stop(tasks)
        for each in subscriptions:
            await each.aclose()


SIDES: dict[str, dict[str, Steps]] = {
    "many": {"produce": many_produce, "consume": many_consume},
    "queues": {"produce": queues_produce, "consume": queues_consume},
    "delays": {"produce": delays_produce, "consume": delays_consume},
    "priority": {"produce": priority_produce, "consume": priority_consume},
    "fanout": {"produce": fanout_produce, "consume": fanout_consume},
}


if __name__ == "__main__":
    play_steps(SIDES[sys.argv[1]][sys.argv[2]])
