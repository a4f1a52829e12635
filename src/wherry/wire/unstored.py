"""Counts what one connection published and is not on disk yet; beyond a bound its next calls wait."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from wherry.queueing.flow.intake import Intake
from wherry.wire.fairness import FairLoop


class Unstored:
    """The bytes of one connection that are not stored; the intake reports when they are stored or refused."""

    def __init__(self, intake: Intake, fair_loop: FairLoop, who: object, when_stored: Callable[[], None]) -> None:
        self._intake, self._fair_loop, self._who, self._when_stored = intake, fair_loop, who, when_stored
        self._bytes = 0
        self._room: asyncio.Future[None] | None = None

    @property
    def is_too_much(self) -> bool:
        """Whether the connection has to wait for the disk."""
        return self._bytes > 0 and self._bytes > self._fair_loop.unstored_max(self._who)

    def count(self, before: int) -> None:
        """Count what this connection published since the intake had `before` unstored bytes of all connections."""
        size = self._intake.unstored_bytes - before
        if size:
            self._bytes += size
            self._intake.charge(self, size)

    def take_stored(self, size: int) -> None:
        """Note that `size` bytes are durable, or refused."""
        self._bytes -= size
        if not self.is_too_much:
            self.let_go_on()
        self._when_stored()

    async def wait_for_room(self) -> None:
        """Wait until the connection is within its bound again, or is closed."""
        if self.is_too_much:
            self._room = asyncio.get_running_loop().create_future()
            await self._room

    def let_go_on(self) -> None:
        """Wake the waiter of `wait_for_room`."""
        if self._room is not None and not self._room.done():
            self._room.set_result(None)
