"""The end of a producer: whoever publishes meanwhile is told, and no ticket waits for ever."""

from __future__ import annotations

import asyncio
import threading

import pytest

import wherry
from wherry.client.link.transport import Answer, Ask

STORED = Answer(201, "application/json", b'{"placed": [[0, 0, 1]]}')


class Slow:
    """A broker that answers when it is told to."""

    def __init__(self) -> None:
        self.asked, self.go = asyncio.Event(), asyncio.Event()

    async def ask(self, ask: Ask) -> Answer:
        self.asked.set()
        await self.go.wait()
        return STORED

    async def close(self) -> None:
        """Nothing is held."""


def test_a_message_published_while_the_producer_closes_is_refused_and_those_before_are_stored():
    async def main() -> None:
        broker = Slow()
        producer = await wherry.Client(broker).producer("jobs", batch_messages=1, buffer_messages=1).__aenter__()
        first = await producer.publish(b"a")
        waiting = asyncio.create_task(producer.publish(b"b"))  # there is no room for it
        await broker.asked.wait()
        closing = asyncio.create_task(producer.__aexit__(None, None, None))
        await asyncio.sleep(0)
        with pytest.raises(wherry.Closed):
            await producer.publish(b"c")
        with pytest.raises(wherry.Closed):
            await waiting
        broker.go.set()
        await closing
        assert await first.stored() == "0-0"

    asyncio.run(asyncio.wait_for(main(), 5))


def test_what_joins_an_open_batch_of_a_closing_producer_is_refused():
    async def main() -> None:
        broker = Slow()
        producer = await wherry.Client(broker).producer("jobs", linger_ms=60_000).__aenter__()
        await producer.publish(b"a")
        closing = asyncio.create_task(producer.__aexit__(None, None, None))
        await broker.asked.wait()
        with pytest.raises(wherry.Closed):
            await producer.publish(b"b")
        broker.go.set()
        await closing
        assert producer.held_messages == 0
        with pytest.raises(wherry.Closed):
            await producer.publish(b"c")

    asyncio.run(asyncio.wait_for(main(), 5))


def test_a_close_that_is_not_waited_for_fails_the_tickets_that_are_left():
    async def main() -> None:
        producer = await wherry.Client(Slow()).producer("jobs", batch_messages=1).__aenter__()
        tickets = [await producer.publish(b"%d" % number) for number in range(3)]
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(producer.__aexit__(None, None, None), 0.01)
        for ticket in tickets:
            with pytest.raises(wherry.Closed):
                await ticket.stored()

    asyncio.run(asyncio.wait_for(main(), 5))


def test_other_threads_are_told_that_a_producer_is_closed(wherry_broker):
    wherry_broker.create_topic("jobs")
    taken, begun = 0, threading.Event()

    def publish() -> None:
        nonlocal taken
        with pytest.raises(wherry.Closed):
            while True:
                producer.publish(b"x")
                taken += 1
                begun.set()

    with wherry_broker.producer("jobs") as producer:
        thread = threading.Thread(target=publish, daemon=True)
        thread.start()
        assert begun.wait(5)
    thread.join(5)
    assert not thread.is_alive()
    assert wherry_broker.stats("jobs").messages == taken
