"""The wire types of a method's fields, and the decoder and encoder that are compiled from them.

For a type checker each is its type in Python; the annotation also has its form on the wire.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from enum import Enum
from itertools import groupby
from typing import Annotated, Any, Generic, TypeAlias, TypeVar, get_args, get_origin, get_type_hints

from wherry.model.errors import InvalidInput
from wherry.queueing.message.table import Malformed, encode_short, encode_table, read_table
from wherry.wire.amqp.codec.faults import AmqpFault, ReplyCode


class FieldForm(Enum):
    """The form of a field on the wire; the value of a number is its letter in a `struct`."""

    OCTET = "B"
    SHORT = "H"
    LONG = "I"
    LONG_LONG = "Q"
    BIT = "bit"
    SHORT_STR = "short string"
    LONG_STR = "long string"
    TABLE = "table"


Octet: TypeAlias = Annotated[int, FieldForm.OCTET]
Short: TypeAlias = Annotated[int, FieldForm.SHORT]
Long: TypeAlias = Annotated[int, FieldForm.LONG]
LongLong: TypeAlias = Annotated[int, FieldForm.LONG_LONG]
Bit: TypeAlias = Annotated[bool, FieldForm.BIT]
"""Up to eight bits that follow each other share an octet, the first in its lowest bit."""
ShortStr: TypeAlias = Annotated[str, FieldForm.SHORT_STR]
"""At most 255 bytes. Bytes that are no UTF-8 are kept as surrogates and are sent as they came."""
LongStr: TypeAlias = Annotated[bytes, FieldForm.LONG_STR]
Table: TypeAlias = Annotated[dict[str, Any], FieldForm.TABLE]

_NUMBERS = (FieldForm.OCTET, FieldForm.SHORT, FieldForm.LONG, FieldForm.LONG_LONG)
_LENGTH = struct.Struct(">I")

_Read: TypeAlias = Callable[[bytes, int, list[Any]], int]
"""Reads a field from a place, appends its value, and returns where it ends."""
_Write: TypeAlias = Callable[[Any], bytes]
"""Returns the bytes of its fields of a value."""

_T = TypeVar("_T")


class Signature(Generic[_T]):
    """Decoder and encoder of one kind of method: a step for each run of numbers or bits and for each other field."""

    def __init__(self, kind: type[_T], ids: tuple[int, int], name: str) -> None:
        self._kind = kind
        self._name = name
        self._ids = ids
        self._prefix = struct.pack(">HH", *ids)
        self._reads: list[_Read] = []
        self._writes: list[_Write] = []
        for read, write in _steps(_wires(kind)):
            self._reads.append(read)
            self._writes.append(write)

    def decode(self, payload: bytes, at: int) -> _T:
        """Decode the method whose fields begin at `at` and end with the payload."""
        values: list[Any] = []
        try:
            for read in self._reads:
                at = read(payload, at, values)
        except (struct.error, IndexError):
            at = len(payload) + 1
        except Malformed as fault:
            raise AmqpFault(ReplyCode.FRAME_ERROR, str(fault), ids=self._ids) from None
        if at > len(payload):
            raise AmqpFault(ReplyCode.FRAME_ERROR, f"{self._name} ends within its arguments", ids=self._ids)
        if at < len(payload):
            excess = len(payload) - at
            raise AmqpFault(ReplyCode.FRAME_ERROR, f"{self._name} has {excess} bytes too many", ids=self._ids)
        return self._kind(*values)

    def encode(self, method: _T) -> bytes:
        """Encode class id, method id and fields: the payload of a method frame."""
        try:
            return self._prefix + b"".join([write(method) for write in self._writes])
        except struct.error as error:
            raise InvalidInput(self._name, method, "numbers that fit into their fields") from error


def _wires(kind: type) -> list[tuple[str, FieldForm]]:
    """Return the fields of a method in order, each with its wire type."""
    return [
        (name, get_args(hint)[1])
        for name, hint in get_type_hints(kind, include_extras=True).items()
        if get_origin(hint) is Annotated
    ]


def _steps(fields: list[tuple[str, FieldForm]]) -> Iterator[tuple[_Read, _Write]]:
    for group, run in groupby(fields, key=lambda field: "number" if field[1] in _NUMBERS else field[1].value):
        names, wires = zip(*run, strict=True)
        if group == "number":
            yield _numbers(names, struct.Struct(">" + "".join(wire.value for wire in wires)))
        elif group == FieldForm.BIT.value:
            for first in range(0, len(names), 8):
                yield _bits(names[first : first + 8])
        else:
            for name in names:
                yield _OTHERS[FieldForm(group)](name)


def _numbers(names: tuple[str, ...], layout: struct.Struct) -> tuple[_Read, _Write]:
    def read(data: bytes, at: int, values: list[Any]) -> int:
        values += layout.unpack_from(data, at)
        return at + layout.size

    def write(method: Any) -> bytes:
        return layout.pack(*[getattr(method, name) for name in names])

    return read, write


def _bits(names: tuple[str, ...]) -> tuple[_Read, _Write]:
    masks = [(name, 1 << place) for place, name in enumerate(names)]

    def read(data: bytes, at: int, values: list[Any]) -> int:
        octet = data[at]
        values += [octet & mask != 0 for _, mask in masks]
        return at + 1

    def write(method: Any) -> bytes:
        return bytes((sum(mask for name, mask in masks if getattr(method, name)),))

    return read, write


def _short_str(name: str) -> tuple[_Read, _Write]:
    def read(data: bytes, at: int, values: list[Any]) -> int:
        end = at + 1 + data[at]
        values.append(data[at + 1 : end].decode("utf-8", "surrogateescape"))
        return end

    return read, lambda method: encode_short(getattr(method, name))


def _long_str(name: str) -> tuple[_Read, _Write]:
    def read(data: bytes, at: int, values: list[Any]) -> int:
        end: int = at + 4 + _LENGTH.unpack_from(data, at)[0]
        values.append(data[at + 4 : end])
        return end

    def write(method: Any) -> bytes:
        value: bytes = getattr(method, name)
        return _LENGTH.pack(len(value)) + value

    return read, write


def _table(name: str) -> tuple[_Read, _Write]:
    def read(data: bytes, at: int, values: list[Any]) -> int:
        entries, end = read_table(data, at)
        values.append(entries)
        return end

    return read, lambda method: encode_table(getattr(method, name))


_OTHERS: dict[FieldForm, Callable[[str], tuple[_Read, _Write]]] = {
    FieldForm.SHORT_STR: _short_str,
    FieldForm.LONG_STR: _long_str,
    FieldForm.TABLE: _table,
}
