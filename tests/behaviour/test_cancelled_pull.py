"""A pull that is given up while its messages are not durable yet leaves no trace: no lease, no attempt, no credit."""

import asyncio

import pytest

from wherry.broker.clock import SystemClock
from wherry.broker.opening import start
from wherry.journal.memory import MemoryEngine, MemoryWriter


class HeldEngine(MemoryEngine):
    """A journal whose syncs wait until they are let go."""

    def __init__(self) -> None:
        super().__init__()
        self.free = asyncio.Event()
        self.free.set()

    async def open(self, proven_position=None):
        self.owner = HeldWriter(self)
        return self.owner


class HeldWriter(MemoryWriter):
    def __init__(self, engine: HeldEngine) -> None:
        super().__init__(engine)
        self._free = engine.free

    def append_at_once(self, bodies, expected):
        return None

    async def append(self, bodies, expected):
        await self._free.wait()
        return await super().append(bodies, expected)


async def given_up(engine, broker, consumer, count: int) -> None:
    """Publish, and give up a pull of it before the sync is over; then let the sync go."""
    engine.free.clear()
    publishing = asyncio.create_task(broker.publish("t", [b"%d" % number for number in range(count)]))
    pulling = asyncio.create_task(consumer.pull(count, wait_ms=None))
    for _ in range(100):
        await asyncio.sleep(0)
    assert consumer._state.credit == 0, "it has its messages, and they are not durable"
    assert not pulling.done()
    pulling.cancel()
    await asyncio.wait([pulling])
    assert pulling.cancelled()
    engine.free.set()
    await publishing


@pytest.mark.rows("D26")
@pytest.mark.parametrize("again", [1, 3])
def test_a_cancelled_pull_gives_its_credit_and_its_messages_back(again):
    async def main():
        engine = HeldEngine()
        broker = await start(engine, None, SystemClock())
        await broker.create_topic("t")
        await broker.subscribe("t", "s")
        consumer = await broker.consumer("t", "s")
        consumer.grant(5)
        for _ in range(again):
            await given_up(engine, broker, consumer, 5)
            assert (consumer.unsettled_messages, consumer._state.credit) == (0, 5)
            got = await consumer.pull(10)
            assert [(each.payload, each.attempt) for each in got] == [(b"%d" % number, 1) for number in range(5)]
            assert not len(await consumer.pull(10)), "no more than was granted"
            await got.ack()
            consumer.grant(5)
        await broker.close()

    asyncio.run(main())


def test_at_most_once_a_cancelled_pull_settles_its_messages_and_keeps_its_credit():
    async def main():
        engine = HeldEngine()
        broker = await start(engine, None, SystemClock())
        await broker.create_topic("t")
        await broker.subscribe("t", "s", acks=False)
        consumer = await broker.consumer("t", "s")
        consumer.grant(5)
        await given_up(engine, broker, consumer, 5)
        assert consumer.unsettled_messages == 0
        await broker.publish("t", [b"next"] * 5)
        assert (await consumer.pull(10)).payloads() == [b"next"] * 5
        await broker.close()

    asyncio.run(main())


def test_what_was_handed_over_and_is_taken_back_gives_its_credit_back_too():
    """Check the credit as the wires need it when a connection closes before the answer is written."""

    async def main():
        broker = await start(MemoryEngine(), None, SystemClock())
        await broker.create_topic("t")
        await broker.subscribe("t", "s")
        consumer = await broker.consumer("t", "s")
        consumer.grant(5)
        await broker.publish("t", [b"x"] * 5)
        got = await consumer.pull(10)
        await got.ack([0, 1])
        got.take_back()
        again = await consumer.pull(10)
        assert [(each.offset, each.attempt) for each in again] == [(2, 1), (3, 1), (4, 1)]
        await again.release()
        assert not len(await consumer.pull(10)), "a consumer that releases messages has used its credit"
        await broker.close()

    asyncio.run(main())
