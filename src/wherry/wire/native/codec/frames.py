"""Frames of the native wire: their header, kinds and flags. docs/wire.md is the specification.

All integers are little-endian. A frame is a header of 12 bytes and a body:

    byte    0         4      5       6          8        12
            │ length  │ kind │ flags │ reserved │ id     │ body …
            │ u32     │ u8   │ u8    │ u16 = 0  │ u32    │ `length` bytes

`id` is the number that the client gave a request or a stream, from 1 on; 0 in frames about the connection. Requests and
streams are numbered separately.

    kind           sent by  id        body
    0x01 HELLO     both     0         JSON
    0x02 PING      both     any       none
    0x03 PONG      both     as PING   none
    0x04 GOODBYE   both     0         JSON
    0x05 ERROR     server   any       JSON, a problem document; flag STREAM: the id is that of a stream
    0x06 MOVED     server   any       JSON; flag STREAM as above
    0x10 PUBLISH   client   request   topic, options, rows; flag ARROW: an Arrow stream instead of rows; flag QUIET
    0x11 CONFIRM   server   0         ranges of requests, with partitions and offsets
    0x20 SUBSCRIBE client   stream    JSON
    0x21 SUBSCRIBED server  stream    JSON
    0x22 CREDIT    client   stream    u32 messages
    0x23 DELIVER   server   stream    parts of leases with rows; flag ARROW: an Arrow stream instead
    0x24 CANCEL    both     stream    none, with flag STREAM; from the client also a request, without the flag
    0x30 SETTLE    client   request   stream, verb, options, parts of leases
    0x31 SETTLED   server   0         ranges of requests
    0x32 RENEW     client   request   stream, time, tokens
    0x40 CALL      client   request   head as JSON, body
    0x41 ANSWER    server   request   head as JSON, body

Calls of services have a protocol of their own with the same header: `invokes`.
"""

from __future__ import annotations

from enum import IntEnum
from struct import Struct
from typing import Final, TypeAlias

import pyarrow as pa

Chunk: TypeAlias = bytes | bytearray | memoryview | pa.Buffer
"""A part of a frame, as a transport takes it."""

VERSION: Final = 1
PROTOCOL: Final = f"wherry/{VERSION}"
"""The name of the protocol in the header `Upgrade`."""

PATH: Final = "/v1/wire"
"""The path that answers the upgrade."""

FRAME_BYTES_MAX: Final = 32 << 20
"""Most bytes of a body: the largest message, with everything beside its payload, fits."""

NUMBER_MAX: Final = (1 << 32) - 1
"""Highest number of a request or a stream."""

HEADER: Final = Struct("<IBBHI")
HEADER_BYTES: Final = HEADER.size

ALIGNMENT: Final = 8
"""An Arrow stream, and the body of a call, begins at a multiple of so many bytes from the start of its frame's body."""


class Kind(IntEnum):
    """What a frame is about."""

    HELLO = 0x01
    PING = 0x02
    PONG = 0x03
    GOODBYE = 0x04
    ERROR = 0x05
    MOVED = 0x06
    PUBLISH = 0x10
    CONFIRM = 0x11
    SUBSCRIBE = 0x20
    SUBSCRIBED = 0x21
    CREDIT = 0x22
    DELIVER = 0x23
    CANCEL = 0x24
    SETTLE = 0x30
    SETTLED = 0x31
    RENEW = 0x32
    CALL = 0x40
    ANSWER = 0x41


class Flag:
    """How to read a frame; each kind allows some of them, see `RULES`. Plain numbers: an enum is slow to combine."""

    ARROW: Final = 0x01
    """The messages are an Arrow IPC stream. In PUBLISH and DELIVER."""
    QUIET: Final = 0x02
    """The client wants no CONFIRM, only errors. In PUBLISH."""
    STREAM: Final = 0x04
    """The id is that of a stream. In ERROR, MOVED and CANCEL."""
    MSGPACK: Final = 0x08
    """The argument or the result is MessagePack. In INVOKE and RESULT, as are those that follow."""
    JSON: Final = 0x10
    """The argument or the result is JSON."""
    REFUSED: Final = 0x20
    """The method was not run. In RESULT."""
    FAILED: Final = 0x40
    """The method was run, and raised. In RESULT."""
    IDEMPOTENT: Final = 0x80
    """The provider declares that the method may be run twice. In RESULT."""


BOTH, CLIENT, SERVER = ("client", "server"), ("client",), ("server",)

Rules: TypeAlias = dict[IntEnum, tuple[tuple[str, ...], int, str]]
"""By kind: which side sends it, the flags that it may have, and whether its id is 0, a number from 1 on, or any."""

RULES: Final[Rules] = {
    Kind.HELLO: (BOTH, 0, "zero"),
    Kind.PING: (BOTH, 0, "any"),
    Kind.PONG: (BOTH, 0, "any"),
    Kind.GOODBYE: (BOTH, 0, "zero"),
    Kind.ERROR: (SERVER, Flag.STREAM, "any"),
    Kind.MOVED: (SERVER, Flag.STREAM, "any"),
    Kind.PUBLISH: (CLIENT, Flag.ARROW | Flag.QUIET, "number"),
    Kind.CONFIRM: (SERVER, 0, "zero"),
    Kind.SUBSCRIBE: (CLIENT, 0, "number"),
    Kind.SUBSCRIBED: (SERVER, 0, "number"),
    Kind.CREDIT: (CLIENT, 0, "number"),
    Kind.DELIVER: (SERVER, Flag.ARROW, "number"),
    Kind.CANCEL: (BOTH, Flag.STREAM, "number"),
    Kind.SETTLE: (CLIENT, 0, "number"),
    Kind.SETTLED: (SERVER, 0, "zero"),
    Kind.RENEW: (CLIENT, 0, "number"),
    Kind.CALL: (CLIENT, 0, "number"),
    Kind.ANSWER: (SERVER, 0, "number"),
}
"""Of the protocol between a client and a node."""

EMPTY: Final = frozenset({Kind.PING, Kind.PONG, Kind.CANCEL})
"""Kinds without a body."""


def encode_frame(kind: int, number: int = 0, body: bytes = b"", flags: int = 0) -> bytes:
    """Return a frame as bytes.

    Examples
    --------
    >>> encode_frame(Kind.PING, 7).hex(" ")
    '00 00 00 00 02 00 00 00 07 00 00 00'
    """
    return HEADER.pack(len(body), kind, flags, 0, number) + body


def padding(length: int) -> bytes:
    """Return the zero bytes between a head of `length` bytes and what has to be aligned.

    Examples
    --------
    >>> len(padding(13)), len(padding(16))
    (3, 0)
    """
    return bytes(-length % ALIGNMENT)


def chunk_bytes(chunks: list[Chunk]) -> int:
    """Return the bytes of all chunks together."""
    return sum(memoryview(chunk).nbytes for chunk in chunks)
