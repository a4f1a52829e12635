"""Decoder of a chunked body (RFC 9112, 7.1): bytes in, payload out, and the exact place where the body ends.

    5;name=value CR LF    size in hex; what follows a `;` is passed over
    hello CR LF
    0 CR LF               the last one
    Trailer: x CR LF      passed over too
    CR LF

The decoder is strict where two readers could differ: it refuses a bare LF, and a sign or a space before the size.
"""

from __future__ import annotations

import re
from enum import Enum, auto

LINE_BYTES_MAX = 256
"""Longest line with a size and its extensions."""

TRAILERS_BYTES_MAX = 8 << 10

CHUNKS_MAX = 65_536
"""Most chunks of one body: one-byte chunks would cost the broker a hundred times what they cost the sender."""

_SIZE = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;[\t\x20-\x7e\x80-\xff]*)?")
_TRAILER = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+:[\t\x20-\x7e\x80-\xff]*")


class BrokenChunks(ValueError):
    """The body is not chunked correctly."""


class _Expects(Enum):
    SIZE = auto()
    DATA = auto()
    END = auto()
    TRAILER = auto()
    NOTHING = auto()


class Chunks:
    """The received part of one chunked body."""

    def __init__(self) -> None:
        self.payload = bytearray()
        self.wanted = 0
        """Bytes of payload announced so far: a body that is too large is refused before it arrives."""
        self._expects = _Expects.SIZE
        self._left = 0
        self._count = 0
        self._trailers_bytes = 0

    @property
    def done(self) -> bool:
        """Return whether the body is whole."""
        return self._expects is _Expects.NOTHING

    def feed(self, data: memoryview) -> int:
        """Decode as many bytes as possible, and return how many; the rest is half a line, or follows the body."""
        at = 0
        while not self.done:
            if self._expects is _Expects.DATA:
                piece = data[at : at + self._left]
                self.payload += piece
                at += len(piece)
                self._left -= len(piece)
                if self._left:
                    return at
                self._expects = _Expects.END
            else:
                line = self._line(data[at:])
                if line is None:
                    return at
                at += len(line) + 2
                self._read(line)
        return at

    def _line(self, data: memoryview) -> bytes | None:
        """Return the next line without its end; None if its end has not arrived."""
        allowed = 0 if self._expects is _Expects.END else LINE_BYTES_MAX
        if self._expects is _Expects.TRAILER:
            allowed = TRAILERS_BYTES_MAX - self._trailers_bytes
        head = bytes(data[: allowed + 2])
        line, end, _ = head.partition(b"\r\n")
        if not end and len(head) == allowed + 2:
            raise BrokenChunks(f"a line of the chunks has no end within {allowed + 2} bytes")
        return line if end else None

    def _read(self, line: bytes) -> None:
        if self._expects is _Expects.END:
            self._expects = _Expects.SIZE
        elif self._expects is _Expects.SIZE:
            found = _SIZE.fullmatch(line)
            if found is None:
                raise BrokenChunks(f"the size of a chunk is {line[:40]!r}; it is written in hexadecimal")
            self._count += 1
            if self._count > CHUNKS_MAX:
                raise BrokenChunks(f"there are more than {CHUNKS_MAX} of them; larger ones are fewer")
            self._left = int(found[1], 16)
            self.wanted += self._left
            self._expects = _Expects.DATA if self._left else _Expects.TRAILER
        elif not line:
            self._expects = _Expects.NOTHING
        elif _TRAILER.fullmatch(line) is None:
            raise BrokenChunks(f"a trailer is {line[:40]!r}")
        else:
            self._trailers_bytes += len(line) + 2
