"""What a client has not acked: it keeps no body alive here, and is bounded where the client names no bound."""

from __future__ import annotations

import asyncio
import gc
import struct
from collections.abc import Iterator
from functools import partial
from typing import Any

import pyarrow as pa
import pytest

from tests.amqp.raw import ACK, BODY, CLOSE, CONSUME, CONSUME_OK, CONTENT, DELIVER, GET, QOS, QOS_OK, Raw, long, short
from tests.amqp.wires import LASTING, broker_of, connection_of, counts, durable, served, until
from wherry.broker.broker import Broker
from wherry.broker.calls.settle import Settler
from wherry.queueing.flow import delivering
from wherry.queueing.flow.delivering import Holding, QueueDelivery
from wherry.queueing.hosts import queue as queue_module

COUNT, SIZE = 200, 1_000
MOST, PULL = 50, 10


def filled(url: str, count: int = COUNT) -> Raw:
    """Return a client, and a queue of messages that begin with their number."""
    raw = Raw(url).opened()
    durable(raw, "q")
    for at in range(count):
        raw.publish("q", at.to_bytes(4, "big") + bytes(SIZE - 4), LASTING)
    return raw


def consume(raw: Raw, channel: int = 1) -> None:
    raw.call(channel, CONSUME, b"\0\0" + short("q") + short("") + b"\0" + long(b""))
    while raw.next().method != CONSUME_OK:  # another channel of the client may be given something already
        pass


def deliveries(raw: Raw, count: int) -> tuple[list[int], dict[int, int]]:
    """Return the numbers of so many messages, and the last delivery tag on each channel."""
    numbers: list[int] = []
    last: dict[int, int] = {}
    while len(numbers) < count:
        frame = raw.next()
        if frame.method == DELIVER:
            at = 1 + frame.arguments[0]
            last[frame.channel] = struct.unpack_from(">Q", frame.arguments, at)[0]
        elif frame.kind == BODY:
            numbers.append(int.from_bytes(frame.payload[:4], "big"))
        else:
            assert frame.kind == CONTENT, frame
    return numbers, last


def reached(start: object) -> Iterator[object]:
    """Yield what a value keeps alive: not the broker, nor the holder of a message."""
    seen: dict[int, object] = {}
    todo = [start]
    while todo:
        each = todo.pop()
        if id(each) not in seen and not isinstance(each, type | Settler | Holding):
            seen[id(each)] = each
            yield each
            todo += gc.get_referents(each)


@pytest.mark.rows("Q12")
def test_a_message_that_waits_for_an_ack_keeps_no_body():
    async def main() -> None:
        async with served() as (server, url):
            raw = await asyncio.to_thread(filled, url, 20)
            with raw:
                await asyncio.to_thread(consume, raw)
                await asyncio.to_thread(deliveries, raw, 20)
                unacked = connection_of(server, raw).session.channels[1].unacked
                queue_delivery = {out.queue_delivery for out in unacked.values()}
                assert (len(unacked), {type(each) for each in queue_delivery}) == (20, {QueueDelivery})
                kept = [found for each in queue_delivery for found in reached(each)]
                assert not [each for each in kept if isinstance(each, pa.RecordBatch | pa.Table)]
                assert not [each for each in kept if isinstance(each, bytes | memoryview) and len(each) >= SIZE]

    asyncio.run(main())


@pytest.mark.rows("Q12")
@pytest.mark.parametrize(
    ("bound", "most"), [("HELD_MAX", MOST), ("HELD_BYTES_MAX", MOST * SIZE)], ids=["messages", "bytes"]
)
def test_without_a_limit_of_its_own_a_connection_is_given_no_more_until_it_acks(monkeypatch, bound, most):
    monkeypatch.setattr(delivering, bound, most)
    monkeypatch.setattr(queue_module, "PULL_MAX", PULL)

    async def main() -> None:
        async with served() as (server, url):
            broker = broker_of(server)
            raw = await asyncio.to_thread(filled, url)
            with raw:
                await until(lambda: sum(counts(broker, "q")) == COUNT)
                holding = connection_of(server, raw).session.holding
                await asyncio.to_thread(raw.open_channel, 2)
                raw.send(consume_frame(1) + consume_frame(2))
                await asyncio.to_thread(both_consume, raw)
                got: list[int] = []
                while len(got) < COUNT:
                    await until(lambda: not holding.room() or counts(broker, "q")[0] == 0)
                    held = holding.messages
                    assert held <= MOST + PULL
                    assert held >= MOST or len(got) + held == COUNT
                    assert (holding.bytes, counts(broker, "q")[1]) == (held * SIZE, held)
                    numbers, last = await asyncio.to_thread(deliveries, raw, held)
                    got += numbers
                    for channel, tag in last.items():
                        raw.call(channel, ACK, struct.pack(">QB", tag, 1))
                    await until(partial(is_left, broker, COUNT - len(got)))
                assert sorted(got) == list(range(COUNT))
                assert (holding.messages, holding.bytes) == (0, 0)

    asyncio.run(main())


def is_left(broker: Broker, count: int) -> bool:
    return sum(counts(broker, "q")) == count


def consume_frame(channel: int) -> bytes:
    payload = struct.pack(">HH", *CONSUME) + b"\0\0" + short("q") + short(f"c{channel}") + b"\0" + long(b"")
    return struct.pack(">BHI", 1, channel, len(payload)) + payload + b"\xce"


def both_consume(raw: Raw) -> None:
    """Read both answers; what is delivered between them is put back to be read."""
    seen = b""
    answers = 0
    while answers < 2:
        frame = raw.next()
        if frame.method == CONSUME_OK:
            answers += 1
        else:
            seen += struct.pack(">BHI", frame.kind, frame.channel, len(frame.payload)) + frame.payload + b"\xce"
    raw._seen = seen + raw._seen


def test_a_consumer_that_names_a_limit_gets_the_whole_limit(monkeypatch):
    monkeypatch.setattr(delivering, "HELD_MAX", 5)

    async def main() -> None:
        async with served() as (server, url):
            raw = await asyncio.to_thread(filled, url, 40)
            with raw:
                raw.call(1, QOS, struct.pack(">IHB", 0, 20, 0))
                await asyncio.to_thread(raw.expect, QOS_OK)
                await asyncio.to_thread(consume, raw)
                numbers, _ = await asyncio.to_thread(deliveries, raw, 20)
                assert numbers == list(range(20))
                assert connection_of(server, raw).session.holding.messages == 20

    asyncio.run(main())


def test_gets_that_are_never_acked_end_at_the_bound(monkeypatch):
    monkeypatch.setattr(delivering, "HELD_MAX", 5)

    def client(url: str) -> tuple[list[Any], int]:
        with filled(url, 10) as raw:
            found = []
            for _ in range(5):
                raw.call(1, GET, b"\0\0" + short("q") + b"\0")
                raw.next(), raw.next()
                found.append(int.from_bytes(raw.next().payload[:4], "big"))
            raw.call(1, GET, b"\0\0" + short("q") + b"\0")
            return found, raw.expect(CLOSE).code

    async def main() -> None:
        async with served() as (server, url):
            assert await asyncio.to_thread(client, url) == (list(range(5)), 506)
            await until(lambda: counts(broker_of(server), "q") == (10, 0))

    asyncio.run(main())


def test_messages_that_several_connections_get_are_counted_for_each():
    async def main() -> None:
        async with served() as (server, url):
            first = await asyncio.to_thread(filled, url, 0)
            second = await asyncio.to_thread(lambda: Raw(url).opened())
            with first, second:
                for raw in (first, second):
                    await asyncio.to_thread(consume, raw)
                await broker_of(server).publish("q", [bytes(SIZE)] * 30)
                holdings = [connection_of(server, raw).session.holding for raw in (first, second)]
                await until(lambda: sum(each.messages for each in holdings) == 30)
                assert [(each.messages, each.bytes) for each in holdings] == [(15, 15 * SIZE)] * 2
                _, last = await asyncio.to_thread(deliveries, first, 15)
                first.call(1, ACK, struct.pack(">QB", last[1] - 5, 1))
                await until(lambda: counts(broker_of(server), "q") == (0, 20))
                assert [(each.messages, each.bytes) for each in holdings] == [(5, 5 * SIZE), (15, 15 * SIZE)]

    asyncio.run(main())
