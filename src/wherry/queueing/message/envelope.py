"""Messages of queue clients as messages of the broker, and back.

The envelope keeps the bytes that consumers must get back unchanged; the broker does not read it:

    mark         1 byte, `MARK`
    exchange     short string: where it was published
    routing key  short string
    properties   the rest: property flags and list, as they came

Headers and the properties that other wires can use are also headers of the broker's message, as text: a consumer over
HTTP and a job in Spark see them. A message of another wire has no such envelope: its headers become properties.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, TypeAlias

from wherry.model.limits import HEADERS_BYTES_MAX, HEADERS_MAX
from wherry.queueing.message import properties
from wherry.queueing.message.properties import PERSISTENT, Properties, UsedProperties, are_whole
from wherry.queueing.message.table import decode_table, encode_short

MARK = b"A"

Pairs: TypeAlias = list[tuple[str, str]]

Label: TypeAlias = tuple[bool, str, str, bytes]
"""Redelivered, exchange, routing key, raw properties."""

Row: TypeAlias = tuple[Label, bytes]
"""A message to be delivered, with its body. Neighbours with the same label are encoded once."""

_SHOWN = ("content_type", "content_encoding", "correlation_id", "reply_to", "message_id", "type", "user_id", "app_id")
_HEADER = {field: field.replace("_", "-") for field in _SHOWN}
_PROPERTY = {header: field for field, header in _HEADER.items()}

_HIDDEN_FLAGS = 0x1900 | 0x0040 | 0x0004
"""Delivery mode, priority, expiration, timestamp, cluster id: other wires have no header for them."""

_CACHED_BYTES = 64
_CACHED_MAX = 1_024
_OPENED_BYTES = 1_024


@lru_cache(maxsize=4_096)
def prefix(exchange: str, routing_key: str) -> bytes:
    """Return the first bytes of an envelope."""
    return MARK + encode_short(exchange) + encode_short(routing_key)


Opened: TypeAlias = tuple[str, str, bytes]
"""Exchange, routing key and raw properties of an envelope."""

_opened: dict[bytes, Opened | None] = {}
"""Envelopes that are short: those of dead letters that died the same way in a second are the same."""


def opened(envelope: bytes | None) -> Opened | None:
    """Return exchange, routing key and raw properties of an envelope; None if it is missing or not of this form.

    Clients of other wires may send any bytes as an envelope, so the properties are checked here, before a client gets
    them: with broken ones a message could neither be delivered nor moved, nor could those behind it.
    """
    if envelope is None or envelope[:1] != MARK:
        return None
    if len(envelope) > _OPENED_BYTES:
        return _read(envelope)
    if envelope not in _opened:
        if len(_opened) >= _CACHED_MAX:
            _opened.clear()
        _opened[envelope] = _read(envelope)
    return _opened[envelope]


def _read(envelope: bytes) -> Opened | None:
    middle = 2 + envelope[1] if len(envelope) > 1 else 0
    end = middle + 1 + envelope[middle] if middle and len(envelope) > middle else 0
    if not end or len(envelope) < end + 2:
        return None
    raw = envelope[end:]
    if not are_whole(raw):
        return None
    exchange = envelope[2:middle].decode("utf-8", "surrogateescape")
    return exchange, envelope[middle + 1 : end].decode("utf-8", "surrogateescape"), raw


_texts: dict[bytes, Pairs | None] = {}


def texts(given: UsedProperties) -> Pairs | None:
    """Return the headers for the broker's message, or None."""
    raw = given.raw
    if not (raw[0] << 8 | raw[1]) & ~_HIDDEN_FLAGS:
        return None
    if given.headers or len(raw) > _CACHED_BYTES:
        return _texts_of(raw)
    if raw not in _texts:
        if len(_texts) >= _CACHED_MAX:
            _texts.clear()
        _texts[raw] = _texts_of(raw)
    return _texts[raw]


def _texts_of(raw: bytes) -> Pairs | None:
    known = properties.decode(raw)
    found = [(_HEADER[field], value) for field in _SHOWN if (value := getattr(known, field)) is not None]
    found += [(name, text) for name, value in (known.headers or {}).items() if (text := _text(value)) is not None]
    return _bounded(found) or None


def _text(value: object) -> str | None:
    """Return a simple value as text; None for tables, arrays and bytes."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, int | float) else None


def is_text(value: str) -> bool:
    """Return whether a value was valid UTF-8 on the wire."""
    return value.isascii() or not any("\ud800" <= each <= "\udfff" for each in value)


def _bounded(pairs: Pairs) -> Pairs:
    """Return as many headers as a message may have, each name once; the envelope has them all."""
    kept: dict[str, str] = {}
    room = HEADERS_BYTES_MAX
    for name, value in pairs:
        try:
            size = len(name.encode()) + len(value.encode())
        except UnicodeEncodeError:  # bytes that are not text
            continue
        if name and name not in kept and size <= room and len(kept) < HEADERS_MAX:
            kept[name] = value
            room -= size
    return list(kept.items())


def from_elsewhere(headers: Iterable[tuple[str, str]] | None, message_id: str | None) -> bytes:
    """Return raw properties for a message of another wire."""
    known: dict[str, Any] = {"delivery_mode": PERSISTENT}
    rest: dict[str, str] = {}
    for name, value in headers or ():
        field = _PROPERTY.get(name)
        if field is not None and len(value.encode()) <= 255:
            known[field] = value
        elif len(name.encode()) <= 255:
            rest[name] = value
    if message_id is not None and len(message_id.encode()) <= 255:  # the broker allows one byte more
        known.setdefault("message_id", message_id)
    return properties.encode(Properties(headers=rest or None, **known))


def headers_of(given: UsedProperties) -> Mapping[str, Any]:
    """Return the headers, decoded."""
    return decode_table(given.headers) if given.headers else {}
