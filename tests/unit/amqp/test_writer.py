"""What a server writes: bytes written by hand beside those of the writers, and nothing large copied."""

from __future__ import annotations

import pytest

from tests.unit.amqp.streams import FRAME_MAX
from wherry.queueing.message import properties
from wherry.wire.amqp.codec import methods as m
from wherry.wire.amqp.codec import writer
from wherry.wire.amqp.codec.frames import HEAD
from wherry.wire.amqp.codec.writer import DeliveryWriter

# Consumer tag "t", delivery tag 258, redelivered, exchange "e", routing key "k"; delivery mode 2; body "hello".
DELIVERY = (
    b"\x01\x00\x07\x00\x00\x00\x13"
    + b"\x00\x3c\x00\x3c"
    + b"\x01t"
    + b"\x00\x00\x00\x00\x00\x00\x01\x02"
    + b"\x01"
    + b"\x01e\x01k"
    + b"\xce"
    + b"\x02\x00\x07\x00\x00\x00\x0f\x00\x3c\x00\x00\x00\x00\x00\x00\x00\x00\x00\x05\x10\x00\x02\xce"
    + b"\x03\x00\x07\x00\x00\x00\x05hello\xce"
)


def frames(data: bytes) -> list[tuple[int, int, bytes]]:
    """Take bytes into type, channel and payload of each frame."""
    found = []
    while data:
        kind, channel, size = HEAD.unpack_from(data)
        assert data[7 + size] == 0xCE
        found.append((kind, channel, data[7 : 7 + size]))
        data = data[8 + size :]
    return found


def test_delivery_has_these_bytes_in_both_ways_to_write_it():
    row = ((True, "e", "k", b"\x10\x00\x02"), b"hello")
    next_tag = DELIVERY.replace(b"\x01\x02\x01", b"\x01\x03\x01")
    assert DeliveryWriter(7, "t", FRAME_MAX).pieces(258, [row, row]) == [DELIVERY + next_tag]
    method = m.BasicDeliver("t", 258, True, "e", "k")
    assert b"".join(writer.content(7, method, b"\x10\x00\x02", b"hello", FRAME_MAX)) == DELIVERY
    assert DeliveryWriter(7, "t", FRAME_MAX).pieces(1, []) == []


def test_confirms_and_heartbeat_have_these_bytes():
    tag = b"\x00\x00\x00\x00\x00\x00\x01\x02"
    assert writer.ack(7, 258) == b"\x01\x00\x07\x00\x00\x00\x0d\x00\x3c\x00\x50" + tag + b"\x00\xce"
    assert writer.ack(7, 258, multiple=True) == b"\x01\x00\x07\x00\x00\x00\x0d\x00\x3c\x00\x50" + tag + b"\x01\xce"
    assert writer.nack(7, 258, multiple=True) == b"\x01\x00\x07\x00\x00\x00\x0d\x00\x3c\x00\x78" + tag + b"\x01\xce"
    assert writer.ack(7, 258, multiple=True) == writer.frame(7, m.BasicAck(258, True))
    assert writer.nack(7, 258) == writer.frame(7, m.BasicNack(258, False, False))
    assert writer.HEARTBEAT_FRAME == b"\x08\x00\x00\x00\x00\x00\x00\xce"


@pytest.mark.parametrize("frame_max", [0, 4096, 131072])
@pytest.mark.parametrize("size", [0, 1, 4088, 4089, 65536, 65537, 131064, 131065, 1_000_000])
def test_bodies_are_split_into_frames_that_fit(size, frame_max):
    body = bytes(number % 251 for number in range(size))
    row = ((False, "e", "k", properties.NONE), body)
    pieces = DeliveryWriter(7, "t", frame_max).pieces(1, [row, row])
    assert b"".join(pieces) == b"".join(
        piece
        for tag in (1, 2)
        for piece in writer.content(7, m.BasicDeliver("t", tag, False, "e", "k"), properties.NONE, body, frame_max)
    )
    found = frames(b"".join(pieces))
    assert [kind for kind, _, _ in found[: len(found) // 2]] == [1, 2] + [3] * (len(found) // 2 - 2)
    assert b"".join(payload for kind, _, payload in found if kind == 3) == body * 2
    assert {channel for _, channel, _ in found} == {7}
    if frame_max:
        assert max(len(payload) for _, _, payload in found) <= frame_max - 8
    assert all(payload for kind, _, payload in found if kind == 3), "an empty body has no frame"


@pytest.mark.parametrize("frame_max", [0, 4096, 131072])
def test_messages_of_one_label_and_many_sizes_have_each_its_own_size(frame_max):
    label = (False, "e", "k", b"\x10\x00\x02")
    bodies = [bytes(size) for size in (5, 5, 70_000, 5, 0, 0, 5, 200_000, 70_000, 6, 5)]
    written = b"".join(DeliveryWriter(7, "t", frame_max).pieces(2**40, [(label, body) for body in bodies]))
    one_by_one = [
        writer.content(7, m.BasicDeliver("t", 2**40 + number, False, "e", "k"), label[3], body, frame_max)
        for number, body in enumerate(bodies)
    ]
    assert written == b"".join(piece for pieces in one_by_one for piece in pieces)


def test_large_bodies_stay_where_they_are():
    body = bytes(1_000_000)
    pieces = DeliveryWriter(7, "t", FRAME_MAX).pieces(1, [((False, "e", "k", properties.NONE), body)])
    apart = [piece for piece in pieces if isinstance(piece, memoryview)]
    assert all(piece.obj is body for piece in apart)
    assert sum(len(piece) for piece in apart) >= 1_000_000 - writer.APART


def test_routes_change_within_one_consumer_and_are_bounded():
    deliveries = DeliveryWriter(7, "t", FRAME_MAX)
    rows = [((False, "e", str(tag), properties.NONE), b"x") for tag in range(3000)]
    methods = [payload for kind, _, payload in frames(b"".join(deliveries.pieces(0, rows))) if kind == 1]
    assert methods == [m.encode_method(m.BasicDeliver("t", tag, False, "e", str(tag))) for tag in range(3000)]
    assert len(deliveries._encoded) <= 1024
