"""Disk space kept for the next checkpoint, as a file: what is merely free, others can take.

A checkpoint is what lets journal files and segments go, so on a full disk there must be space for it. The file holds
nothing; it is removed when a checkpoint finds no other space, and made again when there is some.
"""

from __future__ import annotations

import asyncio
from typing import Final

from wherry.journal.disk.files import Files

PATH: Final = "reserve"
SLACK_FACTOR: Final = 2  # more than so many times what is wanted is too much


class SpaceReserve:
    """The space set aside in one directory."""

    def __init__(self, files: Files, least_bytes: int) -> None:
        self._files = files
        self._least_bytes = least_bytes
        self._known: int | None = None  # bytes set aside, None until the first look
        self._wanted: int | None = None  # bytes that somebody asked for, None before that
        self._changing = asyncio.Lock()  # a checkpoint may be written beside the look that comes now and then

    async def spare_bytes(self) -> int:
        """Bytes set aside above the least that there always are: what a smaller checkpoint might give back."""
        return await self._kept() - SLACK_FACTOR * self._least_bytes

    async def keep(self, size: int | None = None) -> None:
        """Set aside `size` bytes (without it: as before), or the least; not now if the disk has no room.

        Where it is more than twice as much, the rest goes back to the disk: a large state may be long gone.
        """
        if size is not None:
            self._wanted = size
        try:
            async with self._changing:
                await self._resize(max(self._wanted or 0, self._least_bytes))
        except OSError:
            return  # asked again before long

    async def _resize(self, wanted: int) -> None:
        kept = await self._kept()
        grows = kept < wanted and wanted - kept <= self._files.free_bytes()
        if grows or (self._wanted is not None and kept > SLACK_FACTOR * wanted):
            (await self._files.preallocate(PATH, wanted, PATH if kept else None)).close()
            self._known = wanted

    async def spend(self) -> bool:
        """Give the space back to the disk; whether there was any."""
        async with self._changing:
            if not await self._kept():
                return False
            await self._files.remove([PATH])
            self._known = 0
            return True

    async def _kept(self) -> int:
        if self._known is None:
            self._known = await self._found()
        return self._known

    async def _found(self) -> int:
        """What an earlier process set aside."""
        try:
            file = await self._files.open(PATH)
        except FileNotFoundError:
            return 0
        file.close()
        return file.size
