"""Failures in the middle of an operation: nothing hangs, nothing is lost, and no other client notices."""

from __future__ import annotations

import asyncio
import struct
from typing import Any

import pytest

from tests.amqp.raw import (
    ACK,
    CHANNEL_CLOSE,
    CONFIRM_SELECT,
    CONFIRM_SELECT_OK,
    GET,
    GET_EMPTY,
    GET_OK,
    PUBLISH,
    QUEUE_DECLARE,
    QUEUE_DECLARE_OK,
    Raw,
    long,
    short,
)
from tests.amqp.wires import LASTING, counts, declared, durable, number, over, served, text
from wherry import Message
from wherry.broker.broker import Broker

TX_SELECT, TX_COMMIT, REJECT = (90, 10), (90, 20), (60, 90)


@pytest.mark.rows("Q12")
def test_a_commit_that_fails_gives_back_what_it_would_have_acked():
    async def story(broker: Broker, url: str, in_thread: Any) -> None:
        def client() -> None:
            with Raw(url).opened() as raw:
                durable(raw, "src")
                declared(raw, "full", number("x-max-length", 1), text("x-overflow", "reject-publish"))
                raw.publish("src", b"work", LASTING)
                raw.call(1, TX_SELECT)
                raw.next()
                raw.call(1, GET, b"\0\0" + short("src") + b"\0")
                assert raw.next().method == GET_OK
                for _ in range(2):
                    raw.next()
                raw.call(1, ACK, struct.pack(">QB", 1, 0))
                for _ in range(2):
                    raw.publish("full", b"x", LASTING)
                raw.call(1, TX_COMMIT)
                assert raw.next().method in (CHANNEL_CLOSE, (10, 50))

        await in_thread(client)
        await asyncio.sleep(0.2)
        assert counts(broker, "src") == (1, 0)
        assert not broker.shard.state.stages.open

    over(story)


def test_a_client_that_hangs_up_while_it_is_served_leaves_nothing_behind():
    async def story(broker: Broker, url: str, in_thread: Any) -> None:
        def client() -> None:
            with Raw(url).opened() as raw:
                durable(raw, "q")
                raw.publish("q", b"x", LASTING)
                raw.call(1, QUEUE_DECLARE, b"\0\0" + short("q") + b"\x03" + long(b""))
                raw.expect(QUEUE_DECLARE_OK)
            for call in (
                (GET, b"\0\0" + short("q") + b"\0"),
                (QUEUE_DECLARE, b"\0\0" + short("mine") + b"\x04" + long(b"")),
            ):
                raw = Raw(url).opened()
                raw.call(1, *call)
                raw.__exit__(None, None, None)

        await in_thread(client)
        await asyncio.sleep(0.3)
        assert counts(broker, "q") == (1, 0)
        assert [topic.name for topic in broker.topics()] == ["q"]

    over(story)


def test_half_messages_of_channels_that_were_closed_are_not_counted_for_ever():
    async def main() -> None:
        async with served() as (server, url):

            def client() -> None:
                with Raw(url).opened() as raw:
                    raw.call(1, PUBLISH, b"\0\0" + short("") + short("q") + b"\0")
                    raw.frame(2, 1, struct.pack(">HHQ", 60, 0, 100_000) + b"\0\0")
                    raw.frame(3, 1, bytes(50_000))
                    raw.open_channel(2)
                    raw.call(2, QUEUE_DECLARE, b"\0\0" + short("none") + b"\x01" + long(b""))
                    raw.next()

            await asyncio.to_thread(client)
            await asyncio.sleep(0.2)
            assert server.partial_bytes == 0

    asyncio.run(main())


def dead_lettered(broker: Broker, url: str, in_thread: Any, target: bytes, bodies: list[tuple[bytes, bytes]]) -> Any:
    """Reject messages (properties and body) of a queue whose dead letters go to another one."""

    def client() -> None:
        with Raw(url).opened() as raw:
            raw.call(1, QUEUE_DECLARE, b"\0\0" + short("graves") + b"\x02" + long(target))
            raw.expect(QUEUE_DECLARE_OK)
            declared(raw, "q", text("x-dead-letter-exchange", ""), text("x-dead-letter-routing-key", "graves"))
            for properties, body in bodies:
                raw.publish("q", body[:100_000], properties)
            for tag in range(1, len(bodies) + 1):
                raw.call(1, GET, b"\0\0" + short("q") + b"\0")
                while raw.next().method != GET_OK:
                    raw.call(1, GET, b"\0\0" + short("q") + b"\0")
                for _ in range(2):
                    raw.next()
                raw.call(1, REJECT, struct.pack(">QB", tag, 0))
            raw.call(1, QUEUE_DECLARE, b"\0\0" + short("q") + b"\x03" + long(b""))
            raw.expect(QUEUE_DECLARE_OK)

    return in_thread(client)


async def moved(broker: Broker) -> int:
    async with asyncio.timeout(10):
        while broker.stats("q").dead:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    return counts(broker, "graves")[0]


def test_dead_letters_move_into_a_queue_that_is_smaller_than_a_block_of_them():
    async def story(broker: Broker, url: str, in_thread: Any) -> None:
        await dead_lettered(broker, url, in_thread, number("x-max-length", 3), [(LASTING, b"x")] * 20)
        assert await moved(broker) == 3

    over(story)


def test_a_forged_death_does_not_stop_the_others():
    forged = long(text("queue", "q") + text("reason", "rejected") + text("count", "abc"))
    headers = long(short("x-death") + b"A" + long(b"F" + forged))
    properties = struct.pack(">H", 0x2000 | 0x1000) + headers + b"\x02"

    async def story(broker: Broker, url: str, in_thread: Any) -> None:
        await dead_lettered(broker, url, in_thread, b"", [(properties, b"forged"), (LASTING, b"good")])
        assert await moved(broker) == 2

    over(story)


def test_a_delay_without_end_is_one_messages_own_affair():
    def client(url: str) -> tuple[int, int]:
        with Raw(url).opened() as raw:
            durable(raw, "q")
            kind = long(text("x-delayed-type", "fanout"))
            raw.call(1, (40, 10), b"\0\0" + short("delays") + short("x-delayed-message") + b"\x02" + kind)
            raw.next()
            raw.call(1, (50, 20), b"\0\0" + short("q") + short("delays") + short("") + b"\0" + long(b""))
            raw.next()
            raw.call(1, CONFIRM_SELECT, b"\0")
            raw.expect(CONFIRM_SELECT_OK)
            wild = [struct.pack(">d", each) for each in (1e300, float("inf"), float("nan"))]
            for delay in [b"d" + each for each in wild] + [b"l" + struct.pack(">q", 1 << 62)]:
                properties = struct.pack(">H", 0x2000 | 0x1000) + long(short("x-delay") + delay) + b"\x02"
                raw.call(1, PUBLISH, b"\0\0" + short("delays") + short("") + b"\0")
                raw.content(1, 1, properties)
                raw.frame(3, 1, b"x")
                raw.publish("q", b"plain", LASTING)
            last = 0
            while last < 8:
                frame = raw.next()
                assert frame.method == ACK, frame
                last = int(struct.unpack_from(">Q", frame.arguments)[0])
            return last, len([raw.got("q") for _ in range(6)])

    async def story(broker: Broker, url: str, in_thread: Any) -> None:
        assert await in_thread(client, url) == (8, 6)  # two have no delay that could be meant, and come at once

    over(story)


def test_an_envelope_that_is_none_of_ours_is_a_message_like_others():
    async def story(broker: Broker, url: str, in_thread: Any) -> None:
        raw = await in_thread(lambda: Raw(url).opened())
        await in_thread(durable, raw, "q")
        for envelope in (b"A", b"A\x05", b"A\x00\x00", b"A\x00\xff", b"other"):
            await broker.publish("q", Message(payload=envelope, envelope=envelope))
        found = [(await in_thread(raw.got, "q"))[1] for _ in range(5)]
        assert found == [b"A", b"A\x05", b"A\x00\x00", b"A\x00\xff", b"other"]
        raw.call(1, GET, b"\0\0" + short("q") + b"\x01")
        await in_thread(raw.expect, GET_EMPTY)
        raw.__exit__(None, None, None)

    over(story)
