"""Field tables and arrays: as plain Python values, and as bytes of which single entries can be changed.

A table is on the wire as

    length  4 bytes, of what follows
    entry   1 byte length of the name, the name, 1 byte type tag, the value; and so on

and *raw* means all of these bytes here, including the length. Empty bytes mean "no table", and read as an empty one.

The tags and their meanings are those of RabbitMQ, not those of the specification's grammar: `s` is a 16 bit number and
no string, `l` and `L` are both signed. `U`, which only some clients write, is accepted too.

Values become plain Python values if encoding would choose the same tag again (`I` and 5, say), and otherwise a subclass
with its tag (`s` and `Int16(5)`): decoded values are encoded to the same bytes. Three things are lost: booleans other
than 0 and 1, names that occur twice, of which the first counts, and the signalling kind of NaN in an `f`. Raw tables
keep even those, unless that very entry is replaced.
"""

from __future__ import annotations

import struct
from calendar import timegm
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from decimal import Decimal
from typing import Any, ClassVar

from wherry.model.errors import InvalidInput


class Malformed(ValueError):
    """Bytes of a client that are not a table, or not properties."""


DEEPEST = 64
"""How deep tables and arrays may be nested."""

EMPTY = b"\0\0\0\0"
"""A table without entries, raw."""


# ---------------------------------------------------------------------------------------------- values with a tag


class Int8(int):
    """A signed byte."""

    tag: ClassVar = b"b"


class UInt8(int):
    """An unsigned byte."""

    tag: ClassVar = b"B"


class Int16(int):
    """A signed number of 16 bits, as RabbitMQ and most clients write it."""

    tag: ClassVar = b"s"


class SpecInt16(int):
    """A signed number of 16 bits, with the tag that the specification gives it."""

    tag: ClassVar = b"U"


class UInt16(int):
    """An unsigned number of 16 bits."""

    tag: ClassVar = b"u"


class UInt32(int):
    """An unsigned number of 32 bits."""

    tag: ClassVar = b"i"


class Int64(int):
    """A signed number of 64 bits that 32 bits could have held."""

    tag: ClassVar = b"l"


class SpecInt64(int):
    """A signed number of 64 bits, with the tag that the specification gives it."""

    tag: ClassVar = b"L"


class Timestamp(int):
    """Seconds since 1970. No `datetime`: the wire can hold instants that one cannot."""

    tag: ClassVar = b"T"


class Float32(float):
    """A number of single precision."""

    tag: ClassVar = b"f"


_LENGTH = struct.Struct(">I")
_INT32 = struct.Struct(">i")
_INT64 = struct.Struct(">q")
_DOUBLE = struct.Struct(">d")
_DECIMAL = struct.Struct(">Bi")

_NUMBERS: dict[type[int] | type[float], struct.Struct] = {
    Int8: struct.Struct(">b"),
    UInt8: struct.Struct(">B"),
    Int16: struct.Struct(">h"),
    SpecInt16: struct.Struct(">h"),
    UInt16: struct.Struct(">H"),
    UInt32: struct.Struct(">I"),
    Int64: _INT64,
    SpecInt64: _INT64,
    Timestamp: struct.Struct(">Q"),
    Float32: struct.Struct(">f"),
}


# ------------------------------------------------------------------------------------------------------ decoding


def _broken(what: str) -> Malformed:
    return Malformed(f"field table: {what}")


def decode_table(raw: bytes) -> dict[str, Any]:
    """Return the entries of a raw table."""
    if not raw:
        return {}
    entries, end = read_table(raw, 0)
    if end != len(raw):
        raise _broken(f"{len(raw) - end} bytes after its end")
    return entries


def read_table(data: bytes, at: int) -> tuple[dict[str, Any], int]:
    """Return the table that begins at `at`, and where it ends."""
    start, end = _extent(data, at, len(data))
    return _entries(data, start, end, DEEPEST), end


def _extent(data: bytes, at: int, limit: int) -> tuple[int, int]:
    """Return begin and end of something that is preceded by its length."""
    start = at + 4
    if start > limit:
        raise _broken("ends within a length")
    end: int = start + _LENGTH.unpack_from(data, at)[0]
    if end > limit:
        raise _broken(f"{end - limit} bytes are missing")
    return start, end


def _entries(data: bytes, at: int, end: int, deeper: int) -> dict[str, Any]:
    if not deeper:
        raise _broken(f"nested more than {DEEPEST} deep")
    entries: dict[str, Any] = {}
    while at < end:
        start = at + 1
        at = start + data[at]
        if at >= end:
            raise _broken("ends within a name")
        name = data[start:at].decode("utf-8", "surrogateescape")
        value, at = _value(data, at, end, deeper)
        entries.setdefault(name, value)
    return entries


def _elements(data: bytes, at: int, end: int, deeper: int) -> list[Any]:
    if not deeper:
        raise _broken(f"nested more than {DEEPEST} deep")
    elements: list[Any] = []
    while at < end:
        value, at = _value(data, at, end, deeper)
        elements.append(value)
    return elements


def _value(data: bytes, at: int, end: int, deeper: int) -> tuple[Any, int]:
    """Return the value whose tag is at `at`, and where it ends."""
    tag = data[at]
    at += 1
    fixed = _FIXED.get(tag)
    if fixed is not None:
        size, read = fixed
        stop = at + size
        if stop > end:
            raise _broken("ends within a value")
        return read(data, at), stop
    if tag not in _SIZED:
        raise _unknown(tag)
    start, stop = _extent(data, at, end)
    if tag == _TEXT:
        return data[start:stop].decode("utf-8", "surrogateescape"), stop
    if tag == _TABLE:
        return _entries(data, start, stop, deeper - 1), stop
    if tag == _ARRAY:
        return _elements(data, start, stop, deeper - 1), stop
    return data[start:stop], stop


def _unknown(tag: int) -> Malformed:
    return _broken(f"unknown type tag {bytes([tag])!r}")


_TEXT, _TABLE, _ARRAY = b"SFA"
_SIZED = frozenset(b"SFAx")
"""The tags whose value begins with its length."""


def _read_int64(data: bytes, at: int) -> int:
    value: int = _INT64.unpack_from(data, at)[0]
    return Int64(value) if -0x8000_0000 <= value <= 0x7FFF_FFFF else value


def _read_decimal(data: bytes, at: int) -> Decimal:
    scale, value = _DECIMAL.unpack_from(data, at)
    # Not by arithmetic, which would round to the precision of the current decimal context.
    return Decimal((int(value < 0), tuple(map(int, str(abs(value)))), -scale))


def _reader(kind: type[int] | type[float], layout: struct.Struct) -> Callable[[bytes, int], Any]:
    return lambda data, at: kind(layout.unpack_from(data, at)[0])


_FIXED: dict[int, tuple[int, Callable[[bytes, int], Any]]] = {
    ord("t"): (1, lambda data, at: data[at] != 0),
    ord("I"): (4, lambda data, at: _INT32.unpack_from(data, at)[0]),
    ord("d"): (8, lambda data, at: _DOUBLE.unpack_from(data, at)[0]),
    ord("D"): (5, _read_decimal),
    ord("V"): (0, lambda data, at: None),
    **{kind.tag[0]: (layout.size, _reader(kind, layout)) for kind, layout in _NUMBERS.items()},  # type: ignore[union-attr]
    ord("l"): (8, _read_int64),
}
"""By tag: the number of bytes of the value, and how they are read."""

_SIZES = {tag: size for tag, (size, _) in _FIXED.items()}


# -------------------------------------------------------------------------------------------------------- checking


def check_table(data: bytes, at: int, limit: int) -> int:
    """Return where the table at `at` ends, after a check of all of it; cheaper than decoding."""
    start, end = _extent(data, at, limit)
    _check(data, start, end, True, DEEPEST)
    return end


def _check(data: bytes, at: int, end: int, named: bool, deeper: int) -> None:
    if not deeper:
        raise _broken(f"nested more than {DEEPEST} deep")
    sizes = _SIZES
    while at < end:
        if named:
            at += 1 + data[at]
            if at >= end:
                raise _broken("ends within a name")
        tag = data[at]
        at += 1
        if tag in sizes:
            at += sizes[tag]
            if at > end:
                raise _broken("ends within a value")
        elif tag in _SIZED:
            start, at = _extent(data, at, end)
            if tag == _TABLE or tag == _ARRAY:  # noqa: PLR1714, SIM109  quicker than a tuple
                _check(data, start, at, tag == _TABLE, deeper - 1)
        else:
            raise _unknown(tag)


# -------------------------------------------------------------------------------------------------------- encoding


def encode_table(entries: Mapping[str, Any]) -> bytes:
    """Return entries as a raw table."""
    return _sized(_entry(name, value) for name, value in entries.items())


def encode_value(value: Any) -> bytes:
    """Return a value with its tag before it."""
    kind = type(value)
    encode = _ENCODERS.get(kind)
    if encode is None:
        encode = next((found for base, found in _ENCODERS.items() if isinstance(value, base)), None)
        if encode is None:
            raise InvalidInput(
                "field value", value, "bool, int, float, str, bytes, datetime, Decimal, None, list, dict"
            )
    try:
        return encode(value)
    except (struct.error, OverflowError) as error:
        raise InvalidInput("field value", value, f"what fits into its type, {kind.__name__}") from error


def encode_short(text: str) -> bytes:
    """Return a short string with its length before it: at most 255 bytes of UTF-8."""
    encoded = text.encode("utf-8", "surrogateescape")
    if len(encoded) > 255:
        raise InvalidInput("short string", text, "at most 255 bytes of UTF-8")
    return bytes((len(encoded),)) + encoded


def _entry(name: str, value: Any) -> bytes:
    return encode_short(name) + encode_value(value)


def _sized(parts: Iterable[bytes]) -> bytes:
    content = b"".join(parts)
    return _LENGTH.pack(len(content)) + content


def _encode_int(value: int) -> bytes:
    if -0x8000_0000 <= value <= 0x7FFF_FFFF:
        return b"I" + _INT32.pack(value)
    return b"l" + _INT64.pack(value)


def _encode_decimal(value: Decimal) -> bytes:
    sign, digits, exponent = value.as_tuple()
    if not isinstance(exponent, int) or not -255 <= exponent <= 9:
        raise InvalidInput("field value", value, "a finite number with at most 255 places")
    whole = int("".join(map(str, digits)) or "0") * 10 ** max(exponent, 0)
    return b"D" + _DECIMAL.pack(max(-exponent, 0), -whole if sign else whole)


def _encode_text(value: str) -> bytes:
    encoded = value.encode("utf-8", "surrogateescape")
    return b"S" + _LENGTH.pack(len(encoded)) + encoded


def _writer(tag: bytes, layout: struct.Struct) -> Callable[[Any], bytes]:
    return lambda value: tag + layout.pack(value)


_ENCODERS: dict[type, Callable[[Any], bytes]] = {
    # A value of a subclass that is not named here is encoded as the first of these that it is an instance of:
    # booleans therefore come before numbers.
    bool: lambda value: b"t\1" if value else b"t\0",
    **{kind: _writer(kind.tag, layout) for kind, layout in _NUMBERS.items()},  # type: ignore[union-attr]
    int: _encode_int,
    float: _writer(b"d", _DOUBLE),
    str: _encode_text,
    bytes: lambda value: b"x" + _LENGTH.pack(len(value)) + value,
    datetime: lambda value: b"T" + struct.pack(">Q", timegm(value.utctimetuple())),
    Decimal: _encode_decimal,
    type(None): lambda value: b"V",
    list: lambda value: b"A" + _sized(map(encode_value, value)),
    tuple: lambda value: b"A" + _sized(map(encode_value, value)),
    Mapping: lambda value: b"F" + encode_table(value),
    dict: lambda value: b"F" + encode_table(value),
}


# ------------------------------------------------------------------------------------------------ single entries


def find(raw: bytes, name: str, default: Any = None) -> Any:
    """Return the value of one entry. If it is absent, this costs only a search for the bytes of its name."""
    wanted = name.encode("utf-8", "surrogateescape")
    if wanted not in raw:
        return default
    for found, _, at, end in _walk(raw):
        if found == wanted:
            return _value(raw, at, end, DEEPEST)[0]
    return default


def names(raw: bytes) -> list[str]:
    """Return the names of all entries, in order."""
    return [found.decode("utf-8", "surrogateescape") for found, _, _, _ in _walk(raw)]


def with_entries(raw: bytes, entries: Mapping[str, Any]) -> bytes:
    """Return the raw table with these entries: in the places of entries with their names, else at the end."""
    new = {name.encode("utf-8", "surrogateescape"): _entry(name, value) for name, value in entries.items()}
    waiting = dict(new)
    # If a name occurs twice, the first place is filled and the second one removed.
    kept = [waiting.pop(found, b"") if found in new else raw[start:end] for found, start, _, end in _walk(raw)]
    return _sized([*kept, *waiting.values()])


def without(raw: bytes, unwanted: Iterable[str]) -> bytes:
    """Return the raw table without the entries of these names."""
    gone = {name.encode("utf-8", "surrogateescape") for name in unwanted}
    return _sized(raw[start:end] for found, start, _, end in _walk(raw) if found not in gone)


def _walk(raw: bytes) -> Iterator[tuple[bytes, int, int, int]]:
    """Yield of each entry the bytes of its name, where it begins, where its tag is, where it ends."""
    if not raw:
        return
    at, limit = _extent(raw, 0, len(raw))
    while at < limit:
        start = at
        at += 1 + raw[at]
        if at >= limit:
            raise _broken("ends within a name")
        found, tag = raw[start + 1 : at], raw[at]
        size = _SIZES.get(tag)
        if size is not None:
            end = at + 1 + size
            if end > limit:
                raise _broken("ends within a value")
        elif tag in _SIZED:
            end = _extent(raw, at + 1, limit)[1]
        else:
            raise _unknown(tag)
        yield found, start, at, end
        at = end
