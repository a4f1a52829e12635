"""A client that sends more than the broker takes is not read from, so that memory stays bounded; later all is taken."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from tests.amqp.raw import (
    BLOCKED,
    CONSUME,
    CONSUME_OK,
    DELIVER,
    QUEUE_DECLARE,
    QUEUE_DECLARE_OK,
    UNBLOCKED,
    Raw,
    long,
    short,
)
from tests.amqp.wires import (
    DURABLE,
    LASTING,
    PASSIVE,
    broker_of,
    connection_of,
    counts,
    declared,
    durable,
    served,
    until,
)
from wherry.broker.broker import Broker
from wherry.broker.commit.commit import WhenDurable
from wherry.model.calls.publish import PublishOptions
from wherry.queueing.flow import intake as intake_module
from wherry.wire import fairness
from wherry.wire.amqp.codec.reader import IncomingMessages
from wherry.wire.amqp.server import WAITING_BYTES_MAX, Connection

BODY_BYTES, COUNT = 120_000, 300
"""36 MB together: more than the buffers of both ends of a socket hold."""

HELD_BYTES = 200_000

READ_BYTES = 512 << 10
"""More than one read of a socket brings: what may come after the bound was reached."""

REPORTS_BLOCKS = short("capabilities") + b"F" + long(short("connection.blocked") + b"t\x01")


def body(number: int) -> bytes:
    return number.to_bytes(4, "big") + bytes(BODY_BYTES - 4)


def publish_all(raw: Raw, queue: str) -> None:
    for number in range(COUNT):
        raw.publish(queue, body(number), LASTING)


def numbers(raw: Raw, queue: str) -> list[int]:
    """Get all messages, and return their numbers."""
    return [int.from_bytes(raw.got(queue)[1][:4], "big") for _ in range(COUNT)]


def is_reading(connection: Connection) -> bool:
    return connection._transport.is_reading()


Call = Callable[..., Coroutine[Any, Any, Any]]


def held_up(call: Call, gate: asyncio.Event) -> Call:
    """Hold a call of the broker up until the gate is open."""

    async def late(*arguments: Any) -> Any:
        await gate.wait()
        return await call(*arguments)

    return late


@pytest.mark.rows("Q12")
def test_while_the_disk_does_not_keep_up_little_is_held_and_nothing_is_lost(monkeypatch):
    monkeypatch.setattr(intake_module, "UNSTORED_BYTES_MAX", HELD_BYTES)
    monkeypatch.setattr(fairness, "SERVED_S", 0.0)  # else the bound of a connection beside a light one is reached first

    async def main() -> None:
        async with served() as (server, url):
            broker, intake, gate = broker_of(server), server.queueing.intake, asyncio.Event()
            when_stored, late = broker.when_stored, set()

            async def hold(position: int, call: WhenDurable) -> None:
                await gate.wait()
                when_stored(position, call)

            monkeypatch.setattr(broker, "when_stored", lambda *given: late.add(asyncio.create_task(hold(*given))))
            eager = await asyncio.to_thread(lambda: Raw(url).opened(client=REPORTS_BLOCKS))
            other = await asyncio.to_thread(consuming, url, "other")
            with eager, other:
                await asyncio.to_thread(durable, eager, "q")
                sending = asyncio.create_task(asyncio.to_thread(publish_all, eager, "q"))
                await until(lambda: not is_reading(connection_of(server, eager)))
                assert HELD_BYTES < intake.unstored_bytes < HELD_BYTES + READ_BYTES
                assert not sending.done()
                await is_served(broker, other, b"meanwhile")
                assert intake.unstored_bytes < HELD_BYTES + READ_BYTES
                gate.set()
                await sending
                assert await asyncio.to_thread(unasked, eager) == [BLOCKED, UNBLOCKED]
                await until(lambda: intake.unstored_bytes == 0)
                assert counts(broker, "q") == (COUNT, 0)
                assert await asyncio.to_thread(numbers, other, "q") == list(range(COUNT))
                await is_served(broker, other, b"afterwards")

    asyncio.run(main())


def consuming(url: str, queue: str) -> Raw:
    raw = Raw(url).opened()
    durable(raw, queue)
    raw.call(1, CONSUME, b"\0\0" + short(queue) + short("") + b"\x02" + long(b""))
    raw.expect(CONSUME_OK)
    return raw


async def is_served(broker: Broker, raw: Raw, payload: bytes) -> None:
    """Check that a message that comes to a queue by another way reaches its consumer."""
    await broker.publish("other", [payload], PublishOptions(partition=0))  # not gathered: waits for its own sync
    frames = [await asyncio.to_thread(raw.next) for _ in range(3)]
    assert (frames[0].method, frames[2].payload) == (DELIVER, payload)


def unasked(raw: Raw) -> list[tuple[int, int]]:
    """Return the first two frames that the server sends by itself, before it answers a call."""
    raw.call(1, QUEUE_DECLARE, b"\0\0" + short("q") + bytes([PASSIVE]) + long(b""))
    found = []
    while (frame := raw.next()).method != QUEUE_DECLARE_OK:
        found.append(frame.method)
    return found[:2]


def test_what_comes_behind_a_call_that_takes_time_is_bounded_by_its_bytes(monkeypatch):
    async def main() -> None:
        async with served() as (server, url):
            broker, gate = broker_of(server), asyncio.Event()
            eager = await asyncio.to_thread(lambda: Raw(url).opened())
            other = await asyncio.to_thread(consuming, url, "other")
            monkeypatch.setattr(broker, "create_topic", held_up(broker.create_topic, gate))
            with eager, other:
                eager.call(1, QUEUE_DECLARE, b"\0\0" + short("q") + bytes([DURABLE]) + long(b""))
                sending = asyncio.create_task(asyncio.to_thread(publish_all, eager, "q"))
                connection = connection_of(server, eager)
                await until(lambda: not is_reading(connection))
                held = sum(
                    sum(map(len, event.bodies)) for event in connection._waiting if isinstance(event, IncomingMessages)
                )
                assert 0 < held < WAITING_BYTES_MAX + READ_BYTES
                assert not sending.done()
                await is_served(broker, other, b"meanwhile")
                gate.set()
                await sending
                await asyncio.to_thread(eager.expect, QUEUE_DECLARE_OK)
                assert await asyncio.to_thread(declared, eager, "q") == COUNT
                assert await asyncio.to_thread(numbers, eager, "q") == list(range(COUNT))

    asyncio.run(main())
