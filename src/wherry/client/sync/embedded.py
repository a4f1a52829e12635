"""A broker in this process, and its clock, for callers without an event loop."""

from __future__ import annotations

import os

from wherry.broker.clock import Clock
from wherry.client.clock import VirtualClock
from wherry.client.embedded import EmbeddedClient, embedded
from wherry.client.sync.client import SyncClient
from wherry.client.sync.portal import Portal, waits
from wherry.model.errors import InvalidInput


def embedded_sync(path: str | os.PathLike[str] | None = None, *, clock: Clock | None = None) -> SyncEmbedded:
    """Open a broker in this process, for callers without an event loop: see `embedded`."""
    return SyncEmbedded(embedded(path, clock=clock))


class SyncEmbedded(SyncClient[EmbeddedClient]):
    """The client of a broker in this process, which other clients may connect to."""

    listen = waits(EmbeddedClient.listen)

    @property
    def clock(self) -> SyncClock:
        """The broker's clock; a `VirtualClock` can be moved by it."""
        return SyncClock(self.portal, self.other.clock)


class SyncClock:
    """The clock of a broker in the client's thread."""

    def __init__(self, portal: Portal, other: Clock) -> None:
        self._portal, self._other = portal, other

    @property
    def now_ms(self) -> int:
        """Return Unix milliseconds."""
        return self._other.wall_us() // 1000

    def advance(self, seconds: float) -> None:
        """Move the time: what is due by then is done on return."""
        if not isinstance(self._other, VirtualClock):
            raise InvalidInput("clock", self._other, "a VirtualClock: the machine's time passes by itself")
        self._portal.run(_advanced(self._other, seconds))


async def _advanced(clock: VirtualClock, seconds: float) -> None:
    clock.advance(seconds)
