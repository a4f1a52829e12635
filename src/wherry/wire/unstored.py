"""What one connection has published and is not on disk yet: beyond a bound nothing more of it is carried out."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from wherry.queueing.flow.intake import Intake
from wherry.wire.fairness import FairLoop


class Unstored:
    """Bytes of one connection; the intake says when they are stored, or refused."""

    def __init__(self, intake: Intake, fair_loop: FairLoop, who: object, when_stored: Callable[[], None]) -> None:
        self._intake, self._fair_loop, self._who, self._when_stored = intake, fair_loop, who, when_stored
        self._bytes = 0
        self._room: asyncio.Future[None] | None = None

    @property
    def is_too_much(self) -> bool:
        """Whether the connection has to wait for the disk."""
        return self._bytes > 0 and self._bytes > self._fair_loop.unstored_max(self._who)

    def count(self, held: int) -> None:
        """What was published since the intake held so many bytes is of this connection."""
        size = self._intake.held - held
        if size:
            self._bytes += size
            self._intake.charge(self, size)

    def take_stored(self, size: int) -> None:
        """So much of it is durable."""
        self._bytes -= size
        if not self.is_too_much:
            self.let_go_on()
        self._when_stored()

    async def room(self) -> None:
        """Until it is not too much any more, or the connection is over."""
        if self.is_too_much:
            self._room = asyncio.get_running_loop().create_future()
            await self._room

    def let_go_on(self) -> None:
        """Whoever waits for room need not."""
        if self._room is not None and not self._room.done():
            self._room.set_result(None)
