"""Every method: its bytes, whole, byte by byte, with a tail, cut off and with too much."""

from __future__ import annotations

import pytest

from tests.unit.amqp.goldens import METHODS
from tests.unit.amqp.streams import byte_by_byte, fed, raw_frame, reader
from wherry.model.errors import InvalidInput
from wherry.wire.amqp.codec import methods as m
from wherry.wire.amqp.codec import writer
from wherry.wire.amqp.codec.faults import AmqpFault, ReplyCode
from wherry.wire.amqp.codec.reader import Ack, Called


def cases(among: list[tuple[m.Method, str]]):
    return [pytest.param(method, bytes.fromhex(payload), id=m.name_of(type(method))) for method, payload in among]


CASES = cases(METHODS)
CALLS = cases([case for case in METHODS if case[0].ids not in m.CONTENT])


def event_of(method: m.Method) -> Called | Ack:
    channel = 0 if method.ids[0] == 10 else 7
    if isinstance(method, m.BasicAck):
        return Ack(channel, method.delivery_tag, method.multiple)
    return Called(channel, method)


def test_there_is_a_case_for_every_method():
    assert {type(method) for method, _ in METHODS} == set(m.METHODS.values())
    assert len(m.METHODS) == 66


@pytest.mark.parametrize(("method", "payload"), CASES)
def test_method_has_the_bytes_that_other_codecs_give_it(method, payload):
    assert m.encode_method(method) == payload
    assert m.decode_method(payload) == method


@pytest.mark.parametrize(("method", "payload"), CASES)
def test_defaults_survive(method, payload):
    plain = type(method)()
    assert m.decode_method(m.encode_method(plain)) == plain


@pytest.mark.parametrize(("method", "payload"), CALLS)
def test_method_is_read_whole_byte_by_byte_and_with_a_tail(method, payload):
    expected = event_of(method)
    frame = raw_frame(1, expected.channel, payload)
    assert writer.frame(expected.channel, method) == frame
    assert reader().feed(frame) == [expected]
    assert fed(reader(), byte_by_byte(frame)) == [expected]
    for cut in range(1, len(frame)):
        tailed = reader()
        assert tailed.feed(frame + frame[:cut]) == [expected]
        assert tailed.partial_bytes == cut
        assert tailed.feed(frame[cut:]) == [expected]
        assert tailed.partial_bytes == 0


@pytest.mark.parametrize(("method", "payload"), CASES)
def test_method_that_is_cut_off_or_too_long_is_a_syntax_error(method, payload):
    for wrong in [*(payload[:end] for end in range(len(payload))), payload + b"\0"]:
        with pytest.raises(AmqpFault) as caught:
            m.decode_method(wrong)
        assert caught.value.code == ReplyCode.FRAME_ERROR
        if len(wrong) >= 4:
            assert (caught.value.class_id, caught.value.method_id) == method.ids


@pytest.mark.parametrize("ids", [(0, 0), (10, 12), (60, 99), (61, 10), (0xFFFF, 0xFFFF)])
def test_unknown_method_is_not_implemented(ids):
    payload = ids[0].to_bytes(2, "big") + ids[1].to_bytes(2, "big")
    with pytest.raises(AmqpFault) as caught:
        m.decode_method(payload)
    assert caught.value.code == ReplyCode.NOT_IMPLEMENTED
    assert caught.value.hard


def test_text_that_is_no_utf8_is_written_as_it_came():
    payload = b"\x00\x3c\x00\x46\x00\x00\x02\xff\xfe\x00"
    method = m.decode_method(payload)
    assert isinstance(method, m.BasicGet)
    assert method.queue == "\udcff\udcfe"
    assert m.encode_method(method) == payload


def test_what_does_not_fit_is_refused_before_it_is_sent():
    with pytest.raises(InvalidInput, match="255"):
        m.encode_method(m.BasicGet(queue="é" * 128))
    with pytest.raises(InvalidInput, match="fit"):
        m.encode_method(m.ConnectionTune(channel_max=65536))
    assert m.encode_method(m.BasicGet(queue="q" * 255)).count(b"q") == 255


def test_fault_has_code_text_and_what_it_ends():
    fault = AmqpFault(ReplyCode.NOT_FOUND, "no queue 'x' in vhost '/'", channel=3, ids=m.QueueBind.ids)
    assert fault.text == "NOT_FOUND - no queue 'x' in vhost '/'"
    assert (fault.channel, fault.class_id, fault.method_id, fault.hard) == (3, 50, 20, False)
    assert str(fault) == "404 NOT_FOUND - no queue 'x' in vhost '/'"
    assert AmqpFault(ReplyCode.ACCESS_REFUSED, "login").hard, "there is no channel to end"
    assert AmqpFault(ReplyCode.NOT_ALLOWED, "x", channel=3).hard
    assert AmqpFault(ReplyCode.NOT_FOUND, "x", channel=3, hard=True).hard
    long = AmqpFault(ReplyCode.NOT_FOUND, "é" * 200, channel=3).text
    assert len(long.encode()) <= 255
    assert long.endswith("é…")
