"""The frames of services: whole, byte by byte and with a tail; broken rules name the side and the field; any bytes."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.golden.service_wire_v1 import FRAMES
from wherry.wire.native.codec import invokes
from wherry.wire.native.codec.faults import WireFault
from wherry.wire.native.codec.frames import FRAME_BYTES_MAX, Flag, Kind, encode_frame
from wherry.wire.native.codec.invokes import SERVICE_RULES, CallContext, CallKind
from wherry.wire.native.codec.reader import Frame, FrameReader

TAIL = encode_frame(Kind.PING, 3)


@pytest.mark.parametrize("name", FRAMES)
def test_a_frame_is_read_whole_byte_by_byte_and_with_a_tail(name):
    side, data, _ = FRAMES[name]
    whole = FrameReader(side, rules=SERVICE_RULES).feed(data)
    assert len(whole) == 1
    reader = FrameReader(side, rules=SERVICE_RULES)
    found: list[Frame] = []
    for at in range(len(data)):
        assert not found
        found += reader.feed(data[at : at + 1])
    assert found == whole
    assert FrameReader(side, rules=SERVICE_RULES).feed(data + TAIL) == [*whole, (Kind.PING, 0, 3, b"")]


def test_frames_of_the_native_wire_are_none_of_services_and_the_other_way_round():
    reader = FrameReader("client", rules=SERVICE_RULES)
    assert reader.feed(encode_frame(Kind.PUBLISH, 1, b"x")) == []
    assert reader.fault is not None
    assert (reader.fault.side, reader.fault.field) == ("client", "kind")
    assert "INVOKE 0x50" in reader.fault.allowed
    native = FrameReader("client")
    assert native.feed(invokes.encode_invoke(1, b"a.b", b"")) == []
    assert native.fault is not None
    assert native.fault.field == "kind"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\0" * 7,
        b"\0" * 8,
        b"\0\0\0\0\x05\0\0\0abc",
        b"\0\0\0\0\x01\x01\0\0a",
        b"\0\0\0\0\x01\0\x05\0a",
        b"\0\0\0\0\x01\0\xff\xffa" + b"x" * 70_000,
    ],
    ids=["empty", "short", "no method", "method too long", "reserved", "context too long", "context above its bound"],
)
def test_a_broken_invoke_is_a_fault_of_the_client(body):
    with pytest.raises(WireFault) as caught:
        invokes.decode_invoke(body)
    assert (caught.value.side, caught.value.field) == ("client", "body")


@pytest.mark.parametrize(
    ("call", "field"),
    [
        (lambda: invokes.decode_context(b"\xc1"), "context"),
        (lambda: invokes.decode_context(b"\x81\xa7session\x07"), "context"),
        (lambda: invokes.decode_trouble(b"\x80"), "body"),
        (lambda: invokes.decode_seen(b"\0"), "results"),
        (lambda: invokes.check_content("client", Flag.MSGPACK | Flag.JSON), "flags"),
        (lambda: invokes.check_content("server", Flag.REFUSED | Flag.FAILED), "flags"),
        (lambda: invokes.encode_context(CallContext(session="x" * 20_000)), "context"),
        (lambda: invokes.encode_invoke(1, b"a.b", bytes(FRAME_BYTES_MAX)), "length"),
        (lambda: invokes.encode_result(1, bytes(FRAME_BYTES_MAX + 1)), "length"),
    ],
)
def test_a_broken_rule_names_its_field(call, field):
    with pytest.raises(WireFault) as caught:
        call()
    assert caught.value.field == field


@given(
    st.integers(1, 2**32 - 1),
    st.binary(min_size=1, max_size=255),
    st.binary(max_size=300),
    st.integers(0, 2**32 - 1),
    st.binary(max_size=300),
)
def test_an_invoke_goes_there_and_back(number, method, argument, timeout_ms, context):
    data = invokes.encode_invoke(number, method, argument, timeout_ms=timeout_ms, context=context)
    ((kind, flags, found, body),) = FrameReader("client", rules=SERVICE_RULES).feed(data)
    assert (kind, flags, found) == (CallKind.INVOKE, 0, number)
    assert invokes.decode_invoke(body) == (timeout_ms, method, context, argument)


@pytest.mark.parametrize("seed", range(300))
def test_changed_bytes_are_frames_or_a_fault_and_nothing_else(seed):
    random = Random(seed)
    frames = [frame for frame in FRAMES.values() if frame.side == "client"]
    data = bytearray(b"".join(random.choice(frames).data for _ in range(4)))
    for _ in range(random.randint(1, 6)):
        data[random.randrange(len(data))] = random.randrange(256)
    reader = FrameReader("client", rules=SERVICE_RULES)
    for kind, _, _, body in reader.feed(bytes(data)):
        try:
            if kind == CallKind.INVOKE:
                invokes.decode_context(invokes.decode_invoke(body).context)
            elif kind == CallKind.SEEN:
                invokes.decode_seen(body)
        except WireFault:
            continue
