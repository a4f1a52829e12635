"""The start of a registry: undone when it fails or is cancelled, and ended by a close that comes meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any

from wherry.model.errors import Closed


class Starting:
    """Whether a registry has begun to start, and whether it is closed."""

    def __init__(self) -> None:
        self._task: asyncio.Task[None] | None = None
        self.closed = False

    @property
    def begun(self) -> bool:
        """Return whether the registry was started, or is about to be."""
        return self._task is not None

    def check_open(self) -> None:
        """Raise `Closed` after `close`."""
        if self.closed:
            raise Closed("the registry is closed")

    async def run(self, begin: Callable[[], Coroutine[Any, Any, None]], undo: Callable[[], Awaitable[None]]) -> None:
        """Carry out a start; if it fails, is cancelled or the registry is closed meanwhile, undo it and raise."""
        self.check_open()
        self._task = asyncio.create_task(begin(), name="start of a registry")
        try:
            await self._task
        except BaseException:
            was_closed = self.closed
            self.closed = True
            await undo()
            if was_closed:
                raise Closed("the registry was closed while it started") from None
            raise

    async def end(self) -> None:
        """Close: end a start that is under way."""
        self.closed = True
        if self._task is not None and not self._task.done():
            self._task.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await asyncio.wait([self._task])
