"""Frames whole, byte by byte and with a tail; values there and back; every broken rule names its field and its side."""

from __future__ import annotations

import itertools
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.golden.wire_v1 import FRAMES
from wherry.wire import partial_body
from wherry.wire.native.codec import calls, deliveries, documents, publishes, settles
from wherry.wire.native.codec import reader as reader_module
from wherry.wire.native.codec.calls import AnswerHead, CallHead
from wherry.wire.native.codec.documents import ClientHello, SubscribeTerms, decode_document
from wherry.wire.native.codec.faults import WireFault
from wherry.wire.native.codec.frames import FRAME_BYTES_MAX, HEADER, Flag, Kind, encode_frame
from wherry.wire.native.codec.publishes import ConfirmEntry, PublishTerms
from wherry.wire.native.codec.reader import Frame, FrameReader
from wherry.wire.native.codec.rows import PLAIN, ROWS_MAX, DeliveredRow, RowFields
from wherry.wire.native.codec.settles import SettleTerms, Verb, ranges_of
from wherry.wire.partial_body import FIRST_BYTES, GROWTH

TAIL = encode_frame(Kind.PING, 3)

# ------------------------------------------------------------------------------------------------------------- reading


@pytest.mark.parametrize("name", FRAMES)
def test_a_frame_is_read_whole_byte_by_byte_and_with_a_tail(name):
    frame = FRAMES[name]
    whole = FrameReader(frame.side).feed(frame.data)
    assert [each[:3] for each in whole] == [frame.header]

    reader = FrameReader(frame.side)
    found: list[Frame] = []
    for at in range(len(frame.data)):
        assert not found
        assert reader.partial_bytes == at
        found += reader.feed(frame.data[at : at + 1])
    assert found == whole
    assert reader.partial_bytes == 0

    tail = FrameReader(frame.side).feed(frame.data + TAIL)
    assert tail == [*whole, (Kind.PING, 0, 3, b"")]


@pytest.mark.parametrize("step", [1, 2, 5, 11, 12, 13, 64, 1_000])
@pytest.mark.parametrize("side", ["client", "server"])
def test_many_frames_in_pieces_of_any_size(side, step):
    frames = [frame for frame in FRAMES.values() if frame.side == side] * 3
    data = b"".join(frame.data for frame in frames)
    reader, found = FrameReader(side), []
    for at in range(0, len(data), step):
        found += reader.feed(data[at : at + step])
    assert [each[:3] for each in found] == [frame.header for frame in frames]
    assert reader.fault is None


@pytest.mark.parametrize(
    ("side", "header", "field"),
    [
        ("client", (0, 0x07, 0, 0, 0), "kind"),
        ("client", (0, Kind.DELIVER, 0, 0, 1), "kind"),
        ("server", (0, Kind.PUBLISH, 0, 0, 1), "kind"),
        ("client", (FRAME_BYTES_MAX + 1, Kind.PUBLISH, 0, 0, 1), "length"),
        ("client", (1, Kind.PING, 0, 0, 1), "length"),
        ("client", (0, Kind.PUBLISH, 0, 1, 1), "reserved"),
        ("client", (0, Kind.PUBLISH, Flag.STREAM, 0, 1), "flags"),
        ("client", (0, Kind.PING, 0x80, 0, 1), "flags"),
        ("client", (0, Kind.PUBLISH, 0, 0, 0), "id"),
        ("client", (0, Kind.HELLO, 0, 0, 1), "id"),
        ("server", (0, Kind.CONFIRM, 0, 0, 1), "id"),
    ],
)
def test_a_header_that_breaks_a_rule(side, header, field):
    reader = FrameReader(side)
    assert reader.feed(TAIL + HEADER.pack(*header)) == [(Kind.PING, 0, 3, b"")], "frames before the fault count"
    assert reader.fault is not None
    assert (reader.fault.side, reader.fault.field) == (side, field)
    assert f"the {side} broke the protocol: {field}" in str(reader.fault)
    assert reader.feed(TAIL) == []
    assert reader.partial_bytes == 0


def test_the_largest_frame_is_read_and_one_byte_more_is_not():
    body = bytes(FRAME_BYTES_MAX)
    (frame,) = FrameReader("client").feed(encode_frame(Kind.CALL, 1, body))
    assert frame[3] == body
    reader = FrameReader("client", frame_bytes_max=10)
    assert len(reader.feed(encode_frame(Kind.CALL, 1, bytes(10)))) == 1
    assert reader.feed(encode_frame(Kind.CALL, 1, bytes(11))) == []
    assert reader.fault is not None
    assert reader.fault.field == "length"


def test_memory_is_used_by_what_arrived_not_by_what_a_header_announces():
    reader = FrameReader("client")
    reader.feed(HEADER.pack(FRAME_BYTES_MAX, Kind.CALL, 0, 0, 1))
    assert reader.partial_bytes == FIRST_BYTES
    for got in range(1 << 10, 1 << 20, 1 << 10):
        reader.feed(bytes(1 << 10))
        assert reader.partial_bytes <= max(FIRST_BYTES, GROWTH * got)


@pytest.mark.parametrize("seed", range(40))
def test_a_large_body_is_the_same_however_it_is_read(seed, monkeypatch):
    chance = Random(seed)
    monkeypatch.setattr(reader_module, "LARGE_BYTES", 300)
    monkeypatch.setattr(partial_body, "FIRST_BYTES", chance.choice([1, 7, 64]))
    flags = (Flag.ARROW, 0, 0)
    sizes = [0, 3, 280, 300, 320, 5_000, 2 * partial_body.POOLED_BYTES]
    frames = [
        (Kind.PUBLISH, chance.choice(flags), number, chance.randbytes(chance.choice(sizes))) for number in range(1, 30)
    ]
    data = b"".join(encode_frame(kind, number, body, given) for kind, given, number, body in frames)
    reader, found, straight = FrameReader("client"), [], 0
    while data:
        space, count = reader.space(), min(len(data), chance.randrange(1, 900))
        if space is not None and chance.random() < 0.7:
            count = min(count, len(space))
            space[:count] = data[:count]
            found += reader.arrived(count)
            straight += count
        else:
            found += reader.feed(data[:count])
        data = data[count:]
    assert straight
    assert found == frames
    assert all(type(body) is bytes for _, given, _, body in found if not given)
    assert (reader.partial_bytes, reader.space()) == (0, None)


# --------------------------------------------------------------------------------------------------------- round trips

NUMBERS = st.integers(1, 2**32 - 1)
TEXTS = st.text(max_size=20)
OFFSETS = st.integers(0, 2**43 - 1)
TOKENS = st.integers(0, 2**63 - 1)
FIELDS = st.one_of(
    st.just(PLAIN),
    st.builds(
        RowFields,
        st.none() | TEXTS,
        st.none() | st.lists(st.tuples(TEXTS, TEXTS), max_size=4),
        st.none() | st.integers(0, 65_535),
        st.none() | st.integers(-(2**63), 2**63 - 1),
        st.none() | st.integers(0, 2**43 - 1),
        st.none() | TEXTS,
        st.none() | st.binary(max_size=20),
    ),
)
ROWS = st.lists(st.tuples(st.binary(max_size=40), FIELDS), min_size=1, max_size=6)
DELIVERED = st.builds(
    DeliveredRow,
    TOKENS,
    st.integers(0, 65_534),
    OFFSETS,
    st.integers(0, 2**60),
    st.integers(1, 65_535),
    st.binary(max_size=40),
    FIELDS,
)


def only(side, data):
    """Return the one frame of some bytes, and check that its parts are read as well."""
    (frame,) = FrameReader(side).feed(data)
    reader, cut = FrameReader(side), len(data) // 2
    assert reader.feed(data[:cut]) + reader.feed(data[cut:]) == [frame]
    return frame


@given(NUMBERS, TEXTS, ROWS, st.booleans(), st.sampled_from([PublishTerms(), PublishTerms(partition=3, producer="ü")]))
def test_publish_there_and_back(number, topic, rows, quiet, terms):
    payloads, fields = [row[0] for row in rows], [row[1] for row in rows]
    given_fields = None if all(each == PLAIN for each in fields) else fields
    options = documents.encode_options(terms)
    data = publishes.encode_publish(number, topic, payloads, given_fields, options, quiet=quiet)
    kind, flags, found, body = only("client", data)
    assert (kind, flags, found) == (Kind.PUBLISH, Flag.QUIET if quiet else 0, number)
    request = publishes.decode_publish(flags, body)
    assert request == (topic, options, payloads, given_fields, None)
    assert decode_document("client", PublishTerms, options or b"{}") == terms


@given(NUMBERS, TEXTS, st.binary(min_size=1, max_size=64), st.binary(max_size=30))
def test_publish_of_an_arrow_stream_is_aligned_and_not_copied(number, topic, stream, options):
    data = b"".join(publishes.encode_publish_arrow(number, topic, [stream[:3], stream[3:]], options))
    _, flags, _, body = only("client", data)
    request = publishes.decode_publish(flags, body)
    assert request.arrow is not None
    assert (request.topic, request.options, bytes(request.arrow)) == (topic, options, stream)
    assert (len(body) - request.arrow.nbytes) % 8 == 0
    assert request.arrow.obj is body


@given(
    st.lists(
        st.builds(
            ConfirmEntry,
            NUMBERS,
            NUMBERS,
            st.integers(0, 65_534),
            OFFSETS,
            st.sampled_from([0, 1, 2, 3]),
            st.integers(0, 2**32 - 1),
            st.just(()),
        ),
        max_size=5,
    ),
    st.lists(st.tuples(st.integers(0, 65_534), OFFSETS, st.integers(1, 2**32 - 1)), min_size=1, max_size=4),
)
def test_confirm_there_and_back(entries, places):
    placed = ConfirmEntry(9, 1, 2, 3, 1 | publishes.Confirmed.PLACED, 0, tuple(places))
    for some in ([*entries], [placed, *entries], [*entries, placed, placed]):
        _, _, _, body = only("server", publishes.encode_confirm(some))
        assert publishes.decode_confirm(body) == some


@given(NUMBERS, st.lists(DELIVERED, min_size=1, max_size=6))
def test_deliver_there_and_back(stream, rows):
    kind, _, found, body = only("server", deliveries.encode_deliver(stream, rows))
    assert (kind, found) == (Kind.DELIVER, stream)
    assert deliveries.decode_deliver(body) == rows


@given(
    NUMBERS,
    NUMBERS,
    st.sampled_from(Verb),
    st.lists(st.tuples(TOKENS, st.lists(st.tuples(OFFSETS, st.integers(1, 1)), max_size=4)), min_size=1, max_size=4),
    st.sampled_from([SettleTerms(), SettleTerms(delay_ms=3, error="x")]),
)
def test_settle_there_and_back(number, stream, verb, parts, terms):
    options = documents.encode_options(terms)
    _, _, found, body = only("client", settles.encode_settle(number, stream, verb, parts, options))
    assert found == number
    assert settles.decode_settle(body) == (stream, verb, options, parts)


@given(NUMBERS, NUMBERS, st.lists(TOKENS, min_size=1, max_size=5), st.none() | st.integers(1, 2**32 - 1))
def test_renew_there_and_back(number, stream, tokens, lease_ms):
    _, _, _, body = only("client", settles.encode_renew(number, stream, tokens, lease_ms))
    assert settles.decode_renew(body) == (stream, lease_ms, tokens)


@given(st.lists(st.integers(1, 30), min_size=1, max_size=20, unique=True).map(sorted))
def test_ranges_of_numbers_there_and_back(numbers):
    _, _, _, body = only("server", settles.encode_settled(ranges_of(numbers)))
    found = settles.decode_settled(body)
    assert [first + step for first, count in found for step in range(count)] == numbers
    assert all(first + count < following for (first, count), (following, _) in itertools.pairwise(found))


@given(NUMBERS, TEXTS, st.dictionaries(TEXTS, TEXTS, max_size=3), st.binary(max_size=20))
def test_call_and_answer_there_and_back(number, path, headers, content):
    head = CallHead("GET", path, headers)
    _, _, _, body = only("client", b"".join(calls.encode_call(number, head, [content])))
    found, rest = calls.decode_call(body)
    assert (found, bytes(rest)) == (head, content)
    answer = AnswerHead(204, headers)
    _, _, _, body = only("server", b"".join(calls.encode_answer(number, answer, [content])))
    found_answer, rest = calls.decode_answer(body)
    assert (found_answer, bytes(rest)) == (answer, content)
    _, _, _, body = only("client", b"".join(calls.encode_call(number, head)))
    assert not calls.decode_call(body)[1].nbytes


# -------------------------------------------------------------------------------------------------------- broken bodies

ONE = publishes.encode_publish(1, "jobs", [b"hi"])[12:]
KEYED = publishes.encode_publish(1, "jobs", [b"hi"], [RowFields(key="kk")])[12:]
SETTLE = settles.encode_settle(1, 1, Verb.ACK, [(77, [(12, 1), (20, 1)])])[12:]


@pytest.mark.parametrize(
    ("decode", "body", "field"),
    [
        (lambda body: publishes.decode_publish(0, body), b"", "topic"),
        (lambda body: publishes.decode_publish(0, body), ONE[:7], "topic"),
        (lambda body: publishes.decode_publish(0, body), ONE[:-1], "rows"),
        (lambda body: publishes.decode_publish(0, body), ONE + b"x", "rows"),
        (lambda body: publishes.decode_publish(0, body), b"\x02\x00\xff\xfe" + ONE[6:], "topic"),
        (lambda body: publishes.decode_publish(0, body), ONE[:8] + bytes(4), "count"),
        (lambda body: publishes.decode_publish(0, body), ONE[:8] + (ROWS_MAX + 1).to_bytes(4, "little"), "count"),
        (lambda body: publishes.decode_publish(0, body), ONE[:6] + b"\xff\xff" + bytes(70_000), "options"),
        (lambda body: publishes.decode_publish(0, body), ONE[:16] + b"\x80hi", "bits"),
        (lambda body: publishes.decode_publish(0, body), KEYED.replace(b"kk", b"\xff\xff"), "key"),
        (lambda body: publishes.decode_publish(0, body), ONE[:16] + b"\x02\x01\x01" + bytes(2_000), "headers"),
        (lambda body: publishes.decode_publish(1, body), ONE[:8], "messages"),
        (lambda body: publishes.decode_publish(1, body), b"\x01\x00j\x00\x00\x01\x00\x00stream", "padding"),
        (deliveries.decode_credit, b"", "messages"),
        (deliveries.decode_credit, bytes(4), "messages"),
        (settles.decode_settle, b"", "parts"),
        (settles.decode_settle, SETTLE[:8], "parts"),
        (settles.decode_settle, SETTLE[:-1], "ranges"),
        (settles.decode_settle, SETTLE + b"x", "parts"),
        (settles.decode_settle, SETTLE[:4] + b"\x05" + SETTLE[5:], "verb"),
        (settles.decode_settle, SETTLE[:5] + b"\x01" + SETTLE[6:], "reserved"),
        (settles.decode_settle, SETTLE[:8] + b"\xff" * 8 + SETTLE[16:], "token"),
        (settles.decode_settle, SETTLE[:20] + bytes(24), "ranges"),
        (settles.decode_settle, SETTLE[:28] + b"\xff\xff\xff\x00" + SETTLE[32:], "ranges"),
        (settles.decode_settle, SETTLE[:8] + bytes(12 * 65_537), "ranges"),
        (settles.decode_renew, bytes(8), "tokens"),
        (settles.decode_renew, bytes(17), "tokens"),
        (settles.decode_renew, bytes(8) + b"\xff" * 8, "token"),
        (calls.decode_call, b"", "head"),
        (calls.decode_call, b"\x05\x00\x00\x00{}", "head"),
        (calls.decode_call, b"\x02\x00\x00\x00{}", "method"),
        (calls.decode_call, b"\x01\x80\x00\x00" + bytes(40_000), "head"),
        (calls.decode_call, (30).to_bytes(4, "little") + b'{"method":"GET","path":"/","":0}'[:30], "head"),
        (lambda body: decode_document("client", ClientHello, body), b"[]", "body"),
        (lambda body: decode_document("client", ClientHello, body), b"{", "body"),
        (lambda body: decode_document("client", ClientHello, body), b'{"versions":"1"}', "versions"),
        (lambda body: decode_document("client", SubscribeTerms, body), b'{"topic":"x"}', "subscription"),
        (lambda body: decode_document("client", SubscribeTerms, body), b'{"topic":"x","speed":1}', "speed"),
        (lambda body: decode_document("client", SubscribeTerms, body), b'{"create":' + b"[" * 60_000, "create"),
        (lambda body: decode_document("client", SubscribeTerms, body), b" " * 70_000, "body"),
        (lambda body: decode_document("client", PublishTerms, body, "options"), b"nothing", "options"),
        (lambda body: decode_document("client", PublishTerms, body, "options"), b'{"sequence":"1"}', "sequence"),
    ],
)
def test_a_body_that_breaks_a_rule_names_the_field(decode, body, field):
    with pytest.raises(WireFault) as fault:
        decode(body)
    assert (fault.value.side, fault.value.field) == ("client", field)


@pytest.mark.parametrize(
    ("decode", "body", "field"),
    [
        (publishes.decode_confirm, b"", "entries"),
        (publishes.decode_confirm, b"\x01\x00\x00\x00" + bytes(23), "entries"),
        (publishes.decode_confirm, bytes(5), "entries"),
        (deliveries.decode_deliver, bytes(15), "parts"),
        (deliveries.decode_deliver, bytes(16), "parts"),
        (deliveries.decode_deliver, bytes(12) + b"\x01\x00\x00\x00" + bytes(22), "rows"),
        (settles.decode_settled, b"", "requests"),
        (settles.decode_settled, bytes(7), "requests"),
        (calls.decode_answer, b"\x02\x00\x00\x00{}", "status"),
    ],
)
def test_a_broken_body_of_the_server_is_the_fault_of_the_server(decode, body, field):
    with pytest.raises(WireFault) as fault:
        decode(body)
    assert (fault.value.side, fault.value.field) == ("server", field)


@pytest.mark.parametrize(
    ("encode", "field"),
    [
        (lambda: publishes.encode_publish(1, "x" * 65_536, [b""]), "topic"),
        (lambda: publishes.encode_publish(1, "x", []), "count"),
        (lambda: publishes.encode_publish(1, "x", [b""] * (ROWS_MAX + 1)), "count"),
        (lambda: publishes.encode_publish(1, "x", [bytes(FRAME_BYTES_MAX)]), "length"),
        (lambda: publishes.encode_publish(1, "x", [b""], None, bytes(16_385)), "options"),
        (lambda: publishes.encode_publish(1, "x", [b""], [RowFields(key="x" * 65_536)]), "key"),
        (lambda: publishes.encode_publish(1, "x", [b""], [RowFields(key="\ud800")]), "key"),
        (lambda: publishes.encode_publish(1, "x", [b""], [RowFields(priority=65_536)]), "priority"),
        (lambda: publishes.encode_publish(1, "x", [b""], [RowFields(due_ms=1 << 63)]), "due"),
        (lambda: settles.encode_settle(1, 1, 2, [(1, [])], bytes(16_385)), "options"),
        (lambda: calls.encode_call(1, CallHead("GET", "/" * 33_000)), "head"),
        (lambda: calls.encode_call(1, CallHead("GET", "/"), [bytes(FRAME_BYTES_MAX)]), "length"),
    ],
)
def test_what_does_not_fit_a_frame_is_refused_where_it_is_made(encode, field):
    with pytest.raises(WireFault) as fault:
        encode()
    assert (fault.value.side, fault.value.field) == ("client", field)
