"""What the journal does to a disk, and nothing more: the seam where the simulator puts its own disk.

Paths are relative to the directory that was opened, with `/` between parts. Every method that can wait for the
device is async; the real implementation (`RealFiles`) runs them in worker threads, the simulated one in virtual time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias, TypeVar

import pyarrow as pa

Bytes: TypeAlias = bytes | memoryview | pa.Buffer
T = TypeVar("T")


class File(Protocol):
    """A preallocated file, written in place."""

    path: str
    size: int

    async def write(self, offset: int, parts: Sequence[Bytes]) -> None:
        """Write `parts` one after another from `offset`, then fdatasync: durable on return.

        Raises
        ------
        OSError
            The write or the sync failed. What reached the disk is unknown.
        """

    def close(self) -> None: ...


class Files(Protocol):
    """One directory of one shard."""

    def lock(self) -> None:
        """Take the directory for this process until `unlock` or death; raise `InUse` if another has it."""

    def unlock(self) -> None: ...

    async def list(self) -> dict[str, int]:
        """Every file below the directory with its size in bytes, sorted by path."""

    async def read(self, path: str, offset: int = 0, length: int | None = None) -> pa.Buffer:
        """Bytes of a file; fewer than `length` where the file ends."""

    def read_blocking(self, path: str, offset: int, length: int) -> pa.Buffer:
        """The same in the caller's own thread, which waits for the disk. Never call it on the loop."""

    async def preallocate(self, path: str, size: int, recycled: str | None = None) -> File:
        """Make `path` with `size` bytes of real disk space, durable in its folder, and open it.

        With `recycled`, that file is renamed into place and reused (its bytes stay: overwriting synced blocks is the
        cheapest write there is). Raises OSError(ENOSPC) and leaves nothing behind when there is no room.
        """

    async def open(self, path: str) -> File:
        """Open an existing file for writing in place; its name is durable on return.

        A process that was killed between renaming a file and syncing the folder leaves a name that is seen but could
        still be lost to a power cut, and with it everything written to the file since.
        """

    async def put(self, path: str, parts: Sequence[Bytes]) -> None:
        """Write a whole file: after a crash it is there complete or not at all (temporary, sync, rename, sync)."""

    async def remove(self, paths: Sequence[str]) -> None:
        """Remove files, and make their absence durable."""

    async def compute(self, work: Callable[[], T]) -> T:
        """Do long work on what is to be written away from the event loop; `work` reads only what nobody changes."""

    def free_bytes(self) -> int:
        """Bytes that this process may still allocate."""
