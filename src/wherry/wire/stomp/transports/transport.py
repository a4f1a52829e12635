"""What a session asks of the transport that its bytes take: TCP, WebSocket or long polling.

    transport ── feed(bytes) ──► Session ── write(bytes) ──► transport
              ── over() ────────►        ── close() ───────►
              ── drained() ─────►        ── waiting_bytes(), unread_bytes()

A transport makes one `Session(sessions, transport, peer=…, secure=…)` for each client. It feeds what the client sent in
whatever pieces it came, does not feed while `session.is_full` (`session.when_relieved` calls back once), calls
`drained` when `waiting_bytes` fell below `LOW_BYTES`, and `over` once when the client is gone or after the transport
closed. Time is the business of `Sessions`: it ticks every session, whatever transport it came over.
"""

from __future__ import annotations

import asyncio
import fcntl
import struct
import termios
from typing import Protocol

HIGH_BYTES = 1 << 20
"""Written and not taken by the client; from here on it gets no more deliveries, until the transport has drained."""

LOW_BYTES = HIGH_BYTES // 4

NEVER_BYTES = 1 << 62
"""Waiting on a transport that is closing: nothing more is taken there, so nothing more is given to it."""

ON_THE_LINE_BYTES = 64 << 10
"""One segment of the loopback interface, many of any other."""

FEED_BYTES = 64 << 10
"""Fed at once at most: between two pieces a transport looks whether the session is full."""


class Transport(Protocol):
    """The way to one client."""

    @property
    def name(self) -> str:
        """What people call it: `tcp`, `websocket` or `polling`."""

    @property
    def is_stopped(self) -> bool:
        """Whether nothing is read from the client for now: what it says cannot come."""

    def write(self, data: bytes) -> None:
        """Bytes to the client: whole frames, or the newline of a heart-beat. Nothing happens once it is over."""

    def close(self) -> None:
        """Close, after what was written went out; within a bound, whether the client reads or not."""

    def waiting_bytes(self) -> int:
        """Written, but not taken from us yet; `NEVER_BYTES` where what is written now would be dropped."""

    def unread_bytes(self) -> int:
        """`waiting_bytes`, and beyond `ON_THE_LINE_BYTES` what is not known to have reached the client's machine."""


def unread(waiting: int, transport: asyncio.Transport) -> int:
    """What waits here, and what our kernel has taken for a peer whose own has not acknowledged it: some megabytes more.

    The last `ON_THE_LINE_BYTES` do not count: a peer that has read them may wait 40 ms before it says so.
    """
    if waiting == NEVER_BYTES:
        return waiting
    try:
        said = fcntl.ioctl(transport.get_extra_info("socket").fileno(), termios.TIOCOUTQ, bytes(4))
    except (OSError, ValueError, AttributeError):  # a system that does not tell it of sockets, or a socket that is gone
        return waiting
    return waiting + max(0, int(struct.unpack("i", said)[0]) - ON_THE_LINE_BYTES)
