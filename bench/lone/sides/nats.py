"""`python -m bench.lone.sides.nats CASE produce|consume PORT COUNT SUBJECT`: NATS core, by nats-py."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import nats

from bench.flow import Found, Steps, play_steps
from bench.lone.shapes import SUBSCRIBERS
from bench.lone.sides import crowd
from bench.peers.peer import age_ms, message


async def produce(port: int, count: int, subject: str) -> AsyncIterator[Found]:
    """Publish message by message; the client gathers what it writes."""
    client = await nats.connect(f"nats://127.0.0.1:{port}")
    yield None
    for _ in range(count):
        await client.publish(subject, message())
    await client.flush()
    yield None
    await client.close()


async def transient_consume(port: int, count: int, subject: str) -> AsyncIterator[Found]:
    """Subscribe once."""
    async for found in _consume(port, count, subject, 1):
        yield found


async def fanout_consume(port: int, count: int, subject: str) -> AsyncIterator[Found]:
    """Subscribe several times, each over a connection of its own."""
    async for found in _consume(port, count, subject, SUBSCRIBERS):
        yield found


async def _consume(port: int, count: int, subject: str, subscribers: int) -> AsyncIterator[Found]:
    arrivals = crowd.Arrivals(count * subscribers)
    async with AsyncExitStack() as stack:

        async def take(subscription: Any) -> None:
            async for each in subscription.messages:
                arrivals.add(age_ms(each.data))

        tasks = []
        for _ in range(subscribers):
            client = await nats.connect(f"nats://127.0.0.1:{port}")
            stack.push_async_callback(client.close)
            # Without limits: what a subscriber has not read yet is kept by its client, and none is dropped.
            subscription = await client.subscribe(subject, pending_msgs_limit=-1, pending_bytes_limit=-1)
            await client.flush()
            tasks += crowd.started([take(subscription)])
        yield None
        await arrivals.wait(tasks)
        yield None
        await crowd.stop(tasks)


SIDES: dict[str, dict[str, Steps]] = {
    "transient": {"produce": produce, "consume": transient_consume},
    "fanout": {"produce": produce, "consume": fanout_consume},
}


if __name__ == "__main__":
    play_steps(SIDES[sys.argv[1]][sys.argv[2]])
