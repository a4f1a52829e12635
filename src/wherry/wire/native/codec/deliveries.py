"""CREDIT and DELIVER.

    CREDIT    messages u32

    DELIVER   parts, up to the end of the body; with flag ARROW an Arrow IPC stream instead
    part      token u64 · partition u16 · reserved u16 · rows u32 · rows (`rows`)          16 bytes and the rows

A part has rows of one lease that follow each other. Where the messages of several partitions are in one order, as by
priority, a lease has several parts. In an Arrow stream the columns `lease`, `partition`, `offset`, `published` and
`attempt` have what parts and rows say.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from operator import itemgetter
from struct import Struct
from struct import error as struct_error

from wherry.wire.native.codec.faults import WireFault
from wherry.wire.native.codec.frames import HEADER, Chunk, Flag, Kind, chunk_bytes, encode_frame
from wherry.wire.native.codec.rows import DeliveredRow, decode_delivered, encode_delivered

_U32 = Struct("<I")
_PART = Struct("<QHHI")
_ONE = Struct("<IBBHIQHHIQqIHB")
"""Header, part and row of a message that has nothing but a payload."""
_lease_of = itemgetter(0, 1)


def encode_credit(stream: int, messages: int) -> bytes:
    """Return a CREDIT."""
    return encode_frame(Kind.CREDIT, stream, _U32.pack(messages))


def decode_credit(body: bytes) -> int:
    """Return how many messages a CREDIT grants."""
    if len(body) != _U32.size:
        raise WireFault("client", "messages", f"{len(body)} bytes", "a number of 4 bytes")
    (messages,) = _U32.unpack(body)
    if not messages:
        raise WireFault("client", "messages", 0, "a number from 1 to 4294967295")
    return int(messages)


def encode_deliver_one(
    stream: int, token: int, partition: int, offset: int, published_us: int, attempt: int, payload: bytes
) -> bytes:
    """Return a DELIVER of one message that has nothing but a payload: the same bytes as `encode_deliver`.

    Examples
    --------
    >>> row = DeliveredRow(77, 0, 12, 1_800_000_000_000_000, 1, b"hi")
    >>> encode_deliver_one(3, *row[:6]) == encode_deliver(3, [row])
    True
    """
    length = _ONE.size - HEADER.size + len(payload)
    head = (length, Kind.DELIVER, 0, 0, stream, token, partition, 0, 1, offset, published_us, len(payload), attempt, 0)
    return _ONE.pack(*head) + payload


def encode_deliver(stream: int, rows: Sequence[DeliveredRow]) -> bytes:
    """Return a DELIVER of rows."""
    if len(rows) == 1:
        row = rows[0]
        body = _PART.pack(row.token, row.partition, 0, 1) + encode_delivered(row)
        return HEADER.pack(len(body), Kind.DELIVER, 0, 0, stream) + body
    parts: list[bytes] = []
    for (token, partition), group in groupby(rows, _lease_of):
        encoded = [encode_delivered(row) for row in group]
        parts += [_PART.pack(token, partition, 0, len(encoded)), *encoded]
    body = b"".join(parts)
    return HEADER.pack(len(body), Kind.DELIVER, 0, 0, stream) + body


def encode_deliver_arrow(stream: int, chunks: list[Chunk]) -> list[Chunk]:
    """Return a DELIVER of an Arrow IPC stream as chunks, without a copy."""
    return [HEADER.pack(chunk_bytes(chunks), Kind.DELIVER, Flag.ARROW, 0, stream), *chunks]


def decode_deliver(body: bytes) -> list[DeliveredRow]:
    """Return the rows of a DELIVER without the flag ARROW."""
    rows: list[DeliveredRow] = []
    at = 0
    while at < len(body):
        try:
            token, partition, reserved, count = _PART.unpack_from(body, at)
        except struct_error:
            raise WireFault("server", "parts", f"{len(body)} bytes", "a body that ends with its last part") from None
        if reserved or not count:
            raise WireFault("server", "parts", (reserved, count), "0 in the reserved bytes, and at least one row")
        some, at = decode_delivered(body, at + _PART.size, token, partition, count)
        rows += some
    return rows
