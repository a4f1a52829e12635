"""`python -m bench.lone.sides.wherry CASE produce|consume PORT COUNT`: the client of Wherry over the native wire."""

from __future__ import annotations

import asyncio
import random
import sys
import time
from collections import deque
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import numpy as np
import pyarrow as pa

import wherry
from bench.flow import Found, Steps, play_steps
from bench.lone.shapes import (
    DELAY_LEAD_S,
    DELAY_S,
    PRIORITIES,
    PULL,
    QUEUES_A_CONNECTION,
    RATE,
    SUBSCRIBERS,
    queue,
    subscriber,
)
from bench.lone.sides import crowd
from bench.peers.peer import SIZE, age_ms, message
from bench.peers.wherry import SUBSCRIPTION, TOPIC, at_pace
from wherry.model.schema import Message

UNDER_WAY = 4
"""Calls with a thousand messages that one program has under way."""


def connected(port: int) -> wherry.Client:
    """Return a client of the node."""
    return wherry.connect(f"http://127.0.0.1:{port}", wire="native")


async def _take(client: wherry.Client, topic: str, subscription: str, arrivals: crowd.Arrivals) -> None:
    """Consume for ever, one message after the other."""
    async with client.consumer(topic, subscription) as consumer:
        async for each in consumer:
            age = age_ms(each.payload)
            if consumer.acked:
                await each.ack()
            arrivals.add(age)


# ----------------------------------------------------------------------------------------------------------------- many


async def many_produce(port: int, count: int) -> AsyncIterator[Found]:
    """Publish from many tasks, each of which waits for its confirm."""
    async with connected(port) as client:
        yield None
        yield {"confirm": await crowd.produce(count, lambda: client.publish(TOPIC, message()))}


async def many_consume(port: int, count: int) -> AsyncIterator[Found]:
    """Consume by many consumers over one connection, each of which acks message by message."""
    async with connected(port) as client:
        arrivals = crowd.Arrivals(count)
        tasks = crowd.started(_take(client, TOPIC, SUBSCRIPTION, arrivals) for _ in range(crowd.WORKERS))
        await asyncio.sleep(0.2)  # until all have joined
        yield None
        await arrivals.wait(tasks)
        yield {"age": arrivals.ages}
        await crowd.stop(tasks)


# --------------------------------------------------------------------------------------------------------------- queues


async def queues_produce(port: int, count: int, queues: str) -> AsyncIterator[Found]:
    """Publish to one queue after the other, at an even pace, by one connection."""
    names = [queue(number) for number in range(int(queues))]
    async with connected(port) as client:
        yield None
        async for number in at_pace(count, RATE):
            await client.publish(names[number % len(names)], message())
        yield None


async def queues_consume(port: int, count: int, queues: str) -> AsyncIterator[Found]:
    """Consume each queue by a consumer of its own, with as few connections as the limit of streams allows."""
    names = [queue(number) for number in range(int(queues))]
    arrivals = crowd.Arrivals(len(names))
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(connected(port)) for _ in range(0, len(names), QUEUES_A_CONNECTION)]
        tasks = crowd.started(
            _take(clients[number // QUEUES_A_CONNECTION], name, SUBSCRIPTION, arrivals)
            for number, name in enumerate(names)
        )
        for name in names:  # a first message for each, so that all have joined when the run begins
            await clients[0].publish(name, message())
        await arrivals.wait(tasks)
        arrivals.expect(count)
        yield None
        await arrivals.wait(tasks)
        yield {"age": arrivals.ages}
        await crowd.stop(tasks)


# --------------------------------------------------------------------------------------------------------------- delays


async def delays_produce(port: int, count: int) -> AsyncIterator[Found]:
    """Publish messages that are due evenly over some seconds, in random order, in calls of a thousand."""
    async with connected(port) as client:
        yield None
        now_ms, offset_ns = time.time_ns() // 1_000_000, time.time_ns() - time.monotonic_ns()
        dues = [now_ms + int((DELAY_LEAD_S + DELAY_S * number / count) * 1e3) for number in range(count)]
        random.Random(7).shuffle(dues)
        for base in range(0, count, PULL):
            some = [
                Message(payload=message(due * 1_000_000 - offset_ns), due_ms=due) for due in dues[base : base + PULL]
            ]
            await client.publish("delays", some)
        yield None


async def delays_consume(port: int, count: int) -> AsyncIterator[Found]:
    """Consume message by message; acks travel together."""
    lates: list[float] = []
    async with connected(port) as client, client.consumer("delays", SUBSCRIPTION) as consumer:
        yield None
        async for each in consumer:
            lates.append(age_ms(each.payload))
            each.ack_later()
            if len(lates) == count:
                break
        await consumer.flush()
        yield {"late": lates}


# ------------------------------------------------------------------------------------------------------------- priority


async def priority_produce(port: int, count: int) -> AsyncIterator[Found]:
    """Load messages of random priorities, a thousand in a call."""
    ranks = np.random.default_rng(7).integers(0, PRIORITIES, count)
    payload = pa.array([message() for _ in range(PULL)], pa.binary())
    async with connected(port) as client:
        bases = deque(range(0, count, PULL))
        yield None

        async def load() -> None:
            while bases:
                base = bases.popleft()
                some = pa.array(ranks[base : base + PULL], pa.uint16())
                await client.publish(
                    "ranked", pa.RecordBatch.from_arrays([payload[: len(some)], some], ["payload", "priority"])
                )

        await asyncio.gather(*(load() for _ in range(UNDER_WAY)))
        yield None


async def priority_consume(port: int, count: int) -> AsyncIterator[Found]:
    """Drain them, a thousand in a pull; each is acked while the next is under way, and waited for."""
    async with connected(port) as client:
        yield None
        left, acks = count, deque[asyncio.Task[None]]()
        while left:
            got = await client.pull("ranked", SUBSCRIPTION, PULL)
            assert len(got), f"{left} messages are missing"
            assert all(len(payload) == SIZE for payload in got.column("payload"))
            left -= len(got)
            acks.append(asyncio.create_task(got.ack()))
            if len(acks) >= UNDER_WAY:
                await acks.popleft()
        await asyncio.gather(*acks)
        yield None


# -------------------------------------------------------------------------------------------------- transient, fanout


async def transient_produce(port: int, count: int, topic: str) -> AsyncIterator[Found]:
    """Publish message by message to a topic whose messages are never on disk; the client gathers them."""
    async with connected(port) as client, client.producer(topic) as producer:
        yield None
        for _ in range(count):
            await producer.publish(message())
        await producer.flush()
        yield None


async def transient_consume(port: int, count: int, topic: str) -> AsyncIterator[Found]:
    """Consume without acks, message by message."""
    got = 0
    async with connected(port) as client, client.consumer(topic, SUBSCRIPTION) as consumer:
        messages = aiter(consumer)
        await client.publish(topic, message())
        await anext(messages)  # the consumer has joined
        yield None
        async for each in messages:
            assert len(each.payload) == SIZE
            got += 1
            if got == count:
                break
        yield None


async def fanout_consume(port: int, count: int, topic: str) -> AsyncIterator[Found]:
    """Consume without acks by several subscriptions, each over a connection of its own."""
    arrivals = crowd.Arrivals(SUBSCRIBERS)
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(connected(port)) for _ in range(SUBSCRIBERS)]
        tasks = crowd.started(
            _take(client, topic, subscriber(number), arrivals) for number, client in enumerate(clients)
        )
        await clients[0].publish(topic, message())
        await arrivals.wait(tasks)  # all have joined
        arrivals.expect(count * SUBSCRIBERS)
        yield None
        await arrivals.wait(tasks)
        yield None
        await crowd.stop(tasks)


def onward_produce(port: int, count: int, topic: str, first: str) -> AsyncIterator[Found]:
    """Publish at the first of two nodes, which passes the messages on to the other."""
    return transient_produce(int(first), count, topic)


def onward_consume(port: int, count: int, topic: str, first: str) -> AsyncIterator[Found]:
    """Consume at the other node, as in `fanout_consume`."""
    return fanout_consume(port, count, topic)


SIDES: dict[str, dict[str, Steps]] = {
    "many": {"produce": many_produce, "consume": many_consume},
    "queues": {"produce": queues_produce, "consume": queues_consume},
    "delays": {"produce": delays_produce, "consume": delays_consume},
    "priority": {"produce": priority_produce, "consume": priority_consume},
    "transient": {"produce": transient_produce, "consume": transient_consume},
    "fanout": {"produce": transient_produce, "consume": fanout_consume},
    "onward": {"produce": onward_produce, "consume": onward_consume},
}


if __name__ == "__main__":
    play_steps(SIDES[sys.argv[1]][sys.argv[2]])
