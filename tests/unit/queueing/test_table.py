"""Field tables: every type byte-exact, single entries changed in place, and what is broken or endless refused."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from enum import IntEnum

import pytest

from tests.unit.amqp.goldens import VALUES
from wherry.model.errors import InvalidInput
from wherry.queueing.message import table


def sized(content: bytes) -> bytes:
    return len(content).to_bytes(4, "big") + content


def nested(depth: int, tag: bytes) -> bytes:
    """Encode so many tables or arrays within each other, the outermost a table."""
    name = b"\x01n" if tag == b"F" else b""
    content = b""
    for _ in range(depth - 2):
        content = name + tag + sized(content)
    return sized(b"\x01n" + tag + sized(content))


@pytest.mark.parametrize(("value", "encoded"), VALUES, ids=lambda given: repr(given)[:40])
def test_value_has_these_bytes_both_ways(value, encoded):
    raw = sized(b"\x01k" + encoded)
    assert table.encode_value(value) == encoded
    assert table.encode_table({"k": value}) == raw
    decoded = table.decode_table(raw)
    assert decoded == {"k": value}
    assert type(decoded["k"]) is type(value)
    assert table.encode_table(decoded) == raw
    assert table.check_table(raw, 0, len(raw)) == len(raw)


@pytest.mark.parametrize(("value", "encoded"), VALUES, ids=lambda given: repr(given)[:40])
def test_table_that_is_cut_off_anywhere_is_a_syntax_error(value, encoded):
    whole = b"\x01k" + encoded
    for end in range(1, len(whole)):
        for wrong in (sized(whole[:end]), sized(whole)[: 4 + end], sized(b"\x01a" + b"F" + sized(whole[:end]))):
            for read in (table.decode_table, lambda raw: table.check_table(raw, 0, len(raw))):
                with pytest.raises(table.Malformed):
                    read(wrong)


@pytest.mark.parametrize("raw", [b"\0", b"\0\0\0", b"\0\0\0\1", sized(b"\x01kz"), sized(b"\x01k"), sized(b"\x05k")])
def test_broken_table_is_a_syntax_error_however_it_is_read(raw):
    for read in (
        table.decode_table,
        table.names,
        lambda raw: table.check_table(raw, 0, len(raw)),
        lambda raw: table.without(raw, ["k"]),
        lambda raw: table.with_entries(raw, {"k": 1}),
    ):
        with pytest.raises(table.Malformed):
            read(raw)


def test_bytes_behind_a_table_are_a_syntax_error():
    with pytest.raises(table.Malformed):
        table.decode_table(table.EMPTY + b"\0")


@pytest.mark.parametrize("tag", [b"F", b"A"])
def test_nesting_is_bounded(tag):
    deepest = nested(table.DEEPEST, tag)
    assert table.encode_table(table.decode_table(deepest)) == deepest
    assert table.check_table(deepest, 0, len(deepest)) == len(deepest)
    for depth in (table.DEEPEST + 1, 10_000):
        for read in (table.decode_table, lambda raw: table.check_table(raw, 0, len(raw))):
            with pytest.raises(table.Malformed, match="nested"):
                read(nested(depth, tag))


def test_of_a_name_that_comes_twice_the_first_counts():
    raw = sized(b"\x01at\x01\x01bV\x01at\x00")
    assert table.decode_table(raw) == {"a": True, "b": None}
    assert table.find(raw, "a") is True
    assert table.with_entries(raw, {"a": None}) == sized(b"\x01aV\x01bV")


def test_entries_are_changed_and_the_others_keep_their_bytes():
    odd = b"\x01ot\x07"  # a boolean that no encoder writes
    raw = sized(b"\x02CCA\0\0\0\0" + odd + b"\x07x-delayI\x00\x00\x00\x05")
    assert table.without(raw, ["CC", "BCC"]) == sized(odd + b"\x07x-delayI\x00\x00\x00\x05")
    assert table.without(raw, []) == raw
    assert table.with_entries(raw, {"x-delay": -5}) == sized(b"\x02CCA\0\0\0\0" + odd + b"\x07x-delayI\xff\xff\xff\xfb")
    assert table.with_entries(raw, {"z": True, "CC": None}) == sized(
        b"\x02CCV" + odd + b"\x07x-delayI\x00\x00\x00\x05" + b"\x01zt\x01"
    )
    assert table.with_entries(b"", {"z": True}) == sized(b"\x01zt\x01")
    assert table.without(b"", ["z"]) == table.EMPTY
    assert table.names(raw) == ["CC", "o", "x-delay"]


def test_find_reads_one_entry():
    raw = table.encode_table({"a": "x-delay", "x-delay": 5, "l": [1]})
    assert table.find(raw, "x-delay") == 5
    assert table.find(raw, "l") == [1]
    assert table.find(raw, "BCC") is None
    assert table.find(raw, "x-del", 7) == 7, "its bytes are there, but not as a name"
    assert table.find(b"", "a", 7) == 7


def test_plain_values_get_the_tag_of_their_type():
    class Colour(IntEnum):
        RED = 4

    eleven = datetime(2023, 11, 14, 23, 13, 20, tzinfo=timezone(timedelta(hours=1)))
    assert table.encode_value(eleven) == b"T\x00\x00\x00\x00\x65\x53\xf1\x00"
    assert table.encode_value(datetime.fromtimestamp(0, UTC)) == b"T" + bytes(8)
    assert table.encode_value((1,)) == table.encode_value([1])
    assert table.encode_value(Colour.RED) == b"I\x00\x00\x00\x04"
    assert table.encode_value(Decimal("12E2")) == b"D\x00\x00\x00\x04\xb0"


@pytest.mark.parametrize(
    "value",
    [
        2**63,
        -(2**63) - 1,
        object(),
        {1, 2},
        Decimal("NaN"),
        Decimal(2**31),
        Decimal("1E-256"),
        table.Int8(128),
        table.UInt8(-1),
        table.Float32(1e300),
        datetime(1969, 1, 1, tzinfo=UTC),
        {"n" * 256: 1},
    ],
    ids=lambda value: repr(value).partition(" at 0x")[0],
)
def test_value_that_the_wire_cannot_hold_is_refused(value):
    with pytest.raises(InvalidInput):
        table.encode_table({"k": value})


def test_a_full_frame_of_the_smallest_entries_is_read():
    raw = sized(b"\x01kA" + sized(b"V" * 131_000))
    assert len(table.decode_table(raw)["k"]) == 131_000
    assert table.decode_table(sized(b"\x00V" * 65_000)) == {"": None}
