"""Disk space kept for the next checkpoint, as a file: what is merely free, others can take.

A checkpoint is what lets journal files and segments go, so on a full disk there must be space for it. The file holds
nothing; it is removed when a checkpoint finds no other space, and made again when there is some.
"""

from __future__ import annotations

from typing import Final

from wherry.journal.files import Files

PATH: Final = "reserve"


class Reserve:
    """The space set aside in one directory."""

    def __init__(self, files: Files, least_bytes: int) -> None:
        self._files = files
        self._least_bytes = least_bytes
        self._known: int | None = None  # bytes set aside, None until the first look

    async def keep(self, size: int = 0) -> None:
        """Set aside `size` bytes, or the least, where that is more than there is; not now if the disk has no room."""
        wanted = max(size, self._least_bytes)
        try:
            kept = await self._kept()
            if kept < wanted and wanted - kept <= self._files.free_bytes():
                (await self._files.preallocate(PATH, wanted, PATH if kept else None)).close()
                self._known = wanted
        except OSError:
            return  # asked again before long

    async def spend(self) -> bool:
        """Give the space back to the disk; whether there was any."""
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
