"""Spare journal files: space that the journal certainly has, and how it gets more.

A spare is a file of full size on the disk that is not part of the journal. Rolling over takes one; trimming returns
one. This module decides when a spare is allocated and which trimmed files are reused. It must never take the last space
of the disk, because checkpoints, which free journal files, need some; and it must not try again and again on a full
disk.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from wherry.journal.disk.files import Files
from wherry.journal.disk.scan import SpareFile, spare_path

SPARES_KEPT_MAX: Final = 2  # trimmed files beyond this are deleted
SPARES_AHEAD_MAX: Final = 4  # whatever space is asked for
RETRY_S: Final = 1.0  # event loop time between attempts on a full disk


class Spares:
    """The spare files of one journal."""

    def __init__(self, files: Files, file_bytes: int, keep_free_bytes: int) -> None:
        self._files = files
        self._file_bytes = file_bytes
        self._keep_free_bytes = keep_free_bytes
        self._ready: list[str] = []
        self._number = 0  # of the last spare; each number is used once
        self._growing = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None
        self._retry_at_s = 0.0
        self._stopped = False

    @property
    def count(self) -> int:
        """How many spares can be taken at once."""
        return len(self._ready)

    async def adopt(self, left: Sequence[SpareFile]) -> None:
        """Take over the spares of an earlier process; delete those that are too many or of another size.

        Each is allocated again under a new number, because a crash may have interrupted its allocation.
        """
        self._number = max((spare.number for spare in left), default=0)
        for spare in left:
            if not await self.give(spare.path, spare.size):
                await self._files.remove([spare.path])

    def has_space(self) -> bool:
        """Return whether the disk has space for one more spare."""
        return self._files.free_bytes() >= self._file_bytes + self._keep_free_bytes

    def take(self) -> str:
        """Take a spare, which must exist, and return its path."""
        return self._ready.pop(0)

    async def give(self, path: str, size: int) -> bool:
        """Turn a file into a spare; return False if there are enough or its size is wrong, and the caller keeps it."""
        if size != self._file_bytes or self.count >= SPARES_KEPT_MAX:
            return False
        try:
            await self._make(recycled=path)
        except OSError:
            return False
        return True

    async def grow(self, count: int) -> bool:
        """Try to have `count` spares ready; return whether they are."""
        async with self._growing:
            while self.count < min(count, SPARES_AHEAD_MAX):
                if not await self._allocate():
                    break
        return self.count >= count

    def grow_in_background(self) -> None:
        """Start to allocate one spare if none is ready and the disk allows it."""
        waiting = asyncio.get_running_loop().time() < self._retry_at_s
        if not waiting and not self.count and (self._task is None or self._task.done()):
            self._task = asyncio.create_task(self._grow_one(), name="journal spare")

    def space_returned(self) -> None:
        """Allow the next attempt at once, because files were deleted."""
        self._retry_at_s = 0.0

    async def stop(self) -> None:
        """Stop allocating, and wait for an allocation under way: the next owner of the directory must not meet it."""
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
            # Whatever the reason (ENOSPC, EDQUOT, EIO), the journal itself was not touched: there is just no space.
            pass
        self._retry_at_s = now_s + RETRY_S
        return False

    async def _make(self, recycled: str | None) -> None:
        self._number += 1
        path = spare_path(self._number)
        (await self._files.preallocate(path, self._file_bytes, recycled)).close()
        self._ready.append(path)
