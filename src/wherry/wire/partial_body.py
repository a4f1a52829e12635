"""A body of known length as it arrives, on any wire: memory by the bytes received, not by the length announced.

    announced 20 MB:   4 KiB ─► 32 KiB ─► 256 KiB ─► 2 MiB ─► 16 MiB ─► 20 MB
                                          each step once the one before is full

The kernel reads straight into the last buffer, which becomes the message batch: a seventh of a body is copied on the
way. Where memory is short the steps are smaller. A client that announces much and sends little occupies little.
"""

from __future__ import annotations

import pyarrow as pa

FIRST_BYTES = 4 << 10
"""Size of the first buffer of a body."""

GROWTH, GROWTH_WHEN_SHORT = 8, 2
"""Factors by which a full buffer grows: a larger factor copies less often, and allocates more that may stay empty."""

POOLED_BYTES = 32 << 10
"""Larger bodies are in Arrow's memory, which is aligned, not cleared first, and reused warm."""


class PartialBody:
    """The received part of one body."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.got = 0
        self._buffer: pa.Buffer | bytearray = bytearray()
        self._view = memoryview(b"")

    @property
    def room(self) -> int:
        """Return how many bytes are allocated."""
        return len(self._view)

    @property
    def is_whole(self) -> bool:
        """Return whether all of the body arrived."""
        return self.got == self.length

    def next_room(self, growth: int, coming: int = 0) -> int:
        """Return the size of the next buffer, if `coming` more bytes have arrived."""
        return min(self.length, max(FIRST_BYTES, growth * (self.got + coming)))

    def grow(self, room: int) -> None:
        """Allocate a buffer of `room` bytes, and copy the received bytes into it."""
        buffer = pa.allocate_buffer(room) if room > POOLED_BYTES else bytearray(room)
        view = memoryview(buffer).cast("B")
        view[: self.got] = self._view[: self.got]
        self._buffer, self._view = buffer, view

    def space(self) -> memoryview:
        """Return where the next bytes of the body are to be written."""
        return self._view[self.got :]

    def take(self) -> pa.Buffer | bytearray:
        """Return the whole body."""
        assert self.is_whole
        return self._buffer
