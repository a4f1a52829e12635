"""A body of known length as it arrives: its memory grows with what came, not with what was announced.

    announced 20 MB:   4 KiB ─► 32 KiB ─► 256 KiB ─► 2 MiB ─► 16 MiB ─► 20 MB
                                          each step once the one before is full

The kernel reads straight into the last of them, which becomes the message batch: a seventh of a body is copied on the
way. Where memory is short the steps are smaller. Whoever announces much and sends little has little.
"""

from __future__ import annotations

import pyarrow as pa

from wherry.wire.http.protocol.message import Bytes

FIRST_BYTES = 4 << 10
"""Room for a body of which nothing has come yet."""

GROWTH, GROWTH_WHEN_SHORT = 8, 2
"""Times the room, when it is full: more is copied less often, and more is held that may stay empty."""

POOLED_BYTES = 32 << 10
"""Larger bodies lie in Arrow's memory, which is aligned, not cleared first, and reused warm."""


class Gathering:
    """What has come of one body."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.got = 0
        self._buffer: Bytes = b""
        self._view = memoryview(b"")

    @property
    def room(self) -> int:
        """Bytes that are allocated."""
        return len(self._view)

    @property
    def is_whole(self) -> bool:
        """Whether all of it came."""
        return self.got == self.length

    def next_room(self, growth: int, coming: int = 0) -> int:
        """How much room to have next, if so much is here already."""
        return min(self.length, max(FIRST_BYTES, growth * (self.got + coming)))

    def grow(self, room: int) -> None:
        """Allocate so much, and move what came."""
        buffer: Bytes = pa.allocate_buffer(room) if room > POOLED_BYTES else bytearray(room)
        view = memoryview(buffer).cast("B")
        view[: self.got] = self._view[: self.got]
        self._buffer, self._view = buffer, view

    def space(self) -> memoryview:
        """Where the next bytes go."""
        return self._view[self.got :]

    def take(self) -> Bytes:
        """The whole body."""
        assert self.is_whole
        return self._buffer
