"""Returns free memory to the system, since allocators would keep the memory of a burst; keeps pandas out.

Unread answers, bodies and bursts of messages are bounded where they are held; once they are freed, their memory would
still be counted as this process's for as long as it runs.
"""

from __future__ import annotations

import asyncio
import ctypes
import logging
import resource
import sys
from pathlib import Path

import pyarrow as pa

LOOK_S = 2.0
STEP_BYTES = 64 << 20
"""Unused resident memory is returned once it has grown by this much since the last return."""

STATM = Path("/proc/self/statm")

_log = logging.getLogger("wherry.node")


class _NoPandas:
    """Refuses one import. None in `sys.modules` would not do: Arrow's compiled code takes it for the module."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> None:
        if name == "pandas":
            raise ModuleNotFoundError(name=name)


def keep_pandas_out() -> None:
    """Let Arrow find no pandas, for a process that is only ours.

    Arrow loads pandas, where it is installed, with the first array that it makes, and looks for it only once. Code of
    others in this process can still import pandas; only Arrow's conversions to and from it are gone.
    """
    if "pandas" in sys.modules:
        return
    sys.meta_path.insert(0, _NoPandas)
    try:
        pa.array([])
    finally:
        sys.meta_path.remove(_NoPandas)


class _Mallinfo(ctypes.Structure):
    """The counters of glibc's allocator: `uordblks` and `hblkhd` are the bytes in use."""

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
        self._mallinfo, self._trim = library.mallinfo2, library.malloc_trim
        self._mallinfo.restype = _Mallinfo

    def used_bytes(self) -> int:
        """Return the bytes that are allocated here and not freed."""
        info = self._mallinfo()
        return int(info.uordblks) + int(info.hblkhd)

    def give_back(self) -> None:
        """Return free memory to the system."""
        self._trim(0)


class MemoryReleaser:
    """Checks the memory of the process now and then, and returns free memory to the system.

    Resident memory that neither Arrow nor glibc has in use is the program itself, objects of Python, and free memory:
    only its growth means free memory. A burst between two checks is noticed too, since its memory stays resident.
    """

    def __init__(self) -> None:
        self._pool = pa.default_memory_pool()
        self._glibc = Glibc()
        self._known = self.unused_bytes()
        """Unused bytes after the last return of memory."""

    async def run(self) -> None:
        """Check for ever."""
        while True:
            await asyncio.sleep(LOOK_S)
            if await asyncio.to_thread(self.return_free_memory):
                self._pool.release_unused()  # this returns memory of the calling thread

    def return_free_memory(self) -> bool:
        """Return memory to the system if enough is free; return whether it was.

        Runs in a thread: it may take milliseconds.
        """
        unused = self.unused_bytes()
        self._known = min(self._known, unused)
        came_free = unused - self._known
        if came_free < STEP_BYTES:
            return False
        self._pool.release_unused()
        self._glibc.give_back()
        self._known = self.unused_bytes()
        _log.debug("gave memory back", extra={"bytes": unused - self._known})
        return True

    def unused_bytes(self) -> int:
        """Return the resident bytes that no allocator has in use."""
        resident = int(STATM.read_text().split()[1]) * resource.getpagesize()
        return resident - self._pool.bytes_allocated() - self._glibc.used_bytes()


def memory_releaser() -> MemoryReleaser | None:
    """Make a releaser if the system reports how much memory is in use; else return None."""
    try:
        return MemoryReleaser()
    except (OSError, AttributeError):
        return None
