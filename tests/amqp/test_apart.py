"""What one client, wire or message does is felt by no other."""

from __future__ import annotations

import asyncio
import struct
from typing import Any

import pytest

from tests.amqp.raw import (
    ACK,
    CHANNEL_CLOSE,
    CHANNEL_CLOSE_OK,
    CONSUME,
    CONSUME_OK,
    DELIVER,
    EXCHANGE_DECLARE_OK,
    GET,
    GET_EMPTY,
    PUBLISH,
    QUEUE_BIND,
    QUEUE_BIND_OK,
    QUEUE_DECLARE,
    QUEUE_DECLARE_OK,
    Raw,
    long,
    short,
)
from tests.amqp.wires import LASTING, confirming, durable, over
from wherry.broker.broker import Broker
from wherry.model.calls.dead import DeadFilter


@pytest.mark.rows("Q12")
def test_a_routing_key_that_is_no_text_is_routed_and_holds_no_other_up():
    key = b"\xff\xfe"

    def client(url: str) -> bytes:
        with confirming(Raw(url).opened()) as raw:
            durable(raw, "q")
            raw.call(1, QUEUE_BIND, b"\0\0" + short("q") + short("amq.fanout") + short("") + b"\0" + long(b""))
            raw.expect(QUEUE_BIND_OK)
            raw.call(1, PUBLISH, b"\0\0" + short("amq.fanout") + bytes([len(key)]) + key + b"\0")
            raw.content(1, 4, LASTING)
            raw.frame(3, 1, b"body")
            raw.expect(ACK)
            return raw.got("q")[1]

    async def story(broker: Broker, url: str, in_thread: Any) -> None:
        assert await in_thread(client, url) == b"body"

    over(story)


def test_what_was_published_on_a_channel_is_not_confirmed_on_its_successor():
    def client(url: str) -> None:
        with confirming(Raw(url).opened()) as raw:
            durable(raw, "q")
            frames = struct.pack(">HH", *PUBLISH) + b"\0\0" + short("") + short("q") + b"\0"
            raw.send(
                b"".join(
                    struct.pack(">BHI", kind, 1, len(payload)) + payload + b"\xce"
                    for kind, payload in (
                        (1, frames),
                        (2, struct.pack(">HHQ", 60, 0, 1) + LASTING),
                        (3, b"x"),
                        (1, struct.pack(">HHH", *CHANNEL_CLOSE, 200) + short("") + b"\0\0\0\0"),
                        (1, struct.pack(">HH", 20, 10) + short("")),
                    )
                )
            )
            found = [raw.next().method for _ in range(2)]
            while found[-1] != (20, 11):
                found.append(raw.next().method)
            assert found[-2:] == [CHANNEL_CLOSE_OK, (20, 11)], found
            raw.call(1, GET, b"\0\0" + short("q") + b"\x01")
            assert raw.next().method != ACK

    async def story(broker: Broker, url: str, in_thread: Any) -> None:
        await in_thread(client, url)

    over(story)


def test_a_queue_that_was_made_anew_over_another_wire_is_another_queue():
    async def story(broker: Broker, url: str, in_thread: Any) -> None:
        raw = await in_thread(lambda: Raw(url).opened())
        await in_thread(durable, raw, "q")
        raw.call(1, CONSUME, b"\0\0" + short("q") + short("me") + b"\0" + long(b""))
        await in_thread(raw.expect, CONSUME_OK)
        await broker.delete_topic("q")
        await broker.create_topic("q", order="priority")
        await asyncio.sleep(0.1)
        raw.call(1, QUEUE_DECLARE, b"\0\0" + short("q") + b"\x03" + long(b""))
        await in_thread(raw.expect, QUEUE_DECLARE_OK)
        raw.call(1, CONSUME, b"\0\0" + short("q") + short("me too") + b"\0" + long(b""))
        await in_thread(raw.expect, CONSUME_OK)
        await broker.publish("q", [b"new"])
        assert (await in_thread(raw.next)).method == DELIVER
        raw.__exit__(None, None, None)

    over(story)


def test_dead_letters_of_others_stay_with_them():
    async def story(broker: Broker, url: str, in_thread: Any) -> None:
        raw = await in_thread(lambda: Raw(url).opened())
        await in_thread(durable, raw, "graves")
        table = (
            short("x-dead-letter-exchange")
            + b"S"
            + long(b"")
            + short("x-dead-letter-routing-key")
            + b"S"
            + long(b"graves")
        )
        raw.call(1, QUEUE_DECLARE, b"\0\0" + short("q") + b"\x02" + long(table))
        await in_thread(raw.expect, QUEUE_DECLARE_OK)
        await broker.subscribe("q", "http")
        await broker.publish("q", [b"theirs"])
        async with await broker.consumer("q", "http") as consumer:
            await (await consumer.pull()).dead_letter(reason="bad")
        await asyncio.sleep(0.2)
        assert (await broker.dead_letters("q", DeadFilter(subscription="http"))).num_rows == 1
        raw.call(1, GET, b"\0\0" + short("graves") + b"\x01")
        await in_thread(raw.expect, GET_EMPTY)
        raw.__exit__(None, None, None)

    over(story)


def test_ids_that_come_twice_are_notes_of_their_senders():
    def client(url: str) -> list[bytes]:
        with confirming(Raw(url).opened()) as raw:
            durable(raw, "q")
            kind = long(short("x-delayed-type") + b"S" + long(b"direct"))
            raw.call(1, (40, 10), b"\0\0" + short("delays") + short("x-delayed-message") + b"\x02" + kind)
            raw.expect(EXCHANGE_DECLARE_OK)
            raw.call(1, QUEUE_BIND, b"\0\0" + short("q") + short("delays") + short("k") + b"\0" + long(b""))
            raw.expect(QUEUE_BIND_OK)
            headers = long(short("x-delay") + b"I" + struct.pack(">i", 50))
            for name in ("same", "same", "0-1", "\x01"):
                properties = struct.pack(">H", 0x2000 | 0x1000 | 0x0080) + headers + b"\x02" + short(name)
                raw.call(1, PUBLISH, b"\0\0" + short("delays") + short("k") + b"\0")
                raw.content(1, 1, properties)
                raw.frame(3, 1, b"x")
                assert raw.next().method == ACK
            return [raw.got("q")[1] for _ in range(4)]

    async def story(broker: Broker, url: str, in_thread: Any) -> None:
        assert await in_thread(client, url) == [b"x"] * 4

    over(story)
