"""Headers of STOMP as properties of AMQP, and back, as RabbitMQ documents it.

| STOMP | AMQP |
|---|---|
| `content-type`, `content-encoding`, `correlation-id`, `reply-to`, `expiration` | the same |
| `type`, `user-id`, `app-id` | the same |
| `amqp-message-id` | `message-id` |
| `priority`, `timestamp` | the same, numbers |
| `persistent:true` | `delivery-mode` 2; any other value: none |
| `expires`, Unix milliseconds, as in ActiveMQ | `expiration`, the milliseconds that are left |
| every other header | a header, as text |
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from wherry.model.errors import InvalidInput
from wherry.model.limits import TIME_MS_MAX
from wherry.queueing.message import properties
from wherry.queueing.message.properties import PERSISTENT, Properties
from wherry.wire.stomp import codec
from wherry.wire.stomp.codec import StompFault
from wherry.wire.stomp.destinations import PREFIXES, REPLY, written

DUE, KEY = "wherry-due", "wherry-key"

_TEXT = {
    "content-type": "content_type",
    "content-encoding": "content_encoding",
    "correlation-id": "correlation_id",
    "reply-to": "reply_to",
    "expiration": "expiration",
    "amqp-message-id": "message_id",
    "type": "type",
    "user-id": "user_id",
    "app-id": "app_id",
}
_NUMBERS = {"priority": ("priority", 255), "timestamp": ("timestamp", (1 << 64) - 1)}

_OF_SEND = frozenset({"destination", "receipt", "transaction", "content-length", "persistent", *_TEXT, *_NUMBERS})
"""Headers of a SEND that are not headers of the message."""

_OF_MESSAGE = frozenset(
    {"destination", "subscription", "message-id", "ack", "redelivered", "content-length", "persistent"}
    | {*_TEXT, *_NUMBERS}
)
"""Names that a MESSAGE uses itself: a message header of the same name would come second, and not count."""


def raw_properties(headers: Mapping[str, str], now_ms: int) -> bytes:
    """Return the properties of a SEND's message, as the bytes that an envelope keeps."""
    known: dict[str, Any] = {field: headers[name] for name, field in _TEXT.items() if name in headers}
    for name, (field, most) in _NUMBERS.items():
        if name in headers:
            known[field] = whole(headers, name, most)
    if "expires" in headers and "expiration" not in headers:
        left = whole(headers, "expires", TIME_MS_MAX)
        if left:  # 0 means never
            known["expiration"] = str(max(0, left - now_ms))
    elif "expiration" in headers:
        whole(headers, "expiration", TIME_MS_MAX)
    others = {name: value for name, value in headers.items() if name not in _OF_SEND}
    known["delivery_mode"] = PERSISTENT if flag(headers, "persistent") else None
    try:
        return properties.encode(Properties(headers=others or None, **known))
    except InvalidInput:
        raise _too_long(headers) from None


def _too_long(headers: Mapping[str, str]) -> StompFault:
    for name, value in headers.items():
        if name in _TEXT and len(value.encode()) > 255:
            return StompFault("Invalid header", f"{name} has {len(value.encode())} bytes; at most 255 are allowed")
    return StompFault("Invalid header", "the name of a header has more than 255 bytes")


def whole(headers: Mapping[str, str], name: str, most: int, first: int = 0) -> int:
    """Return the number in a header; raise the fault if it is none."""
    text = headers[name].strip()
    if not (text.isascii() and text.isdecimal()) or len(text) > 20 or not first <= int(text) <= most:
        shown = headers[name][:80]
        raise StompFault("Invalid header", f"{name} is {shown!r}; allowed: a whole number from {first} to {most}")
    return int(text)


def flag(headers: Mapping[str, str], name: str, *, default: bool = False) -> bool:
    """Return whether a header is `true`."""
    value = headers.get(name)
    return default if value is None else value.strip().lower() == "true"


_MILLISECONDS = re.compile(r"[0-9]{1,16}")


def due_ms(headers: Mapping[str, str]) -> int | None:
    """Return the due time of a message in Unix milliseconds; None for a message without one."""
    text = headers.get(DUE)
    if text is None:
        return None
    try:
        if _MILLISECONDS.fullmatch(text):
            when = int(text)
        else:
            moment = datetime.fromisoformat(text)
            when = int((moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)).timestamp() * 1000)
        if 0 <= when <= TIME_MS_MAX:
            return when
    except (ValueError, OverflowError):
        pass
    allowed = "Unix milliseconds in digits, or a time as in 2030-01-31T12:00:00Z"
    raise StompFault("Invalid header", f"{DUE} is {text[:80]!r}; allowed: {allowed}")


# ---------------------------------------------------------------------------------------------------------- the way out

_CACHED_MAX = 1_024
_CACHED_BYTES = 512

_lines: dict[tuple[str, str, bytes, str], tuple[bytes, bytes]] = {}


def message_lines(exchange: str, key: str, raw: bytes, version: str) -> tuple[bytes, bytes]:
    """Return the MESSAGE headers that come from the message: its destination, and the others; usually cached."""
    place = (exchange, key, raw, version)
    found = _lines.get(place)
    if found is None:
        found = _message_lines(exchange, key, raw, version)
        if len(raw) <= _CACHED_BYTES:
            if len(_lines) >= _CACHED_MAX:
                _lines.clear()
            _lines[place] = found
    return found


def _message_lines(exchange: str, key: str, raw: bytes, version: str) -> tuple[bytes, bytes]:
    known = properties.decode(raw)
    pairs: list[tuple[str, str]] = []
    for name, field in _TEXT.items():
        value = getattr(known, field)
        if value is not None:
            pairs.append((name, _place(value) if name == "reply-to" else value))
    if known.delivery_mode == PERSISTENT:
        pairs.append(("persistent", "true"))
    for name, (field, _) in _NUMBERS.items():
        value = getattr(known, field)
        if value is not None:
            pairs.append((name, str(int(value))))
    for name, value in (known.headers or {}).items():
        text = _as_text(value)
        if text is not None and name and name not in _OF_MESSAGE:
            pairs.append((name, text))
    destination = codec.header("destination", written(exchange, key), version)
    return destination, b"".join(codec.header(name, value, version) for name, value in pairs)


def _place(reply_to: str) -> str:
    """Return where replies go, as a destination: AMQP names a queue, STOMP may have named any destination."""
    return reply_to if reply_to.startswith(tuple(PREFIXES)) else REPLY + reply_to


def _as_text(value: object) -> str | None:
    """Return a simple value as text; None for lists and tables."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return str(value)
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return None
