"""The AMQP codec: what is encoded decodes to the same, byte-exact, and how a stream is cut changes nothing."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.unit.amqp.streams import alone
from wherry.queueing.message import properties, table
from wherry.queueing.message.properties import Properties
from wherry.wire.amqp.codec import methods as m
from wherry.wire.amqp.codec import writer
from wherry.wire.amqp.codec.frames import HEADER
from wherry.wire.amqp.codec.reader import (
    Ack,
    Called,
    Event,
    FrameReader,
    Greeted,
    Heartbeat,
    IncomingMessages,
    PublishFields,
)
from wherry.wire.amqp.codec.writer import DeliveryWriter


def whole(bits: int, signed: bool) -> st.SearchStrategy[int]:
    return st.integers(-(1 << bits - 1), (1 << bits - 1) - 1) if signed else st.integers(0, (1 << bits) - 1)


# Any bytes: what is no UTF-8 becomes surrogates.
short_texts = st.binary(max_size=255).map(lambda data: data.decode("utf-8", "surrogateescape"))
texts = st.binary(max_size=300).map(lambda data: data.decode("utf-8", "surrogateescape"))
names = st.one_of(st.sampled_from(["CC", "BCC", "x-death", "x-delay", "a", "b"]), short_texts)

values: st.SearchStrategy[Any] = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        whole(8, True).map(table.Int8),
        whole(8, False).map(table.UInt8),
        whole(16, True).map(table.Int16),
        whole(16, True).map(table.SpecInt16),
        whole(16, False).map(table.UInt16),
        whole(32, True),
        whole(32, False).map(table.UInt32),
        whole(64, True),
        whole(32, True).map(table.Int64),
        whole(64, True).map(table.SpecInt64),
        whole(64, False).map(table.Timestamp),
        st.floats(),
        st.floats(width=32).map(table.Float32),
        st.tuples(whole(32, True), st.integers(0, 255)).map(
            lambda pair: Decimal((int(pair[0] < 0), tuple(map(int, str(abs(pair[0])))), -pair[1]))
        ),
        texts,
        st.binary(max_size=50),
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(names, inner, max_size=4)),
    max_leaves=12,
)
tables = st.dictionaries(names, values, max_size=6)


def maybe(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(st.none(), strategy)


all_properties = st.builds(
    Properties,
    content_type=maybe(short_texts),
    content_encoding=maybe(short_texts),
    headers=maybe(tables),
    delivery_mode=maybe(whole(8, False)),
    priority=maybe(whole(8, False)),
    correlation_id=maybe(short_texts),
    reply_to=maybe(short_texts),
    expiration=maybe(short_texts),
    message_id=maybe(short_texts),
    timestamp=maybe(whole(64, False)),
    type=maybe(short_texts),
    user_id=maybe(short_texts),
    app_id=maybe(short_texts),
    cluster_id=maybe(short_texts),
)


def kinds(value: Any) -> Any:
    """Return the types of a value and of all within it: equality alone would take 1, True and Int8(1) for the same."""
    if isinstance(value, dict):
        return {name: kinds(inner) for name, inner in value.items()}
    return [kinds(inner) for inner in value] if isinstance(value, list) else type(value)


@given(tables)
def test_tables_of_all_types_are_byte_exact(entries):
    raw = table.encode_table(entries)
    decoded = table.decode_table(raw)
    assert table.encode_table(decoded) == raw
    assert kinds(decoded) == kinds(entries)
    assert table.check_table(raw, 0, len(raw)) == len(raw)
    assert table.names(raw) == list(entries)


@given(tables, tables, st.sets(names, max_size=3))
def test_entries_change_as_those_of_a_dict_do(entries, changes, unwanted):
    raw = table.encode_table(entries)
    assert table.with_entries(raw, changes) == table.encode_table({**entries, **changes})
    kept = {name: value for name, value in entries.items() if name not in unwanted}
    assert table.without(raw, unwanted) == table.encode_table(kept)
    for name in [*entries, *unwanted]:
        found = table.find(raw, name, default=Ellipsis)
        if name in entries:
            assert table.encode_value(found) == table.encode_value(entries[name])
        else:
            assert found is Ellipsis


@given(all_properties)
def test_properties_are_byte_exact(given_properties):
    raw = properties.encode(given_properties)
    assert properties.encode(properties.decode(raw)) == raw
    used = properties.used_properties(raw)
    assert used.raw == raw
    assert used.message_id == given_properties.message_id
    assert used.expiration == given_properties.expiration
    assert (used.headers or None) == (
        None if given_properties.headers is None else table.encode_table(given_properties.headers)
    )


@given(all_properties, all_properties, st.sampled_from(Properties.__struct_fields__))
def test_one_property_changes_and_no_other(before, after, name):
    fields = {field: getattr(before, field) for field in Properties.__struct_fields__}
    fields[name] = getattr(after, name)
    assert properties.replaced(properties.encode(before), name, fields[name]) == properties.encode(Properties(**fields))


# ----------------------------------------------------------------------------------------------------------- streams

FRAME_MAX = 4096

calls = st.one_of(
    st.builds(m.QueueDeclare, queue=short_texts, durable=st.booleans(), no_wait=st.booleans(), arguments=tables),
    st.builds(m.BasicConsume, queue=short_texts, consumer_tag=short_texts, exclusive=st.booleans()),
    st.builds(m.BasicNack, whole(64, False), st.booleans(), st.booleans()),
    st.builds(m.ChannelClose, reply_code=whole(16, False), reply_text=short_texts),
).filter(lambda method: len(m.encode_method(method)) <= FRAME_MAX)

routes = st.sampled_from([("", "jobs"), ("e", "k"), ("amq.topic", "a.b.c"), ("\udcff", "")])

publishes = st.builds(
    lambda channel, route, mandatory, immediate, raw, body: IncomingMessages(
        channel, PublishFields(route[0], route[1], mandatory, immediate), properties.used_properties(raw), [body]
    ),
    st.integers(1, 5),
    routes,
    st.booleans(),
    st.booleans(),
    all_properties.map(properties.encode).filter(lambda raw: len(raw) < 4000),
    st.one_of(st.binary(max_size=300), st.integers(4000, 20_000).map(bytes)),
)

bodies = st.lists(st.one_of(st.binary(max_size=3), st.just(b"of one size")), min_size=1, max_size=9)

bulk = st.builds(
    lambda event, bodies: [IncomingMessages(event.channel, event.fields, event.properties, [body]) for body in bodies],
    publishes,
    bodies,
)
"""Messages that differ only in their bodies."""

events = st.one_of(
    publishes,
    st.builds(Ack, st.integers(1, 5), whole(64, False), st.booleans()),
    st.builds(Called, st.integers(1, 5), calls),
    st.just(Heartbeat()),
)


def encoded(event: Event) -> bytes:
    if isinstance(event, IncomingMessages):
        method = m.BasicPublish(0, *event.fields)
        return b"".join(
            piece
            for body in event.bodies
            for piece in writer.content(event.channel, method, event.properties.raw, body, FRAME_MAX)
        )
    if isinstance(event, Ack):
        return writer.ack(event.channel, event.tag, event.multiple)
    if isinstance(event, Called):
        return writer.frame(event.channel, event.method)
    return writer.HEARTBEAT_FRAME


def same(left: list[Event], right: list[Event]) -> bool:
    """Compare by bytes, since a NaN in a table equals nothing, not even itself. Take runs of publishes apart."""
    left, right = alone(left), alone(right)
    return [type(event) for event in left] == [type(event) for event in right] and [*map(encoded, left)] == [
        *map(encoded, right)
    ]


@given(st.lists(st.one_of(events.map(lambda event: [event]), bulk), max_size=8), st.data())
def test_any_cut_of_a_stream_gives_the_same_events(parts, data):
    sent = [event for part in parts for event in part]
    stream = HEADER + b"".join(map(encoded, sent))
    at_once = FrameReader(FRAME_MAX)
    got = at_once.feed(stream)
    assert got[0] == Greeted()
    assert same(got[1:], sent)
    assert at_once.partial_bytes == 0
    cuts = data.draw(st.lists(st.integers(0, len(stream)), max_size=12).map(sorted))
    reader = FrameReader(FRAME_MAX)
    pieces = [stream[start:end] for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    again = [event for piece in pieces for event in reader.feed(piece)]
    assert same(again[1:], sent)
    assert reader.partial_bytes == 0


@given(st.lists(publishes, min_size=2, max_size=4, unique_by=lambda event: event.channel), st.randoms())
def test_frames_of_several_channels_may_interleave(sent, chance):
    queues = [frames_of(encoded(event)) for event in sent]
    mixed = []
    while queues:
        queue = chance.choice(queues)
        mixed.append(queue.pop(0))
        if not queue:
            queues.remove(queue)
    got = FrameReader(FRAME_MAX).feed(HEADER + b"".join(mixed))[1:]
    assert sorted(map(encoded, got)) == sorted(map(encoded, sent))


def frames_of(data: bytes) -> list[bytes]:
    frames = []
    while data:
        end = int.from_bytes(data[3:7], "big") + 8
        frames.append(data[:end])
        data = data[end:]
    return frames


@given(
    st.integers(1, 0xFFFF),
    short_texts,
    st.integers(0, (1 << 64) - 100),
    st.lists(st.tuples(st.booleans(), publishes, bodies), max_size=6),
)
def test_deliveries_are_what_the_methods_encode_to(channel, consumer_tag, first, parts):
    rows = []
    for again, event, more in parts:
        label = (again, event.fields.exchange, event.fields.key, event.properties.raw)
        rows += [(label, body) for body in (*more, *event.bodies, *more)]
    pieces = DeliveryWriter(channel, consumer_tag, FRAME_MAX).pieces(first, rows)
    one_by_one = [
        writer.content(channel, m.BasicDeliver(consumer_tag, tag, again, exchange, key), raw, body, FRAME_MAX)
        for tag, ((again, exchange, key, raw), body) in enumerate(rows, first)
    ]
    assert b"".join(pieces) == b"".join(piece for part in one_by_one for piece in part)
