"""PUBLISH and CONFIRM.

    PUBLISH   topic length u16 · topic · options length u16 · options as JSON · messages
    messages  count u32 · rows (`rows`); with flag ARROW zero bytes up to a multiple of 8, then an Arrow IPC stream

    CONFIRM   count u32 · entries · for each entry with flag PLACED, in order: count u32 · places
    entry     first request u32 · requests u32 · partition u16 · flags u16 · dead u32 · first offset u64      24 bytes
    place     partition u16 · reserved u16 · messages u32 · first offset u64                                  16 bytes

The messages of all requests of an entry have consecutive offsets in one partition, in the order of the requests, from
the first offset on; the client knows how many messages each request had. The last `dead` messages of the entry are
dead letters of a full topic. An entry of a single request whose messages are not consecutive has the flag PLACED: then
its places say where they are, and its own partition and offset are those of the first message.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from struct import error as struct_error
from typing import Final, NamedTuple

import msgspec

from wherry.wire.native.codec.faults import WireFault
from wherry.wire.native.codec.frames import (
    FRAME_BYTES_MAX,
    HEADER,
    Chunk,
    Flag,
    Kind,
    chunk_bytes,
    padding,
)
from wherry.wire.native.codec.rows import PLAIN, ROWS_MAX, RowFields, decode_rows, encode_row

OPTIONS_BYTES_MAX: Final = 16 << 10
_U16, _U32 = Struct("<H"), Struct("<I")
_ONE_ROW = Struct("<HIIB")
"""What lies between topic and payload of a lone message: no options, one row, its length, no fields."""

_ENTRY, _PLACE = Struct("<IIHHIQ"), Struct("<HHIQ")


class Confirmed:
    """Flags of an entry of CONFIRM."""

    DURABLE: Final = 0x01
    """The messages are on disk. Not set for transient messages."""
    REPEATED: Final = 0x02
    """An earlier request of this producer had published the messages."""
    PLACED: Final = 0x04
    """Places follow, since the messages are not at consecutive offsets of one partition."""
    FLOW: Final = 0x08
    """The topic flows: the messages are on this node, which passes them on to other nodes later."""


class PublishRequest(NamedTuple):
    """A decoded PUBLISH: rows, or an Arrow stream."""

    topic: str
    options: bytes
    """JSON; empty for none."""
    payloads: list[bytes]
    fields: list[RowFields] | None
    """Of each row; None if no row has any, or the messages are an Arrow stream."""
    arrow: memoryview | None


class PublishTerms(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """The options of a PUBLISH: those of a publish over HTTP."""

    persistent: bool | None = None
    partition: int | None = None
    producer: str | None = None
    sequence: int | None = None
    fingerprint: int | None = None
    callback: str | None = None


class ConfirmEntry(NamedTuple):
    """Some requests whose messages are stored."""

    first: int
    requests: int
    partition: int
    offset: int
    flags: int = Confirmed.DURABLE
    dead: int = 0
    places: Sequence[tuple[int, int, int]] = ()
    """`(partition, first offset, messages)`; empty if the messages are at consecutive offsets."""


def _encode_name(field: str, name: str) -> bytes:
    data = name.encode("utf-8", "surrogateescape")
    if len(data) >= 1 << 16:
        raise WireFault("client", field, name[:80], f"at most {(1 << 16) - 1} bytes")
    return data


def encode_publish(
    number: int,
    topic: str,
    payloads: Sequence[bytes],
    fields: Sequence[RowFields] | None = None,
    options: bytes = b"",
    *,
    quiet: bool = False,
) -> bytes:
    """Return a PUBLISH of rows.

    Examples
    --------
    >>> encode_publish(1, "jobs", [b"hi"]).hex(" ")
    '13 00 00 00 10 00 00 00 01 00 00 00 04 00 6a 6f 62 73 00 00 01 00 00 00 02 00 00 00 00 68 69'
    """
    name = _encode_name("topic", topic)
    flags = Flag.QUIET if quiet else 0
    if len(payloads) == 1 and not options and fields is None:
        payload = payloads[0]
        length = 2 + len(name) + _ONE_ROW.size + len(payload)
        head = HEADER.pack(_checked(length), Kind.PUBLISH, flags, 0, number)
        return b"".join((head, _U16.pack(len(name)), name, _ONE_ROW.pack(0, 1, len(payload), 0), payload))
    if not 1 <= len(payloads) <= ROWS_MAX:
        raise WireFault("client", "count", len(payloads), f"1 to {ROWS_MAX} rows in a frame")
    rows = map(encode_row, payloads, fields if fields is not None else [PLAIN] * len(payloads))
    body = b"".join((*_head(name, options), _U32.pack(len(payloads)), *rows))
    return HEADER.pack(_checked(len(body)), Kind.PUBLISH, flags, 0, number) + body


def encode_publish_arrow(
    number: int, topic: str, stream: list[Chunk], options: bytes = b"", *, quiet: bool = False
) -> list[Chunk]:
    """Return a PUBLISH of an Arrow IPC stream as chunks, without a copy of the stream."""
    start = b"".join(_head(_encode_name("topic", topic), options))
    start += padding(len(start))
    length = _checked(len(start) + chunk_bytes(stream))
    flags = Flag.ARROW | (Flag.QUIET if quiet else 0)
    return [HEADER.pack(length, Kind.PUBLISH, flags, 0, number) + start, *stream]


def _head(name: bytes, options: bytes) -> tuple[bytes, bytes, bytes, bytes]:
    if len(options) > OPTIONS_BYTES_MAX:
        raise WireFault("client", "options", f"{len(options)} bytes", f"at most {OPTIONS_BYTES_MAX} bytes")
    return _U16.pack(len(name)), name, _U16.pack(len(options)), options


def _checked(length: int) -> int:
    if length > FRAME_BYTES_MAX:
        raise WireFault("client", "length", length, f"at most {FRAME_BYTES_MAX} bytes in a frame")
    return length


def decode_publish(flags: int, body: bytes | memoryview) -> PublishRequest:
    """Return what a PUBLISH holds; `body` is a `memoryview` only with the flag ARROW."""
    if flags & Flag.ARROW:
        return _decode_arrow(memoryview(body))
    assert type(body) is bytes
    try:
        (length,) = _U16.unpack_from(body)
        at = 2 + length
        name = body[2:at]
        start = at + _ONE_ROW.size
        if start <= len(body):
            size, count, payload_bytes, bits = _ONE_ROW.unpack_from(body, at)
            if count == 1 and not (size or bits) and start + payload_bytes == len(body):
                return PublishRequest(_decode_name(name), b"", [body[start:]], None, None)
        options, at = _options(body, at)
        (count,) = _U32.unpack_from(body, at)
    except struct_error:
        raise _no_head(body) from None
    if not 1 <= count <= ROWS_MAX:
        raise WireFault("client", "count", count, f"1 to {ROWS_MAX} rows in a frame")
    payloads, fields = decode_rows(body, at + 4, count)
    return PublishRequest(_decode_name(name), options, payloads, fields, None)


def _decode_arrow(body: memoryview) -> PublishRequest:
    try:
        (length,) = _U16.unpack_from(body)
        name = bytes(body[2 : 2 + length])
        options, at = _options(body, 2 + length)
    except struct_error:
        raise _no_head(body) from None
    start = at + -at % 8
    if start >= len(body):
        raise WireFault("client", "messages", f"{len(body)} bytes", "an Arrow IPC stream behind the options")
    if any(body[at:start]):
        raise WireFault("client", "padding", bytes(body[at:start]), "zero bytes up to a multiple of 8")
    return PublishRequest(_decode_name(name), options, [], None, body[start:])


def _options(body: bytes | memoryview, at: int) -> tuple[bytes, int]:
    """Return the options that begin with their length at a place, and where they end."""
    (size,) = _U16.unpack_from(body, at)
    if size > OPTIONS_BYTES_MAX:
        raise WireFault("client", "options", f"{size} bytes", f"at most {OPTIONS_BYTES_MAX} bytes")
    start = at + _U16.size
    return bytes(body[start : start + size]), start + size


def _no_head(body: bytes | memoryview) -> WireFault:
    return WireFault("client", "topic", f"{len(body)} bytes", "a topic, options and messages")


def _decode_name(name: bytes) -> str:
    try:
        return name.decode()
    except UnicodeDecodeError:
        raise WireFault("client", "topic", name, "UTF-8") from None


def encode_confirm(entries: Sequence[ConfirmEntry]) -> bytes:
    """Return a CONFIRM.

    Examples
    --------
    >>> encode_confirm([ConfirmEntry(5, 2, 0, 90)])[16:].hex(" ")
    '05 00 00 00 02 00 00 00 00 00 01 00 00 00 00 00 5a 00 00 00 00 00 00 00'
    """
    parts, places = [_U32.pack(len(entries))], []
    for first, requests, partition, offset, given, dead, placed in entries:
        flags = given
        if placed:
            flags |= Confirmed.PLACED
            places.append(_U32.pack(len(placed)))
            places += [_PLACE.pack(part, 0, messages, start) for part, start, messages in placed]
        parts.append(_ENTRY.pack(first, requests, partition, flags, dead, offset))
    body = b"".join((*parts, *places))
    return HEADER.pack(len(body), Kind.CONFIRM, 0, 0, 0) + body


def decode_confirm(body: bytes) -> list[ConfirmEntry]:
    """Return the entries of a CONFIRM."""
    try:
        (count,) = _U32.unpack_from(body)
        at = 4 + count * _ENTRY.size
        entries = []
        for first, requests, partition, flags, dead, offset in _ENTRY.iter_unpack(body[4:at]):
            places: tuple[tuple[int, int, int], ...] = ()
            if flags & Confirmed.PLACED:
                (messages,) = _U32.unpack_from(body, at)
                stop = at + 4 + messages * _PLACE.size
                found = _PLACE.iter_unpack(body[at + 4 : stop])
                places = tuple((part, start, many) for part, _, many, start in found)
                at = stop
            entries.append(ConfirmEntry(first, requests, partition, offset, flags, dead, places))
    except struct_error:
        raise WireFault("server", "entries", f"{len(body)} bytes", "a count and so many entries") from None
    if at != len(body):
        raise WireFault("server", "entries", f"{len(body)} bytes", f"entries and places of {at} bytes")
    return entries
