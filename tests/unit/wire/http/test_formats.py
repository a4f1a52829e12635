"""Formats: a message is the same after a round trip, in every content type."""

from __future__ import annotations

import importlib
import io
import struct
import zlib
from dataclasses import replace
from typing import Any

import fastavro
import msgspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.wire.http.format_messages import (
    arrow_bytes,
    avro_bytes,
    body_of,
    delivered,
    json_bytes,
    json_value,
    leases,
    lists,
    messages,
    record,
    request,
)
from wherry.model import limits
from wherry.model.calls.listing import DEAD_LETTERS, LISTED
from wherry.model.errors import InvalidInput, LimitReached, StaleLease, TooLarge
from wherry.model.schema import MESSAGE, Message, compact
from wherry.wire.http.api.problem import HttpError
from wherry.wire.http.formats import (
    DELIVERED_AVRO_SCHEMA,
    GIVES,
    MESSAGE_AVRO_SCHEMA,
    ONE_EACH,
    TAKES,
    as_avro,
    format_receipts,
    parse_receipts,
    read_messages,
    write_messages,
)
from wherry.wire.http.protocol.message import (
    ARROW,
    AVRO,
    AVRO_SINGLE,
    JSON,
    NDJSON,
    OCTETS,
    Request,
)

HEADERS = MESSAGE.field("headers").type


def same(read: Request, wanted: list[Message]) -> bool:
    return bool(compact(read_messages(read)).equals(compact(wanted)))


# ------------------------------------------------------------------------------------------------------------------ in


@given(lists)
def test_json_is_read(wanted: list[Message]):
    values = [json_value(message) for message in wanted]
    assert same(request(JSON, json_bytes(values)), wanted)
    assert same(request("application/json; charset=utf-8", bytearray(json_bytes(values))), wanted)
    assert same(request(JSON, json_bytes(values[0])), wanted[:1])
    lines = b"\n".join(map(json_bytes, values))
    assert same(request(NDJSON, lines), wanted)
    assert same(request(NDJSON, pa.py_buffer(lines + b"\n\n")), wanted)


@given(lists, lists)
def test_arrow_is_read_and_its_batches_are_one(first: list[Message], second: list[Message]):
    assert same(request(ARROW, arrow_bytes(compact(first))), first)
    both = delivered(first), delivered(second, first=7)
    stored = [replace(message, priority=_priority(message)) for message in first + second]
    assert same(request(ARROW, pa.py_buffer(arrow_bytes(*both))), stored)


@given(lists, st.sampled_from(["null", "deflate"]), st.sampled_from([1, 16_000]))
def test_avro_is_read(wanted: list[Message], codec: str, interval: int):
    assert same(request(AVRO, avro_bytes(wanted, codec, interval)), wanted)
    assert same(request(AVRO_SINGLE, as_avro.write_single(record(wanted[0]))), wanted[:1])


@given(messages())
def test_a_message_in_headers_comes_back(wanted: Message):
    answer = write_messages(OCTETS, delivered([wanted]), leases=leases(1))
    assert answer.content_type == OCTETS
    heads = {name.lower(): value for name, value in answer.headers}
    assert all(value.isascii() and value.isprintable() and " " not in value for value in heads.values())
    assert heads["wherry-receipt"] == f"{1 << 40}:1041"
    wanted = replace(wanted, id=wanted.id or "3-1041", priority=_priority(wanted), headers=wanted.headers or None)
    again = compact(read_messages(Request("POST", "/", "", heads, body_of(answer))))
    assert again.equals(compact(wanted))


def _priority(message: Message) -> int:
    return limits.PRIORITY_DEFAULT if message.priority is None else message.priority


@pytest.mark.parametrize("kind", ["", "text/plain; charset=utf-8", "application/x-www-form-urlencoded", OCTETS])
def test_any_other_type_is_a_payload_and_keeps_its_type(kind: str):
    read = compact(read_messages(request(kind, b"[1", wherry_key="caf\u00c3\u00a9%21", wherry_due_ms="12"))).to_pylist()
    headers = {} if kind in ("", OCTETS) else {"headers": [("content-type", kind)]}
    (row,) = read
    assert row.pop("due").timestamp() == 0.012
    assert row == {"payload": b"[1", "key": "café!"} | headers


def test_a_payload_that_is_no_text_is_compact_json_to_the_last_digit():
    body = b'[{"payload": {"a" : [1, 2.50e3,\n 12345678901234567890123]}}, {"payload": null}, {"payload": "\\u00e9 x"}]'
    payloads = compact(read_messages(request(JSON, body))).column("payload").to_pylist()
    assert payloads == [b'{"a":[1,2.50e3,12345678901234567890123]}', b"null", "é x".encode()]


def test_types_that_arrow_users_have_are_read():
    texts = pa.map_(pa.large_string(), pa.large_string())
    batch = pa.record_batch(
        {
            "payload": pa.array(["a"], pa.large_string()),
            "key": pa.array(["k"], pa.large_string()),
            "priority": pa.array([7], pa.int64()),
            "due": pa.array([1_500_001], pa.timestamp("us")),
            "expires": pa.array([9], pa.int64()),
            "headers": pa.array([[("a", "b")]], texts),
        }
    )
    wanted = Message(payload=b"a", key="k", priority=7, due_ms=1501, expires_ms=9, headers={"a": "b"})
    assert same(request(ARROW, arrow_bytes(batch)), [wanted])


def test_offsets_of_no_values_may_be_left_out():
    none = pa.Array.from_buffers(pa.string(), 0, [None, pa.py_buffer(b""), pa.py_buffer(b"")])
    pairs = pa.StructArray.from_arrays([none, none], fields=[pa.field("key", pa.string(), False), HEADERS.item_field])
    empty = pa.Array.from_buffers(HEADERS, 1, [None, pa.py_buffer(bytes(8))], children=[pairs])
    batch = pa.record_batch({"payload": [b"a"], "headers": empty})
    assert same(request(ARROW, arrow_bytes(batch)), [Message(payload=b"a", headers={})])


def test_offsets_may_have_bytes_behind_them():
    body = arrow_bytes(compact([b"a", b"b"]))
    at = body.index(struct.pack("<4q", 0, 0, 0, 12))  # buffers of the metadata: no validity, then three offsets
    longer = body[:at] + struct.pack("<4q", 0, 0, 0, 13) + body[at + 32 :]
    assert same(request(ARROW, longer), [Message(payload=b"a"), Message(payload=b"b")])


def test_payloads_of_arrow_are_read_in_place():
    body = pa.py_buffer(arrow_bytes(compact([b"x" * 256] * 1_000)))
    payload = compact(read_messages(request(ARROW, body))).column("payload").buffers()[2]
    assert body.address <= payload.address < body.address + body.size


def test_an_avro_schema_may_be_a_part_of_ours_in_any_order():
    fields: list[dict[str, Any]] = [
        {"name": "key", "type": {"type": "string", "avro.java.string": "String"}, "doc": "who"},
        {"name": "due_ms", "type": [{"type": "long", "logicalType": "timestamp-millis"}, "null"]},
        {"name": "payload", "type": "string"},
    ]
    sink = io.BytesIO()
    schema = {"type": "record", "name": "Mine", "fields": fields}
    fastavro.writer(
        sink, schema, [{"key": "k", "due_ms": None, "payload": "p"}, {"key": "", "due_ms": 5, "payload": ""}]
    )
    wanted = [Message(payload=b"p", key="k"), Message(payload=b"", key="", due_ms=5)]
    assert same(request(AVRO, sink.getvalue()), wanted)


def test_a_single_object_begins_as_the_specification_defines():
    encoded = as_avro.write_single({"payload": b"hi"})
    canonical = fastavro.schema.to_parsing_canonical_form(MESSAGE_AVRO_SCHEMA)
    assert encoded[:2] == b"\xc3\x01"
    assert int.from_bytes(encoded[2:10], "little") == _rabin(canonical.encode())
    assert encoded[10:] == b"\x04hi" + bytes(6)


def _rabin(data: bytes) -> int:
    """Return the CRC-64-AVRO as the specification writes it."""
    empty = 0xC15D213AA4D7A795
    value = empty
    for byte in data:
        table = byte ^ (value & 0xFF)
        for _ in range(8):
            table = (table >> 1) ^ (empty & -(table & 1))
        value = (value >> 8) ^ table
    return value


# ----------------------------------------------------------------------------------------------------------------- out


def expected(message: Message, offset: int) -> dict[str, object]:
    value = {name: each for name, each in json_value(message).items() if each is not None}
    place = {"partition": 3, "offset": offset, "attempt": 1, "published_ms": 1_700_000_000_123}
    return value | place | {"id": message.id or f"3-{offset}", "priority": _priority(message)}


@given(lists)
def test_json_is_written(sent: list[Message]):
    wanted = [expected(message, 1041 + index) for index, message in enumerate(sent)]
    coded = msgspec.json.decode(json_bytes(wanted))
    listed = body_of(write_messages(JSON, delivered(sent), leases=None))
    assert msgspec.json.decode(listed) == {"messages": coded}
    pulled = body_of(write_messages(NDJSON, delivered(sent), leases=leases(len(sent))))
    receipts = [{"receipt": f"{1 << 40}:{1041 + index}"} | value for index, value in enumerate(coded)]
    assert [msgspec.json.decode(line) for line in pulled.splitlines()] == receipts


@given(messages())
def test_a_single_object_is_written(sent: Message):
    body = body_of(write_messages(AVRO_SINGLE, delivered([sent]), leases=leases(1)))
    canonical = fastavro.schema.to_parsing_canonical_form(DELIVERED_AVRO_SCHEMA)
    assert (body[:2], int.from_bytes(body[2:10], "little")) == (b"\xc3\x01", _rabin(canonical.encode()))
    record = fastavro.schemaless_reader(io.BytesIO(body[10:]), DELIVERED_AVRO_SCHEMA, None)
    listed = body_of(write_messages(AVRO, delivered([sent]), leases=leases(1)))
    assert [record] == list(fastavro.reader(io.BytesIO(listed)))


@given(lists)
def test_avro_is_written(sent: list[Message]):
    answer = body_of(write_messages(AVRO, delivered(sent), leases=leases(len(sent))))
    for index, (row, message) in enumerate(zip(fastavro.reader(io.BytesIO(answer)), sent, strict=True)):
        assert isinstance(row, dict)
        assert row.pop("receipt") == f"{1 << 40}:{1041 + index}"
        wanted = record(message) | expected(message, 1041 + index) | {"payload": message.payload}
        wanted.pop("payload_base64", None)
        assert row == wanted


@given(lists, st.integers(1, 3))
def test_arrow_is_written(sent: list[Message], times: int):
    batch = delivered(sent * times)
    tokens = leases(batch.num_rows)
    table = pa.ipc.open_stream(body_of(write_messages(ARROW, batch, leases=tokens))).read_all()
    assert table.column_names == [*batch.schema.names, "lease"]
    assert table.column("lease").to_pylist() == tokens.tolist()
    assert table.drop_columns(["lease"]).combine_chunks().to_batches()[0].equals(batch)
    listed = pa.ipc.open_stream(body_of(write_messages(ARROW, batch, leases=None))).read_all()
    assert listed.column_names == batch.schema.names


def test_arrow_that_was_written_is_read_again():
    sent = [Message(payload=b"x" * 9_000, key="k"), Message(payload=b"y", headers={"a": "b"})] * 4
    answer = body_of(write_messages(ARROW, delivered(sent), leases=leases(8)))
    assert compact(read_messages(request(ARROW, answer))).drop_columns(["priority"]).equals(compact(sent))


def test_large_payloads_are_written_in_place():
    batch = delivered([Message(payload=b"x" * 256)] * 1_000)
    parts = write_messages(ARROW, batch, leases=leases(1_000)).body
    address = batch.column("payload").buffers()[2].address
    assert any(isinstance(part, pa.Buffer) and part.address == address for part in parts)


@pytest.mark.parametrize(
    ("sent", "names"),
    [
        (Message(payload=b"x"), []),
        (Message(payload=b"x", priority=limits.PRIORITY_DEFAULT), []),
        (Message(payload=b"x", priority=1, key="k"), ["key", "priority"]),
    ],
)
def test_columns_without_a_value_may_be_left_out(sent: Message, names: list[str]):
    answer = write_messages(ARROW, delivered([sent] * 3), leases=leases(3), columns="present")
    table = pa.ipc.open_stream(body_of(answer)).read_all()
    assert table.column_names == ["offset", *names, "published", "payload", "partition", "attempt", "lease"]
    with pytest.raises(InvalidInput, match="columns"):
        write_messages(ARROW, delivered([sent]), leases=None, columns="some")


@pytest.mark.parametrize("kind", GIVES)
def test_nothing_is_an_answer_too(kind: str):
    answer = write_messages(kind, delivered([Message(payload=b"")]).slice(1), leases=leases(0))
    body = body_of(answer)
    assert answer.status == (204 if kind in ONE_EACH else 200)
    read = {
        JSON: lambda: msgspec.json.decode(body)["messages"],
        NDJSON: body.splitlines,
        ARROW: lambda: pa.ipc.open_stream(body).read_all().to_pylist(),
        AVRO: lambda: list(fastavro.reader(io.BytesIO(body))),
        OCTETS: lambda: [*body],
        AVRO_SINGLE: lambda: [*body],
    }
    assert read[kind]() == []


def test_listings_keep_their_own_columns():
    listed = delivered([Message(payload=b"\xff", due_ms=5)]).drop_columns(["attempt"])
    listed = listed.append_column("version", pa.array([3], pa.int64()))
    stamp = pa.array([1_234], pa.int64()).view(pa.timestamp("ms", tz="UTC"))
    more = [pa.array(["sub"]), pa.array(["expired"]), pa.array([""]), pa.array([2], pa.int64()), stamp, stamp, stamp]
    dead = pa.RecordBatch.from_arrays([*listed.columns, *more], schema=DEAD_LETTERS)
    fate = {"subscription": "sub", "reason": "expired", "error": "", "attempts": 2}
    fate |= {"first_failed_ms": 1234, "last_failed_ms": 1234, "died_ms": 1234}
    (row,) = msgspec.json.decode(body_of(write_messages(JSON, dead, leases=None)))["messages"]
    message = {"id": "3-1041", "payload_base64": "/w==", "priority": limits.PRIORITY_DEFAULT, "due_ms": 5}
    assert row == message | {"partition": 3, "offset": 1041, "published_ms": 1_700_000_000_123, "version": 3} | fate
    (avro,) = fastavro.reader(io.BytesIO(body_of(write_messages(AVRO, dead, leases=None))))
    assert isinstance(avro, dict)
    assert fate.items() <= avro.items()
    assert avro["receipt"] is None
    heads = dict(write_messages(OCTETS, dead, leases=None).headers)
    assert heads["Wherry-First-Failed-Ms"] == "1234"
    assert LISTED.names == listed.schema.names


def test_a_message_without_a_partition_has_the_id_it_was_given():
    batch = delivered([Message(payload=b"a"), Message(payload=b"b", id="mine")]).select(MESSAGE.names)
    rows = msgspec.json.decode(body_of(write_messages(JSON, batch, leases=None)))["messages"]
    assert [row.get("id") for row in rows] == [None, "mine"]


def test_text_and_bytes_may_stand_side_by_side():
    batch = delivered([Message(payload=b"a"), Message(payload=b"\xff")])
    rows = msgspec.json.decode(body_of(write_messages(JSON, batch, leases=None)))["messages"]
    assert [(row.get("payload"), row.get("payload_base64")) for row in rows] == [("a", None), (None, "/w==")]


@pytest.mark.parametrize("kind", sorted(ONE_EACH))
def test_some_types_carry_one_message(kind: str):
    with pytest.raises(HttpError, match="one message") as fault:
        write_messages(kind, delivered([Message(payload=b"")] * 2), leases=None)
    assert fault.value.code == "not-acceptable"
    with pytest.raises(HttpError, match="text/html"):
        write_messages("text/html", delivered([Message(payload=b"")]), leases=None)


def test_a_message_cannot_add_a_header_to_its_answer():
    sent = Message(payload=b"", key="a\r\nSet-Cookie: b", headers={"x\r\ny: z": "1\n2", "content-type": "text/html"})
    answer = write_messages(OCTETS, delivered([sent]), leases=None)
    assert answer.content_type == OCTETS
    assert not any(set("\r\n ") & set(name + value) for name, value in answer.headers)


def test_without_fastavro_the_answer_names_what_to_install(monkeypatch: pytest.MonkeyPatch):
    def missing(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr(importlib, "import_module", missing)
    as_avro._fastavro.cache_clear()
    as_avro._fingerprint.cache_clear()
    for kind in (AVRO, AVRO_SINGLE):
        with pytest.raises(HttpError, match=r"pip install wherry\[avro\]") as fault:
            read_messages(request(kind, b""))
        assert fault.value.code == "unsupported-media-type"


def test_content_types_that_are_read_and_written():
    assert TAKES == (JSON, NDJSON, ARROW, AVRO, AVRO_SINGLE, OCTETS)
    assert GIVES == (JSON, NDJSON, ARROW, AVRO, OCTETS, AVRO_SINGLE)


def test_what_inflates_too_far_is_not_inflated(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(as_avro, "INFLATED_BYTES_MAX", 100_000)
    fits, grows = ([Message(payload=bytes(size))] for size in (99_990, 100_000))
    assert same(request(AVRO, avro_bytes(fits, "deflate")), fits)
    with pytest.raises(TooLarge, match="100000"):
        read_messages(request(AVRO, avro_bytes(grows, "deflate")))
    assert len(zlib.compress(bytes(100_000))) < 200


# ------------------------------------------------------------------------------------------------------------ receipts


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(0, 30)), min_size=1, max_size=40))
def test_receipts_come_back(rows: list[tuple[int, int]]):
    tokens, offsets = (np.array(column, np.int64) for column in zip(*rows, strict=True))
    texts = format_receipts(tokens, offsets)
    found = {(token, offset) for token, part in parse_receipts(texts) if part is not None for offset in part.tolist()}
    assert found == set(rows)
    assert len(texts) <= len(set(rows))


def test_receipts_are_gathered_by_lease():
    parts = parse_receipts(["8:5", "77:12-14", "8:1-2", "77:13", "9", "9:4"])
    assert [(token, None if part is None else part.tolist()) for token, part in parts] == [
        (8, [1, 2, 5]),
        (77, [12, 13, 14]),
        (9, None),
    ]
    assert format_receipts(np.array([7, 7, 7, 8], np.int64), np.array([2, 1, 4, 5], np.int64)) == [
        "7:1-2",
        "7:4",
        "8:5",
    ]
    assert format_receipts(leases(0), leases(0)) == []


def test_receipts_are_bounded():
    (part,) = parse_receipts(["1:0-999999"])
    assert part[1] is not None
    assert len(part[1]) == 1_000_000
    with pytest.raises(LimitReached, match="1000001"):
        parse_receipts(["1:0-999999", "2"])


@pytest.mark.parametrize("never", [f"1:0-{limits.OFFSET_MAX}", "1:0-1000000", "1:3-2", f"{1 << 63}", f"1:{1 << 43}"])
def test_a_receipt_that_no_lease_ever_had_is_stale(never: str):
    with pytest.raises(StaleLease):
        parse_receipts(["1", never])


@pytest.mark.parametrize(
    "bad",
    [
        "",
        "x",
        "1:",
        ":1",
        "1:2-",
        "-1",
        "+1",
        " 1",
        "1 ",
        "1_0",
        "1:2:3",
        "١",
        "1\n",
    ],
)
def test_a_bad_receipt_is_named(bad: str):
    with pytest.raises(InvalidInput) as fault:
        parse_receipts(["1", "2:3", "4:5-6", bad])
    assert fault.value.field == "receipts[3]"


def test_no_receipts_are_refused():
    with pytest.raises(InvalidInput, match="receipts"):
        parse_receipts([])
