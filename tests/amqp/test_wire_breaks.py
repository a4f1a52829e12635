"""What breaks a connection, by hand: each wrong frame or method, and the code that the server ends it with."""

from __future__ import annotations

import struct

import pytest

from tests.amqp.raw import (
    BODY,
    CHANNEL_CLOSE,
    CHANNEL_FLOW,
    CHANNEL_OPEN,
    CLOSE,
    CLOSE_OK,
    CONSUME,
    CONSUME_OK,
    GET,
    METHOD,
    PUBLISH,
    QOS,
    QUEUE_DECLARE,
    Raw,
    long,
    short,
)


@pytest.fixture
def raw(amqp_url):
    with Raw(amqp_url) as made:
        yield made


def _unknown_frame(raw):
    raw.frame(9, 1, b"")


def _frame_without_its_end(raw):
    raw.send(struct.pack(">BHI", METHOD, 1, 4) + struct.pack(">HH", *CHANNEL_FLOW) + b"\x00")


def _frame_too_large(raw):
    raw.call(1, PUBLISH, b"\x00\x00" + short("") + short("q") + b"\x00")
    raw.content(1, 1_000_000)
    raw.frame(BODY, 1, bytes(500_000))


def _channel_that_is_not_open(raw):
    raw.call(7, QOS, struct.pack(">IHB", 0, 1, 0))


def _channel_twice(raw):
    raw.call(1, CHANNEL_OPEN, short(""))


def _unknown_method(raw):
    raw.call(1, (60, 999))


def _unknown_class(raw):
    raw.call(1, (99, 10))


def _arguments_cut_short(raw):
    raw.call(1, QUEUE_DECLARE, b"\x00\x00\x20abc")


def _body_without_header(raw):
    raw.frame(BODY, 1, b"body")


def _header_without_publish(raw):
    raw.content(1, 10)


def _method_inside_a_message(raw):
    raw.call(1, PUBLISH, b"\x00\x00" + short("") + short("q") + b"\x00")
    raw.call(1, QOS, struct.pack(">IHB", 0, 1, 0))


def _channel_method_on_channel_zero(raw):
    raw.call(0, QOS, struct.pack(">IHB", 0, 1, 0))


def _immediate(raw):
    raw.publish("q", b"m", flags=2)


def _prefetch_of_bytes(raw):
    raw.call(1, QOS, struct.pack(">IHB", 1000, 1, 0))


def _unknown_exchange_type(raw):
    raw.call(1, (40, 10), b"\x00\x00" + short("x") + short("odd") + b"\x00" + long(b""))


def _consumer_tag_twice(raw):
    queue = raw.queue()
    consume = b"\x00\x00" + short(queue) + short("same") + b"\x00" + long(b"")
    raw.call(1, CONSUME, consume)
    raw.expect(CONSUME_OK)
    raw.call(1, CONSUME, consume)


def _table_of_an_unknown_type(raw):
    raw.call(1, QUEUE_DECLARE, b"\x00\x00" + short("q") + b"\x04" + long(short("key") + b"?\x00"))


def _table_longer_than_its_frame(raw):
    raw.call(1, QUEUE_DECLARE, b"\x00\x00" + short("q") + b"\x04" + struct.pack(">I", 1 << 31) + b"abc")


def _no_queue_was_declared(raw):
    raw.call(1, GET, b"\x00\x00" + short("") + b"\x00")


BREAKS = {
    _unknown_frame: 501,
    _frame_without_its_end: 501,
    _frame_too_large: 501,
    _channel_that_is_not_open: 504,
    _channel_twice: 504,
    _arguments_cut_short: 501,
    _body_without_header: 505,
    _header_without_publish: 505,
    _method_inside_a_message: 505,
    _channel_method_on_channel_zero: 504,
    _immediate: 540,
    _prefetch_of_bytes: 540,
    _unknown_exchange_type: 503,
    _consumer_tag_twice: 530,
    _table_longer_than_its_frame: 501,
}

ENDS = (_unknown_method, _unknown_class, _table_of_an_unknown_type)
"""RabbitMQ hangs up without a reason; a server may send one."""


@pytest.mark.parametrize(("deed", "code"), BREAKS.items(), ids=[deed.__name__[1:] for deed in BREAKS])
def test_a_broken_frame_closes_the_connection_with_this_code(raw, deed, code):
    raw.opened()
    deed(raw)
    assert raw.expect(CLOSE).code == code


@pytest.mark.parametrize("deed", ENDS, ids=[deed.__name__[1:] for deed in ENDS])
def test_what_ends_a_connection(raw, deed):
    raw.opened()
    deed(raw)
    raw.call(0, CLOSE_OK)
    assert raw.is_hung_up()


def test_no_name_and_nothing_declared_is_not_found(raw):
    raw.opened()
    _no_queue_was_declared(raw)
    found = raw.expect(CHANNEL_CLOSE)
    assert found.code == 404
