"""How long queues live: those that end unused, over a restart too; and that no queue ends for one of its name."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable

import pytest

from tests.amqp.raw import (
    ACK,
    CANCEL,
    CANCEL_OK,
    CHANNEL_CLOSE,
    CHANNEL_CLOSE_OK,
    CONSUME,
    CONSUME_OK,
    DELIVER,
    QOS,
    QOS_OK,
    QUEUE_DELETE,
    QUEUE_DELETE_OK,
    Raw,
    long,
    short,
)
from tests.amqp.wires import (
    AUTO_DELETE,
    DURABLE,
    EXCLUSIVE,
    LASTING,
    PASSIVE,
    broker_of,
    declared,
    number,
    served,
    until,
)
from wherry.broker.broker import Broker
from wherry.queueing import clock as clock_module

LIFE_S = 60
BRIEF = number("x-expires", LIFE_S * 1000)


class Clock:
    """The steady clock of this wire, which can be set forward: nothing here waits for a minute, or races with one."""

    def __init__(self) -> None:
        self._ahead_s = 0.0

    def now_s(self) -> float:
        return asyncio.get_running_loop().time() + self._ahead_s

    def set_forward(self) -> None:
        """Move the clock beyond the life of a queue that is unused from now on."""
        self._ahead_s += LIFE_S + 1


@pytest.fixture
def clock(monkeypatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(clock_module, "now_s", made.now_s)
    return made


def names(broker: Broker) -> list[str]:
    return [topic.name for topic in broker.topics()]


def consume(raw: Raw, queue: str) -> None:
    raw.call(1, CONSUME, b"\0\0" + short(queue) + short("me") + b"\0" + long(b""))
    raw.expect(CONSUME_OK)


def close_channel(raw: Raw) -> None:
    raw.call(1, CHANNEL_CLOSE, struct.pack(">H", 200) + short("") + b"\0\0\0\0")
    raw.expect(CHANNEL_CLOSE_OK)


# ------------------------------------------------------------------------------------------------------------ x-expires


@pytest.mark.rows("Q12")
def test_an_unused_queue_ends_after_a_restart_too_and_one_that_is_used_does_not(tmp_path, clock):
    def before(url: str) -> None:
        with Raw(url).opened() as raw:
            for name in ("left", "used"):
                declared(raw, name, BRIEF)
            declared(raw, "for ever")

    async def main() -> None:
        async with served(tmp_path / "data") as (_, url):
            await asyncio.to_thread(before, url)
        clock.set_forward()  # no client could use the queues meanwhile: their time begins anew
        async with served(tmp_path / "data") as (server, url):
            broker, queueing = broker_of(server), server.queueing
            with await asyncio.to_thread(lambda: Raw(url).opened()) as raw:
                await asyncio.to_thread(consume, raw, "used")
                assert names(broker) == ["for ever", "left", "used"]
                clock.set_forward()
                await until(lambda: "left" not in names(broker))
                await queueing.background_done()  # all that the same look found
                assert names(broker) == ["for ever", "used"]
                await asyncio.to_thread(close_channel, raw)
            clock.set_forward()
            await until(lambda: "used" not in names(broker))
            assert names(broker) == ["for ever"]

    asyncio.run(main())


def test_a_queue_of_another_name_space_ends_after_a_restart_too(tmp_path, clock):
    """Declare a name that begins with an at sign, which is written differently as a topic."""

    def before(url: str) -> None:
        with Raw(url).opened() as raw:
            declared(raw, "@left", BRIEF)

    async def main() -> None:
        async with served(tmp_path / "data") as (_, url):
            await asyncio.to_thread(before, url)
        async with served(tmp_path / "data") as (server, _):
            assert names(broker_of(server)) == ["@%2F/@left"]
            clock.set_forward()
            await until(lambda: not names(broker_of(server)))

    asyncio.run(main())


# ------------------------------------------------------------------------------------------------------------ namesakes


def cancel(raw: Raw) -> None:
    raw.call(1, CANCEL, short("me") + b"\0")
    raw.expect(CANCEL_OK)


def ack(raw: Raw) -> None:
    raw.call(1, ACK, struct.pack(">QB", 1, 0))
    raw.call(1, QOS, struct.pack(">IHB", 0, 1, 0))
    raw.expect(QOS_OK)  # and nothing was delivered


def hang_up(raw: Raw) -> None:
    raw.__exit__(None, None, None)


@pytest.mark.rows("Q12")
@pytest.mark.parametrize("deed", [cancel, close_channel, ack, hang_up], ids=lambda deed: deed.__name__)
def test_a_consumer_of_a_deleted_queue_takes_nothing_from_its_namesake(deed: Callable[[Raw], None]):
    """Hold a consumer without room, which has not noticed yet that its queue was deleted over another wire."""

    def holding(url: str) -> Raw:
        raw = Raw(url).opened()
        declared(raw, "q", flags=DURABLE | AUTO_DELETE)
        raw.call(1, QOS, struct.pack(">IHB", 0, 1, 0))
        raw.expect(QOS_OK)
        for body in (b"old", b"old too"):
            raw.publish("q", body, LASTING)
        consume(raw, "q")
        assert [raw.next().method, raw.next().kind, raw.next().payload] == [DELIVER, 2, b"old"]
        return raw

    def anew(url: str) -> Raw:
        raw = Raw(url).opened()
        declared(raw, "q", flags=DURABLE | AUTO_DELETE)
        raw.publish("q", b"new", LASTING)
        assert declared(raw, "q", flags=PASSIVE) == 1
        return raw

    async def main() -> None:
        async with served() as (server, url):
            old = await asyncio.to_thread(holding, url)
            await broker_of(server).delete_topic("q")
            with old, await asyncio.to_thread(anew, url) as new:
                await asyncio.to_thread(deed, old)
                old.__exit__(None, None, None)
                await until(lambda: server.connections == 1)
                await server.queueing.background_done()
                assert await asyncio.to_thread(declared, new, "q", flags=PASSIVE) == 1
                assert (await asyncio.to_thread(new.got, "q"))[1] == b"new"

    asyncio.run(main())


def test_an_exclusive_queue_does_not_delete_its_namesake_with_its_connection():
    """Declare the name anew over AMQP, and make another over another wire, not seen here yet."""

    def owner(url: str) -> Raw:
        raw = Raw(url).opened()
        for name in ("deleted", "replaced", "kept"):
            declared(raw, name, flags=EXCLUSIVE)
        raw.call(1, QUEUE_DELETE, b"\0\0" + short("deleted") + b"\0")
        raw.expect(QUEUE_DELETE_OK)
        return raw

    def another(url: str) -> None:
        with Raw(url).opened() as raw:
            declared(raw, "deleted")
            raw.publish("deleted", b"x", LASTING)
            assert declared(raw, "deleted") == 1

    async def main() -> None:
        async with served() as (server, url):
            broker = broker_of(server)
            with await asyncio.to_thread(owner, url):
                await asyncio.to_thread(another, url)
                await broker.delete_topic("replaced")
                await broker.create_topic("replaced")
            await until(lambda: "kept" not in names(broker))  # "kept" ended with its connection
            await server.queueing.background_done()
            assert names(broker) == ["deleted", "replaced"]
            with await asyncio.to_thread(lambda: Raw(url).opened()) as raw:
                assert await asyncio.to_thread(declared, raw, "deleted") == 1

    asyncio.run(main())


def test_the_time_of_a_queue_that_is_gone_does_not_run_out_for_its_namesake(clock):
    def client(url: str) -> None:
        with Raw(url).opened() as raw:
            for name in ("deleted", "replaced", "left"):
                declared(raw, name, BRIEF)
            raw.call(1, QUEUE_DELETE, b"\0\0" + short("deleted") + b"\0")
            raw.expect(QUEUE_DELETE_OK)
            declared(raw, "deleted")

    async def main() -> None:
        async with served() as (server, url):
            broker = broker_of(server)
            await asyncio.to_thread(client, url)
            await broker.delete_topic("replaced")
            await broker.create_topic("replaced")
            clock.set_forward()
            await until(lambda: "left" not in names(broker))
            await server.queueing.background_done()
            assert names(broker) == ["deleted", "replaced"]

    asyncio.run(main())


def test_a_queue_that_would_expire_is_forgotten_with_its_end():
    async def main() -> None:
        async with served() as (server, url):

            def client() -> None:
                with Raw(url).opened() as raw:
                    declared(raw, "brief", number("x-expires", 86_400_000))
                    raw.call(1, (50, 40), b"\0\0" + short("brief") + b"\0")
                    raw.expect((50, 41))

            await asyncio.to_thread(client)
            assert server.queueing.hosts["/"].expiring == {}

    asyncio.run(main())
