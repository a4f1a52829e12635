"""Memory that is free goes back to the system: allocators keep what a burst has taken, unless told.

Answers that nobody reads, bodies and bursts of messages are bounded where they are held; once they are gone their
memory would still be counted as this process's, for as long as it runs.
"""

from __future__ import annotations

import asyncio
import ctypes
import logging

import pyarrow as pa

LOOK_S = 2.0
STEP_BYTES = 64 << 20
"""So much more is free than after the last time: worth giving back."""

_log = logging.getLogger("wherry.node")


class _Mallinfo(ctypes.Structure):
    """What glibc tells of its memory; `fordblks` are the bytes that are free."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    )


class Glibc:
    """The allocator of the interpreter, where it is glibc's of 2021 or later."""

    def __init__(self) -> None:
        library = ctypes.CDLL(None)
        self._tell, self._trim = library.mallinfo2, library.malloc_trim
        self._tell.restype = _Mallinfo

    def free_bytes(self) -> int:
        """Free here, given back or not."""
        return int(self._tell().fordblks)

    def give_back(self) -> None:
        """What is free, to the system."""
        self._trim(0)


class Giver:
    """Looks at the memory of the process now and then, and gives back what came free in it."""

    def __init__(self) -> None:
        self._pool = pa.default_memory_pool()
        self._arrow_most = self._pool.bytes_allocated()
        """The most that Arrow had since the last time."""
        try:
            self._glibc: Glibc | None = Glibc()
        except (OSError, AttributeError):
            self._glibc = None
        self._known = self._free()
        """Free after the last time, and so given back already."""

    async def run(self) -> None:
        """For ever."""
        while True:
            await asyncio.sleep(LOOK_S)
            if await asyncio.to_thread(self.look):
                self._pool.release_unused()  # it gives back what is of the thread that asks

    def look(self) -> bool:
        """Give back if it is worth it; whether it was. In a thread: it may take some milliseconds."""
        allocated, free = self._pool.bytes_allocated(), self._free()
        self._arrow_most, self._known = max(self._arrow_most, allocated), min(self._known, free)
        came_free = self._arrow_most - allocated + free - self._known
        if came_free < STEP_BYTES:
            return False
        self._pool.release_unused()
        if self._glibc is not None:
            self._glibc.give_back()
        self._arrow_most, self._known = allocated, self._free()
        _log.debug("gave memory back", extra={"bytes": came_free})
        return True

    def _free(self) -> int:
        return 0 if self._glibc is None else self._glibc.free_bytes()
