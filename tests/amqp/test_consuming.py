"""The answer to a consume: it comes, whatever happens meanwhile, and before anything else of its consumer."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Awaitable, Callable

import pytest

from tests.amqp.raw import (
    BODY,
    CHANNEL_CLOSE,
    CLOSE,
    CONSUME,
    CONSUME_OK,
    DELIVER,
    NACK,
    PUBLISH,
    QOS,
    QOS_OK,
    QUEUE_BIND,
    QUEUE_BIND_OK,
    Raw,
    long,
    short,
)
from tests.amqp.wires import LASTING, connection_of, declared, durable, served, text, until
from wherry.queueing.flow.intake import Intake
from wherry.queueing.hosts.queue import Queue
from wherry.wire.amqp.codec.writer import Piece
from wherry.wire.amqp.server import Server

CANCEL, EXCLUSIVE, NO_ACK = (60, 30), 4, 2
NOTIFIED = short("capabilities") + b"F" + long(short("consumer_cancel_notify") + b"t\1")


def consume(raw: Raw, queue: str, tag: str = "t", flags: int = 0) -> None:
    raw.call(1, CONSUME, b"\0\0" + short(queue) + short(tag) + bytes([flags]) + long(b""))


async def by_session(server: Server, raw: Raw) -> None:
    await connection_of(server, raw).session.close("enough")


async def by_queue(server: Server, raw: Raw) -> None:
    host = server.queueing.hosts["/"]
    await host.delete_queue(host.queue("q"))


async def by_room(server: Server, raw: Raw) -> None:
    """Do nothing, so that the consume may be answered."""


@pytest.mark.parametrize(
    ("deed", "expected"),
    [(by_session, [CLOSE]), (by_queue, [CONSUME_OK, CANCEL]), (by_room, [CONSUME_OK, DELIVER])],
    ids=["connection closed", "queue deleted", "a message waits"],
)
def test_a_consume_that_waits_for_the_first_look_is_answered(
    monkeypatch, deed: Callable[[Server, Raw], Awaitable[None]], expected: list[tuple[int, int]]
):
    joined, gate = Queue._joined, asyncio.Event()

    async def slowly(queue: Queue) -> object:
        await gate.wait()
        return await joined(queue)

    async def main() -> None:
        async with served() as (server, url):
            with await asyncio.to_thread(lambda: Raw(url).opened(client=NOTIFIED)) as raw:
                await asyncio.to_thread(durable, raw, "q")
                raw.publish("q", b"waits", LASTING)
                monkeypatch.setattr(Queue, "_joined", slowly)
                consume(raw, "q")
                connection, queue = connection_of(server, raw), server.queueing.hosts["/"].queue("q")
                await until(lambda: len(queue._handover_waiters) == 1)
                await deed(server, raw)
                gate.set()
                assert [(await asyncio.to_thread(raw.next)).method for _ in expected] == expected
                await until(lambda: connection._task is None and not queue._handover_waiters)

    asyncio.run(main())


def test_a_connection_that_is_lost_before_the_first_look_leaves_no_consumer(monkeypatch):
    gate = asyncio.Event()

    async def never(queue: Queue) -> object:
        return await gate.wait()

    async def main() -> None:
        async with served() as (server, url):
            raw = await asyncio.to_thread(lambda: Raw(url).opened())
            await asyncio.to_thread(durable, raw, "q")
            monkeypatch.setattr(Queue, "_joined", never)
            consume(raw, "q")
            connection, queue = connection_of(server, raw), server.queueing.hosts["/"].queue("q")
            await until(lambda: len(queue._handover_waiters) == 1)
            raw.__exit__(None, None, None)
            await until(lambda: connection._task is None and not queue.consumers and queue._pump is None)

    asyncio.run(main())


def test_what_was_published_before_a_consume_is_behind_its_answer_in_one_write():
    async def main() -> None:
        async with served() as (server, url):
            with await asyncio.to_thread(lambda: Raw(url).opened()) as raw:
                name = await asyncio.to_thread(raw.queue)
                writes: list[int] = []
                connection = connection_of(server, raw)
                write_all = connection.write_all

                def counted(pieces: list[Piece]) -> None:
                    writes.append(len(b"".join(pieces)))
                    write_all(pieces)

                connection.write_all = counted  # type: ignore[method-assign]
                with raw.together():
                    raw.publish(name, b"first")
                    consume(raw, name, flags=NO_ACK)
                found = [await asyncio.to_thread(raw.next) for _ in range(4)]
                assert [each.method for each in found[:2]] == [CONSUME_OK, DELIVER]
                assert writes[0] == sum(8 + len(each.payload) for each in found)

    asyncio.run(main())


def test_of_two_clients_that_want_a_queue_exclusively_one_gets_it(monkeypatch):
    """Ask for both at once, and let both wait for what they published."""
    flush, gate = Intake.flush, asyncio.Event()

    async def slowly(intake: Intake) -> None:
        await gate.wait()
        await flush(intake)

    async def main() -> None:
        async with served() as (server, url):
            raws = [await asyncio.to_thread(lambda: Raw(url).opened()) for _ in range(2)]
            await asyncio.to_thread(durable, raws[0], "q")
            monkeypatch.setattr(Intake, "flush", slowly)
            for raw in raws:
                consume(raw, "q", flags=EXCLUSIVE)
            await until(lambda: all(connection_of(server, raw)._task is not None for raw in raws))
            gate.set()
            found = [(await asyncio.to_thread(raw.next)).method for raw in raws]
            assert sorted(found) == sorted([CONSUME_OK, CHANNEL_CLOSE])
            assert len(server.queueing.hosts["/"].queue("q").consumers) == 1
            for raw in raws:
                raw.__exit__(None, None, None)

    asyncio.run(main())


def test_a_channel_that_holds_more_than_it_may_takes_no_room_from_others():
    async def main() -> None:
        async with served() as (_, url):

            def first() -> Raw:
                raw = Raw(url).opened()
                durable(raw, "q")
                for _ in range(20):
                    raw.publish("q", b"x", LASTING)
                consume(raw, "q")
                for _ in range(1 + 3 * 20):
                    raw.next()
                raw.call(1, QOS, struct.pack(">IHB", 0, 1, 1))  # the consumer holds twenty
                raw.expect(QOS_OK)
                return raw

            def second() -> Raw:
                raw = Raw(url).opened()
                raw.call(1, QOS, struct.pack(">IHB", 0, 5, 0))
                raw.expect(QOS_OK)
                consume(raw, "q")
                raw.expect(CONSUME_OK)
                raw.publish("q", b"for the other", LASTING)
                raw.expect(DELIVER)
                return raw

            with await asyncio.to_thread(first), await asyncio.to_thread(second):
                pass

    asyncio.run(main())


def test_an_answer_that_no_client_asked_for_closes_no_channel():
    async def main() -> None:
        async with served() as (server, url):
            with await asyncio.to_thread(lambda: Raw(url).opened()) as raw:
                await asyncio.to_thread(durable, raw, "q")
                consume(raw, "q")
                await asyncio.to_thread(raw.expect, CONSUME_OK)
                raw.call(1, (20, 41))  # channel.close-ok
                assert await asyncio.to_thread(declared, raw, "q") == 0
                queue = server.queueing.hosts["/"].queue("q")
                assert len(queue.consumers) == 1
            await until(lambda: not queue.consumers)

    asyncio.run(main())


def test_a_dead_letter_too_large_for_one_entry_with_all_its_copies_reaches_all_its_queues():
    pieces = [bytes(100_000)] * 200
    size = sum(map(len, pieces))

    def client(url: str) -> list[int]:
        with Raw(url).opened() as raw:
            for name in ("one", "two"):
                durable(raw, name)
                raw.call(1, QUEUE_BIND, b"\0\0" + short(name) + short("amq.fanout") + short("") + b"\0" + long(b""))
                raw.expect(QUEUE_BIND_OK)
            declared(raw, "dies", text("x-dead-letter-exchange", "amq.fanout"))
            raw.call(1, PUBLISH, b"\0\0" + short("") + short("dies") + b"\0")
            raw.content(1, size, LASTING)
            for piece in pieces:
                raw.frame(BODY, 1, piece)
            consume(raw, "dies")
            got = 0
            while got < size:
                frame = raw.next()
                got += len(frame.payload) if frame.kind == BODY else 0
            raw.call(1, NACK, struct.pack(">QB", 1, 0))
            return [len(raw.got(name)[1]) for name in ("one", "two")]

    async def main() -> None:
        async with served() as (_, url):
            assert await asyncio.to_thread(client, url) == [size, size]

    asyncio.run(main())
