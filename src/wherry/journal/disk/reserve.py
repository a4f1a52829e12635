"""Disk space reserved for the next checkpoint by a file, because other processes can take space that is free.

A checkpoint allows journal files and segments to be deleted, so on a full disk there must be space for it. The file has
no content. It is deleted when a checkpoint finds no other space, and made again when there is some.
"""

from __future__ import annotations

import asyncio
from typing import Final

from wherry.journal.disk.files import Files

PATH: Final = "reserve"
SLACK_FACTOR: Final = 2  # more than this many times the wanted size is given back


class SpaceReserve:
    """The space reserved in one directory."""

    def __init__(self, files: Files, least_bytes: int) -> None:
        self._files = files
        self._least_bytes = least_bytes
        self._known: int | None = None  # bytes reserved, None until the first look at the disk
        self._wanted: int | None = None  # bytes last asked for, None before that
        self._changing = asyncio.Lock()  # a checkpoint may be written while the periodic check runs

    async def spare_bytes(self) -> int:
        """Return the bytes reserved above the minimum: what a smaller checkpoint might free."""
        return await self._kept() - SLACK_FACTOR * self._least_bytes

    async def keep(self, size: int | None = None) -> None:
        """Reserve `size` bytes (None: as before), at least the minimum; do nothing if the disk has no space.

        If more than twice as much is reserved, the rest is freed: the large state that needed it may be gone.
        """
        if size is not None:
            self._wanted = size
        try:
            async with self._changing:
                await self._resize(max(self._wanted or 0, self._least_bytes))
        except OSError:
            return  # tried again soon

    async def _resize(self, wanted: int) -> None:
        kept = await self._kept()
        grows = kept < wanted and wanted - kept <= self._files.free_bytes()
        if grows or (self._wanted is not None and kept > SLACK_FACTOR * wanted):
            (await self._files.preallocate(PATH, wanted, PATH if kept else None)).close()
            self._known = wanted

    async def spend(self) -> bool:
        """Free the reserved space; return whether there was any."""
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
        """Return the bytes that an earlier process reserved."""
        try:
            file = await self._files.open(PATH)
        except FileNotFoundError:
            return 0
        file.close()
        return file.size
