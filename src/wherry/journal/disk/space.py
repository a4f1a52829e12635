"""Files made ahead: the room a journal has for sure, and how it gets more.

Decides when disk space is asked for and which files of the past are used again. A spare is a file of full size that is
on the disk but not in the journal; rolling takes one, trimming gives one back. It must never take the last of the disk
(checkpoints, which free journal files, need some), and never hammer a disk that is full.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from wherry.journal.disk.files import Files
from wherry.journal.disk.scan import SpareFile, spare_path

SPARES_KEPT_MAX: Final = 2  # of trimmed files; further ones are removed
SPARES_AHEAD_MAX: Final = 4  # however much room is asked for
RETRY_S: Final = 1.0  # loop time between attempts on a disk that said no


class Spares:
    """The spare files of one journal."""

    def __init__(self, files: Files, file_bytes: int, keep_free_bytes: int) -> None:
        self._files = files
        self._file_bytes = file_bytes
        self._keep_free_bytes = keep_free_bytes
        self._ready: list[str] = []
        self._number = 0  # of the last spare; numbers are used once
        self._growing = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None
        self._retry_at_s = 0.0
        self._stopped = False

    @property
    def count(self) -> int:
        """Spares that can be taken at once."""
        return len(self._ready)

    async def adopt(self, left: Sequence[SpareFile]) -> None:
        """Take over the spares an earlier process left; those too many or of another size go.

        Each is allocated again under a new number: the crash may have come in the middle of its making.
        """
        self._number = max((spare.number for spare in left), default=0)
        for spare in left:
            if not await self.give(spare.path, spare.size):
                await self._files.remove([spare.path])

    def has_space(self) -> bool:
        """Whether the disk has space for one more."""
        return self._files.free_bytes() >= self._file_bytes + self._keep_free_bytes

    def take(self) -> str:
        """The path of a spare, for good; there must be one."""
        return self._ready.pop(0)

    async def give(self, path: str, size: int) -> bool:
        """Make a spare of a file; False when there are enough or it does not fit, and the file is the caller's."""
        if size != self._file_bytes or self.count >= SPARES_KEPT_MAX:
            return False
        try:
            await self._make(recycled=path)
        except OSError:
            return False
        return True

    async def grow(self, count: int) -> bool:
        """Try to have `count` spares ready; whether they are."""
        async with self._growing:
            while self.count < min(count, SPARES_AHEAD_MAX):
                if not await self._allocate():
                    break
        return self.count >= count

    def grow_in_background(self) -> None:
        """Have one spare ready soon, if the disk allows."""
        waiting = asyncio.get_running_loop().time() < self._retry_at_s
        if not waiting and not self.count and (self._task is None or self._task.done()):
            self._task = asyncio.create_task(self._grow_one(), name="journal spare")

    def space_returned(self) -> None:
        """Something was removed: the next attempt need not wait."""
        self._retry_at_s = 0.0

    async def stop(self) -> None:
        """Allow no more allocations, and wait for one under way: the next owner must not meet it."""
        self._stopped = True
        async with self._growing:
            pass
        if self._task is not None:
            await self._task

    async def _grow_one(self) -> None:
        await self.grow(1)

    async def _allocate(self) -> bool:
        now_s = asyncio.get_running_loop().time()
        if self._stopped or now_s < self._retry_at_s:
            return False
        try:
            if self.has_space():
                await self._make(recycled=None)
                return True
        except OSError:
            # Whatever the reason (ENOSPC, EDQUOT, EIO), no byte of the journal was touched: there is just no room.
            pass
        self._retry_at_s = now_s + RETRY_S
        return False

    async def _make(self, recycled: str | None) -> None:
        self._number += 1
        path = spare_path(self._number)
        (await self._files.preallocate(path, self._file_bytes, recycled)).close()
        self._ready.append(path)
