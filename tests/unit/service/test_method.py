"""What may be declared as a method, checked at once: names, annotations, types, limits."""

from __future__ import annotations

import msgspec
import pytest

from wherry.model.errors import InvalidInput
from wherry.service.service import Service
from wherry.service.values import codec_of, encode
from wherry.wire.native.codec.frames import Flag


class Line(msgspec.Struct):
    item: str
    count: int


class Order(msgspec.Struct):
    lines: list[Line]


def declared(function, **more):
    service = Service("billing")
    service.method(function, **more)
    return next(iter(service.methods.values()))


def test_types_are_those_of_the_annotations():
    async def total(order: Order) -> int:
        return len(order.lines)

    method = declared(total)
    assert (method.argument.kind, method.result.kind, method.is_async) == (Order, int, True)


def test_a_method_may_have_no_argument_and_no_result():
    def ping() -> None:
        """Look whether it is there.

        And more.
        """

    method = declared(ping, name="look")
    assert (method.name, method.has_argument, method.is_async, method.summary) == (
        "look",
        False,
        False,
        "Look whether it is there.",
    )


async def without_annotation(order) -> bytes:
    return b""


async def without_result(order: bytes): ...
async def two(one: bytes, other: bytes) -> bytes:
    return b""


async def several(*orders: bytes) -> bytes:
    return b""


async def unknown_type(order: Missing) -> bytes:  # type: ignore[name-defined]  # noqa: F821  that is the fault
    return b""


async def odd_type(order: int | dict[bytes, Order] | Order) -> bytes:
    return b""


@pytest.mark.parametrize(
    ("function", "field"),
    [
        (without_annotation, "without_annotation: order"),
        (without_result, "without_result: return"),
        (two, "two: parameters"),
        (several, "several: parameters"),
        (unknown_type, "unknown_type: annotations"),
        (odd_type, "odd_type: order"),
    ],
)
def test_a_wrong_declaration_is_refused_by_field(function, field):
    with pytest.raises(InvalidInput) as caught:
        declared(function)
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("more", "field"),
    [
        ({"max_concurrent": 0}, "max_concurrent"),
        ({"max_waiting": -1}, "max_waiting"),
        ({"idempotent": 1}, "idempotent"),
        ({"name": "a.b"}, "method"),
        ({"name": "a/b"}, "method"),
        ({"name": ""}, "method"),
        ({"name": "ü"}, "method"),
    ],
)
def test_a_wrong_limit_or_name_is_refused_by_field(more, field):
    with pytest.raises(InvalidInput) as caught:
        declared(lambda: None, **more)
    assert caught.value.field == field


def test_a_name_is_declared_once():
    service = Service("billing")

    @service.method
    async def total() -> None: ...

    with pytest.raises(InvalidInput, match="a name that billing does not have yet"):
        service.method(total)


def test_values_go_there_and_back_as_messagepack_and_json():
    order = Order([Line("nut", 3)])
    flags, body = encode(order)
    assert codec_of(Order).decode(body, flags) == order
    assert codec_of(Order).decode(msgspec.json.encode(order), Flag.JSON) == order


@pytest.mark.parametrize("flag", [Flag.MSGPACK, Flag.JSON])
def test_a_wrong_value_is_refused_by_its_field(flag):
    encode_as = msgspec.msgpack.encode if flag == Flag.MSGPACK else msgspec.json.encode
    with pytest.raises(InvalidInput) as caught:
        codec_of(Order).decode(encode_as({"lines": [{"item": "nut", "count": "three"}]}), flag)
    assert (caught.value.field, caught.value.given) == ("lines[0].count", "three")


@pytest.mark.parametrize(("kind", "flags"), [(Order, 0), (bytes, Flag.MSGPACK), (bytes, Flag.JSON)])
def test_bytes_and_encoded_values_are_not_mixed_up(kind, flags):
    with pytest.raises(InvalidInput):
        codec_of(kind).decode(b"{}", flags)


def test_broken_bytes_are_refused():
    with pytest.raises(InvalidInput):
        codec_of(Order).decode(b"\xc1", Flag.MSGPACK)


def test_what_cannot_be_encoded_is_refused():
    with pytest.raises(InvalidInput):
        encode(object())
