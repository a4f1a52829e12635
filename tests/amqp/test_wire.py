"""The wire itself, by hand: how a connection begins, what breaks it, and that every byte of a message comes back."""

from __future__ import annotations

import struct

import pytest

from tests.amqp.raw import (
    ACK,
    BODY,
    CHANNEL_CLOSE,
    CHANNEL_CLOSE_OK,
    CHANNEL_FLOW,
    CHANNEL_FLOW_OK,
    CHANNEL_OPEN,
    CLOSE,
    CLOSE_OK,
    CONFIRM_SELECT,
    CONFIRM_SELECT_OK,
    CONSUME,
    CONSUME_OK,
    CONTENT,
    DELIVER,
    GET,
    GET_EMPTY,
    HEADER,
    HEARTBEAT,
    METHOD,
    NACK,
    OPEN,
    PUBLISH,
    QOS,
    QOS_OK,
    QUEUE_DECLARE,
    QUEUE_DECLARE_OK,
    QUEUE_DELETE,
    QUEUE_DELETE_OK,
    TUNE,
    TUNE_OK,
    Raw,
    long,
    short,
)


@pytest.fixture
def raw(amqp_url):
    with Raw(amqp_url) as made:
        yield made


# ---------------------------------------------------------------------------------------------------- the beginning


@pytest.mark.parametrize(
    "header", [b"AMQP\x00\x00\x09\x02", b"AMQP\x01\x01\x00\x0a", b"HTTP/1.1"], ids=["0-9-2", "0-10", "http"]
)
def test_another_protocol_is_answered_with_the_right_one(raw, header):
    raw.send(header)
    assert raw.take(8) == HEADER
    assert raw.is_hung_up()


def test_the_server_starts_with_its_version_and_how_to_log_in(raw):
    start = raw.begin().arguments
    assert start[:2] == b"\x00\x09"
    size = struct.unpack_from(">I", start, 2)[0]
    mechanisms, locales = _longs(start[6 + size :])
    assert {b"PLAIN", b"AMQPLAIN"} <= set(mechanisms.split())
    assert b"en_US" in locales.split()


def _longs(raw: bytes) -> list[bytes]:
    found = []
    while raw:
        size = struct.unpack_from(">I", raw)[0]
        found.append(raw[4 : 4 + size])
        raw = raw[4 + size :]
    return found


def test_amqplain_logs_in(raw):
    raw.begin()
    user, password = raw.address.user.encode(), raw.address.password.encode()
    raw.start_ok("AMQPLAIN", short("LOGIN") + b"S" + long(user) + short("PASSWORD") + b"S" + long(password))
    raw.expect(TUNE)


def test_an_unknown_way_to_log_in_is_refused(raw):
    raw.begin()
    raw.start_ok("GUESS", b"my name")
    assert raw.is_hung_up()


def test_a_frame_of_bytes_that_trickle_in(raw):
    for byte in HEADER:
        raw.send(bytes([byte]))
    raw.next()
    payload = struct.pack(">HH", 10, 11) + long(b"") + short("PLAIN") + long(raw.plain()) + short("en_US")
    for byte in struct.pack(">BHI", METHOD, 0, len(payload)) + payload + b"\xce":
        raw.send(bytes([byte]))
    raw.expect(TUNE)


def test_a_frame_max_that_was_agreed_holds_for_deliveries(raw):
    raw.opened(frame_max=4096)
    queue = raw.queue()
    body = bytes(range(256)) * 40
    raw.call(1, PUBLISH, b"\x00\x00" + short("") + short(queue) + b"\x00")
    raw.content(1, len(body))
    for at in range(0, len(body), 4088):
        raw.frame(BODY, 1, body[at : at + 4088])
    raw.call(1, CONSUME, b"\x00\x00" + short(queue) + short("") + b"\x02" + long(b""))
    raw.expect(CONSUME_OK)
    raw.expect(DELIVER)
    assert raw.next().kind == CONTENT
    parts: list[bytes] = []
    while sum(len(part) for part in parts) < len(body):
        parts.append(raw.next().payload)
    assert [len(part) for part in parts] == [4088, 4088, len(body) - 2 * 4088]
    assert b"".join(parts) == body


def test_a_connection_is_closed_with_an_answer(raw):
    raw.opened()
    raw.call(0, CLOSE, struct.pack(">H", 200) + short("bye") + struct.pack(">HH", 0, 0))
    raw.expect(CLOSE_OK)


def test_an_unknown_vhost_is_refused(raw):
    raw.tuned()
    raw.call(0, OPEN, short("nowhere") + short("") + b"\x00")
    assert raw.expect(CLOSE).code == 530


def test_a_client_that_stays_silent_is_left(raw):
    raw.opened(heartbeat_s=1)
    assert raw.is_hung_up()


def test_the_server_sends_heart_beats(raw):
    raw.opened(heartbeat_s=2)
    for _ in range(3):
        raw.frame(HEARTBEAT, 0, b"")
        assert raw.take(8) == b"\x08\x00\x00\x00\x00\x00\x00\xce"


def test_a_smaller_number_of_channels_holds(raw):
    raw.opened(channel_max=2)
    raw.open_channel(2)
    raw.call(3, CHANNEL_OPEN, short(""))
    assert raw.expect(CLOSE).code == 530


def test_more_than_the_server_offers_is_refused(raw):
    raw.begin()
    raw.start_ok("PLAIN", raw.plain())
    raw.expect(TUNE)
    raw.call(0, TUNE_OK, struct.pack(">HIH", 65_535, 0xFFFFFFF0, 0))
    assert raw.is_hung_up()


# --------------------------------------------------------------------------------------------------------- channels


def test_a_channel_that_was_closed_can_be_opened_again(raw):
    raw.opened()
    raw.call(1, QUEUE_DECLARE, b"\x00\x00" + short("of nobody") + b"\x01" + long(b""))
    assert raw.expect(CHANNEL_CLOSE).code == 404
    raw.call(1, QOS, struct.pack(">IHB", 0, 1, 0))  # sent before the close came: no answer
    raw.call(1, CHANNEL_CLOSE_OK)
    raw.open_channel(1)
    raw.call(1, QOS, struct.pack(">IHB", 0, 1, 0))
    raw.expect(QOS_OK)


def test_a_close_names_the_method_that_failed(raw):
    raw.opened()
    raw.call(1, QUEUE_DECLARE, b"\x00\x00" + short("of nobody") + b"\x01" + long(b""))
    arguments = raw.expect(CHANNEL_CLOSE).arguments
    text = arguments[3 : 3 + arguments[2]].decode()
    assert text == "NOT_FOUND - no queue 'of nobody' in vhost '/'"
    assert struct.unpack(">HH", arguments[-4:]) == QUEUE_DECLARE


def test_flow_is_answered(raw):
    raw.opened()
    raw.call(1, CHANNEL_FLOW, b"\x01")
    assert raw.expect(CHANNEL_FLOW_OK).arguments == b"\x01"


def test_no_answer_is_sent_where_none_was_asked_for(raw):
    raw.opened()
    queue = raw.queue()
    raw.call(1, QUEUE_DECLARE, b"\x00\x00" + short(queue) + b"\x11" + long(b""))  # passive, no-wait
    raw.call(1, CONFIRM_SELECT, b"\x01")
    raw.call(1, CONSUME, b"\x00\x00" + short(queue) + short("tag") + b"\x0a" + long(b""))  # no-ack, no-wait
    raw.call(1, QOS, struct.pack(">IHB", 0, 1, 0))
    raw.expect(QOS_OK)
    raw.publish(queue, b"m")
    assert {raw.next().method for _ in range(4)} == {DELIVER, (0, 0), ACK}


def test_a_get_of_nothing_is_empty(raw):
    raw.opened()
    queue = raw.queue()
    raw.call(1, GET, b"\x00\x00" + short(queue) + b"\x00")
    raw.expect(GET_EMPTY)


def test_a_client_without_the_capability_gets_no_cancel(raw):
    raw.opened()
    raw.open_channel(2)
    queue = raw.queue()
    raw.call(1, CONSUME, b"\x00\x00" + short(queue) + short("") + b"\x02" + long(b""))
    raw.expect(CONSUME_OK)
    raw.call(2, QUEUE_DELETE, b"\x00\x00" + short(queue) + b"\x00")
    raw.expect(QUEUE_DELETE_OK)
    raw.call(1, QOS, struct.pack(">IHB", 0, 1, 0))
    raw.expect(QOS_OK)


def test_many_confirms_may_come_as_one(raw):
    raw.opened()
    queue = raw.queue()
    raw.call(1, CONFIRM_SELECT, b"\x00")
    raw.expect(CONFIRM_SELECT_OK)
    count = 500
    for _ in range(count):
        raw.publish(queue, b"m")
    confirmed: set[int] = set()
    while len(confirmed) < count:
        tag, multiple = struct.unpack(">QB", raw.expect(ACK).arguments)
        confirmed |= set(range(1, tag + 1)) if multiple else {tag}
    assert confirmed == set(range(1, count + 1))


def _queue_for(raw, count):
    """Declare a queue that takes so many messages, and rejects the rest."""
    limit = short("x-max-length") + b"I" + struct.pack(">I", count) + short("x-overflow") + b"S"
    raw.call(1, QUEUE_DECLARE, b"\x00\x00" + short("") + b"\x04" + long(limit + long(b"reject-publish")))
    answer = raw.expect(QUEUE_DECLARE_OK).arguments
    return answer[1 : 1 + answer[0]].decode()


def _confirm_of(raw):
    """Return whether a publish is confirmed or refused, and which."""
    frame = raw.next()
    return frame.method, struct.unpack(">QB", frame.arguments)[0]


def test_each_publish_is_confirmed_once(raw):
    raw.opened()
    queue = _queue_for(raw, 2)
    raw.call(1, CONFIRM_SELECT, b"\x00")
    raw.expect(CONFIRM_SELECT_OK)
    confirms = []
    for _ in range(5):
        raw.publish(queue, b"m")
        confirms.append(_confirm_of(raw))
    assert confirms == [(ACK, 1), (ACK, 2), (NACK, 3), (NACK, 4), (NACK, 5)]


def test_the_very_first_publish_may_be_refused(raw):
    raw.opened()
    queue = _queue_for(raw, 1)
    raw.publish(queue, b"m")
    raw.call(1, CONFIRM_SELECT, b"\x00")
    raw.expect(CONFIRM_SELECT_OK)
    for number in (1, 2):
        raw.publish(queue, b"m")
        assert _confirm_of(raw) == (NACK, number)


# -------------------------------------------------------------------------------------------------- byte for byte

FIELDS = {
    "boolean t": b"t\x01",
    "int8 b": b"b\xff",
    "uint8 B": b"B\xff",
    "int16 s": b"s\xff\xfe",
    "uint16 u": b"u\xff\xfe",
    "int32 I": b"I\xff\xff\xff\xfe",
    "uint32 i": b"i\xff\xff\xff\xfe",
    "int64 l": b"l\x80\x00\x00\x00\x00\x00\x00\x01",
    "float f": b"f" + struct.pack(">f", 0.1),
    "double d": b"d" + struct.pack(">d", 0.1),
    "decimal D": b"D\x02\x00\x00\x04\xd2",
    "text S": b"S" + long("größe".encode()),
    "bytes in S": b"S" + long(b"\xff\xfe\x00"),
    "array A": b"A" + long(b"I\x00\x00\x00\x01S\x00\x00\x00\x01aV"),
    "timestamp T": b"T" + struct.pack(">Q", 1_700_000_000),
    "table F": b"F" + long(short("deep") + b"F" + long(short("er") + b"t\x00")),
    "void V": b"V",
    "bytes x": b"x" + long(b"\x00\xff"),
    "empty text": b"S" + long(b""),
    "empty array": b"A" + long(b""),
    "empty table": b"F" + long(b""),
}


def _headers(*fields: str) -> bytes:
    table = b"".join(short(name) + FIELDS[name] for name in fields)
    return struct.pack(">H", 1 << 13) + long(table)


@pytest.mark.parametrize("field", FIELDS)
def test_a_header_comes_back_byte_for_byte(raw, field):
    raw.opened()
    queue = raw.queue()
    raw.publish(queue, b"m", _headers(field))
    assert raw.got(queue) == (_headers(field), b"m")


def test_all_headers_come_back_in_their_order(raw):
    raw.opened()
    queue = raw.queue()
    for names in (list(FIELDS), list(reversed(FIELDS))):
        raw.publish(queue, b"m", _headers(*names))
        assert raw.got(queue) == (_headers(*names), b"m")


def test_all_fourteen_properties_come_back_byte_for_byte(raw):
    raw.opened()
    queue = raw.queue()
    properties = (
        struct.pack(">H", 0xFFFC)
        + short("text/plain")
        + short("utf-8")
        + long(short("key") + FIELDS["text S"])
        + b"\x02\x09"
        + short("correlation")
        + short("reply")
        + short("60000")
        + short("id")
        + struct.pack(">Q", 1_700_000_000)
        + short("type")
        + short(raw.address.user)
        + short("app")
        + short("cluster")
    )
    raw.publish(queue, b"m", properties)
    assert raw.got(queue) == (properties, b"m")


def test_no_properties_come_back_as_none(raw):
    raw.opened()
    queue = raw.queue()
    raw.publish(queue, b"")
    assert raw.got(queue) == (b"\x00\x00", b"")


def test_an_exchange_of_methods_in_one_packet(raw):
    raw.opened()
    declare = b"\x00\x00" + short("") + b"\x04" + long(b"")
    payload = struct.pack(">HH", *QUEUE_DECLARE) + declare
    raw.send((struct.pack(">BHI", METHOD, 1, len(payload)) + payload + b"\xce") * 50)
    for _ in range(50):
        raw.expect(QUEUE_DECLARE_OK)


def test_channels_interleave_their_bodies(raw):
    raw.opened()
    raw.open_channel(2)
    queue = raw.queue()
    for channel in (1, 2):
        raw.call(channel, PUBLISH, b"\x00\x00" + short("") + short(queue) + b"\x00")
    for channel in (1, 2):
        raw.content(channel, 4)
    for part in (b"ab", b"cd"):
        for channel in (1, 2):
            raw.frame(BODY, channel, part.upper() if channel == 2 else part)
    assert {raw.got(queue)[1], raw.got(queue)[1]} == {b"abcd", b"ABCD"}


def test_a_second_protocol_header_is_no_frame(raw):
    raw.begin()
    raw.send(HEADER)
    assert raw.is_hung_up()
