"""Messages as rows: what PUBLISH and DELIVER share. A row has a fixed part, optional fields, and its payload.

    PUBLISH   payload length u32 · bits u8                                               5 bytes
    DELIVER   offset u64 · published i64 · payload length u32 · attempt u16 · bits u8   23 bytes

    bit   field      bytes, in this order, before the payload
    0x01  key        u16 length, UTF-8
    0x02  headers    u16 count, then for each u16 length, UTF-8 name, u16 length, UTF-8 value
    0x04  priority   u16
    0x08  due        i64 Unix milliseconds
    0x10  expires    i64 Unix milliseconds
    0x20  id         u16 length, UTF-8
    0x40  envelope   u32 length, bytes
    0x80  reserved   0

Most messages have a payload and nothing else: those rows cost one unpack and one slice.
"""

from __future__ import annotations

from struct import Struct
from struct import error as struct_error
from typing import Final, NamedTuple

from wherry.model import limits
from wherry.wire.native.codec.faults import Side, WireFault

ROWS_MAX: Final = 1_024
"""Most rows in a frame. They are read in one go, so more would hold up other clients; Arrow is there for more."""

KEY, HEADERS, PRIORITY, DUE, EXPIRES, ID, ENVELOPE = (1 << bit for bit in range(7))
KNOWN_BITS: Final = (1 << 7) - 1

_ROW = Struct("<IB")
_DELIVERED = Struct("<QqIHB")
_U16, _U32, _I64 = Struct("<H"), Struct("<I"), Struct("<q")
_U16_MAX = (1 << 16) - 1


class RowFields(NamedTuple):
    """What a message has beside its payload. Times are Unix milliseconds."""

    key: str | None = None
    headers: list[tuple[str, str]] | None = None
    priority: int | None = None
    due_ms: int | None = None
    expires_ms: int | None = None
    id: str | None = None
    envelope: bytes | None = None


PLAIN: Final = RowFields()
"""The fields of a message that has a payload only: the same object for all of them."""


class DeliveredRow(NamedTuple):
    """One pushed message: its lease, its place, and what was published. `published_us` is Unix microseconds."""

    token: int
    partition: int
    offset: int
    published_us: int
    attempt: int
    payload: bytes
    fields: RowFields = PLAIN


def encode_row(payload: bytes, fields: RowFields = PLAIN) -> bytes:
    """Return one row of a PUBLISH."""
    if fields is PLAIN:
        return _ROW.pack(len(payload), 0) + payload
    bits, more = _encode_fields(fields)
    return b"".join((_ROW.pack(len(payload), bits), more, payload))


def encode_delivered(row: DeliveredRow) -> bytes:
    """Return one row of a DELIVER, without its token and partition, which are those of its part."""
    _, _, offset, published_us, attempt, payload, fields = row
    if fields is PLAIN:
        return _DELIVERED.pack(offset, published_us, len(payload), attempt, 0) + payload
    bits, more = _encode_fields(fields)
    return b"".join((_DELIVERED.pack(offset, published_us, len(payload), attempt, bits), more, payload))


def decode_rows(body: bytes, at: int, count: int) -> tuple[list[bytes], list[RowFields] | None]:
    """Return the payloads of the rows of a PUBLISH up to the end of its body, and their fields (None: all plain)."""
    payloads: list[bytes] = []
    fields: list[RowFields] | None = None
    try:
        for row in range(count):
            length, bits = _ROW.unpack_from(body, at)
            at += _ROW.size
            if bits:
                if fields is None:
                    fields = [PLAIN] * row
                found, at = _decode_fields("client", body, at, bits)
                fields.append(found)
            elif fields is not None:
                fields.append(PLAIN)
            payloads.append(body[at : at + length])
            at += length
    except struct_error:
        raise _short("client", body) from None
    if at != len(body):
        raise _short("client", body) if at > len(body) else _long("client", len(body) - at)
    return payloads, fields


def decode_delivered(body: bytes, at: int, token: int, partition: int, count: int) -> tuple[list[DeliveredRow], int]:
    """Return the rows of one part of a DELIVER, and where the next part begins."""
    rows: list[DeliveredRow] = []
    try:
        for _ in range(count):
            offset, published_us, length, attempt, bits = _DELIVERED.unpack_from(body, at)
            at += _DELIVERED.size
            fields = PLAIN
            if bits:
                fields, at = _decode_fields("server", body, at, bits)
            payload = body[at : at + length]
            at += length
            rows.append(DeliveredRow(token, partition, offset, published_us, attempt, payload, fields))
    except struct_error:
        raise _short("server", body) from None
    if at > len(body):
        raise _short("server", body)
    return rows, at


def _encode_fields(fields: RowFields) -> tuple[int, bytes]:
    """Return the bits and bytes of optional fields."""
    key, headers, priority, due_ms, expires_ms, message_id, envelope = fields
    bits, parts = 0, []
    if key is not None:
        bits |= KEY
        parts.append(_encode_text("key", key))
    if headers is not None:
        bits |= HEADERS
        parts.append(_U16.pack(_fitting("headers", len(headers), "names")))
        parts += [_encode_text("headers", text) for pair in headers for text in pair]
    if priority is not None:
        bits |= PRIORITY
        parts.append(_packed(_U16, "priority", priority))
    if due_ms is not None:
        bits |= DUE
        parts.append(_packed(_I64, "due", due_ms))
    if expires_ms is not None:
        bits |= EXPIRES
        parts.append(_packed(_I64, "expires", expires_ms))
    if message_id is not None:
        bits |= ID
        parts.append(_encode_text("id", message_id))
    if envelope is not None:
        bits |= ENVELOPE
        parts += [_U32.pack(len(envelope)), envelope]
    return bits, b"".join(parts)


def _packed(form: Struct, field: str, value: int) -> bytes:
    try:
        return form.pack(value)
    except struct_error as fault:
        raise WireFault("client", field, value, f"a number that fits its bytes ({fault})") from None


def _encode_text(field: str, text: str) -> bytes:
    try:
        data = text.encode()
    except UnicodeEncodeError:
        raise WireFault("client", field, text, "text that is valid Unicode") from None
    return _U16.pack(_fitting(field, len(data), "bytes of UTF-8")) + data


def _fitting(field: str, count: int, what: str) -> int:
    if count > _U16_MAX:
        raise WireFault("client", field, count, f"at most {_U16_MAX} {what}")
    return count


def _decode_fields(side: Side, body: bytes, at: int, bits: int) -> tuple[RowFields, int]:
    """Return the optional fields that begin at a place, and the place behind them."""
    if bits & ~KNOWN_BITS:
        raise WireFault(side, "bits", bits, f"bits of {KNOWN_BITS:#04x}")
    key = headers = priority = due_ms = expires_ms = message_id = envelope = None
    if bits & KEY:
        key, at = _decode_text(side, "key", body, at)
    if bits & HEADERS:
        headers, at = _decode_headers(side, body, at)
    if bits & PRIORITY:
        (priority,) = _U16.unpack_from(body, at)
        at += 2
    if bits & DUE:
        (due_ms,) = _I64.unpack_from(body, at)
        at += 8
    if bits & EXPIRES:
        (expires_ms,) = _I64.unpack_from(body, at)
        at += 8
    if bits & ID:
        message_id, at = _decode_text(side, "id", body, at)
    if bits & ENVELOPE:
        (length,) = _U32.unpack_from(body, at)
        envelope, at = body[at + 4 : at + 4 + length], at + 4 + length
    return RowFields(key, headers, priority, due_ms, expires_ms, message_id, envelope), at


def _decode_headers(side: Side, body: bytes, at: int) -> tuple[list[tuple[str, str]], int]:
    (count,) = _U16.unpack_from(body, at)
    if count > limits.HEADERS_MAX:
        raise WireFault(side, "headers", count, f"at most {limits.HEADERS_MAX} in a message")
    at += 2
    headers = []
    for _ in range(count):
        name, at = _decode_text(side, "headers", body, at)
        value, at = _decode_text(side, "headers", body, at)
        headers.append((name, value))
    return headers, at


def _decode_text(side: Side, field: str, body: bytes, at: int) -> tuple[str, int]:
    (length,) = _U16.unpack_from(body, at)
    at += 2
    data = body[at : at + length]
    try:
        return data.decode(), at + length
    except UnicodeDecodeError:
        raise WireFault(side, field, data, "UTF-8") from None


def _short(side: Side, body: bytes) -> WireFault:
    return WireFault(side, "rows", f"{len(body)} bytes", "a body that ends with its last row: it ends before that")


def _long(side: Side, more: int) -> WireFault:
    return WireFault(side, "rows", f"{more} bytes after the last row", "a body that ends with its last row")
