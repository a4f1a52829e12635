"""The properties of a message: read in part, read whole, one of them changed, the rest byte-exact."""

from __future__ import annotations

import pytest

from tests.unit.amqp.goldens import PROPERTIES
from wherry.model.errors import InvalidInput
from wherry.queueing.message import properties, table
from wherry.queueing.message.properties import Properties
from wherry.queueing.message.table import Malformed


@pytest.mark.parametrize(("value", "raw"), PROPERTIES)
def test_properties_have_these_bytes_both_ways(value, raw):
    assert properties.encode(value) == raw
    assert properties.decode(raw) == value
    assert properties.are_whole(raw)
    used = properties.used_properties(raw)
    assert used.raw == raw
    for name in ("delivery_mode", "priority", "expiration", "reply_to", "user_id", "message_id"):
        assert getattr(used, name) == getattr(value, name)
    assert used.headers == (b"" if value.headers is None else table.encode_table(value.headers))


@pytest.mark.parametrize(("value", "raw"), PROPERTIES)
def test_properties_that_are_cut_off_or_too_long_are_a_syntax_error(value, raw):
    for wrong in [*(raw[:end] for end in range(len(raw))), raw + b"\0"]:
        assert not properties.are_whole(wrong)
        for read in (
            properties.used_properties,
            properties.decode,
            lambda raw: properties.replaced(raw, "priority", 1),
        ):
            with pytest.raises(Malformed):
                read(wrong)


@pytest.mark.parametrize("flags", [b"\x00\x01", b"\x00\x02", b"\xff\xff"])
def test_flags_of_properties_that_there_are_not_are_a_syntax_error(flags):
    assert not properties.are_whole(flags)
    for read in (properties.used_properties, properties.decode):
        with pytest.raises(Malformed):
            read(flags + bytes(200))


@pytest.mark.parametrize(("value", "raw"), PROPERTIES)
@pytest.mark.parametrize("name", Properties.__struct_fields__)
def test_one_property_is_replaced_added_or_removed(value, raw, name):
    new = {"headers": {"b": None}, "delivery_mode": 1, "priority": 3, "timestamp": 5}.get(name, "new")
    fields = {field: getattr(value, field) for field in Properties.__struct_fields__}
    assert properties.replaced(raw, name, new) == properties.encode(Properties(**{**fields, name: new}))
    assert properties.replaced(raw, name, None) == properties.encode(Properties(**{**fields, name: None}))


def test_bytes_of_other_properties_stay():
    odd = b"\0\0\0\4\x01ot\x07"
    raw = b"\xb0\x00\x01\xff" + odd + b"\x07"
    assert properties.replaced(raw, "expiration", "5") == b"\xb1\x00\x01\xff" + odd + b"\x07" + b"\x015"
    assert properties.replaced(raw, "headers", table.with_entries(odd, {"p": None})) == (
        b"\xb0\x00\x01\xff\0\0\0\x07\x01ot\x07\x01pV\x07"
    )


def test_what_does_not_fit_is_refused():
    for name, value in (("priority", 256), ("timestamp", -1), ("reply_to", "x" * 256), ("colour", "red")):
        with pytest.raises(InvalidInput):
            properties.replaced(properties.NONE, name, value)


def test_headers_are_checked_all_the_way_down():
    inner = b"\x01kz"
    headers = len(inner + b"\x01kF\0\0\0\0").to_bytes(4, "big") + b"\x01kF" + len(inner).to_bytes(4, "big") + inner
    with pytest.raises(Malformed, match="unknown type tag"):
        properties.used_properties(b"\x20\x00" + headers)


def test_what_is_kept_of_known_properties_is_bounded():
    for number in range(5000):
        properties.used_properties(properties.encode(Properties(expiration=str(number))))
    assert len(properties._kept) <= properties._KEPT_AT_MOST
    assert all(len(raw) <= 64 for raw in properties._kept)
