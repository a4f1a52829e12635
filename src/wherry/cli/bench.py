"""A short benchmark of a broker from outside: batches, then one message at a time."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import deque
from typing import Any

import pyarrow as pa

from wherry.cli.link import BrokerLink

IN_FLIGHT = 4


class Bench:
    """One run against one broker."""

    def __init__(self, link: BrokerLink, messages: int, size: int, batch: int) -> None:
        self._client, self._link = link.client, link
        self._messages, self._size, self._batch = messages, size, min(batch, messages)
        self._topic = f"bench-{secrets.token_hex(4)}"

    async def run(self) -> list[dict[str, Any]]:
        """Run all parts one after the other."""
        await self._link.alive()
        await self._client.create_topic(self._topic)
        await self._client.subscribe(self._topic, "bench")
        try:
            return [
                await self._timed("publish batches", self._publish_batches()),
                await self._timed("consume batches", self._consume_batches()),
                await self._timed("publish one by one", self._publish_each()),
                await self._timed("consume one by one", self._consume_each()),
            ]
        finally:
            await self._client.delete_topic(self._topic)

    async def _timed(self, what: str, part: Any) -> dict[str, Any]:
        began = time.perf_counter()
        count = await part
        seconds = time.perf_counter() - began
        mib = count * self._size / seconds / (1 << 20)
        return {
            "what": what,
            "messages": count,
            "seconds": round(seconds, 3),
            "rate": round(count / seconds),
            "mib": round(mib, 1),
        }

    async def _publish_batches(self) -> int:
        batch = pa.record_batch({"payload": [secrets.token_bytes(self._size) for _ in range(self._batch)]})
        calls = deque(range(-(-self._messages // self._batch)))
        total = len(calls) * self._batch

        async def send() -> None:
            while calls:
                calls.popleft()
                await self._client.publish(self._topic, batch)

        await asyncio.gather(*(send() for _ in range(IN_FLIGHT)))
        self._left = total
        return total

    async def _consume_batches(self) -> int:
        total = left = self._left
        acks: list[asyncio.Task[None]] = []
        async with self._client.consumer(self._topic, "bench", pull_messages=self._batch) as consumer:
            async for batch in consumer.consume_batches():
                left -= len(batch)
                acks.append(asyncio.create_task(batch.ack()))
                if len(acks) >= IN_FLIGHT:
                    await acks.pop(0)
                if left <= 0:
                    break
            await asyncio.gather(*acks)
        return total

    async def _publish_each(self) -> int:
        payload = secrets.token_bytes(self._size)
        async with self._client.producer(self._topic) as producer:
            for _ in range(self._messages):
                await producer.publish(payload)
        return self._messages

    async def _consume_each(self) -> int:
        left = self._messages
        async with self._client.consumer(self._topic, "bench") as consumer:
            async for message in consumer:
                message.ack_later()
                left -= 1
                if not left:
                    break
            await consumer.flush()
        return self._messages
