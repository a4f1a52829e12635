"""The end of a producer: a publish meanwhile raises, and no pending message waits for ever."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from typing import Any

import pyarrow as pa
import pytest

import wherry
from wherry.client.link.transport import ClientRequest, ClientResponse
from wherry.client.sync.client import SyncClient
from wherry.client.sync.ends import CHUNK

STORED = ClientResponse(201, "application/json", b'{"placed": [[0, 0, 1]]}')


class Slow:
    """A broker that answers once the test releases it."""

    def __init__(self) -> None:
        self.asked, self.go = asyncio.Event(), asyncio.Event()

    async def ask(self, ask: ClientRequest) -> ClientResponse:
        self.asked.set()
        await self.go.wait()
        return STORED

    async def close(self) -> None:
        """Do nothing: a slow broker holds nothing."""


def test_a_message_published_while_the_producer_closes_is_refused_and_those_before_are_stored():
    async def main() -> None:
        broker = Slow()
        producer = await wherry.Client(broker).producer("jobs", batch_messages=1, buffer_messages=1).__aenter__()
        first = await producer.publish(b"a")
        waiting = asyncio.create_task(producer.publish(b"b"))  # there is no room for this message
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
        sent = [await producer.publish(b"%d" % number) for number in range(3)]
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(producer.__aexit__(None, None, None), 0.01)
        for pending in sent:
            with pytest.raises(wherry.Closed):
                await pending.stored()

    asyncio.run(asyncio.wait_for(main(), 5))


def test_other_threads_get_an_error_when_a_producer_is_closed(wherry_broker):
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


def payloads(client: wherry.SyncClient[Any], topic: str = "jobs") -> list[bytes]:
    return client.browse(topic).column("payload").to_pylist()


def test_a_field_that_cannot_be_right_is_refused_where_it_is_given_and_the_rest_is_stored(wherry_broker):
    wherry_broker.create_topic("jobs")
    with wherry_broker.producer("jobs") as producer:
        producer.publish(b"a")
        with pytest.raises(TypeError, match="bogus"):
            producer.publish(b"b", bogus=1)
        with pytest.raises(wherry.InvalidInput, match="payload"):
            producer.publish(7)
        with pytest.raises(wherry.InvalidInput, match="priority"):
            producer.publish(b"b", priority="high")
        for number in range(5):
            producer.publish(f"c{number}")
    assert payloads(wherry_broker) == [b"a", b"c0", b"c1", b"c2", b"c3", b"c4"]


def test_a_fault_with_one_message_is_reported_and_drops_none_behind_it(wherry_broker, monkeypatch):
    wherry_broker.create_topic("jobs")
    producer = wherry_broker.producer("jobs")
    put = producer.other.put

    def strange(payload: bytes, fields: dict[str, Any]) -> object:
        if payload == b"b":
            raise ZeroDivisionError
        return put(payload, fields)

    monkeypatch.setattr(producer.other, "put", strange)
    with producer:
        for payload in (b"a", b"b", b"c"):
            producer.publish(payload)
        with pytest.raises(ZeroDivisionError):
            producer.flush()
        producer.publish(b"b")
        producer.publish(b"d")
        with pytest.raises(ZeroDivisionError):
            producer.flush()
    assert payloads(wherry_broker) == [b"a", b"c", b"d"]
    with pytest.raises(ZeroDivisionError), wherry_broker.producer("jobs") as producer:
        monkeypatch.setattr(producer.other, "put", strange)
        producer.publish(b"b")


class Recorder(Slow):
    """Keeps the payloads of what it is sent."""

    def __init__(self) -> None:
        super().__init__()
        self.payloads: list[bytes] = []

    async def ask(self, ask: ClientRequest) -> ClientResponse:
        await super().ask(ask)
        batch = pa.ipc.open_stream(b"".join(bytes(memoryview(part)) for part in ask.body)).read_all()
        self.payloads += batch.column("payload").to_pylist()
        return ClientResponse(201, "application/json", b'{"placed": [[0, 0, %d]]}' % len(batch))


def test_a_caller_that_is_interrupted_while_it_waits_for_room_loses_nothing(monkeypatch):
    broker = Recorder()
    sent = [b"%d" % number for number in range(CHUNK + 1)]
    with SyncClient(wherry.Client(broker)) as client:
        with client.producer("jobs", batch_messages=10, buffer_messages=20) as producer:
            monkeypatch.setattr(
                producer, "_hand_over_soon", lambda: None
            )  # the publish that waits for room hands the batch over itself
            for payload in sent[: CHUNK - 1]:
                producer.publish(payload)
            threading.Timer(0.2, signal.pthread_kill, (threading.main_thread().ident, signal.SIGINT)).start()
            with pytest.raises(KeyboardInterrupt):
                producer.publish(sent[CHUNK - 1])
            monkeypatch.undo()
            client.portal.soon(broker.go.set)
            producer.publish(sent[CHUNK])
        assert broker.payloads == sent


def test_messages_that_an_interrupted_caller_left_are_sent_without_it():
    broker = Recorder()
    with SyncClient(wherry.Client(broker)) as client:
        with client.producer("jobs", batch_messages=10, buffer_messages=20) as producer:
            threading.Timer(0.2, signal.pthread_kill, (threading.main_thread().ident, signal.SIGINT)).start()
            with pytest.raises(KeyboardInterrupt):
                for number in range(CHUNK):
                    producer.publish(b"%d" % number)
            client.portal.soon(broker.go.set)
            until = time.monotonic() + 5
            while len(broker.payloads) < CHUNK and time.monotonic() < until:
                time.sleep(0.01)
        assert broker.payloads == [b"%d" % number for number in range(CHUNK)]
