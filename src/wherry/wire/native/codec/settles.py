"""SETTLE, SETTLED and RENEW.

SETTLE    stream u32 · verb u8 · reserved u8 · options length u16 · options as JSON · parts up to the end
part      token u64 · ranges u32 · ranges                                12 bytes and the ranges; 0: the whole lease
range     first offset u64 · messages u32                                12 bytes

verb      1 ack · 2 nack · 3 dead-letter · 4 release

SETTLED   ranges of requests up to the end: first request u32 · requests u32
RENEW     stream u32 · lease_ms u32 (0: as the subscription is configured) · tokens u64 up to the end
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import IntEnum
from struct import Struct
from struct import error as struct_error
from typing import Final, NamedTuple, TypeAlias

import msgspec

from wherry.model.calls.receipts import SETTLED_MAX, TOKEN_MAX
from wherry.model.limits import OFFSET_MAX
from wherry.wire.native.codec.faults import WireFault
from wherry.wire.native.codec.frames import HEADER, Kind

SETTLE_OPTIONS_BYTES_MAX: Final = 16 << 10
RANGES_MAX: Final = 65_536
"""Most parts and ranges in one SETTLE."""

TOKENS_MAX: Final = 65_536
"""Most leases in one RENEW."""

_HEAD, _PART, _RANGE = Struct("<IBBH"), Struct("<QI"), Struct("<QI")
_ONE = Struct("<IBBHQIQI")
"""The whole body that settles one message, without options."""
_REQUESTS, _RENEW, _TOKEN = Struct("<II"), Struct("<II"), Struct("<Q")

SettlePart: TypeAlias = tuple[int, Sequence[tuple[int, int]]]
"""The token of a lease, and `(first offset, messages)` of its ranges; no range for the whole lease."""


class Verb(IntEnum):
    """What a client does with messages."""

    ACK = 1
    NACK = 2
    DEAD_LETTER = 3
    RELEASE = 4


class SettleTerms(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """The options of a SETTLE: `delay_ms` and `error` of a nack, `reason` and `error` of a dead letter."""

    delay_ms: int | None = None
    error: str = ""
    reason: str = "rejected"


class SettleRequest(NamedTuple):
    """A decoded SETTLE."""

    stream: int
    verb: int
    options: bytes
    """JSON; empty for none."""
    parts: list[SettlePart]


class RenewRequest(NamedTuple):
    """A decoded RENEW."""

    stream: int
    lease_ms: int | None
    tokens: list[int]


def encode_settle(number: int, stream: int, verb: int, parts: Sequence[SettlePart], options: bytes = b"") -> bytes:
    """Return a SETTLE.

    Examples
    --------
    >>> encode_settle(9, 1, Verb.ACK, [(77, [(12, 1)])])[12:20].hex(" ")
    '01 00 00 00 01 00 00 00'
    """
    if len(options) > SETTLE_OPTIONS_BYTES_MAX:
        raise WireFault("client", "options", f"{len(options)} bytes", f"at most {SETTLE_OPTIONS_BYTES_MAX} bytes")
    pieces = [_HEAD.pack(stream, verb, 0, len(options)), options]
    for token, ranges in parts:
        pieces.append(_PART.pack(token, len(ranges)))
        pieces += [_RANGE.pack(first, messages) for first, messages in ranges]
    body = b"".join(pieces)
    return HEADER.pack(len(body), Kind.SETTLE, 0, 0, number) + body


def decode_settle(body: bytes) -> SettleRequest:
    """Return what a SETTLE holds."""
    if len(body) == _ONE.size:
        stream, verb, reserved, size, token, ranges, first, messages = _ONE.unpack(body)
        if not (reserved or size) and ranges == 1:
            part = (token, [(first, messages)])
            _check_part(part, 0)
            return SettleRequest(stream, _checked_verb(verb), b"", [part])
    try:
        stream, verb, reserved, size = _HEAD.unpack_from(body)
        at = _HEAD.size + size
        parts = _decode_parts(body, at)
    except struct_error:
        raise WireFault("client", "parts", f"{len(body)} bytes", "a body that ends with its last part") from None
    if reserved:
        raise WireFault("client", "reserved", reserved, "0")
    if size > SETTLE_OPTIONS_BYTES_MAX:
        raise WireFault("client", "options", f"{size} bytes", f"at most {SETTLE_OPTIONS_BYTES_MAX} bytes")
    return SettleRequest(stream, _checked_verb(verb), body[_HEAD.size : at], parts)


def _checked_verb(verb: int) -> int:
    if not Verb.ACK <= verb <= Verb.RELEASE:
        raise WireFault("client", "verb", verb, "1 ack, 2 nack, 3 dead-letter, 4 release")
    return verb


def _decode_parts(body: bytes, at: int) -> list[SettlePart]:
    parts: list[SettlePart] = []
    named, end = 0, len(body)
    if at >= end:
        raise WireFault("client", "parts", 0, "at least one part")
    if end - at > RANGES_MAX * _RANGE.size:
        raise WireFault("client", "ranges", f"{end - at} bytes", f"at most {RANGES_MAX} parts and ranges in one frame")
    while at < end:
        token, count = _PART.unpack_from(body, at)
        at += _PART.size
        stop = at + count * _RANGE.size
        if stop > end:
            raise WireFault("client", "ranges", count, f"as many as the body holds: {(end - at) // _RANGE.size}")
        part = (token, list(_RANGE.iter_unpack(body[at:stop])))
        named = _check_part(part, named)
        parts.append(part)
        at = stop
    return parts


def _check_part(part: SettlePart, named: int) -> int:
    """Check the numbers of a part; return how many messages are named so far."""
    token, ranges = part
    if token > TOKEN_MAX:
        raise WireFault("client", "token", token, f"at most {TOKEN_MAX}")
    named += not ranges
    for first, messages in ranges:
        if not messages or first + messages - 1 > OFFSET_MAX:
            raise WireFault("client", "ranges", (first, messages), f"at least one message, offsets up to {OFFSET_MAX}")
        named += messages
    if named > SETTLED_MAX:
        raise WireFault("client", "ranges", named, f"at most {SETTLED_MAX} messages in one frame")
    return named


def encode_settled(requests: Iterable[tuple[int, int]]) -> bytes:
    """Return a SETTLED: `(first request, requests)` of each range."""
    body = b"".join([_REQUESTS.pack(first, count) for first, count in requests])
    return HEADER.pack(len(body), Kind.SETTLED, 0, 0, 0) + body


def decode_settled(body: bytes) -> list[tuple[int, int]]:
    """Return the ranges of requests that a SETTLED answers."""
    if not body or len(body) % _REQUESTS.size:
        raise WireFault("server", "requests", f"{len(body)} bytes", f"one or more ranges of {_REQUESTS.size} bytes")
    return list(_REQUESTS.iter_unpack(body))


def ranges_of(numbers: Iterable[int]) -> list[tuple[int, int]]:
    """Return numbers as `(first, count)` of consecutive ones, in the order given.

    Examples
    --------
    >>> ranges_of([4, 5, 6, 9])
    [(4, 3), (9, 1)]
    """
    ranges: list[tuple[int, int]] = []
    first, count = 0, 0
    for number in numbers:
        if count and number == first + count:
            count += 1
            continue
        if count:
            ranges.append((first, count))
        first, count = number, 1
    if count:
        ranges.append((first, count))
    return ranges


def encode_renew(number: int, stream: int, tokens: Sequence[int], lease_ms: int | None = None) -> bytes:
    """Return a RENEW."""
    body = b"".join([_RENEW.pack(stream, lease_ms or 0), *map(_TOKEN.pack, tokens)])
    return HEADER.pack(len(body), Kind.RENEW, 0, 0, number) + body


def decode_renew(body: bytes) -> RenewRequest:
    """Return what a RENEW holds."""
    rest = len(body) - _RENEW.size
    if rest < _TOKEN.size or rest % _TOKEN.size or rest > TOKENS_MAX * _TOKEN.size:
        allowed = f"a stream, a time and 1 to {TOKENS_MAX} tokens of {_TOKEN.size} bytes"
        raise WireFault("client", "tokens", f"{len(body)} bytes", allowed)
    stream, lease_ms = _RENEW.unpack_from(body)
    tokens = [token for (token,) in _TOKEN.iter_unpack(body[_RENEW.size :])]
    if max(tokens) > TOKEN_MAX:
        raise WireFault("client", "token", max(tokens), f"at most {TOKEN_MAX}")
    return RenewRequest(stream, lease_ms or None, tokens)
