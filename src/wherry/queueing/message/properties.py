"""The properties of a message: kept and sent as the bytes they came in, decoded as far as the broker needs them.

*Raw* properties are the flags and the list of a header frame:

    flags   2 bytes: from the highest bit down, which of the fourteen properties are present; the lowest two are zero
    list    the properties that are present, in that order

`used_properties` returns what the broker reads of every message, `decode` returns everything, `replaced` changes one
property and leaves the bytes of all others alone.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import Any

import msgspec

from wherry.model.errors import InvalidInput
from wherry.queueing.message.table import Malformed, Timestamp, check_table, decode_table, encode_short, encode_table

NONE = b"\0\0"
"""Raw properties of a message that has none."""

PERSISTENT = 2
"""The delivery mode of a durable message; with any other a message is transient."""


class Properties(msgspec.Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """All fourteen, in the order of the wire; None for a property that is absent."""

    content_type: str | None = None
    content_encoding: str | None = None
    headers: dict[str, Any] | None = None
    delivery_mode: int | None = None
    priority: int | None = None
    correlation_id: str | None = None
    reply_to: str | None = None
    expiration: str | None = None
    message_id: str | None = None
    timestamp: int | None = None
    """Seconds since 1970."""
    type: str | None = None
    user_id: str | None = None
    app_id: str | None = None
    cluster_id: str | None = None


class UsedProperties(msgspec.Struct, frozen=True, gc=False):
    """The properties that the broker reads in every message."""

    raw: bytes
    """All properties, as the bytes they came in."""
    delivery_mode: int | None = None
    priority: int | None = None
    expiration: str | None = None
    """Milliseconds, as the text that the client wrote."""
    headers: bytes = b""
    """The raw table, checked; empty if there is none."""
    reply_to: str | None = None
    user_id: str | None = None
    message_id: str | None = None


_TEXT, _OCTET, _TIME, _TABLE = range(4)

_KINDS = {"headers": _TABLE, "delivery_mode": _OCTET, "priority": _OCTET, "timestamp": _TIME}
"""All others are short strings."""

_NAMES = Properties.__struct_fields__
_MASKS = {name: 0x8000 >> place for place, name in enumerate(_NAMES)}
_UNDEFINED = 0x0003
"""The lowest bit would announce more flags, the one above it a fifteenth property: neither exists."""

_FLAGS = struct.Struct(">H")
_TIMESTAMP = struct.Struct(">Q")

_PLACES = {name: place for place, name in enumerate(UsedProperties.__struct_fields__)}

_OFTEN_DISTINCT = _MASKS["headers"] | _MASKS["correlation_id"] | _MASKS["message_id"] | _MASKS["timestamp"]
"""Properties with one of these are seldom seen twice: caching them would cost more than it saves."""


@lru_cache(maxsize=1024)  # a client chooses the flags: of the 16,384 possible words, most are never seen
def _steps(flags: int) -> tuple[tuple[str, int, int], ...]:
    """Return name, kind and place in `UsedProperties` (or 0) of each property in these flags."""
    if flags & _UNDEFINED:
        raise Malformed(f"property flags {flags:#06x} name properties that do not exist")
    return tuple((name, _KINDS.get(name, _TEXT), _PLACES.get(name, 0)) for name, mask in _MASKS.items() if flags & mask)


_KEPT_AT_MOST = 1024
_kept: dict[bytes, UsedProperties] = {}
"""Raw properties that are short and likely to come again: most producers give all their messages the same."""


def used_properties(raw: bytes) -> UsedProperties:
    """Return the properties that the broker reads, after a check of all of them."""
    found = _kept.get(raw)
    if found is not None:
        return found
    found = _read_used(raw)
    if len(raw) <= 64 and not (raw[0] << 8 | raw[1]) & _OFTEN_DISTINCT:
        if len(_kept) >= _KEPT_AT_MOST:
            _kept.clear()
        _kept[raw] = found
    return found


def _read_used(raw: bytes) -> UsedProperties:
    values: list[Any] = [raw, None, None, None, b"", None, None, None]
    at, limit = 2, len(raw)
    try:
        for _, kind, place in _steps(raw[0] << 8 | raw[1]):
            start = at
            if kind == _TEXT:
                at += 1 + raw[at]
                if place:
                    if at > limit:
                        break
                    values[place] = raw[start + 1 : at].decode("utf-8", "surrogateescape")
            elif kind == _OCTET:
                values[place] = raw[at]
                at += 1
            elif kind == _TABLE:
                at = check_table(raw, at, limit)
                values[place] = raw[start:at]
            else:
                at += 8
    except IndexError:
        at = limit + 1
    if at != limit:
        raise _misfit(at, limit)
    return UsedProperties(*values)


_kinds: dict[bytes, tuple[int, ...]] = {}
"""By flags, as bytes: the kinds of the properties that are present."""


def are_whole(raw: bytes) -> bool:
    """Return whether raw properties are valid; cheaper than reading them."""
    if raw in _kept:
        return True
    at, limit = 2, len(raw)
    try:
        kinds = _kinds.get(raw[:2])
        if kinds is None:
            kinds = tuple(kind for _, kind, _ in _steps(raw[0] << 8 | raw[1]))
            if len(_kinds) < _KEPT_AT_MOST:
                _kinds[raw[:2]] = kinds
        for kind in kinds:
            if kind == _TEXT:
                at += 1 + raw[at]
            elif kind == _OCTET:
                at += 1
            elif kind == _TABLE:
                at = check_table(raw, at, limit)
            else:
                at += 8
    except (IndexError, Malformed):
        return False
    return at == limit


def _misfit(at: int, limit: int) -> Malformed:
    what = "end too early" if at > limit else f"have {limit - at} bytes too many"
    return Malformed(f"the properties {what}")


def decode(raw: bytes) -> Properties:
    """Return all properties."""
    values: dict[str, Any] = {}
    for name, start, end in _extents(raw):
        kind = _KINDS.get(name, _TEXT)
        if kind == _TEXT:
            values[name] = raw[start + 1 : end].decode("utf-8", "surrogateescape")
        elif kind == _OCTET:
            values[name] = raw[start]
        elif kind == _TABLE:
            values[name] = decode_table(raw[start:end])
        else:
            values[name] = Timestamp(_TIMESTAMP.unpack_from(raw, start)[0])
    return Properties(**values)


def encode(properties: Properties) -> bytes:
    """Return properties as raw bytes."""
    flags = 0
    parts = [b""]
    for name, mask in _MASKS.items():
        value = getattr(properties, name)
        if value is not None:
            flags |= mask
            parts.append(_encoded(name, value))
    parts[0] = _FLAGS.pack(flags)
    return b"".join(parts)


def replaced(raw: bytes, name: str, value: Any) -> bytes:
    """Return raw properties with another value of one of them, or without it if the value is None.

    The value of `headers` may be a raw table. The bytes of all other properties stay as they are.
    """
    mask = _MASKS.get(name)
    if mask is None:
        raise InvalidInput("property", name, ", ".join(_NAMES))
    new = b"" if value is None else _encoded(name, value)
    before = after = 2
    for found, start, end in _extents(raw):
        if _MASKS[found] > mask:
            before = after = end
        elif found == name:
            before, after = start, end
    flags: int = _FLAGS.unpack_from(raw)[0]
    flags = flags & ~mask if value is None else flags | mask
    return b"".join((_FLAGS.pack(flags), raw[2:before], new, raw[after:]))


def _encoded(name: str, value: Any) -> bytes:
    kind = _KINDS.get(name, _TEXT)
    if kind == _TEXT:
        return encode_short(value)
    if kind == _TABLE:
        return value if isinstance(value, bytes) else encode_table(value)
    try:
        return _TIMESTAMP.pack(value) if kind == _TIME else bytes((value,))
    except (struct.error, ValueError) as error:
        raise InvalidInput(name, value, "what fits into its octets") from error


def _extents(raw: bytes) -> list[tuple[str, int, int]]:
    """Return name, begin and end of each property that is present."""
    extents: list[tuple[str, int, int]] = []
    at, limit = 2, len(raw)
    try:
        for name, kind, _ in _steps(raw[0] << 8 | raw[1]):
            start = at
            if kind == _TEXT:
                at += 1 + raw[at]
            elif kind == _TABLE:
                at = check_table(raw, at, limit)
            else:
                at += 1 if kind == _OCTET else 8
            extents.append((name, start, at))
    except IndexError:
        at = limit + 1
    if at != limit:
        raise _misfit(at, limit)
    return extents
