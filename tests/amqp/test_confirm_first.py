"""A publish that waits for no disk is confirmed before its message is delivered, whatever others write meanwhile."""

from __future__ import annotations

import asyncio
import struct

import pytest

from tests.amqp.raw import (
    ACK,
    BODY,
    CONFIRM_SELECT,
    CONFIRM_SELECT_OK,
    CONSUME,
    CONSUME_OK,
    DELIVER,
    METHOD,
    PUBLISH,
    Raw,
    long,
    short,
)
from tests.amqp.wires import LASTING, confirming, durable, served

ROUNDS = 20


def consumed(raw: Raw) -> str:
    """Declare a queue with a consumer on channel 1, and return its name."""
    queue = raw.queue()
    raw.call(1, CONSUME, b"\0\0" + short(queue) + short("") + b"\x02" + long(b""))
    raw.expect(CONSUME_OK)
    return queue


def publish(raw: Raw, channel: int, queue: str, properties: bytes) -> None:
    raw.call(channel, PUBLISH, b"\0\0" + short("") + short(queue) + b"\0")
    raw.content(channel, 1, properties)
    raw.frame(BODY, channel, b"m")


def methods(raw: Raw, count: int) -> list[tuple[int, tuple[int, int]]]:
    """Return the next methods, and their channels."""
    found: list[tuple[int, tuple[int, int]]] = []
    while len(found) < count:
        frame = raw.next()
        if frame.kind == METHOD:
            found.append((frame.channel, frame.method))
    return found


def over_disk(tmp_path, story) -> None:
    async def main() -> None:
        async with served(tmp_path / "data") as (_, url):

            def run() -> None:
                with Raw(url).opened() as raw:
                    story(confirming(raw))

            await asyncio.to_thread(run)

    asyncio.run(main())


@pytest.mark.rows("Q12")
def test_a_transient_message_is_confirmed_before_it_is_delivered(tmp_path):
    def story(raw: Raw) -> None:
        queue = consumed(raw)
        for _ in range(ROUNDS):
            publish(raw, 1, queue, b"\0\0")
            assert methods(raw, 2) == [(1, ACK), (1, DELIVER)]

    over_disk(tmp_path, story)


@pytest.mark.rows("Q12")
def test_a_transient_message_is_confirmed_first_where_others_publish_to_disk(tmp_path):
    def story(raw: Raw) -> None:
        queue = consumed(raw)
        durable(raw, "kept")
        raw.open_channel(2)
        raw.call(2, CONFIRM_SELECT, b"\0")
        raw.expect(CONFIRM_SELECT_OK)
        for _ in range(ROUNDS):
            with raw.together():
                publish(raw, 2, "kept", LASTING)
                publish(raw, 1, queue, b"\0\0")
            found = methods(raw, 3)
            assert [method for channel, method in found if channel == 1] == [ACK, DELIVER]
            assert (2, ACK) in found

    over_disk(tmp_path, story)


def test_a_confirm_never_covers_what_is_not_on_disk(tmp_path):
    """Publish a persistent and a transient message on one channel: one confirm for both, after the first is stored."""

    def story(raw: Raw) -> None:
        durable(raw, "kept")
        for number in range(1, ROUNDS):
            with raw.together():
                publish(raw, 1, "kept", LASTING)
                publish(raw, 1, "kept", b"\0\0")
            confirm = raw.expect(ACK)
            assert struct.unpack(">QB", confirm.arguments) == (2 * number, 1)

    over_disk(tmp_path, story)
