"""Turns bytes from the other side into frames.

Frames that came whole are slices of the bytes that were fed; a frame that comes in pieces is joined once. Memory is
used as bytes arrive, never by what a header announces. After a broken rule the reader returns nothing more: `fault`
says which rule, and the frames before it count.
"""

from __future__ import annotations

from struct import Struct
from typing import Final, NamedTuple, NoReturn, TypeAlias

from wherry.wire.native.codec.faults import Side, WireFault
from wherry.wire.native.codec.frames import EMPTY, FRAME_BYTES_MAX, HEADER, HEADER_BYTES, NUMBER_MAX, RULES, Kind

Frame: TypeAlias = tuple[int, int, int, bytes]
"""The kind, flags, id and body of a frame. A plain tuple: it is made for each message."""

_ALLOWED_IDS = {"zero": "0 in this kind of frame", "number": f"a number from 1 to {NUMBER_MAX}"}
_IDS: Final = {"zero": (0, 0), "number": (1, NUMBER_MAX), "any": (0, NUMBER_MAX)}

_WORDS: Final = Struct("<III")
"""A header whose kind, flags and reserved bytes are one number, the *word*: one look tells whether they are allowed."""


class _Allowed(NamedTuple):
    """What a header with one word may have beside it."""

    kind: int
    flags: int
    bytes_max: int
    id_min: int
    id_max: int


class FrameReader:
    """Parses the bytes of one side into frames."""

    def __init__(self, side: Side, *, frame_bytes_max: int = FRAME_BYTES_MAX) -> None:
        self.side: Side = side
        """The side whose bytes are read."""
        self.fault: WireFault | None = None
        """The rule that the other side broke; nothing is read after it."""
        self.partial_bytes = 0
        """Bytes of an incomplete frame."""
        self._parts: list[bytes] = []
        self._wanted = HEADER_BYTES
        """Bytes of the incomplete frame that must be there before it is worth looking at again."""
        self._frame_bytes_max = frame_bytes_max
        self._rules = {
            kind: (kind in EMPTY, flags, ids) for kind, (sides, flags, ids) in RULES.items() if side in sides
        }
        self._words = {
            kind | flags << 8: _Allowed(int(kind), flags, 0 if is_empty else frame_bytes_max, *_IDS[ids])
            for kind, (is_empty, known, ids) in self._rules.items()
            for flags in range(known + 1)
            if not flags & ~known
        }

    def feed(self, data: bytes) -> list[Frame]:
        """Return the frames that these bytes complete, in order."""
        if self.fault is not None:
            return []
        frames: list[Frame] = []
        if self._parts:
            self._parts.append(data)
            self.partial_bytes += len(data)
            if self.partial_bytes < self._wanted:
                return []
            data = self._complete(frames)
        try:
            at = self._read(data, frames)
        except WireFault as fault:
            self.fault, self._parts, self.partial_bytes = fault, [], 0
            return frames
        self.partial_bytes = len(data) - at
        if self.partial_bytes:
            self._parts = [data[at:] if at else data]
        return frames

    def _complete(self, frames: list[Frame]) -> bytes:
        """Join the parts of a frame, and add it if its header is known; return the bytes behind it."""
        parts, self._parts = self._parts, []
        if self._wanted == HEADER_BYTES:
            return b"".join(parts)
        start, last = parts[0], parts[-1]
        _, kind, flags, _, number = HEADER.unpack_from(start)
        cut = len(last) - (self.partial_bytes - self._wanted)
        parts[0], parts[-1] = start[HEADER_BYTES:], last[:cut]
        frames.append((kind, flags, number, b"".join(parts)))  # the one copy of a large body
        return last[cut:]

    def _read(self, data: bytes, frames: list[Frame]) -> int:
        """Add whole frames to a list; return where the first one that is not whole begins."""
        at, end, words = 0, len(data), self._words
        while end - at >= HEADER_BYTES:
            length, word, number = _WORDS.unpack_from(data, at)
            allowed = words.get(word)
            if allowed is None:
                self._refuse(*HEADER.unpack_from(data, at))
            kind, flags, bytes_max, id_min, id_max = allowed
            if length > bytes_max or not id_min <= number <= id_max:
                self._refuse(*HEADER.unpack_from(data, at))
            start = at + HEADER_BYTES
            stop = start + length
            if stop > end:
                self._wanted = stop - at
                return at
            frames.append((kind, flags, number, data[start:stop]))
            at = stop
        self._wanted = HEADER_BYTES
        return at

    def _refuse(self, length: int, kind: int, flags: int, reserved: int, number: int) -> NoReturn:
        """Raise a fault that names the field of a header that breaks a rule."""
        rule = self._rules.get(kind)
        if rule is None:
            allowed = ", ".join(f"{Kind(each).name} {each:#04x}" for each in self._rules)
            raise WireFault(self.side, "kind", kind, f"a kind of frame that the {self.side} sends: {allowed}")
        name = Kind(kind).name
        if length and rule[0]:
            raise WireFault(self.side, "length", length, f"0, since {name} has no body")
        if length > self._frame_bytes_max:
            raise WireFault(self.side, "length", length, f"at most {self._frame_bytes_max} bytes in a frame")
        if reserved:
            raise WireFault(self.side, "reserved", reserved, "0")
        if flags & ~rule[1]:
            raise WireFault(self.side, "flags", flags, f"bits of {rule[1]:#04x} in {name}")
        raise WireFault(self.side, "id", number, _ALLOWED_IDS[rule[2]])
