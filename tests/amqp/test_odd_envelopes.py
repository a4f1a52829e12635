"""Envelopes that a client of another wire made up: such a message is delivered and moved, as those behind it are."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from tests.amqp.raw import (
    EXCHANGE_DECLARE,
    EXCHANGE_DECLARE_OK,
    GET,
    GET_OK,
    QUEUE_BIND,
    QUEUE_BIND_OK,
    QUEUE_DECLARE,
    QUEUE_DECLARE_OK,
    Raw,
    long,
    short,
)
from tests.amqp.wires import counts, over, until
from tests.stomp.raw import Raw as Stomp
from tests.stomp.serving import done_in, running
from wherry.broker.broker import Broker
from wherry.model.limits import ENVELOPE_BYTES_MAX, MESSAGE_ID_BYTES_MAX
from wherry.model.schema import Message
from wherry.queueing.flow import dead_letters
from wherry.queueing.message import properties

REJECT = (60, 90)
HEADERS = struct.pack(">H", 0x2000)


def text(name: str, value: str) -> bytes:
    return short(name) + b"S" + long(value.encode())


def to(key: bytes = b"q") -> bytes:
    """Return the first bytes of an envelope: mark, the default exchange, a routing key."""
    return b"A\0" + bytes([len(key)]) + key


def large() -> bytes:
    """Return an envelope that has no room for anything more."""
    room = ENVELOPE_BYTES_MAX - len(to()) - len(HEADERS)
    value = room - len(long(text("a", "")))
    return to() + HEADERS + long(text("a", "x" * value))


ODD = {
    "only a mark": b"A",
    "half an exchange": b"A\x05",
    "no routing key": b"A\0",
    "half a routing key": b"A\0\xff",
    "no properties": b"A\0\0",
    "headers that are not there": to() + HEADERS,
    "headers of an unknown type": to() + HEADERS + long(short("a") + b"?"),
    "flags that mean nothing": to() + b"\0\x03",
    "bytes behind the properties": to() + b"\0\0more",
    "a key that is no text": to(b"\xff") + b"\0\0",
    "a CC that is no list": to() + HEADERS + long(text("CC", "graves")),
    "as large as may be": large(),
}


def messages() -> list[Message]:
    """Return each odd message, with a good one behind it; then one whose id is longer than an AMQP client may have."""
    found = [Message(payload=name.encode(), envelope=raw, headers={"kept": "yes"}) for name, raw in ODD.items()]
    good = [Message(payload=b"behind " + each.payload) for each in found]
    pairs = [each for pair in zip(found, good, strict=True) for each in pair]
    return [*pairs, Message(payload=b"a long id", id="x" * MESSAGE_ID_BYTES_MAX), Message(payload=b"last")]


def queues(raw: Raw, kind: str) -> None:
    """Declare `q`, whose dead letters go through a fanout to `graves`; both of this kind."""
    kinds = text("x-queue-type", kind)
    for name, arguments in (("graves", kinds), ("q", kinds + text("x-dead-letter-exchange", "dying"))):
        raw.call(1, QUEUE_DECLARE, b"\0\0" + short(name) + b"\x02" + long(arguments))
        raw.expect(QUEUE_DECLARE_OK)
    raw.call(1, EXCHANGE_DECLARE, b"\0\0" + short("dying") + short("fanout") + b"\x02" + long(b""))
    raw.expect(EXCHANGE_DECLARE_OK)
    raw.call(1, QUEUE_BIND, b"\0\0" + short("graves") + short("dying") + short("") + b"\0" + long(b""))
    raw.expect(QUEUE_BIND_OK)


def got(raw: Raw, queue: str) -> tuple[int, bytes, bytes]:
    """Return the tag, properties and body of the next message, which stays unsettled."""
    while True:
        raw.call(1, GET, b"\0\0" + short(queue) + b"\0")
        found = raw.next()
        if found.method == GET_OK:
            break
    tag = struct.unpack_from(">Q", found.arguments)[0]
    return tag, raw.next().payload[12:], raw.next().payload


@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_an_odd_envelope_is_delivered_twice_and_moved_with_what_can_be_read(kind):
    async def story(broker: Broker, url: str, in_thread: Any) -> None:
        raw = await in_thread(lambda: Raw(url).opened())
        await in_thread(queues, raw, kind)
        sent = [each.payload for each in messages()]
        for each in messages():
            await broker.publish("q", each)

        def reject_all() -> None:
            for body in sent:
                for requeue in (1, 0):  # the second time the message has a count, in a quorum queue
                    tag, given, found = got(raw, "q")
                    assert found == body
                    properties.decode(given)
                    raw.call(1, REJECT, struct.pack(">QB", tag, requeue))

        await in_thread(reject_all)
        await until(lambda: counts(broker, "graves")[0] == len(sent))
        assert broker.stats("q").dead == 0

        def moved() -> None:
            for body in sent:
                given, found = raw.got("graves")
                headers = properties.decode(given).headers or {}
                assert (found, headers["x-first-death-queue"]) == (body, "q")
                if body.decode() in ODD and headers["x-death"][0]["routing-keys"] == ["q"]:
                    assert {"kept", "CC", "a"} & set(headers)

        await in_thread(moved)
        raw.__exit__(None, None, None)

    over(story)


def test_an_odd_envelope_is_delivered_over_stomp_too(tmp_path):
    with running(tmp_path) as node, Stomp(node.stomp_port or 0) as stomp:
        stomp.connect()
        assert node.stomp_sessions is not None
        stomp.done("SUBSCRIBE", id="1", destination="/queue/q", ack="auto")
        broker = node.stomp_sessions.queueing.broker
        sent = [each for each in messages() if len(each.envelope or b"") < 1_000]
        for each in sent:
            done_in(node, broker.publish("q", each))
        assert stomp.bodies(len(sent)) == [each.payload for each in sent]


def test_a_move_that_failed_is_tried_again(monkeypatch):
    """Fail once in any way: nothing else wakes the mover for a queue in which no more messages die."""

    async def story(broker: Broker, url: str, in_thread: Any) -> None:
        raw = await in_thread(lambda: Raw(url).opened())
        await in_thread(queues, raw, "classic")
        forward, tries = Broker.forward, list[None]()

        async def twice(*args: Any, **options: Any) -> int:
            """Fail together with other queues, and alone."""
            tries.append(None)
            if len(tries) <= 2:
                raise RuntimeError("broken on purpose")
            return await forward(*args, **options)

        monkeypatch.setattr(dead_letters, "PAUSE_S", 0.0)
        monkeypatch.setattr(Broker, "forward", twice)
        await broker.publish("q", b"it")

        def reject() -> None:
            raw.call(1, REJECT, struct.pack(">QB", got(raw, "q")[0], 0))

        await in_thread(reject)
        await until(lambda: counts(broker, "graves")[0] == 1)
        assert len(tries) == 3
        raw.__exit__(None, None, None)

    over(story)
