"""Frames for a channel that is being closed, or just was: they were on their way, and are no fault."""

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


LATE: list[Callable[[Raw], None]] = [ack, nack, publish, declare]
UNANSWERED = LATE[:3]


def got(raw: Raw) -> None:
    """Get a message on channel 1, and leave it unsettled."""
    queue = raw.queue()
    raw.publish(queue, b"m")
    raw.call(1, GET, b"\0\0" + short(queue) + b"\0")
    raw.expect(GET_OK)
    raw.next()
    raw.next()


def check_open(raw: Raw) -> None:
    """Check that the connection still works."""
    raw.open_channel(1)
    declare(raw)
    raw.expect(QUEUE_DECLARE_OK)


@pytest.mark.rows("Q12")
@pytest.mark.parametrize("send_frame", LATE)
def test_frames_behind_a_close_are_not_read(raw, send_frame):
    got(raw)
    with raw.together():
        raw.call(1, CHANNEL_CLOSE, CLOSING)
        send_frame(raw)
        send_frame(raw)
    raw.expect(CHANNEL_CLOSE_OK)
    check_open(raw)


@pytest.mark.parametrize("send_frame", LATE)
def test_frames_sent_before_a_client_knows_that_the_server_closed_are_not_read(raw, send_frame):
    raw.call(1, QUEUE_DECLARE, b"\0\0" + short("absent") + bytes([PASSIVE]) + long(b""))
    raw.expect(CHANNEL_CLOSE)
    send_frame(raw)
    raw.call(1, CHANNEL_CLOSE_OK)
    check_open(raw)


def test_a_call_on_a_channel_that_is_known_to_be_closed_gets_an_error(raw):
    raw.call(1, CHANNEL_CLOSE, CLOSING)
    raw.expect(CHANNEL_CLOSE_OK)
    declare(raw)
    assert raw.expect(CLOSE).code == 504


@pytest.mark.parametrize("send_frame", UNANSWERED)
def test_frames_without_an_answer_may_come_a_little_late(send_frame):
    """Send late frames, for which RabbitMQ ends the connection if its answer was faster than they were."""

    async def main() -> None:
        async with served() as (_, url):

            def late() -> None:
                with Raw(url).opened() as raw:
                    got(raw)
                    raw.call(1, CHANNEL_CLOSE, CLOSING)
                    raw.expect(CHANNEL_CLOSE_OK)
                    send_frame(raw)
                    check_open(raw)

            await asyncio.to_thread(late)

    asyncio.run(main())


@pytest.mark.parametrize("send_frame", UNANSWERED)
def test_frames_that_come_much_too_late_end_the_connection(send_frame, monkeypatch):
    monkeypatch.setattr(session, "LATE_S", 0.0)

    async def main() -> None:
        async with served() as (_, url):

            def late() -> None:
                with Raw(url).opened() as raw:
                    raw.call(1, CHANNEL_CLOSE, CLOSING)
                    raw.expect(CHANNEL_CLOSE_OK)
                    send_frame(raw)
                    assert raw.expect(CLOSE).code == 504

            await asyncio.to_thread(late)

    asyncio.run(main())
