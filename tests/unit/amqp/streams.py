"""Streams of bytes as a client sends them, and ways to feed them."""

from __future__ import annotations

from collections.abc import Iterable

from wherry.queueing.message import properties
from wherry.queueing.message.properties import Properties
from wherry.wire.amqp.codec import writer
from wherry.wire.amqp.codec.faults import AmqpFault
from wherry.wire.amqp.codec.frames import HEAD, HEADER
from wherry.wire.amqp.codec.methods import BasicPublish
from wherry.wire.amqp.codec.reader import Event, FrameReader, IncomingMessages

FRAME_MAX = 131072


def raw_frame(kind: int, channel: int, payload: bytes, end: bytes = b"\xce") -> bytes:
    return HEAD.pack(kind, channel, len(payload)) + payload + end


def publish(body: bytes = b"body", channel: int = 1, frame_max: int = FRAME_MAX, **given) -> bytes:
    method = BasicPublish(exchange="e", routing_key="k")
    raw = properties.encode(Properties(**(given or {"delivery_mode": 2})))
    return b"".join(writer.content(channel, method, raw, body, frame_max))


def reader(frame_max: int = FRAME_MAX, **given) -> FrameReader:
    """Return a reader that has read the greeting of a client."""
    made = FrameReader(frame_max, **given)
    made.feed(HEADER)
    return made


def fed(made: FrameReader, chunks: Iterable[bytes]) -> list[Event]:
    return [event for chunk in chunks for event in made.feed(chunk)]


def byte_by_byte(data: bytes) -> list[bytes]:
    return [data[at : at + 1] for at in range(len(data))]


def alone(events: Iterable[Event]) -> list[Event]:
    """Runs of publishes taken apart: what came together depends on how the bytes were cut, the messages do not."""
    apart: list[Event] = []
    for event in events:
        if isinstance(event, IncomingMessages):
            assert event.bodies
            apart += [IncomingMessages(event.channel, event.fields, event.properties, [body]) for body in event.bodies]
        else:
            apart.append(event)
    return apart


def comparable(events: list[Event]) -> list[object]:
    """Take runs apart, and faults into their fields, since faults compare by identity."""
    return [
        (event.code, event.text, event.channel, event.class_id, event.method_id, event.hard)
        if isinstance(event, AmqpFault)
        else event
        for event in alone(events)
    ]
