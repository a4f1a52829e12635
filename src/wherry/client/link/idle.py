"""Connections that stay open between requests."""

from __future__ import annotations

import time
from collections.abc import Callable

from wherry.client.link.connection import Connection


class Idle:
    """Keeps at most `most` connections, none for longer than `idle_s`; `end` closes those that are not kept.

    The connection used last is used first, so that those not needed grow old and are closed.
    """

    def __init__(self, most: int, idle_s: float, end: Callable[[Connection], None]) -> None:
        self._most, self._idle_s, self._end = most, idle_s, end
        self._kept: list[tuple[str, Connection, float]] = []
        """Where a connection leads, and since when it is idle, longest first."""

    def __len__(self) -> int:
        return len(self._kept)

    def take(self, place: str) -> Connection | None:
        """Return a free connection to this place, or None."""
        now = time.monotonic()
        while self._kept and now - self._kept[0][2] >= self._idle_s:
            self._end(self._kept.pop(0)[1])
        for at in range(len(self._kept) - 1, -1, -1):
            if self._kept[at][0] == place:
                connection = self._kept.pop(at)[1]
                if connection.free:
                    return connection
        return None

    def keep(self, place: str, connection: Connection) -> None:
        """Keep a connection for the next request; at the bound, the one that is idle for longest is closed."""
        self._kept.append((place, connection, time.monotonic()))
        if len(self._kept) > self._most:
            self._end(self._kept.pop(0)[1])

    def close(self) -> None:
        """Close all of them."""
        while self._kept:
            self._end(self._kept.pop()[1])
