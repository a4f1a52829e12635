"""What formats refuse: each bad input by the name of its field, and from any bytes nothing but an error of ours."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import fastavro
import msgspec
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.examples import scaled
from tests.unit.wire.http.format_messages import (
    arrow_bytes,
    avro_bytes,
    delivered,
    json_bytes,
    json_value,
    record,
    request,
)
from wherry.model import limits
from wherry.model.errors import InvalidInput, WherryError
from wherry.model.schema import Message, compact
from wherry.wire import arrow_stream
from wherry.wire.http.formats import as_avro, read_messages
from wherry.wire.http.protocol.message import (
    ARROW,
    AVRO,
    AVRO_SINGLE,
    JSON,
    NDJSON,
    OCTETS,
)

GOOD = {"payload": "a"}
BATCH = compact([b"a", b"b"])
TWO = [
    Message(payload=b"hello", id="one", key="k", priority=3, due_ms=5, expires_ms=7, headers={"a": "b", "c": ""}),
    Message(payload=b"\xff" * 40, headers={}),
]


def arrow(**columns: Any) -> bytes:
    return arrow_bytes(pa.record_batch({"payload": pa.array([b"a"])} | columns))


def avro(fields: list[Any], rows: list[dict[str, Any]], codec: str = "null") -> bytes:
    sink = io.BytesIO()
    fastavro.writer(sink, {"type": "record", "name": "M", "fields": fields}, rows, codec=codec)
    return sink.getvalue()


def container(schema: object, *blocks: bytes, codec: bytes = b"null") -> bytes:
    """Write a container by hand, for what no library would write."""
    text = schema if isinstance(schema, bytes) else json_bytes(schema)
    meta = b"\x04" + _long(11) + b"avro.schema" + _long(len(text)) + text
    meta += _long(10) + b"avro.codec" + _long(len(codec)) + codec + b"\x00"
    return b"Obj\x01" + meta + bytes(16) + b"".join(blocks)


def block(count: int, data: bytes, size: int | None = None) -> bytes:
    return _long(count) + _long(len(data) if size is None else size) + data + bytes(16)


def _long(value: int) -> bytes:
    value = (value << 1) ^ (value >> 63)
    parts = bytearray()
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*parts, value])


PAYLOAD = {"name": "payload", "type": "bytes"}
SMALL = {"type": "record", "name": "M", "fields": [PAYLOAD]}
DEEP = b"[" * 100_000
SINGLE = as_avro.write_single(record(TWO[0]))


def big_endian() -> bytes:
    """Make a stream whose schema is marked big-endian; the slot is empty for little-endian, so reuse another field."""
    body = bytearray(arrow_bytes(BATCH))
    metadata = memoryview(body)[8:]
    header = arrow_stream._header(metadata)
    (back,) = struct.unpack_from("<i", metadata, header)
    fields = arrow_stream._slot(metadata, header, 1) - header
    struct.pack_into("<H", metadata, header - back + 4, fields)
    return bytes(body)


JSON_TABLE: list[tuple[str, str, bytes, str]] = [
    ("nothing", JSON, b"", "body"),
    ("no JSON", JSON, b"{payload}", "body"),
    ("cut off", JSON, b'{"payload": "a"', "body"),
    ("two values", JSON, b'{"payload": "a"} {}', "body"),
    ("a number", JSON, b"3", "body"),
    ("a text", JSON, b'"a"', "body"),
    ("null", JSON, b"null", "body"),
    ("no messages", JSON, b"[]", "messages"),
    ("a list of numbers", JSON, b"[3]", "messages[0]"),
    ("no payload", JSON, b"{}", "messages[0]"),
    ("no payload further on", JSON, json_bytes([GOOD, {"key": "k"}]), "messages[1]"),
    ("both payloads", JSON, json_bytes([GOOD, GOOD | {"payload_base64": "YQ=="}]), "messages[1]"),
    ("an unknown field", JSON, json_bytes([GOOD, GOOD, GOOD | {"prio": 1}]), "messages[2].prio"),
    ("an unknown field of one", JSON, json_bytes(GOOD | {"prio": 1}), "messages[0].prio"),
    ("an unknown field, then rubbish", JSON, b'[{"payload": "a", "prio": 1, !', "messages[0].prio"),
    ("a key that is a number", JSON, json_bytes([GOOD, GOOD | {"key": 3}]), "messages[1].key"),
    ("an id that is a list", JSON, json_bytes(GOOD | {"id": []}), "messages[0].id"),
    ("an id that is empty", JSON, json_bytes(GOOD | {"id": ""}), "messages[0].id"),
    ("a long id", JSON, json_bytes([GOOD, GOOD | {"id": "x" * 257}]), "messages[1].id"),
    ("a long key", JSON, json_bytes(GOOD | {"key": "x" * 1_025}), "messages[0].key"),
    (
        "a large payload",
        JSON,
        json_bytes([GOOD, {"payload": "x" * 25_165_825}]),
        "messages[1].payload",
    ),
    ("a priority above", JSON, json_bytes(GOOD | {"priority": 65_536}), "messages[0].priority"),
    ("a priority below", JSON, json_bytes(GOOD | {"priority": -1}), "messages[0].priority"),
    ("a priority with a fraction", JSON, json_bytes(GOOD | {"priority": 1.5}), "messages[0].priority"),
    ("a priority that is true", JSON, json_bytes(GOOD | {"priority": True}), "messages[0].priority"),
    ("a huge priority", JSON, b'{"payload": "a", "priority": 1%s}' % (b"0" * 400), "messages[0].priority"),
    ("a time as text", JSON, json_bytes(GOOD | {"due_ms": "now"}), "messages[0].due_ms"),
    ("a time too far", JSON, json_bytes(GOOD | {"expires_ms": 1 << 43}), "messages[0].expires_ms"),
    ("the column's name", JSON, json_bytes(GOOD | {"due": 5}), "messages[0].due"),
    ("headers that are a list", JSON, json_bytes(GOOD | {"headers": []}), "messages[0].headers"),
    ("a header that is a number", JSON, json_bytes(GOOD | {"headers": {"a": 1}}), "messages[0].headers[...]"),
    ("many headers", JSON, json_bytes(GOOD | {"headers": {str(n): "" for n in range(257)}}), "messages[0].headers"),
    ("large headers", JSON, json_bytes(GOOD | {"headers": {"a": "x" * 65_535}}), "messages[0].headers"),
    ("no base64", JSON, json_bytes([{"payload_base64": "?"}]), "messages[0].payload_base64"),
    ("base64 without its end", JSON, json_bytes([{"payload_base64": "YQ"}]), "messages[0].payload_base64"),
    ("no UTF-8", JSON, b'{"payload": "\xff"}', "body"),
    ("no UTF-8 in a list", JSON, b'[{"payload": ["\xff"]}]', "messages[0].payload"),
    ("half a surrogate pair", JSON, b'{"payload": "\\ud800"}', "body"),
    ("a deep body", JSON, DEEP, "messages[0]"),
    ("a deep payload", JSON, b'{"payload": ' + DEEP, "body"),
    ("a line that is a list", NDJSON, b'{"payload": "a"}\n[]\n', "messages[1]"),
    ("an unknown field of a line", NDJSON, b'{"payload": 1}\n{"payload": 2, "x": 1}\n', "messages[1].x"),
    ("a broken line", NDJSON, b'{"payload": "a"}\n{', "body"),
    ("no lines", NDJSON, b"\n\n", "messages"),
]

ARROW_TABLE: list[tuple[str, str, bytes, str]] = [
    ("nothing", ARROW, b"", "body"),
    ("rubbish", ARROW, b"rubbish" * 10, "body"),
    ("a file", ARROW, b"ARROW1\0\0" + arrow_bytes(BATCH), "body"),
    ("cut off", ARROW, arrow_bytes(BATCH)[:-20], "body"),
    ("cut off in the schema", ARROW, arrow_bytes(BATCH)[:40], "body"),
    ("two streams", ARROW, arrow_bytes(BATCH) * 2, "body"),
    ("no schema", ARROW, arrow_bytes(BATCH)[BATCH.schema.serialize().size :], "body"),
    ("a schema alone", ARROW, BATCH.schema.serialize().to_pybytes(), "messages"),
    ("an empty batch", ARROW, arrow_bytes(BATCH.slice(2)), "messages"),
    ("lz4", ARROW, arrow_bytes(BATCH, compression="lz4"), "body"),
    ("zstd", ARROW, arrow_bytes(BATCH, compression="zstd"), "body"),
    ("big-endian", ARROW, big_endian(), "body"),
    ("no payload", ARROW, arrow_bytes(pa.record_batch({"key": ["a"]})), "column"),
    ("no columns", ARROW, arrow_bytes(pa.record_batch([], [])), "column"),
    ("an unknown column", ARROW, arrow(prio=[1]), "column"),
    ("a column twice", ARROW, arrow_bytes(pa.record_batch([pa.array([b""])] * 2, ["payload"] * 2)), "column"),
    ("a payload of numbers", ARROW, arrow(payload=[1]), "payload"),
    ("a payload that is null", ARROW, arrow(payload=pa.array([None], pa.binary())), "payload"),
    ("a payload of views", ARROW, arrow(payload=pa.array([b"a"], pa.binary_view())), "payload"),
    ("a payload of no width", ARROW, arrow(payload=pa.array([b""], pa.binary(0))), "payload"),
    ("a dictionary", ARROW, arrow(key=pa.array(["a"]).dictionary_encode()), "key"),
    ("runs", ARROW, arrow(key=pa.RunEndEncodedArray.from_arrays([1], ["a"])), "key"),
    ("a key of nulls without a type", ARROW, arrow(key=pa.nulls(1)), "key"),
    ("a key that is no text", ARROW, arrow(key=pa.array([b"\xff"]).view(pa.string())), "key"),
    ("a long key", ARROW, arrow(key=["x" * 1_025]), "messages[0].key"),
    ("a priority above", ARROW, arrow(priority=[65_536]), "priority"),
    ("a priority of floats", ARROW, arrow(priority=[1.0]), "priority"),
    ("a due time as text", ARROW, arrow(due=["now"]), "due"),
    ("a due time too far", ARROW, arrow(due=[1 << 43]), "messages[0].due"),
    ("headers as a struct", ARROW, arrow(headers=[{"a": "b"}]), "headers"),
    ("headers of numbers", ARROW, arrow(headers=pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64()))), "headers"),
    ("a blob", ARROW, arrow(blob=["s3://somebody's"]), "blob"),
    ("a mac", ARROW, arrow(mac=pa.array([bytes(32)], pa.binary(32))), "mac"),
    ("a partition of text", ARROW, arrow(partition=["a"]), "partition"),
]

AVRO_TABLE: list[tuple[str, str, bytes, str]] = [
    ("nothing", AVRO, b"", "body"),
    ("rubbish", AVRO, b"rubbish" * 10, "body"),
    ("cut off", AVRO, avro_bytes(TWO)[:-1], "body"),
    ("cut off in the head", AVRO, avro_bytes(TWO)[:30], "body"),
    ("no messages", AVRO, avro_bytes([]), "messages"),
    ("a codec of others", AVRO, avro([PAYLOAD], [{"payload": b""}], "bzip2"), "body"),
    ("an unknown codec", AVRO, container(SMALL, codec=b"\xff"), "body"),
    ("no schema", AVRO, container(b""), "body"),
    ("a deep schema", AVRO, container(DEEP), "body"),
    ("a long schema", AVRO, container(b" " * 70_000 + json_bytes(SMALL)), "body"),
    ("not records", AVRO, container("null", block(1, b"")), "body"),
    ("no payload", AVRO, avro([{"name": "key", "type": "string"}], [{"key": "a"}]), "schema"),
    (
        "an unknown field",
        AVRO,
        avro([PAYLOAD, {"name": "prio", "type": "int"}], [{"payload": b"", "prio": 1}]),
        "schema",
    ),
    ("a field twice", AVRO, container(SMALL | {"fields": [PAYLOAD, PAYLOAD]}), "schema"),
    ("a field that is text", AVRO, container(SMALL | {"fields": ["payload"]}), "schema"),
    ("a payload or null", AVRO, avro([{"name": "payload", "type": ["null", "bytes"]}], [{}]), "schema.payload"),
    ("a payload of numbers", AVRO, avro([{"name": "payload", "type": "int"}], [{"payload": 1}]), "schema.payload"),
    (
        "an array of nulls",
        AVRO,
        container(SMALL | {"fields": [PAYLOAD, {"name": "key", "type": {"type": "array", "items": "null"}}]}),
        "schema.key",
    ),
    (
        "a priority above",
        AVRO,
        avro_bytes([Message(payload=b""), Message(payload=b"", priority=65_536)]),
        "messages[1].priority",
    ),
    ("a due time below", AVRO, avro_bytes([Message(payload=b"", due_ms=-1)]), "messages[0].due_ms"),
    ("a long id", AVRO, avro_bytes([Message(payload=b"", id="x" * 257)]), "messages[0].id"),
    ("a count below nothing", AVRO, container(SMALL, block(-1, b"\x00")), "messages"),
    ("a count beyond the bound", AVRO, container(SMALL, block(limits.BATCH_MESSAGES_MAX + 1, b"\x00")), "messages"),
    ("a count beyond the data", AVRO, container(SMALL, block(3, b"\x00\x00")), "body"),
    ("a count below the data", AVRO, container(SMALL, block(1, b"\x00\x00")), "body"),
    ("a payload beyond the block", AVRO, container(SMALL, block(1, b"\x7eab")), "body"),
    ("a payload of less than nothing", AVRO, container(SMALL, block(1, b"\x01")), "body"),
    ("a block beyond the body", AVRO, container(SMALL, block(1, b"\x00", size=99)), "body"),
    ("a block of less than nothing", AVRO, container(SMALL, block(1, b"\x00", size=-1)), "body"),
    ("another sync marker", AVRO, container(SMALL, block(1, b"\x00")[:-1] + b"!"), "body"),
    ("an endless number", AVRO, container(SMALL, b"\xff" * 40), "body"),
    ("no deflate", AVRO, container(SMALL, block(1, b"\xff\xff"), codec=b"deflate"), "body"),
    ("deflate cut off", AVRO, container(SMALL, block(1, zlib.compress(bytes(99))[2:6]), codec=b"deflate"), "body"),
    ("much metadata", AVRO, b"Obj\x01" + _long(1_000) + b"\x00" * 2_000, "body"),
    ("a single object of another schema", AVRO_SINGLE, b"\xc3\x01" + bytes(9), "body"),
    ("a single object of nothing", AVRO_SINGLE, b"", "body"),
    ("a single object cut off", AVRO_SINGLE, SINGLE[:-2], "body"),
    ("a single object and more", AVRO_SINGLE, SINGLE + b"\x00", "body"),
]


@pytest.mark.parametrize(
    ("kind", "body", "field"),
    [
        pytest.param(kind, body, field, id=f"{kind.rpartition('/')[2]}: {what}")
        for what, kind, body, field in JSON_TABLE + ARROW_TABLE + AVRO_TABLE
    ],
)
def test_bad_input_is_refused_by_name(kind: str, body: bytes, field: str):
    for given_body in (body, pa.py_buffer(body), bytearray(body)):
        with pytest.raises(InvalidInput) as fault:
            compact(read_messages(request(kind, given_body)))
        assert fault.value.field == field


@pytest.mark.parametrize(
    ("headers", "field"),
    [
        ({"wherry_priority": "x"}, "Wherry-Priority"),
        ({"wherry_priority": "1, 2"}, "Wherry-Priority"),
        ({"wherry_priority": "65536"}, "messages[0].priority"),
        ({"wherry_due_ms": "-1"}, "Wherry-Due-Ms"),
        ({"wherry_due_ms": "٣"}, "Wherry-Due-Ms"),
        ({"wherry_expires_ms": "9" * 30}, "Wherry-Expires-Ms"),
        ({"wherry_prio": "1"}, "Wherry-Prio"),
        ({"wherry_key": "%ff"}, "Wherry-Key"),
        ({"wherry_key": "\u00ff"}, "Wherry-Key"),
        ({"wherry_id": ""}, "messages[0].id"),
        ({"wherry_header_%ff": "a"}, "Wherry-Header-%Ff"),
    ],
)
def test_a_bad_header_is_refused_by_name(headers: dict[str, str], field: str):
    with pytest.raises(InvalidInput) as fault:
        compact(read_messages(request(OCTETS, b"a", **headers)))
    assert fault.value.field == field


def test_the_number_of_batches_is_bounded(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(arrow_stream, "BATCHES_MAX", 3)
    assert read_messages(request(ARROW, arrow_bytes(*[BATCH] * 3))).num_rows == 6
    with pytest.raises(InvalidInput, match="more than 3 batches"):
        read_messages(request(ARROW, arrow_bytes(*[BATCH] * 4)))


def test_the_number_of_blocks_is_bounded(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(as_avro, "BLOCKS_MAX", 3)
    assert read_messages(request(AVRO, container(SMALL, *[block(1, b"\x00")] * 2))).num_rows == 2
    with pytest.raises(InvalidInput, match="blocks"):
        read_messages(request(AVRO, container(SMALL, *[block(1, b"\x00")] * 3)))


@pytest.mark.parametrize("kind", [JSON, ARROW, AVRO])
def test_the_number_of_messages_is_bounded_before_they_are_copied(kind: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(limits, "BATCH_MESSAGES_MAX", 3)
    four = [Message(payload=b"")] * 4
    body = {
        JSON: lambda: json_bytes([GOOD] * 4),
        ARROW: lambda: arrow_bytes(BATCH, BATCH),
        AVRO: lambda: avro_bytes(four, interval=1),
    }[kind]()
    with pytest.raises(InvalidInput) as fault:
        read_messages(request(kind, body))
    assert (fault.value.field, fault.value.given) == ("messages", 4)


def test_offsets_that_point_elsewhere_are_found():
    body = bytearray(arrow_bytes(BATCH))
    place = body.rindex(struct.pack("<3i", 0, 1, 2))
    for offsets in ((0, 2, 1), (0, 1, 1 << 30), (-1, 1, 2), (5, 6, 7)):
        struct.pack_into("<3i", body, place, *offsets)
        with pytest.raises(InvalidInput) as fault:
            read_messages(request(ARROW, bytes(body)))
        assert fault.value.field == "payload"


# ---------------------------------------------------------------------------------------------------------------- fuzz

WIDE = pa.record_batch(
    {
        "payload": pa.array([b"a", b"bc"], pa.large_binary()),
        "due": pa.array([1, None], pa.timestamp("us", tz="Europe/Berlin")),
        "priority": pa.array([1, None], pa.int64()),
        "headers": pa.array([[("a", "b")], None], pa.map_(pa.large_string(), pa.string())),
    }
)
SEEDS: list[tuple[str, bytes]] = [
    (JSON, json_bytes([json_value(message) for message in TWO])),
    (JSON, json_bytes({"payload": {"a": [1, 2.5, None, "é"]}})),
    (NDJSON, msgspec.json.Encoder().encode_lines([json_value(message) for message in TWO])),
    (ARROW, arrow_bytes(compact(TWO))),
    (ARROW, arrow_bytes(delivered(TWO), delivered(TWO))),
    (ARROW, arrow_bytes(WIDE)),
    (ARROW, arrow_bytes(compact(TWO), compression="lz4")),
    (ARROW, arrow(key=pa.array(["a"]).dictionary_encode())),
    (AVRO, avro_bytes(TWO)),
    (AVRO, avro_bytes(TWO, "deflate")),
    (AVRO_SINGLE, SINGLE),
    (OCTETS, b"abc"),
]

Damage = Callable[[bytearray], None]


def _flip(at: float, bit: int) -> Damage:
    def damage(body: bytearray) -> None:
        body[int(at * len(body))] ^= 1 << bit

    return damage


def _set(at: float, value: int) -> Damage:
    """Set whole numbers to their edges, where lengths and offsets stand: every four bytes."""

    def damage(body: bytearray) -> None:
        place = int(at * len(body)) & ~3
        if place + 4 <= len(body):
            struct.pack_into("<i", body, place, value)

    return damage


def _cut(start: float, count: int) -> Damage:
    def damage(body: bytearray) -> None:
        place = int(start * len(body))
        del body[place : place + count]

    return damage


places = st.floats(0, 1, exclude_max=True)
edges = st.sampled_from([0, 1, -1, 2, 255, 1 << 16, (1 << 31) - 1, -(1 << 31), 1 << 30])
damages = st.one_of(
    st.builds(_flip, places, st.integers(0, 7)),
    st.builds(_set, places, edges),
    st.builds(_cut, places, st.sampled_from([1, 4, 8, 64, 1 << 20])),
)


@pytest.mark.parametrize(("kind", "seed"), [pytest.param(*seed, id=f"{i} {seed[0]}") for i, seed in enumerate(SEEDS)])
@settings(max_examples=scaled(200), suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(faults=st.lists(damages, min_size=1, max_size=3), split=st.booleans())
def test_damaged_bytes_give_messages_or_an_error_of_ours(kind: str, seed: bytes, faults: list[Damage], split: bool):
    body = bytearray(seed)
    for fault in faults:
        if body:
            fault(body)
    try:
        batch = compact(read_messages(request(kind, pa.py_buffer(bytes(body)) if split else body)))
    except WherryError:
        return
    batch.validate(full=True)
    assert batch.to_pylist()


@given(st.binary(max_size=60), st.sampled_from([kind for kind, _ in SEEDS]))
def test_any_bytes_give_messages_or_an_error_of_ours(body: bytes, kind: str):
    with suppress(WherryError):
        compact(read_messages(request(kind, body)))
