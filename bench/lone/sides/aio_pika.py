"""`python -m bench.lone.sides.aio_pika many produce|consume PORT COUNT`: RabbitMQ, by aio-pika."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator

import aio_pika

from bench.flow import Found, Steps, play_steps
from bench.lone.sides import crowd
from bench.peers.peer import age_ms, message
from bench.peers.rabbitmq import QUEUE


async def _connected(port: int) -> aio_pika.abc.AbstractConnection:
    return await aio_pika.connect(f"amqp://guest:guest@127.0.0.1:{port}/?heartbeat=0")


async def many_produce(port: int, count: int) -> AsyncIterator[Found]:
    """Publish from many tasks over one connection, each of which waits for its confirm."""
    async with await _connected(port) as connection:
        channel = await connection.channel(publisher_confirms=True)

        async def send() -> None:
            lasting = aio_pika.Message(message(), delivery_mode=aio_pika.DeliveryMode.PERSISTENT)
            await channel.default_exchange.publish(lasting, QUEUE)

        yield None
        yield {"confirm": await crowd.produce(count, send)}


async def many_consume(port: int, count: int) -> AsyncIterator[Found]:
    """Consume by many channels of one connection, each of which acks message by message."""
    arrivals = crowd.Arrivals(count)
    async with await _connected(port) as connection:

        async def take() -> None:
            channel = await connection.channel()
            await channel.set_qos(prefetch_count=crowd.AHEAD)
            queue = await channel.get_queue(QUEUE)
            async with queue.iterator() as messages:
                async for each in messages:
                    age = age_ms(each.body)
                    await each.ack()
                    arrivals.add(age)

        tasks = crowd.started(take() for _ in range(crowd.WORKERS))
        await asyncio.sleep(0.5)  # until all wait
        yield None
        await arrivals.wait(tasks)
        yield {"age": arrivals.ages}
        await crowd.stop(tasks)


SIDES: dict[str, dict[str, Steps]] = {"many": {"produce": many_produce, "consume": many_consume}}


if __name__ == "__main__":
    play_steps(SIDES[sys.argv[1]][sys.argv[2]])
