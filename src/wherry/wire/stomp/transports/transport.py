"""What a session needs of its transport: TCP, WebSocket or long polling.

    transport ── feed(bytes) ──► Session ── write(bytes) ──► transport
              ── over() ────────►        ── close() ───────►
              ── drained() ─────►        ── waiting_bytes(), unread_bytes()

A transport makes one `Session(sessions, transport, peer=…, secure=…)` for each client. It feeds the client's
bytes in whatever pieces they arrive, does not feed while `session.is_full` (`session.when_relieved` calls back
once), calls `drained` when `waiting_bytes` fell below `LOW_BYTES`, and `over` once when the client is gone or
after the transport closed. Deadlines are not its concern: `Sessions` ticks every session.
"""

from __future__ import annotations

import asyncio
import fcntl
import struct
import termios
from typing import Protocol

HIGH_BYTES = 1 << 20
"""Bytes written and not taken by the client; beyond it no deliveries are sent, until the transport has drained."""

LOW_BYTES = HIGH_BYTES // 4

NEVER_BYTES = 1 << 62
"""Returned by a transport that is closing: it takes nothing more, so that nothing more is delivered to it."""

ON_THE_LINE_BYTES = 64 << 10
"""One segment of the loopback interface, many of any other."""

FEED_BYTES = 64 << 10
"""The most that is fed at once: between two pieces a transport checks whether the session is full."""


class Transport(Protocol):
    """The connection to one client."""

    @property
    def name(self) -> str:
        """`tcp`, `websocket` or `polling`."""

    @property
    def is_stopped(self) -> bool:
        """Whether the client is not read for now: its bytes cannot arrive."""

    def write(self, data: bytes) -> None:
        """Send complete frames, or the newline of a heart-beat; do nothing once the transport is closed."""

    def close(self) -> None:
        """Close after everything is written; within a bound, whether the client reads or not."""

    def waiting_bytes(self) -> int:
        """Return how many written bytes were not taken yet; `NEVER_BYTES` if bytes written now would be dropped."""

    def unread_bytes(self) -> int:
        """Return `waiting_bytes`, and beyond `ON_THE_LINE_BYTES` those not known to have reached the client."""


def unread(waiting: int, transport: asyncio.Transport) -> int:
    """Return the waiting bytes, and those in the kernel that the peer has not acknowledged: some megabytes more.

    The last `ON_THE_LINE_BYTES` do not count: a peer may delay the acknowledgement of bytes that it has read by
    40 ms.
    """
    if waiting == NEVER_BYTES:
        return waiting
    try:
        answer = fcntl.ioctl(transport.get_extra_info("socket").fileno(), termios.TIOCOUTQ, bytes(4))
    except (OSError, ValueError, AttributeError):  # not on this system, or the socket is closed
        return waiting
    return waiting + max(0, int(struct.unpack("i", answer)[0]) - ON_THE_LINE_BYTES)
