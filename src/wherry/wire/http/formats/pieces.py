"""Large bodies in pieces: find where a JSON list, or JSON lines, can be cut between two messages.

A call with a million messages must not delay other calls while it is read: a piece is decoded in a millisecond or two,
and other tasks run between. To find a place to cut, only marks are examined (quotes, brackets, braces, commas,
backslashes): a cut is at a comma outside of text at the depth of the list. The scan need not validate: each piece is
decoded as a list of its own, and a list cut at commas is valid if all its pieces are valid and none is empty.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from wherry.wire.http.protocol.message import Bytes

Octets: TypeAlias = npt.NDArray[np.uint8]

PIECE_BYTES, PIECE_MARKS = 32 << 10, 4_096
"""Bytes of the first piece, and marks that a piece should have: about a millisecond. A large message is a piece."""

SCAN_BYTES = 256 << 10
"""Most bytes that are searched for a place to cut at a time."""

WHOLE_BYTES, WHOLE_QUOTES = 1 << 20, 8_192
"""A body with no more bytes and no more quotes is read at once."""

_QUOTE, _BACKSLASH, _COMMA = b'"\\,'
_IS_MARK = np.zeros(256, np.bool_)
_IS_MARK[list(b'"\\[]{},')] = True
_DEPTH = np.zeros(256, np.int64)
_DEPTH[list(b"[{")] = 1
_DEPTH[list(b"]}")] = -1


def is_large(body: Bytes) -> bool:
    """Return whether a JSON body is read in pieces: because of its size, or of the number of its texts."""
    octets = np.frombuffer(memoryview(body), np.uint8)
    if len(octets) <= WHOLE_QUOTES:
        return False
    return len(octets) > WHOLE_BYTES or int(np.count_nonzero(octets == _QUOTE)) > WHOLE_QUOTES


def elements(body: Bytes) -> Iterator[Bytes | None]:
    """Split a JSON list into several, each with whole elements; None where other tasks may run meanwhile.

    A body that is no list is one piece, as it is.
    """
    view = memoryview(body).cast("B")
    start = _after_space(view)
    if start == len(view) or view[start] != ord("["):
        yield view
        return
    scanner, begin, at, size = _Scanner(np.frombuffer(view, np.uint8)), start + 1, start, PIECE_BYTES
    while at < len(view):
        end = min(at + size, len(view))
        comma = scanner.last_comma(at, end)
        size = min(SCAN_BYTES, 1 + size * PIECE_MARKS // max(1, scanner.marks))
        at = end
        if comma is not None:
            yield b"".join((b"[", view[begin:comma], b"]"))
            begin = comma + 1
        else:
            yield None
    yield b"".join((b"[", view[begin:]))  # with the end of the list, and any bytes after it, which the decoder refuses


def lines(body: Bytes) -> Iterator[memoryview]:
    """Split lines into pieces of whole lines."""
    view, begin = memoryview(body).cast("B"), 0
    while begin < len(view):
        size, end = PIECE_BYTES, 0
        while not end and begin + size < len(view):
            end = bytes(view[begin : begin + size]).rfind(b"\n") + 1
            size *= 2
        end = begin + end if end else len(view)
        yield view[begin:end]
        begin = end


def _after_space(view: memoryview) -> int:
    head = bytes(view[:PIECE_BYTES])
    return len(head) - len(head.lstrip(b" \t\r\n"))


class _Scanner:
    """Reads marks from the start of a list, and keeps its depth and whether it is inside a text."""

    def __init__(self, octets: Octets) -> None:
        self._octets = octets
        self.marks = 0
        """How many marks the last call found."""
        self._depth = 0
        self._in_text = 0
        self._is_escaped = False
        """Whether the next byte follows a backslash."""

    def last_comma(self, start: int, end: int) -> int | None:
        """Return the last comma between two elements in these bytes, which follow those of the call before."""
        part = self._octets[start:end]
        at = np.flatnonzero(_IS_MARK[part])
        self.marks = len(at)
        at = self._without_escaped(part, at)
        marks = part[at]
        is_quote = marks == _QUOTE
        in_text = (np.cumsum(is_quote) + self._in_text) & 1
        plain = ~is_quote & (in_text == 0)
        at, marks = at[plain], marks[plain]
        depth = np.cumsum(_DEPTH[marks]) + self._depth
        commas = at[(marks == _COMMA) & (depth == 1)]
        self._in_text = int(in_text[-1]) if len(in_text) else self._in_text
        self._depth = int(depth[-1]) if len(depth) else self._depth
        return start + int(commas[-1]) if len(commas) else None

    def _without_escaped(self, part: Octets, at: npt.NDArray[np.intp]) -> npt.NDArray[np.intp]:
        """Return marks without backslashes, and without the quotation marks that follow one."""
        if self._is_escaped:
            at = at[at > 0]
        slashes = at[part[at] == _BACKSLASH]
        self._is_escaped = False
        if not len(slashes):
            return at
        is_first = np.diff(slashes, prepend=-2) != 1
        lengths = np.bincount(np.cumsum(is_first) - 1)
        last = slashes[np.append(is_first[1:], np.True_)]
        escaped = last[lengths % 2 == 1] + 1
        self._is_escaped = bool(len(escaped)) and int(escaped[-1]) == len(part)
        return at[(part[at] != _BACKSLASH) & ~np.isin(at, escaped)]
