"""Messages that come in one write and differ only in their bodies: each is what it would be alone."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import pytest

from tests.amqp.raw import (
    ACK,
    BODY,
    CLOSE,
    CONSUME,
    CONSUME_OK,
    CONTENT,
    DELIVER,
    GET,
    GET_OK,
    NACK,
    QOS,
    QOS_OK,
    Frame,
    Raw,
    long,
    short,
)
from tests.amqp.wires import LASTING, confirming, declared, number, over, text
from wherry.broker.broker import Broker
from wherry.queueing.flow import transaction
from wherry.queueing.flow.intake import Intake, Unconfirmed

RETURN, TX_SELECT, TX_SELECT_OK, TX_COMMIT, TX_COMMIT_OK = (60, 50), (90, 10), (90, 11), (90, 20), (90, 21)
MANDATORY = 1
REPLY_TO = "amq.rabbitmq.reply-to"


def typed(name: str, priority: int | None = None) -> bytes:
    """Return properties of a persistent message: its content type, and how urgent it is."""
    flags = 0x8000 | 0x1000 | (0 if priority is None else 0x0800)
    return struct.pack(">H", flags) + short(name) + b"\x02" + (b"" if priority is None else bytes([priority]))


def message(raw: Raw) -> tuple[bytes, bytes]:
    """Return properties and body of what is handed over next, behind its method."""
    header, body = raw.next(), b""
    assert header.kind == CONTENT
    while len(body) < struct.unpack_from(">Q", header.payload, 4)[0]:
        frame = raw.next()
        assert frame.kind == BODY
        body += frame.payload
    return header.payload[12:], body


def consume(raw: Raw, queue: str, *, no_ack: bool = False) -> None:
    raw.call(1, CONSUME, b"\0\0" + short(queue) + short(queue[:9]) + (b"\x02" if no_ack else b"\0") + long(b""))


def delivered(raw: Raw) -> tuple[int, bool, bytes, bytes]:
    """Return tag, redelivered, properties and body of the next delivery."""
    found = raw.expect(DELIVER).arguments
    tag, again = struct.unpack_from(">QB", found, 1 + found[0])
    return tag, bool(again), *message(raw)


def with_client(story: Callable[[Raw], None]) -> None:
    async def main(broker: Broker, url: str, apart: Any) -> None:
        def work() -> None:
            with Raw(url).opened() as raw:
                story(raw)

        await apart(work)

    over(main)


RUNS = [("a", [b"1"]), ("b", [b"2", b"three", b"4"]), ("a", [b"5", b"6"]), ("c", [b"", b"7"]), ("b", [b"8"] * 3)]
FLAT = [(kind, body) for kind, bodies in RUNS for body in bodies]


@pytest.mark.rows("Q12")
def test_each_message_of_runs_in_one_write_has_its_own_properties():
    async def story(broker: Broker, url: str, apart: Any) -> None:
        raw = await apart(lambda: confirming(Raw(url).opened()))
        with raw:
            await apart(declared, raw, "q")
            with raw.together():
                for kind, body in FLAT:
                    raw.publish("q", body, typed(kind))
            last = 0
            while last < len(FLAT):
                last = struct.unpack_from(">Q", (await apart(raw.expect, ACK)).arguments)[0]
            async with await broker.consumer("q", "amqp") as consumer:
                delivery = await consumer.pull(100)
                seen = [(each.headers["content-type"], each.payload) for each in delivery.messages()]
                await delivery.release()
            assert seen == FLAT
            assert [await apart(raw.got, "q") for _ in FLAT] == [(typed(kind), body) for kind, body in FLAT]

    over(story)


@pytest.mark.rows("D3")
def test_each_message_of_runs_in_one_write_has_its_own_priority():
    def story(raw: Raw) -> None:
        declared(raw, "ranked", number("x-max-priority", 9))
        with raw.together():
            for priority, bodies in ((1, b"ab"), (5, b"cde"), (None, b"f"), (5, b"gh")):
                for body in bodies:
                    raw.publish("ranked", bytes([body]), typed("t", priority))
        assert b"".join(raw.got("ranked")[1] for _ in range(8)) == b"cdeghabf"

    with_client(story)


def test_every_message_of_a_run_that_reaches_no_queue_comes_back_and_is_confirmed():
    def story(raw: Raw) -> None:
        confirming(raw)
        with raw.together():
            for body in b"abcd":
                raw.publish("nowhere", bytes([body]) * 3, LASTING, MANDATORY)
        returned, confirmed = [], 0
        while confirmed < 4:
            frame = raw.next()
            if frame.method == RETURN:
                returned.append(message(raw))
            else:
                confirmed = _confirmed(frame)
        assert returned == [(LASTING, bytes([body]) * 3) for body in b"abcd"]

    with_client(story)


def test_a_message_that_reaches_no_queue_is_confirmed_with_its_return_and_not_before_earlier_ones(monkeypatch):
    later: list[int] = []
    note = Intake.note

    def noted(intake: Intake, unconfirmed: Unconfirmed) -> None:
        later.append(unconfirmed.last)
        note(intake, unconfirmed)

    monkeypatch.setattr(Intake, "note", noted)

    def story(raw: Raw) -> None:
        confirming(raw)
        declared(raw, "q")
        raw.publish("nowhere", b"a", LASTING, MANDATORY)
        raw.expect(RETURN)
        message(raw)
        assert _confirmed(raw.next()) == 1
        assert later == []
        with raw.together():
            raw.publish("q", b"b", LASTING)
            raw.publish("nowhere", b"c", LASTING, MANDATORY)
        assert raw.expect(RETURN)
        message(raw)
        last = 0
        while last < 3:
            last = _confirmed(raw.next())
        assert later == [3]
        assert raw.got("q")[1] == b"b"

    with_client(story)


def test_offsets_of_a_queue_that_does_not_last_are_set_aside_before_its_first_message():
    """Check it before the first message, whose confirm would else wait for the disk, and come after the message."""

    async def story(broker: Broker, url: str, apart: Any) -> None:
        with await apart(lambda: Raw(url).opened()) as raw:
            name = await apart(raw.queue)
            assert broker.shard.state.topic(name).partitions[0].reserved > 0
            written = broker.shard.committer.submitted
            await apart(lambda: confirming(raw).publish(name, b"x"))
            assert _confirmed(await apart(raw.next)) == 1
            assert broker.shard.committer.submitted == written

    over(story)


def _confirmed(frame: Frame) -> int:
    assert frame.method == ACK, frame
    return int(struct.unpack_from(">Q", frame.arguments)[0])


def test_messages_of_a_run_that_a_full_queue_refuses_are_named_one_by_one():
    def story(raw: Raw) -> None:
        confirming(raw)
        declared(raw, "full", number("x-max-length", 3), text("x-overflow", "reject-publish"))
        with raw.together():
            for body in b"abcdef":
                raw.publish("full", bytes([body]), LASTING)
        fates: dict[int, tuple[int, int]] = {}
        while len(fates) < 6:
            frame = raw.next()
            tag, multiple = struct.unpack_from(">QB", frame.arguments)
            fates |= dict.fromkeys(range(len(fates) + 1 if multiple else tag, tag + 1), frame.method)
        assert fates == dict.fromkeys((1, 2, 3), ACK) | dict.fromkeys((4, 5, 6), NACK)
        assert [raw.got("full")[1] for _ in range(3)] == [b"a", b"b", b"c"]

    with_client(story)


def test_every_reply_of_a_run_reaches_its_client_under_its_own_tag():
    def story(raw: Raw) -> None:
        declared(raw, "asked")
        consume(raw, REPLY_TO, no_ack=True)
        raw.expect(CONSUME_OK)
        raw.publish("asked", b"?", struct.pack(">H", 0x0200) + short(REPLY_TO))
        properties = raw.got("asked")[0]
        name = properties[3 : 3 + properties[2]].decode()
        bodies = [b"%d" % each for each in range(250)]
        with raw.together():
            for body in bodies:
                raw.publish(name, body, LASTING)
        assert [delivered(raw) for _ in bodies] == [
            (tag, False, LASTING, body) for tag, body in enumerate(bodies, 2)
        ]  # the get had the first

    with_client(story)


@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_of_alike_messages_only_those_that_came_back_are_marked(kind):
    counted = long(short("x-delivery-count") + b"l" + struct.pack(">q", 1))
    came_back = LASTING if kind == "classic" else struct.pack(">H", 0x3000) + counted + b"\x02"

    def story(raw: Raw) -> None:
        declared(raw, "back", text("x-queue-type", kind))
        with raw.together():
            for body in b"abc":
                raw.publish("back", bytes([body]), LASTING)
        raw.call(1, GET, b"\0\0" + short("back") + b"\0")
        raw.expect(GET_OK)
        assert message(raw) == (LASTING, b"a")
        raw.call(1, NACK, struct.pack(">QB", 1, 2))
        declared(raw, "back", text("x-queue-type", kind))  # by now the message is there again
        consume(raw, "back")
        raw.expect(CONSUME_OK)
        found = [delivered(raw) for _ in range(3)]
        assert found == [(2, True, came_back, b"a"), (3, False, LASTING, b"b"), (4, False, LASTING, b"c")]

    with_client(story)


@pytest.mark.rows("Q7")
@pytest.mark.parametrize(("limit", "shared"), [(4, 1), (2, 0)], ids=["channel", "consumers"])
def test_one_ack_for_many_gives_all_their_consumers_room_again(limit, shared):
    def story(raw: Raw) -> None:
        raw.call(1, QOS, struct.pack(">IHB", 0, limit, shared))  # four for the channel, or two for each consumer
        raw.expect(QOS_OK)
        for queue in ("left", "right"):
            declared(raw, queue)
            with raw.together():
                for body in range(6):
                    raw.publish(queue, b"%s %d" % (queue.encode(), body), LASTING)
        declared(raw, "left")  # all are there
        for queue in ("left", "right"):
            with raw.together():
                consume(raw, queue)
        seen: list[bytes] = []
        while len(seen) < 12:
            frame = raw.next()
            if frame.method == CONSUME_OK:
                continue
            tag = struct.unpack_from(">Q", frame.arguments, 1 + frame.arguments[0])[0]
            seen.append(message(raw)[1])
            if tag % 4 == 0:
                raw.call(1, ACK, struct.pack(">QB", tag, 1))
        assert sorted(seen) == sorted(b"%s %d" % (queue, n) for queue in (b"left", b"right") for n in range(6))

    with_client(story)


def test_a_consumer_on_another_queue_gets_messages_when_its_channel_has_room_again():
    def story(raw: Raw) -> None:
        raw.call(1, QOS, struct.pack(">IHB", 0, 2, 1))
        raw.expect(QOS_OK)
        for queue in ("first", "second"):
            declared(raw, queue)
            consume(raw, queue)
            raw.expect(CONSUME_OK)
        for body in (b"a", b"b"):
            raw.publish("first", body, LASTING)
        assert [delivered(raw)[3] for _ in range(2)] == [b"a", b"b"]
        raw.publish("second", b"c", LASTING)
        assert declared(raw, "second") == 1, "there is no room for it yet"
        raw.call(1, ACK, struct.pack(">QB", 2, 1))
        assert delivered(raw)[3] == b"c"

    with_client(story)


@pytest.mark.rows("A15")
@pytest.mark.parametrize(("most", "most_bytes"), [(5, 1 << 20), (1_000, 500)], ids=["messages", "bytes"])
def test_a_run_counts_all_its_messages_in_a_transaction(monkeypatch, most, most_bytes):
    monkeypatch.setattr(transaction, "TRANSACTION_MAX", most)
    monkeypatch.setattr(transaction, "TRANSACTION_BYTES_MAX", most_bytes)

    def publishes(raw: Raw, count: int) -> None:
        with raw.together():
            for body in range(count):
                raw.publish("q", bytes([body]) * 100, LASTING)
            raw.call(1, TX_COMMIT)

    def story(raw: Raw) -> None:
        declared(raw, "q")
        raw.call(1, TX_SELECT)
        raw.expect(TX_SELECT_OK)
        publishes(raw, 5)
        raw.expect(TX_COMMIT_OK)
        assert declared(raw, "q") == 5
        publishes(raw, 6)
        assert raw.expect(CLOSE).code == 506

    with_client(story)


def test_a_write_of_many_kinds_arrives_in_order_on_every_channel():
    """Publishes of two channels, acks between them, and bodies of several frames break the runs up."""

    def story(raw: Raw) -> None:
        raw.open_channel(2)
        declared(raw, "mixed")
        bodies = [b"x" * (1 + number % 3) if number % 7 else bytes(5_000) for number in range(60)]
        with raw.together():
            for place, body in enumerate(bodies):
                channel = 1 + place // 10 % 2
                raw.call(channel, (60, 40), b"\0\0" + short("") + short("mixed") + b"\0")
                raw.content(channel, len(body), LASTING)
                for start in range(0, len(body), 4_000):
                    raw.frame(BODY, channel, body[start : start + 4_000])
        assert [raw.got("mixed")[1] for _ in bodies] == bodies

    with_client(story)
