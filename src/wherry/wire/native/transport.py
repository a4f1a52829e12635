"""What a session of the native wire needs of its connection; tests and the simulator have others than a socket."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Protocol, TypeVar

from wherry.wire.native.codec.frames import Chunk

T = TypeVar("T")


class Transport(Protocol):
    """The connection to one client."""

    @property
    def is_write_paused(self) -> bool:
        """Whether the client has not read what it was sent before, or the connection is closing."""

    @property
    def is_stopped(self) -> bool:
        """Whether the client is not read for now: it cannot be late."""

    def write_all(self, chunks: list[Chunk]) -> None:
        """Send chunks in one write; do nothing once the connection is closed."""

    def waiting_bytes(self) -> int:
        """Return how many written bytes were not taken yet."""

    def unstored_max(self) -> int:
        """Return how many published bytes of this connection may be on their way to the disk."""

    def look_again(self) -> None:
        """Read the client again if the session is no longer full."""

    def timed(self, work: Awaitable[T]) -> Awaitable[T]:
        """Return work whose steps count against the budget of the connection."""

    async def wait_for_budget(self) -> None:
        """Wait in line if the budget of the connection is used up."""

    def close(self) -> None:
        """Close once everything is written; within a bound, whether the client reads or not."""

    def abort(self) -> None:
        """Close at once."""
