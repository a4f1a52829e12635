"""Turns bytes from the other side into frames.

Frames that came whole are slices of the bytes that were fed; a small frame that comes in pieces is joined once. The
rest of a large body is best read straight to where it belongs:

    header ──► space() ──► read from the socket into it ──► arrived(count) ──► frames

Memory is used as bytes arrive, in steps, never by what a header announces; the steps are smaller where memory is short.
After a broken rule the reader returns nothing more: `fault` says which rule, and the frames before it count.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import Any, Final, NamedTuple, NoReturn, TypeAlias

from wherry.wire.native.codec.faults import Side, WireFault
from wherry.wire.native.codec.frames import (
    EMPTY,
    FRAME_BYTES_MAX,
    HEADER,
    HEADER_BYTES,
    NUMBER_MAX,
    RULES,
    Flag,
    Rules,
)
from wherry.wire.partial_body import GROWTH, GROWTH_WHEN_SHORT, PartialBody

LARGE_BYTES = 32 << 10
"""A frame that is longer and did not come whole is read to memory of its own."""

Frame: TypeAlias = tuple[int, int, int, Any]
"""The kind, flags, id and body of a frame: bytes, or with the flag ARROW perhaps a `memoryview`. A plain tuple: it is
made for each message."""

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

    def __init__(
        self,
        side: Side,
        *,
        rules: Rules = RULES,
        frame_bytes_max: int = FRAME_BYTES_MAX,
        is_roomy: Callable[[int], bool] = lambda size: True,
    ) -> None:
        self.side: Side = side
        """The side whose bytes are read."""
        self._is_roomy = is_roomy
        """Whether there is memory for so many more bytes than have arrived."""
        self.fault: WireFault | None = None
        """The rule that the other side broke; nothing is read after it."""
        self.partial_bytes = 0
        """Bytes that an incomplete frame occupies."""
        self.reads_large = False
        """Whether the last whole frame was large: then the next one probably is, and is best read to its own memory."""
        self._body: PartialBody | None = None
        """A large body that is arriving."""
        self._head = (0, 0, 0)
        """The kind, flags and id of its frame."""
        self._parts: list[bytes] = []
        self._wanted = HEADER_BYTES
        """Bytes of the incomplete frame that must be there before it is worth looking at again."""
        self._frame_bytes_max = frame_bytes_max
        self._rules = {
            kind: (kind in EMPTY, flags, ids) for kind, (sides, flags, ids) in rules.items() if side in sides
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
        if self._body is not None:
            data = self._fill(data, frames)
        if self._parts:
            self._parts.append(data)
            self.partial_bytes += len(data)
            if self.partial_bytes < self._wanted:
                return []
            data, self._parts = b"".join(self._parts), []
        try:
            at = self._read(data, frames)
        except WireFault as fault:
            self.fault, self._parts, self.partial_bytes = fault, [], 0
            return frames
        rest = len(data) - at
        if rest and self._wanted > LARGE_BYTES:
            self._begin_body(memoryview(data)[at:])
        elif self._body is None:
            self.partial_bytes = rest
            if rest:
                self._parts = [data[at:] if at else data]
        return frames

    def space(self) -> memoryview | None:
        """Return where the next bytes are to be written if a large body is arriving; then `arrived` is called."""
        return None if self._body is None else self._body.space()

    def arrived(self, count: int) -> list[Frame]:
        """Note that `count` bytes were written to `space`; return the frame that they complete."""
        body = self._body
        assert body is not None
        body.got += count
        if body.is_whole:
            self._body, self.partial_bytes, self.reads_large = None, 0, True
            self._wanted = HEADER_BYTES
            kind, flags, number = self._head
            whole = memoryview(body.take()).cast("B")
            return [(kind, flags, number, whole if flags & Flag.ARROW else bytes(whole))]
        if body.got == body.room:
            self._grow(body)
        return []

    def _begin_body(self, data: memoryview) -> None:
        """Begin a large body whose header and first bytes came."""
        length, kind, flags, _, number = HEADER.unpack_from(data)
        here = len(data) - HEADER_BYTES
        self._head = kind, flags, number
        self._body = body = PartialBody(length)
        self._grow(body, here)
        body.space()[:here] = data[HEADER_BYTES:]
        body.got = here

    def _grow(self, body: PartialBody, coming: int = 0) -> None:
        room = body.next_room(GROWTH, coming)
        if not self._is_roomy(room):
            room = body.next_room(GROWTH_WHEN_SHORT, coming)
        body.grow(room)
        self.partial_bytes = room

    def _fill(self, data: bytes, frames: list[Frame]) -> bytes:
        """Write bytes to the large body that is arriving, and add its frame if that is whole; return what is left."""
        at, view = 0, memoryview(data)
        while at < len(data) and (space := self.space()) is not None:
            count = min(len(space), len(data) - at)
            space[:count] = view[at : at + count]
            frames += self.arrived(count)
            at += count
        return data[at:]

    def _read(self, data: bytes, frames: list[Frame]) -> int:
        """Add whole frames to a list; return where the first one that is not whole begins."""
        at, end, length, words = 0, len(data), 0, self._words
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
        if at:
            self.reads_large = length > LARGE_BYTES
        return at

    def _refuse(self, length: int, kind: int, flags: int, reserved: int, number: int) -> NoReturn:
        """Raise a fault that names the field of a header that breaks a rule."""
        named = next((each for each in self._rules if each == kind), None)
        if named is None:
            allowed = ", ".join(f"{each.name} {each:#04x}" for each in self._rules)
            raise WireFault(self.side, "kind", kind, f"a kind of frame that the {self.side} sends: {allowed}")
        name, rule = named.name, self._rules[named]
        if length and rule[0]:
            raise WireFault(self.side, "length", length, f"0, since {name} has no body")
        if length > self._frame_bytes_max:
            raise WireFault(self.side, "length", length, f"at most {self._frame_bytes_max} bytes in a frame")
        if reserved:
            raise WireFault(self.side, "reserved", reserved, "0")
        if flags & ~rule[1]:
            raise WireFault(self.side, "flags", flags, f"bits of {rule[1]:#04x} in {name}")
        raise WireFault(self.side, "id", number, _ALLOWED_IDS[rule[2]])
