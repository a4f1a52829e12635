"""Encode values as bytes for a client.

Small parts are joined to one piece; a body above `APART` bytes is a piece of its own and is not copied here. Pieces are
written to the socket in their order.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import TypeAlias

from wherry.queueing.message.envelope import Label, Row
from wherry.queueing.message.table import encode_short
from wherry.wire.amqp.codec.frames import (
    ACK_WORD,
    BASIC,
    CONTENT_BODY,
    CONTENT_HEAD,
    CONTENT_HEADER,
    DELIVER_WORD,
    END,
    END_BYTE,
    HEAD,
    HEARTBEAT,
    METHOD,
    NACK_WORD,
    OVERHEAD,
)
from wherry.wire.amqp.codec.methods import Method, encode_method

Piece: TypeAlias = bytes | memoryview

APART = 64 * 1024

HEARTBEAT_FRAME = HEAD.pack(HEARTBEAT, 0, 0) + END_BYTE

_CONFIRM = struct.Struct(">BHIIQBB")
_TAG = struct.Struct(">Q")
_BETWEEN = struct.Struct(">BBHI")
"""The end of the header's frame and the head of the body's."""

_ENCODED_MAX = 1024


def frame(channel: int, method: Method) -> bytes:
    """Encode a method without content."""
    payload = encode_method(method)
    return b"%b%b\xce" % (HEAD.pack(METHOD, channel, len(payload)), payload)


def ack(channel: int, tag: int, multiple: bool = False) -> bytes:
    """Encode a confirm: a publish is safe; multiple: and all before it."""
    return _CONFIRM.pack(METHOD, channel, 13, ACK_WORD, tag, multiple, END)


def nack(channel: int, tag: int, multiple: bool = False) -> bytes:
    """Encode a refusal: a publish was not taken; multiple: nor were those before it that are unconfirmed."""
    return _CONFIRM.pack(METHOD, channel, 13, NACK_WORD, tag, multiple, END)


def content(channel: int, method: Method, properties: bytes, body: bytes, frame_max: int) -> list[Piece]:
    """Encode a method with content: `basic.return`, `basic.get-ok`, `basic.deliver`, and `basic.publish` of a client.

    `frame_max` is the largest frame, in bytes; 0 for no bound.
    """
    head = CONTENT_HEAD.pack(CONTENT_HEADER, channel, 12 + len(properties), BASIC, 0, len(body))
    pieces: list[Piece] = []
    small: list[Piece] = [frame(channel, method), head, properties, END_BYTE]
    _add_body(channel, body, frame_max, small, pieces)
    pieces.append(b"".join(small))
    return pieces


class DeliveryWriter:
    """Encodes the deliveries of one consumer; parts that are equal in all, or in all of one routing key, only once."""

    def __init__(self, channel: int, consumer_tag: str, frame_max: int) -> None:
        self._channel = channel
        self._frame_max = frame_max
        self._small = min(frame_max - OVERHEAD, APART) if frame_max else APART
        """The largest body that is one frame and joined with it."""
        self._tag = struct.pack(">I", DELIVER_WORD) + encode_short(consumer_tag)
        self._encoded: dict[tuple[str, str], tuple[bytes, bytes]] = {}

    def pieces(self, first: int, rows: Iterable[Row]) -> list[Piece]:
        """Encode method, header and body of each message, in order; `first` is the delivery tag of the first one."""
        pieces: list[Piece] = []
        small: list[Piece] = []
        before = behind = b""
        last: Label | None = None
        length = -1
        for tag, (label, body) in enumerate(rows, first):
            if label is not last or len(body) != length:
                last, length = label, len(body)
                before, behind = self._around_tag(label, length)
            if 0 < length <= self._small:
                small += (before, _TAG.pack(tag), behind, body, END_BYTE)
            else:
                small += (before, _TAG.pack(tag), behind)
                _add_body(self._channel, body, self._frame_max, small, pieces)
        if small:
            pieces.append(b"".join(small))
        return pieces

    def _around_tag(self, label: Label, length: int) -> tuple[bytes, bytes]:
        """Return the bytes before the delivery tag, and those between it and a small body or the body's frames."""
        channel = self._channel
        redelivered, exchange, routing_key, properties = label
        before, after = self._encoded.get((exchange, routing_key)) or self._encode(exchange, routing_key)
        parts = (
            b"\1" if redelivered else b"\0",
            after,
            CONTENT_HEAD.pack(CONTENT_HEADER, channel, 12 + len(properties), BASIC, 0, length),
            properties,
            _BETWEEN.pack(END, CONTENT_BODY, channel, length) if 0 < length <= self._small else END_BYTE,
        )
        return before, b"".join(parts)

    def _encode(self, exchange: str, routing_key: str) -> tuple[bytes, bytes]:
        """Return the bytes before and after the delivery tag."""
        after = encode_short(exchange) + encode_short(routing_key)
        before = HEAD.pack(METHOD, self._channel, len(self._tag) + 9 + len(after)) + self._tag
        if len(self._encoded) >= _ENCODED_MAX:
            self._encoded.clear()
        parts = self._encoded[exchange, routing_key] = (before, after + END_BYTE)
        return parts


def _add_body(channel: int, body: bytes, frame_max: int, small: list[Piece], pieces: list[Piece]) -> None:
    """Add the frames of a body to the small parts; a large part ends them as a piece and is a piece itself."""
    most = frame_max - OVERHEAD if frame_max else len(body)
    view = memoryview(body)
    for start in range(0, len(body), most or 1):
        part = view[start : start + most]
        small.append(HEAD.pack(CONTENT_BODY, channel, len(part)))
        if len(part) > APART:
            pieces.append(b"".join(small))
            pieces.append(part)
            small.clear()
        else:
            small.append(part)
        small.append(END_BYTE)
