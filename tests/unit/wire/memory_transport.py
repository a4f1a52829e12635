"""A transport in memory: it keeps what a connection writes, and is fed by a test."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any


class MemoryTransport(asyncio.Transport):
    """A transport without a socket, for one protocol object after another."""

    def __init__(self, protocol: asyncio.BaseProtocol) -> None:
        super().__init__()
        self.written = bytearray()
        self.is_over = False
        """Whether the connection has closed the transport, or its sending half."""
        self.is_closed = False
        self._protocol: Any = protocol
        self._is_reading = True
        protocol.connection_made(self)

    def feed(self, data: bytes, size: Callable[[], int] = lambda: 1 << 20) -> None:
        """Let the connection read bytes, at most `size()` of them at a time, even if it has paused reading."""
        while data:
            room = self._protocol.get_buffer(-1)
            count = min(size(), len(data), len(room))
            room[:count] = data[:count]
            self._protocol.buffer_updated(count)
            data = data[count:]

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol

    def is_reading(self) -> bool:
        return self._is_reading

    def pause_reading(self) -> None:
        self._is_reading = False

    def resume_reading(self) -> None:
        self._is_reading = True

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Do nothing: every write is taken."""

    def get_write_buffer_size(self) -> int:
        return 0

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += data

    def writelines(self, pieces: Iterable[bytes | bytearray | memoryview]) -> None:
        self.write(b"".join(pieces))

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.is_over = True

    def is_closing(self) -> bool:
        return self.is_closed

    def close(self) -> None:
        self.is_over = self.is_closed = True

    abort = close
