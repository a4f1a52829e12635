"""How a consumer gets its messages over HTTP, and from a broker in process: it pulls, one step ahead of its reader."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from wherry.client.link.backoff import Backoff
from wherry.client.link.errors import retry_after_s, returns
from wherry.client.requests import SubscriptionRequests

if TYPE_CHECKING:
    from wherry.client.consumer import Consumer

PULL_WAIT_MS = 20_000


class PullSource:
    """Pulls for one consumer."""

    def __init__(self, consumer: Consumer, requests: SubscriptionRequests) -> None:
        self._consumer, self._requests = consumer, requests
        self._wake = asyncio.Event()

    def pull_if_wanted(self) -> None:
        """Pull if there is room by now: the reader took a batch, waits for one, or has settled some."""
        self._wake.set()

    async def run(self) -> None:
        """Pull one step ahead of the reader while there is room; less than a step only while the reader waits."""
        consumer, backoff = self._consumer, Backoff()
        while True:
            room, step = consumer.room, consumer.step
            least = 1 if consumer.is_reading else min(step, max(1, consumer.buffer_messages // 2))
            if room < least or consumer.ahead >= step:
                self._wake.clear()
                await self._wake.wait()
                continue
            try:
                batch = await self._requests.pull(
                    min(room, step), consumer.pull_bytes, PULL_WAIT_MS, consumer.name, acks=consumer.acked
                )
            except Exception as fault:  # of any kind: the reader must not wait for ever
                if not returns(fault) and not await consumer.may_rejoin(fault):
                    consumer.fail(fault)
                    return
                await backoff.pause(retry_after_s(fault))
                continue
            backoff.reset()
            if len(batch):
                consumer.take(batch)

    async def leave(self) -> None:
        """Leave the subscription: messages still held wait again, and no attempt is counted."""
        await self._requests.leave(self._consumer.name)
