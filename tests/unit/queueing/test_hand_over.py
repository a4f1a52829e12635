"""A queue hands messages over within the wake-up of its pull, while its consumers have room."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.behaviour.world import VirtualClock
from wherry.broker.broker import Broker
from wherry.broker.metrics.metrics import Metrics
from wherry.broker.opening import start
from wherry.journal.memory import MemoryEngine
from wherry.queueing.flow.delivering import Holding, QueueDelivery, Settling
from wherry.queueing.hosts.queue import Queue
from wherry.queueing.hosts.queue_terms import QueueTerms
from wherry.queueing.hosts.virtual_host import VirtualHost
from wherry.queueing.message.envelope import Row
from wherry.sim.patch import patched


class Reader:
    """A consumer of a wire with a limit."""

    priority = 0

    def __init__(self, queue: Queue, limit: int) -> None:
        self._queue, self._limit = queue, limit
        self._holding, self.settling = Holding(lambda: None), Settling()
        self.held: list[tuple[QueueDelivery, int]] = []
        self.bodies: list[bytes] = []

    def room(self) -> int:
        return self._limit - len(self.held)

    def shares(self) -> None:
        return None

    def take(self, queue_delivery: QueueDelivery, rows: list[int], messages: list[Row]) -> None:
        queue_delivery.give(rows, self._holding)
        self.held += [(queue_delivery, row) for row in rows]
        self.bodies += [bytes(messages[row][1]) for row in rows]

    def deliveries_ended(self) -> None:
        raise AssertionError("the queue ended")

    def ack_first(self) -> None:
        queue_delivery, row = self.held.pop(0)
        self.settling.add(queue_delivery, "ack", [row])
        self._queue.wake()

    def requeue_first(self) -> None:
        queue_delivery, row = self.held.pop(0)
        queue_delivery.let_go([row])
        self._queue.give_back(self.settling, queue_delivery, [row])
        self._queue.wake()


async def settled_down() -> None:
    for _ in range(30):
        await asyncio.sleep(0)


@asynccontextmanager
async def consumed(limit: int) -> AsyncIterator[tuple[Broker, Queue, Reader]]:
    """A queue in memory with one consumer, whose pull waits."""
    broker = await start(MemoryEngine(), None, VirtualClock())
    queue = await VirtualHost(broker, "/").declare_queue("q", QueueTerms(durable=True), None)
    reader = Reader(queue, limit)
    queue.join(reader)
    await settled_down()
    try:
        yield broker, queue, reader
    finally:
        await reader.settling.flush()
        await queue.close()
        await broker.close()


def taken_by(queue_take: list[int]) -> Any:
    """Record how many messages the queue takes at a time within a wake-up."""

    def make(take: Any) -> Any:
        def call(self: Queue, delivery: Any) -> None:
            queue_take.append(len(delivery))
            take(self, delivery)

        return call

    return patched(Queue, "take", make)


def run(test: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(test())  # type: ignore[arg-type]


def test_messages_that_come_one_by_one_are_handed_over_without_the_task_of_the_queue():
    async def main() -> None:
        taken: list[int] = []
        with taken_by(taken):
            async with consumed(limit=100) as (broker, queue, reader):
                for number in range(5):
                    await broker.publish(queue.topic, b"%d" % number)
                    await settled_down()
                assert taken == [1] * 5
                assert reader.bodies == [b"0", b"1", b"2", b"3", b"4"]

    run(main)


@pytest.mark.parametrize("limit", [1, 2])
def test_a_consumer_gets_no_more_than_its_limit_and_the_rest_in_order_as_it_acks(limit):
    async def main() -> None:
        async with consumed(limit) as (broker, queue, reader):
            for number in range(6):
                await broker.publish(queue.topic, b"%d" % number)
                await settled_down()
            assert len(reader.held) == limit
            while len(reader.bodies) < 6:
                reader.ack_first()
                await settled_down()
                assert len(reader.held) <= limit
            assert reader.bodies == [b"0", b"1", b"2", b"3", b"4", b"5"]

    run(main)


def test_nothing_is_handed_over_within_a_wake_up_while_a_message_is_given_back():
    async def main() -> None:
        async with consumed(limit=10) as (broker, queue, reader):
            await broker.publish(queue.topic, b"first")
            await settled_down()
            reader.requeue_first()
            assert queue.room() == 0, "until the first is in its place again"
            await settled_down()
            assert reader.bodies == [b"first", b"first"]
            assert queue.room() == 9

    run(main)


@pytest.mark.parametrize("limit", [1, 2, 5])
def test_no_message_is_pulled_that_no_consumer_has_room_for(limit):
    """It would be counted and traced as delivered, and released at once."""

    async def main() -> None:
        async with consumed(limit) as (broker, queue, reader):
            metrics = Metrics(broker)
            for number in range(3):
                await broker.publish(queue.topic, b"%d" % number)
                await settled_down()
            await broker.publish(queue.topic, [b"%d" % number for number in range(3, 12)])
            while len(reader.bodies) < 12:
                await settled_down()
                assert metrics.deliveries.total() == len(reader.bodies)
                reader.ack_first()
            assert reader.bodies == [b"%d" % number for number in range(12)]

    run(main)


def test_a_message_that_is_given_back_comes_before_one_that_is_published_meanwhile():
    async def main() -> None:
        async with consumed(limit=2) as (broker, queue, reader):
            await broker.publish(queue.topic, b"first")
            await settled_down()
            reader.requeue_first()
            await broker.publish(queue.topic, b"second")
            await settled_down()
            assert reader.bodies == [b"first", b"first", b"second"]

    run(main)


def test_after_a_hand_over_that_failed_the_task_goes_on():
    async def main() -> None:
        failures: list[int] = []

        def failing(hand_over: Any) -> Any:
            def call(self: Queue, *given: Any) -> None:
                if not failures:
                    failures.append(1)
                    raise RuntimeError("a bug")
                hand_over(self, *given)

            return call

        with patched(Queue, "_hand_over", failing):
            async with consumed(limit=10) as (broker, queue, reader):
                await broker.publish(queue.topic, b"again")
                await settled_down()
                assert failures == [1]
                assert reader.bodies == [b"again"], "the task of the queue tried again"

    run(main)
