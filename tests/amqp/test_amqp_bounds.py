"""Clients that take too much, or too long, are cut off within their bound, and no other client notices."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from typing import Any, TypeVar

import pytest

from tests.amqp.raw import (
    BODY,
    CHANNEL_CLOSE,
    CLOSE,
    CONSUME,
    CONTENT,
    HEADER,
    METHOD,
    PUBLISH,
    QUEUE_DECLARE,
    QUEUE_DECLARE_OK,
    Raw,
    long,
    short,
)
from tests.amqp.wires import durable, nested, served
from wherry.queueing.flow import intake as intake_module
from wherry.wire.amqp.server import WRITE_HIGH_BYTES

T = TypeVar("T")


def over(**bounds: Any) -> Callable[[Callable[[str], T]], T]:
    """Run a client in a thread against a server of its own."""

    def run(client: Callable[[str], T]) -> T:
        async def main() -> T:
            async with served(**bounds) as (_, url):
                return await asyncio.to_thread(client, url)

        return asyncio.run(main())

    return run


@pytest.mark.rows("Q12")
def test_a_client_that_never_reads_is_cut_off_and_others_are_served():
    body = bytes(100_000)

    def client(url: str) -> bool:
        with Raw(url) as deaf, Raw(url) as other:
            other.opened()
            durable(other, "q")
            for _ in range(200):
                other.publish("q", body)
            deaf.opened()
            deaf.call(1, CONSUME, b"\0\0" + short("q") + short("") + b"\x02" + long(b""))  # without acks
            assert other.got("q")[1] == body  # what the deaf one was not sent is still there
            return deaf.is_hung_up()

    assert over(write_s=1.0)(client)


def test_what_a_client_has_not_read_is_bounded():
    async def main() -> int:
        async with served() as (server, url):
            raw = await asyncio.to_thread(lambda: Raw(url).opened())
            await asyncio.to_thread(durable, raw, "q")
            for _ in range(100):
                await asyncio.to_thread(raw.publish, "q", bytes(100_000))
            await asyncio.to_thread(raw.call, 1, CONSUME, b"\0\0" + short("q") + short("") + b"\x02" + long(b""))
            await asyncio.sleep(0.5)
            (connection,) = server.connected
            held: int = connection._transport.get_write_buffer_size()
            raw.__exit__(None, None, None)
            return held

    assert asyncio.run(main()) < 8 * WRITE_HIGH_BYTES


def test_a_client_that_does_not_log_in_is_cut_off():
    def client(url: str) -> bool:
        with Raw(url) as raw:
            raw.send(HEADER[:4])
            return raw.is_hung_up()

    assert over(login_s=0.5)(client)


@pytest.mark.parametrize(
    ("deed", "code"),
    [
        (lambda raw: raw.send(struct.pack(">BHI", METHOD, 1, 1 << 30) + b"\0"), 501),
        (lambda raw: raw.frame(METHOD, 1, struct.pack(">HH", *QUEUE_DECLARE) + b"\0\0\0\0" + nested(200)), 501),
    ],
    ids=[
        "a frame that is announced too large",
        "a table in a table in a table",
    ],
)
def test_what_is_too_much_ends_the_connection(deed, code):
    def client(url: str) -> int:
        with Raw(url) as raw:
            raw.opened()
            deed(raw)
            return raw.expect(CLOSE).code

    assert over()(client) == code


def test_any_numbers_of_channels_may_be_open_but_no_more_than_were_agreed():
    def client(url: str) -> tuple[int, bytes]:
        with Raw(url) as raw:
            raw.opened(channel_max=3)
            for number in (65_535, 4_000):
                raw.open_channel(number)
            raw.call(2, (20, 10), short(""))
            found = raw.expect(CLOSE)
            return found.code, found.arguments[3 : 3 + found.arguments[2]]

    text = b"NOT_ALLOWED - number of channels opened (3) has reached the negotiated channel_max (3)"
    assert over()(client) == (530, text)


def test_a_body_beyond_the_bound_ends_its_channel_and_no_more():
    def client(url: str) -> tuple[int, bytes]:
        with Raw(url) as raw:
            raw.opened()
            name = raw.queue()
            raw.call(1, PUBLISH, b"\0\0" + short("") + short(name) + b"\0")
            raw.frame(CONTENT, 1, struct.pack(">HHQ", 60, 0, (24 << 20) + 1) + b"\0\0")
            code = raw.expect(CHANNEL_CLOSE).code
            raw.call(1, (20, 41))
            raw.open_channel(1)
            raw.publish(name, b"small")
            return code, raw.got(name)[1]

    assert over()(client) == (311, b"small")


def test_half_a_message_for_ever_holds_no_more_than_it_has_sent():
    async def main() -> int:
        async with served() as (server, url):
            raw = await asyncio.to_thread(lambda: Raw(url).opened())

            def half() -> None:
                raw.call(1, PUBLISH, b"\0\0" + short("") + short("q") + b"\0")
                raw.frame(CONTENT, 1, struct.pack(">HHQ", 60, 0, 16 << 20) + b"\0\0")
                raw.frame(BODY, 1, bytes(1_000))

            await asyncio.to_thread(half)
            await asyncio.sleep(0.2)
            raw.__exit__(None, None, None)
            return server.partial_bytes

    assert 0 < asyncio.run(main()) < 10_000


def test_a_client_that_publishes_faster_than_the_disk_is_held_back(monkeypatch):
    monkeypatch.setattr(intake_module, "UNSTORED_BYTES_MAX", 100_000)

    def client(url: str) -> int:
        with Raw(url) as raw:
            raw.opened()
            durable(raw, "q")
            for _ in range(300):
                raw.publish("q", bytes(10_000), b"\x10\x00\x02")
            raw.call(1, QUEUE_DECLARE, b"\0\0" + short("q") + b"\x03" + long(b""))
            answer = raw.expect(QUEUE_DECLARE_OK).arguments
            return int(struct.unpack_from(">I", answer, 1 + answer[0])[0])

    assert over()(client) == 300


def test_too_many_connections_are_refused():
    def client(url: str) -> tuple[bool, bool]:
        with Raw(url) as first:
            first.opened()
            with Raw(url) as second:
                refused = second.is_hung_up()
            name = first.queue()
            first.publish(name, b"x")
            return refused, first.got(name)[1] == b"x"

    assert over(connections=1)(client) == (True, True)


@pytest.mark.rows("Q12")
def test_no_message_can_be_begun_before_login():
    @over()
    def hung_up(url: str) -> bool:
        with Raw(url) as stranger:
            stranger.send(HEADER)
            stranger.next()
            stranger.call(1, PUBLISH, b"\0\0" + short("") + short("q") + b"\0")
            return stranger.is_hung_up()

    assert hung_up
