"""What a server reads: messages of any chunking, every broken rule with its code, and bounds on what is kept."""

from __future__ import annotations

import struct

import pytest

from tests.unit.amqp.streams import FRAME_MAX, alone, byte_by_byte, comparable, fed, publish, raw_frame, reader
from wherry.queueing.message import properties
from wherry.queueing.message.properties import Properties
from wherry.wire.amqp.codec import methods as m
from wherry.wire.amqp.codec import writer
from wherry.wire.amqp.codec.faults import AmqpFault, ReplyCode
from wherry.wire.amqp.codec.frames import HEADER
from wherry.wire.amqp.codec.reader import (
    CONTENT_BYTES,
    Ack,
    Called,
    Event,
    FrameReader,
    Greeted,
    Heartbeat,
    IncomingMessages,
    Misgreeted,
    PublishFields,
)

# A publish written out by hand: exchange "e", routing key "k", mandatory, delivery mode 2, body "hello".
METHOD_FRAME = (
    b"\x01\x00\x01\x00\x00\x00\x0b" + b"\x00\x3c\x00\x28" + b"\x00\x00" + b"\x01e" + b"\x01k" + b"\x01" + b"\xce"
)
HEADER_FRAME = (
    b"\x02\x00\x01\x00\x00\x00\x0f"
    + b"\x00\x3c"
    + b"\x00\x00"
    + b"\x00\x00\x00\x00\x00\x00\x00\x05"
    + b"\x10\x00\x02"
    + b"\xce"
)
BODY_FRAME = b"\x03\x00\x01\x00\x00\x00\x05hello\xce"
GOLDEN = METHOD_FRAME + HEADER_FRAME + BODY_FRAME
GOLDEN_EVENT = IncomingMessages(
    1, PublishFields("e", "k", True, False), properties.used_properties(b"\x10\x00\x02"), [b"hello"]
)

ACK_FRAME = b"\x01\x00\x02\x00\x00\x00\x0d\x00\x3c\x00\x50\x00\x00\x00\x00\x00\x00\x01\x02\x01\xce"


def content_header(size: int, class_id: int = 60, weight: int = 0, raw: bytes = properties.NONE) -> bytes:
    return struct.pack(">HHQ", class_id, weight, size) + raw


def fault(events: list[Event]) -> AmqpFault:
    """Return the one fault, which must come last."""
    faults = [event for event in events if isinstance(event, AmqpFault)]
    assert len(faults) == 1
    assert events[-1] is faults[0]
    return faults[0]


# ----------------------------------------------------------------------------------------------------------- greeting


def test_client_greets_first():
    assert FrameReader().feed(HEADER) == [Greeted()]
    assert fed(FrameReader(), byte_by_byte(HEADER)) == [Greeted()]
    assert FrameReader().feed(HEADER + ACK_FRAME) == [Greeted(), Ack(2, 258, True)]


@pytest.mark.parametrize(
    "greeting", [b"AMQP\x00\x00\x09\x00", b"AMQP\x03\x01\x00\x00", b"GET / HTTP/1.1\r\n", b"\x16\x03\x01", b"AMQQ"]
)
def test_a_client_of_another_protocol_is_reported_once(greeting):
    assert FrameReader().feed(greeting) == [Misgreeted()]
    other = FrameReader()
    assert fed(other, byte_by_byte(greeting)) == [Misgreeted()]
    assert other.feed(HEADER + GOLDEN) == []
    assert other.partial_bytes == 0


# ----------------------------------------------------------------------------------------------------------- messages


def test_publish_is_read_whole_byte_by_byte_and_with_a_tail():
    for times in (1, 2, 3):
        expected = [GOLDEN_EVENT] * times
        assert alone(reader().feed(GOLDEN * times)) == expected
        assert fed(reader(), byte_by_byte(GOLDEN * times)) == expected
    for cut in range(1, len(GOLDEN)):
        for before in (0, 1, 2):  # the first publish is decoded in full, those after it by the cached route
            tailed = reader()
            assert alone(tailed.feed(GOLDEN * before + GOLDEN[:cut])) == [GOLDEN_EVENT] * before
            assert 0 < tailed.partial_bytes <= len(GOLDEN) + CONTENT_BYTES
            assert alone(tailed.feed(GOLDEN[cut:] + GOLDEN)) == [GOLDEN_EVENT] * 2
            assert tailed.partial_bytes == 0


def test_ack_is_read_whole_byte_by_byte_and_with_a_tail():
    assert reader().feed(ACK_FRAME * 2) == [Ack(2, 258, True)] * 2
    assert fed(reader(), byte_by_byte(ACK_FRAME)) == [Ack(2, 258, True)]
    tailed = reader()
    assert tailed.feed(ACK_FRAME + ACK_FRAME[:9]) == [Ack(2, 258, True)]
    assert tailed.feed(ACK_FRAME[9:]) == [Ack(2, 258, True)]


def test_heartbeat():
    assert reader().feed(b"\x08\x00\x00\x00\x00\x00\x00\xce") == [Heartbeat()]
    assert reader().feed(writer.HEARTBEAT_FRAME) == [Heartbeat()]


@pytest.mark.parametrize("size", [0, 1, 4087, 4088, 4089, 8176, 8177, 100_000])
def test_body_of_many_frames_is_one_message(size):
    body = bytes(number % 251 for number in range(size))
    stream = publish(body, frame_max=4096)
    for times in (1, 2):
        events = reader(4096).feed(stream * times)
        assert [event.bodies for event in alone(events) if isinstance(event, IncomingMessages)] == [[body]] * times
        assert len(alone(events)) == times
    whole = reader(4096)
    assert len(fed(whole, [stream[at : at + 1000] for at in range(0, len(stream), 1000)])) == 1
    assert whole.partial_bytes == 0


def test_empty_body_frames_are_nothing():
    empty = raw_frame(3, 1, b"")
    stream = METHOD_FRAME + HEADER_FRAME + empty + raw_frame(3, 1, b"he") + empty * 5 + raw_frame(3, 1, b"llo")
    assert reader().feed(stream) == [GOLDEN_EVENT]


def test_messages_of_several_channels_interleave_with_each_other_and_with_methods():
    parts = [
        [
            raw_frame(1, channel, m.encode_method(m.BasicPublish(exchange="e", routing_key=str(channel)))),
            raw_frame(2, channel, content_header(6)),
            raw_frame(3, channel, b"abc"),
            raw_frame(3, channel, b"def"),
        ]
        for channel in (1, 2, 3)
    ]
    made = reader()
    got = fed(made, [parts[channel][step] for step in range(4) for channel in range(3)])
    assert [
        (event.channel, event.fields.key, event.bodies) for event in got if isinstance(event, IncomingMessages)
    ] == [
        (1, "1", [b"abcdef"]),
        (2, "2", [b"abcdef"]),
        (3, "3", [b"abcdef"]),
    ]
    between = made.feed(parts[0][0] + parts[0][1] + ACK_FRAME + writer.HEARTBEAT_FRAME + parts[0][2] + parts[0][3])
    assert [type(event) for event in between] == [Ack, Heartbeat, IncomingMessages]


def test_properties_are_decoded_and_kept():
    given = Properties(headers={"a": 1}, delivery_mode=2, priority=4, reply_to="r", message_id="m", expiration="9")
    stream = publish(headers={"a": 1}, delivery_mode=2, priority=4, reply_to="r", message_id="m", expiration="9")
    for event in reader().feed(stream * 2):
        assert isinstance(event, IncomingMessages)
        assert event.properties.raw == properties.encode(given)
        assert (event.properties.priority, event.properties.message_id) == (4, "m")


def test_publishes_that_differ_only_in_their_bodies_are_one_event():
    first = [publish(body) for body in (b"one", b"two", b"and three", b"4", b"five", b"")]
    others = [publish(b"six", channel=2), publish(b"7", delivery_mode=1), ACK_FRAME, publish(b"8", delivery_mode=1)]
    made = reader()
    made.feed(publish())  # by now the route is known
    events = made.feed(b"".join(first + others))
    got = [(event.channel, event.bodies) if isinstance(event, IncomingMessages) else event for event in events]
    run = [b"one", b"two", b"and three", b"4", b"five"]
    assert got == [(1, run), (1, [b""]), (2, [b"six"]), (1, [b"7"]), Ack(2, 258, True), (1, [b"8"])]
    assert [event.properties.delivery_mode for event in events if isinstance(event, IncomingMessages)] == [
        2,
        2,
        2,
        1,
        1,
    ]


NO_BODY = METHOD_FRAME + HEADER_FRAME.replace(b"\x05\x10", b"\x00\x10") + raw_frame(3, 1, b"")
TEN, ELEVEN = (GOLDEN.replace(b"\x05", bytes([size])).replace(b"hello", bytes(size)) for size in (10, 11))


@pytest.mark.parametrize(
    ("broken", "code", "more"),
    [
        (GOLDEN[:-1] + b"\0", ReplyCode.FRAME_ERROR, 0),
        (NO_BODY, ReplyCode.UNEXPECTED_FRAME, 1),
        (ELEVEN, ReplyCode.CONTENT_TOO_LARGE, 0),
    ],
    ids=["wrong frame end", "a body frame where there is no body", "above the bound"],
)
def test_a_run_ends_where_a_rule_is_broken(broken, code, more):
    made = reader(body_max=10)
    made.feed(GOLDEN)  # by now the route is known
    events = made.feed(GOLDEN * 2 + TEN + GOLDEN + broken)
    bodies = [event.bodies for event in alone(events[:-1]) if isinstance(event, IncomingMessages)]
    assert bodies == [[b"hello"], [b"hello"], [bytes(10)], [b"hello"], *[[b""]] * more]
    assert fault(events).code == code


def test_remembered_routes_are_bounded():
    made = reader()
    frames = [
        writer.content(1, m.BasicPublish(routing_key=str(number)), properties.NONE, b"x", FRAME_MAX)
        for number in range(2000)
    ]
    events = made.feed(b"".join(piece for pieces in frames for piece in pieces))
    assert [event.fields.key for event in events if isinstance(event, IncomingMessages)] == [
        str(n) for n in range(2000)
    ]
    assert len(made._known_fields) <= 256


# ------------------------------------------------------------------------------------------------------- broken rules

OPEN = raw_frame(1, 1, m.encode_method(m.ChannelOpen()))

BROKEN = [
    ("frame too large", struct.pack(">BHI", 1, 1, FRAME_MAX + 1) + b"x", ReplyCode.FRAME_ERROR),
    ("frame much too large", b"\x03\x00\x01\xff\xff\xff\xff\x00", ReplyCode.FRAME_ERROR),
    ("wrong frame end", raw_frame(1, 1, m.encode_method(m.ChannelOpen()), b"\xcd"), ReplyCode.FRAME_ERROR),
    ("unknown frame type", raw_frame(4, 1, b""), ReplyCode.FRAME_ERROR),
    ("frame type 0", raw_frame(0, 1, b""), ReplyCode.FRAME_ERROR),
    ("heart-beat on a channel", raw_frame(8, 1, b""), ReplyCode.FRAME_ERROR),
    ("heart-beat with a payload", raw_frame(8, 0, b"x"), ReplyCode.FRAME_ERROR),
    ("publish on channel 0", raw_frame(1, 0, METHOD_FRAME[7:-1]), ReplyCode.CHANNEL_ERROR),
    ("ack on channel 0", raw_frame(1, 0, m.encode_method(m.BasicAck(1))), ReplyCode.CHANNEL_ERROR),
    ("header on channel 0", raw_frame(2, 0, content_header(1)), ReplyCode.CHANNEL_ERROR),
    ("body on channel 0", raw_frame(3, 0, b"x"), ReplyCode.CHANNEL_ERROR),
    ("connection method on a channel", raw_frame(1, 1, m.encode_method(m.ConnectionOpen())), ReplyCode.COMMAND_INVALID),
    ("delivery from a client", raw_frame(1, 1, m.encode_method(m.BasicDeliver())), ReplyCode.COMMAND_INVALID),
    ("unknown method", raw_frame(1, 1, b"\x00\x3c\x00\x63"), ReplyCode.NOT_IMPLEMENTED),
    ("method without ids", raw_frame(1, 1, b"\x00\x3c"), ReplyCode.FRAME_ERROR),
    ("method with a tail", raw_frame(1, 1, m.encode_method(m.ChannelOpen()) + b"x"), ReplyCode.FRAME_ERROR),
    ("header without publish", HEADER_FRAME, ReplyCode.UNEXPECTED_FRAME),
    ("body without publish", BODY_FRAME, ReplyCode.UNEXPECTED_FRAME),
    ("body without header", METHOD_FRAME + BODY_FRAME, ReplyCode.UNEXPECTED_FRAME),
    ("second header", METHOD_FRAME + HEADER_FRAME + HEADER_FRAME, ReplyCode.UNEXPECTED_FRAME),
    ("method instead of header", METHOD_FRAME + OPEN, ReplyCode.UNEXPECTED_FRAME),
    ("ack instead of body", METHOD_FRAME + HEADER_FRAME + raw_frame(1, 1, ACK_FRAME[7:-1]), ReplyCode.UNEXPECTED_FRAME),
    ("publish within a publish", METHOD_FRAME + METHOD_FRAME, ReplyCode.UNEXPECTED_FRAME),
    ("header of another class", METHOD_FRAME + raw_frame(2, 1, content_header(5, class_id=50)), ReplyCode.FRAME_ERROR),
    ("header with a weight", METHOD_FRAME + raw_frame(2, 1, content_header(5, weight=1)), ReplyCode.FRAME_ERROR),
    ("header too short", METHOD_FRAME + raw_frame(2, 1, content_header(5)[:13]), ReplyCode.SYNTAX_ERROR),
    ("broken properties", METHOD_FRAME + raw_frame(2, 1, content_header(5, raw=b"\x80\x00")), ReplyCode.SYNTAX_ERROR),
    (
        "body larger than announced",
        METHOD_FRAME + HEADER_FRAME + raw_frame(3, 1, b"hello!"),
        ReplyCode.UNEXPECTED_FRAME,
    ),
]


@pytest.mark.parametrize("primed", [False, True], ids=["first", "after a publish"])
@pytest.mark.parametrize(("name", "stream", "code"), BROKEN, ids=[name for name, _, _ in BROKEN])
def test_broken_rule_is_a_hard_fault_in_its_place(name, stream, code, primed):
    before: list[Event] = [GOLDEN_EVENT, GOLDEN_EVENT] if primed else []
    stream = GOLDEN * len(before) + stream
    made = reader(channel_max=100)
    events = made.feed(stream)
    assert alone(events[:-1]) == before
    assert fault(events).code == code
    assert fault(events).hard
    assert made.partial_bytes == 0
    assert made.feed(GOLDEN) == []
    # The same, in the same place, with what follows in the same buffer, and in any other.
    for chunks in ([stream + GOLDEN], byte_by_byte(stream + GOLDEN)):
        assert comparable(fed(reader(channel_max=100), chunks)) == comparable(events)


def test_peer_that_takes_frame_max_for_the_size_of_the_payload_is_understood():
    made = reader(4096)
    assert fed(made, [METHOD_FRAME, raw_frame(2, 1, content_header(4096)), raw_frame(3, 1, bytes(4096))])
    assert fault(made.feed(b"\x03\x00\x01" + (4097).to_bytes(4, "big") + b"x")).code == ReplyCode.FRAME_ERROR


def test_after_a_hard_fault_only_the_end_is_read():
    end = writer.frame(0, m.ConnectionCloseOk())
    made = reader()
    events = made.feed(HEADER_FRAME + GOLDEN + ACK_FRAME + end + GOLDEN)
    assert isinstance(events[0], AmqpFault)
    assert events[1:] == [Called(0, m.ConnectionCloseOk())]
    assert fed(made, byte_by_byte(GOLDEN + end)) == [Called(0, m.ConnectionCloseOk())]
    assert made.feed(raw_frame(1, 0, m.encode_method(m.ConnectionCloseOk()) + b"x")) == []
    assert made.feed(end) == [], "a second broken rule, and the reader returns no event at all"


def test_body_above_its_bound_ends_the_channel_and_is_dropped():
    made = reader(body_max=10)
    assert alone(made.feed(GOLDEN * 2)) == [GOLDEN_EVENT] * 2
    too_large = publish(bytes(11))
    for chunks in ([too_large], byte_by_byte(too_large)):
        events = fed(made, chunks)
        assert len(events) == 1
        assert (fault(events).code, fault(events).hard, fault(events).channel) == (
            ReplyCode.CONTENT_TOO_LARGE,
            False,
            1,
        )
        assert made.partial_bytes == 0
        assert made.feed(GOLDEN * 2 + OPEN) == [], "the server closes the channel: what the client still sends is lost"
        assert made.feed(ACK_FRAME) == [Ack(2, 258, True)], "other channels live on"
        close_ok = writer.frame(1, m.ChannelCloseOk())
        assert made.feed(close_ok + OPEN + GOLDEN) == [
            Called(1, m.ChannelCloseOk()),
            Called(1, m.ChannelOpen()),
            GOLDEN_EVENT,
        ]


def test_muted_channel_is_read_again_after_its_end():
    made = reader()
    made.feed(METHOD_FRAME + HEADER_FRAME)
    assert made.partial_bytes
    made.mute(1)
    assert made.partial_bytes == 0
    assert made.feed(BODY_FRAME + GOLDEN) == []
    close = m.ChannelClose(200, "bye")
    assert made.feed(writer.frame(1, close)) == [Called(1, close)], "both closed it at the same time"
    assert made.feed(GOLDEN) == []
    assert made.feed(writer.frame(1, m.ChannelCloseOk()) + GOLDEN) == [Called(1, m.ChannelCloseOk()), GOLDEN_EVENT]


# ------------------------------------------------------------------------------------------------------------- bounds


def test_held_bytes_are_counted_and_never_more_than_one_frame_and_the_unfinished_bodies():
    made = reader(4096, channel_max=50, body_max=10_000)
    for channel in range(1, 51):
        made.feed(raw_frame(1, channel, METHOD_FRAME[7:-1]))
        made.feed(raw_frame(2, channel, content_header(10_000)))
        made.feed(raw_frame(3, channel, bytes(4000)) + raw_frame(3, channel, bytes(4000)))
    assert made.partial_bytes == 50 * (8000 + 14 + CONTENT_BYTES)
    made.feed(raw_frame(3, 1, bytes(1000))[:-1])
    assert made.partial_bytes == 50 * (8000 + 14 + CONTENT_BYTES) + 1007
    made.feed(b"\xce")
    for channel in range(1, 51):
        made.feed(raw_frame(3, channel, bytes(1000 if channel == 1 else 2000)))
    assert made.partial_bytes == 0


def test_partial_frames_hold_at_most_one_frame():
    made = reader(4096)
    stream = publish(bytes(50_000), frame_max=4096) * 3
    for at in range(0, len(stream), 1500):
        made.feed(stream[at : at + 1500])
        assert len(made._rest) < 4096 + 8


def test_tiny_body_frames_take_no_more_than_the_body():
    made = reader()
    made.feed(METHOD_FRAME + raw_frame(2, 1, content_header(1_000_000)))
    made.feed(raw_frame(3, 1, b"ab") * 100_000)
    content = made._unfinished[1]
    assert content is not None
    assert content.body.__sizeof__() < 250_000
    assert made.partial_bytes == 200_014 + CONTENT_BYTES


def test_a_message_that_is_only_begun_counts():
    made = reader(channel_max=1_000)
    made.feed(b"".join(raw_frame(1, channel, METHOD_FRAME[7:-1]) for channel in range(1, 1_001)))
    assert made.partial_bytes == 1_000 * CONTENT_BYTES


def test_flood_of_messages_that_are_not_whole_is_cut_off():
    made = reader(channel_max=2047)
    flood = b"".join(raw_frame(1, channel, METHOD_FRAME[7:-1]) for channel in range(1, 3000))
    events = made.feed(flood)
    assert (fault(events).code, fault(events).channel) == (ReplyCode.CHANNEL_ERROR, 2048)
    assert not made._unfinished
    few = reader(channel_max=2)
    assert alone(few.feed(publish(b"x", 65_535) * 3)) == few.feed(publish(b"x", 65_535)) * 3, "any number will do"


def test_unending_table_is_a_syntax_error():
    endless = b"\x00\x32\x00\x0a\x00\x00\x01q\x00" + b"\xff\xff\xff\xff" + b"\x01kV" * 1000
    assert fault(reader().feed(raw_frame(1, 1, endless))).code == ReplyCode.FRAME_ERROR
