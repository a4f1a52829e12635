"""What a client still says of a channel that is being closed, or just was: it was on its way, and is no fault."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable

import pytest

from tests.amqp.raw import (
    ACK,
    BODY,
    CHANNEL_CLOSE,
    CHANNEL_CLOSE_OK,
    CLOSE,
    GET,
    GET_OK,
    NACK,
    PUBLISH,
    QUEUE_DECLARE,
    QUEUE_DECLARE_OK,
    Raw,
    long,
    short,
)
from tests.amqp.wires import PASSIVE, served
from wherry.wire.amqp import session

CLOSING = struct.pack(">H", 200) + short("") + struct.pack(">HH", 0, 0)


@pytest.fixture
def raw(amqp_url):
    with Raw(amqp_url) as opened:
        yield opened.opened()


def ack(raw: Raw) -> None:
    raw.call(1, ACK, struct.pack(">QB", 1, 0))


def nack(raw: Raw) -> None:
    raw.call(1, NACK, struct.pack(">QB", 1, 2))


def publish(raw: Raw) -> None:
    raw.call(1, PUBLISH, b"\0\0" + short("") + short("nobody") + b"\0")
    raw.content(1, 3)
    raw.frame(BODY, 1, b"abc")


def declare(raw: Raw) -> None:
    raw.call(1, QUEUE_DECLARE, b"\0\0" + short("") + b"\x04" + long(b""))


SAID: list[Callable[[Raw], None]] = [ack, nack, publish, declare]
UNANSWERED = SAID[:3]


def got(raw: Raw) -> None:
    """A message is out on channel 1."""
    queue = raw.queue()
    raw.publish(queue, b"m")
    raw.call(1, GET, b"\0\0" + short(queue) + b"\0")
    raw.expect(GET_OK)
    raw.next()
    raw.next()


def goes_on(raw: Raw) -> None:
    """The connection is as good as ever."""
    raw.open_channel(1)
    declare(raw)
    raw.expect(QUEUE_DECLARE_OK)


@pytest.mark.rows("Q12")
@pytest.mark.parametrize("say", SAID)
def test_what_comes_behind_a_close_is_not_listened_to(raw, say):
    got(raw)
    with raw.together():
        raw.call(1, CHANNEL_CLOSE, CLOSING)
        say(raw)
        say(raw)
    raw.expect(CHANNEL_CLOSE_OK)
    goes_on(raw)


@pytest.mark.parametrize("say", SAID)
def test_nor_what_comes_before_a_client_knows_that_the_server_closed(raw, say):
    raw.call(1, QUEUE_DECLARE, b"\0\0" + short("absent") + bytes([PASSIVE]) + long(b""))
    raw.expect(CHANNEL_CLOSE)
    say(raw)
    raw.call(1, CHANNEL_CLOSE_OK)
    goes_on(raw)


def test_a_call_on_a_channel_that_is_known_to_be_closed_is_told_so(raw):
    raw.call(1, CHANNEL_CLOSE, CLOSING)
    raw.expect(CHANNEL_CLOSE_OK)
    declare(raw)
    assert raw.expect(CLOSE).code == 504


@pytest.mark.parametrize("say", UNANSWERED)
def test_what_wants_no_answer_may_come_a_little_late(say):
    """RabbitMQ ends the connection here, if the answer was faster than what was on its way."""

    async def main() -> None:
        async with served() as (_, url):

            def late() -> None:
                with Raw(url).opened() as raw:
                    got(raw)
                    raw.call(1, CHANNEL_CLOSE, CLOSING)
                    raw.expect(CHANNEL_CLOSE_OK)
                    say(raw)
                    goes_on(raw)

            await asyncio.to_thread(late)

    asyncio.run(main())


@pytest.mark.parametrize("say", UNANSWERED)
def test_but_not_for_ever(say, monkeypatch):
    monkeypatch.setattr(session, "LATE_S", 0.0)

    async def main() -> None:
        async with served() as (_, url):

            def late() -> None:
                with Raw(url).opened() as raw:
                    raw.call(1, CHANNEL_CLOSE, CLOSING)
                    raw.expect(CHANNEL_CLOSE_OK)
                    say(raw)
                    assert raw.expect(CLOSE).code == 504

            await asyncio.to_thread(late)

    asyncio.run(main())
