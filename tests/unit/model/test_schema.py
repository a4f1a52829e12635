"""What may be published, and the two shapes of a batch."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wherry.model import ipc, schema
from wherry.model.errors import InvalidInput
from wherry.model.limits import (
    BATCH_MESSAGES_MAX,
    HEADERS_MAX,
    KEY_BYTES_MAX,
    MESSAGE_ID_BYTES_MAX,
    PAYLOAD_BYTES_MAX,
    TIME_MS_MAX,
)
from wherry.model.schema import (
    DELIVERED,
    MESSAGE,
    STORED,
    Message,
    absent,
    compact,
    completed,
    content_bytes,
    content_sizes,
    delivered,
    edges,
    expand,
    integers,
    payload_bytes,
    plain_batch,
    presence,
    shrink,
    stored_schema,
)

messages = st.lists(
    st.builds(
        Message,
        payload=st.binary(max_size=20),
        id=st.none() | st.text(min_size=1, max_size=9),
        key=st.none() | st.text(max_size=9),
        priority=st.none() | st.integers(0, 65_535),
        due_ms=st.none() | st.integers(0, TIME_MS_MAX),
        expires_ms=st.none() | st.integers(0, TIME_MS_MAX),
        headers=st.none() | st.dictionaries(st.text(max_size=4), st.text(max_size=4), max_size=3),
        envelope=st.none() | st.binary(max_size=5),
    ),
    min_size=1,
    max_size=6,
)


def test_the_bits_of_the_columns_are_part_of_the_journal_format():
    """Hold the bits as they are: journal entries that were written name their columns by them."""
    assert schema.BIT == {
        "id": 1 << 0,
        "key": 1 << 1,
        "priority": 1 << 2,
        "due": 1 << 3,
        "expires": 1 << 4,
        "headers": 1 << 5,
        "envelope": 1 << 6,
        "payload": 1 << 7,
        "blob": 1 << 8,
        "mac": 1 << 9,
    }
    assert presence(compact(Message(payload=b"", key="k", due_ms=1))) == 0b1000_1010
    assert stored_schema(0b1000_1010).names == ["key", "due", "payload"]


def test_the_schema_is_version_1():
    """Hold the schema as it is: segments have it and Spark reads it, so a new column takes the end and a version."""
    assert MESSAGE.metadata == {b"wherry.schema": b"1"}
    assert [(field.name, str(field.type), field.nullable) for field in MESSAGE] == [
        ("offset", "int64", False),
        ("id", "string", True),
        ("key", "string", True),
        ("priority", "uint16", False),
        ("due", "timestamp[ms, tz=UTC]", True),
        ("expires", "timestamp[ms, tz=UTC]", True),
        ("published", "timestamp[us, tz=UTC]", False),
        ("headers", "map<string, string>", True),
        ("envelope", "binary", True),
        ("payload", "binary", False),
        ("blob", "string", True),
        ("mac", "fixed_size_binary[32]", True),
    ]


BODIES = [b"a", b"b"]


@pytest.mark.parametrize(
    "given",
    [
        BODIES,
        ("a", b"b"),
        ["a", Message(payload=b"b")],
        (body for body in BODIES),
        np.array(BODIES, object),
        pa.RecordBatch.from_pydict({"payload": BODIES}),
        pa.table({"payload": BODIES}),
        pa.table({"payload": pa.chunked_array([[b"a"], [], [b"b"]])}),
        pa.table({"payload": ["a", "b"]}),
        pa.table({"payload": pa.array(BODIES, pa.large_binary())}),
        pa.table({"payload": pa.array(BODIES).dictionary_encode()}),
        pa.table({"payload": [b"x", *BODIES, b"y"]}).slice(1, 2),
        pa.table({"payload": BODIES, "offset": [7, 8], "partition": [1, 1], "attempt": [1, 2]}),
        pa.table({"payload": BODIES, "key": pa.nulls(2, pa.string()), "headers": pa.nulls(2)}),
    ],
    ids=lambda given: type(given).__name__,
)
def test_every_accepted_kind(given):
    batch = compact(given)
    assert batch.to_pydict() == {"payload": BODIES}
    assert batch.schema == stored_schema(presence(batch))


@pytest.mark.parametrize("given", [b"a", "a", Message(payload=b"a")])
def test_one_message_is_a_batch_of_one(given):
    assert compact(given).to_pydict() == {"payload": [b"a"]}


@pytest.mark.parametrize(
    "column",
    [
        pa.array([5_000, None], pa.int64()),
        pa.array([5_000, None], pa.timestamp("ms")),
        pa.array([5, None], pa.timestamp("s", tz="UTC")),
        pa.array([5_000_000, None], pa.timestamp("us", tz="Europe/Berlin")),
        pa.array([5_000_000_000, None], pa.timestamp("ns")),
    ],
    ids=lambda column: str(column.type),
)
def test_times_of_every_unit(column):
    batch = compact(pa.table({"payload": BODIES, "due": column}))
    assert integers(batch, "due", -1).tolist() == [5_000, -1]


def test_a_missing_priority_is_the_middle_one():
    batch = compact([Message(payload=b"", priority=3), Message(payload=b"")])
    assert batch.column("priority").to_pylist() == [3, 32_768]
    assert integers(compact([b""]), "priority", 32_768).tolist() == [32_768]


def test_a_delivered_batch_can_be_published_as_it_is():
    row = {"payload": b"x", "priority": 9, "offset": 4, "partition": 1, "attempt": 2, "published": 5}
    delivered = pa.RecordBatch.from_pylist([dict.fromkeys(DELIVERED.names) | row], DELIVERED)
    assert compact(delivered).to_pydict() == {"priority": [9], "payload": [b"x"]}


@given(messages)
def test_compact_keeps_every_value(given):
    rows = expand(compact(given), np.arange(len(given)), 7).to_pylist()
    for row, message in zip(rows, given, strict=True):
        for name in ("payload", "id", "key", "envelope"):
            assert row[name] == getattr(message, name)
        assert row["priority"] == (32_768 if message.priority is None else message.priority)
        assert row["headers"] == (None if message.headers is None else list(message.headers.items()))
    batch = compact(given)
    for name, field in (("due", "due_ms"), ("expires", "expires_ms")):
        expected = [-1 if getattr(message, field) is None else getattr(message, field) for message in given]
        assert integers(batch, name, -1).tolist() == expected


def test_a_delivery_has_the_columns_that_hold_a_value_and_completed_all_of_them():
    batch = compact([Message(payload=b"a", key="k"), Message(payload=b"b")])
    offsets = np.array([5, 6], np.int64)
    part = delivered(batch, offsets, 7, 3, 1)
    assert part.schema.names == ["offset", "key", "published", "payload", "partition", "attempt"]
    full = completed(part)
    assert full.schema.equals(DELIVERED, check_metadata=True)
    assert full.select(MESSAGE.names).to_pylist() == expand(batch, offsets, 7).to_pylist()
    assert full.column("partition").to_pylist() == [3, 3]
    again = delivered(batch, offsets, np.array([7, 8], np.int64), 3, np.array([1, 2], np.int64))
    assert again.column("attempt").to_pylist() == [1, 2]
    assert again.column("published").cast("int64").to_pylist() == [7, 8]
    assert completed(full).equals(full)


@pytest.mark.parametrize("rows", [1, 300])
def test_a_copied_stream_is_what_arrow_writes(rows):
    batch = compact([Message(payload=b"x" * row, id=f"i{row}") for row in range(rows)])
    assert b"".join(ipc.copied(batch)) == b"".join(ipc.stream(batch))


@given(messages, st.integers(0, 5))
def test_expand_and_shrink(given, start):
    batch = compact(given).slice(start)
    offsets = np.arange(batch.num_rows) * 3
    full = expand(batch, offsets, np.arange(batch.num_rows) + 100)
    assert full.schema == MESSAGE
    assert full.column("offset").to_pylist() == offsets.tolist()
    assert full.column("published").view(pa.int64()).to_pylist() == list(range(100, 100 + batch.num_rows))
    if batch.num_rows:
        again = shrink(full)
        assert expand(again, offsets, 5).to_pylist() == expand(batch, offsets, 5).to_pylist()
        assert "priority" in again.schema.names, "a full batch always has one"


@given(messages, st.integers(0, 5), st.integers(0, 6))
def test_what_a_batch_weighs(given, start, count):
    def weight(message):
        texts = [message.id, message.key, *(message.headers or {}).keys(), *(message.headers or {}).values()]
        return len(message.payload) + len(message.envelope or b"") + sum(len((text or "").encode()) for text in texts)

    part = compact(given).slice(start, count)
    expected = [weight(message) for message in given[start : start + count]]
    assert content_sizes(part).tolist() == expected
    assert content_bytes(part) == sum(expected)
    assert payload_bytes(part) == sum(len(message.payload) for message in given[start : start + count])
    assert len(edges(part.column("payload"))) == part.num_rows + 1


def test_both_edges_of_each_bound():
    fits = Message(
        payload=b"x" * PAYLOAD_BYTES_MAX,
        id="i" * MESSAGE_ID_BYTES_MAX,
        key="k" * KEY_BYTES_MAX,
        priority=65_535,
        due_ms=TIME_MS_MAX,
        expires_ms=0,
        headers={str(number): "" for number in range(HEADERS_MAX)},
    )
    assert compact(fits).num_rows == 1
    for field, value in {
        "payload": b"x" * (PAYLOAD_BYTES_MAX + 1),
        "id": "i" * (MESSAGE_ID_BYTES_MAX + 1),
        "key": "k" * (KEY_BYTES_MAX + 1),
        "priority": 65_536,
        "due_ms": TIME_MS_MAX + 1,
        "expires_ms": -1,
        "headers": {str(number): "" for number in range(HEADERS_MAX + 1)},
    }.items():
        with pytest.raises(InvalidInput, match=rf"messages\[0\].{field.removesuffix('_ms')}: got "):
            compact(Message(**{"payload": b"", field: value}))  # type: ignore[arg-type]


def test_a_batch_has_at_most_a_million_messages():
    column = pa.nulls(BATCH_MESSAGES_MAX + 1, pa.binary()).fill_null(b"")
    assert compact(pa.table({"payload": column[1:]})).num_rows == BATCH_MESSAGES_MAX
    with pytest.raises(InvalidInput, match="messages: got 1000001; allowed: 1 to 1000000 messages in one call"):
        compact(pa.table({"payload": column}))


def test_a_header_without_a_value_is_refused_only_in_the_rows_that_are_published():
    headers = pa.array([[("a", None)], [("a", "b")]], pa.map_(pa.string(), pa.string()))
    table = pa.table({"payload": BODIES, "headers": headers})
    assert compact(table.slice(1)).column("headers").to_pylist() == [[("a", "b")]]
    with pytest.raises(InvalidInput, match="headers: got None; allowed: text for every header"):
        compact(table)


def test_columns_are_in_the_order_of_the_schema():
    batch = compact(pa.table({"payload": BODIES, "key": ["a", "b"], "id": ["c", "d"]}))
    assert batch.schema.names == ["id", "key", "payload"]
    assert [name for name in STORED if name in batch.schema.names] == batch.schema.names


def test_columns_of_others_may_leave_out_or_pad_their_offsets():
    kind = pa.map_(pa.string(), pa.string())
    bare = pa.Array.from_buffers(kind, 0, [None, pa.py_buffer(b"")], children=[pa.array([], kind.field(0).type)])
    assert edges(bare).tolist() == [0]
    padded = pa.py_buffer(np.array([0, 1, 3], np.int32).tobytes() + b"odd")
    column = pa.Array.from_buffers(pa.binary(), 2, [None, padded, pa.py_buffer(b"abc")])
    batch = compact(pa.record_batch({"payload": column}))
    assert payload_bytes(batch) == 3


WILD = """
import numpy as np
import pyarrow as pa
from wherry.model.errors import InvalidInput
from wherry.model.schema import compact

views = np.array([1_000, 0, 0, 1 << 30] * 2, np.uint32)
entries = pa.Array.from_buffers(pa.int32(), 2, [None, pa.py_buffer(np.array([0, 1 << 30], np.int32))])
ends = pa.py_buffer(np.array([0, 1 << 30, 3], np.int64))
wild = [
    pa.Array.from_buffers(pa.binary_view(), 2, [None, pa.py_buffer(views), pa.py_buffer(b"abc")]),
    pa.DictionaryArray.from_arrays(entries, pa.array([b"x"], pa.binary()), safe=False),
    pa.Array.from_buffers(pa.large_binary(), 2, [None, ends, pa.py_buffer(b"abc")]),
]
for column in wild:
    for others in ({}, {"payload": pa.array([b"1", b"2"], pa.binary())}):
        try:
            compact(pa.RecordBatch.from_pydict({**others, "key" if others else "payload": column}))
        except InvalidInput:
            print("refused")
"""


def test_a_column_that_points_out_of_its_buffer_is_refused_before_it_is_read():
    """Read such columns in a process of its own, since reading one ends the process."""
    done = subprocess.run([sys.executable, "-c", WILD], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.split()) == (0, ["refused"] * 6), done.stderr


@given(st.lists(st.tuples(st.binary(max_size=20), st.none() | st.binary(max_size=20)), min_size=1, max_size=5))
def test_a_plain_batch_is_what_compact_makes_of_the_same_messages(rows):
    envelopes = [envelope for _, envelope in rows]
    plain = plain_batch([payload for payload, _ in rows], envelopes if any(e is not None for e in envelopes) else None)
    usual = compact([Message(payload=payload, envelope=envelope) for payload, envelope in rows])
    assert compact(plain).equals(usual, check_metadata=True)
    assert plain.payload_bytes == max(len(payload) for payload, _ in rows)


def test_a_plain_batch_with_a_payload_above_the_limit_is_refused_as_any_other():
    with pytest.raises(InvalidInput) as usual:
        compact([b"ok", b"12345"], 4)
    with pytest.raises(InvalidInput) as found:
        compact(plain_batch([b"ok", b"12345"], None), 4)
    assert str(found.value) == str(usual.value)
    assert compact(plain_batch([b"ok", b"1234"], None), 4).num_rows == 2


def test_a_column_that_a_batch_does_not_have_takes_no_bytes_of_other_rows():
    """Check nulls too: `pa.nulls` of maps has children of the column's length, so a block had those of its segment."""
    for name in STORED:
        column = absent(name, 100_000).slice(50_000, 10)
        batch = pa.record_batch([column], names=[name])
        assert len(batch.serialize()) < 2_000, name
