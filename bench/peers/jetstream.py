"""NATS JetStream with `sync_interval: always`."""

from __future__ import annotations

import asyncio

from bench.peers.nats import Nats
from bench.peers.peer import age_ms, message, paced

SUBJECT, STREAM, DURABLE = "bench.m", "BENCH", "workers"
IN_FLIGHT = 256
FETCH = 500


class JetStream(Nats):
    """Publishes in flight, fetches in batches, acks of each message."""

    name = "NATS JetStream, nats-py"
    promise = "sync_interval: always"

    def settings(self) -> str:
        return f'jetstream {{ store_dir: "{self.folder / "data"}", sync_interval: always }}\n'

    def start(self) -> None:
        super().start()
        asyncio.run(_make(self.port))

    @staticmethod
    def produce(port: int, count: int, rate: int | None) -> None:
        asyncio.run(_produce(port, count, rate))

    @staticmethod
    def consume(port: int, count: int) -> list[float]:
        return asyncio.run(_consume(port, count))


async def _make(port: int) -> None:
    import nats

    client = await nats.connect(f"nats://127.0.0.1:{port}")
    stream = client.jetstream()
    await stream.add_stream(name=STREAM, subjects=[SUBJECT])
    await stream.pull_subscribe(SUBJECT, DURABLE)
    await client.close()


async def _produce(port: int, count: int, rate: int | None) -> None:
    import nats

    client = await nats.connect(f"nats://127.0.0.1:{port}")
    stream = client.jetstream()
    limit = asyncio.Semaphore(IN_FLIGHT)

    async def one() -> None:
        async with limit:
            await stream.publish(SUBJECT, message())

    if rate is not None:
        for _ in paced(count, rate):
            await one()
    else:
        await asyncio.gather(*(one() for _ in range(count)))
    await client.close()


async def _consume(port: int, count: int) -> list[float]:
    import nats

    client = await nats.connect(f"nats://127.0.0.1:{port}")
    subscription = await client.jetstream().pull_subscribe(SUBJECT, DURABLE)
    ages: list[float] = []
    while len(ages) < count:
        try:
            messages = await subscription.fetch(min(FETCH, count - len(ages)), timeout=1)
        except TimeoutError:
            continue
        for each in messages:
            ages.append(age_ms(each.data))
            await each.ack()
    await client.close()
    return ages
