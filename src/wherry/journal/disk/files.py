"""The file operations that the journal needs. The simulator implements them with a simulated disk.

Paths are relative to the directory that was opened, with `/` between parts. Every method that can wait for the device
is async: `RealFiles` runs it in a worker thread, the simulator in virtual time.
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

    def is_quick(self) -> bool:
        """Return whether `write_at_once` may be called: recent syncs took a few hundred microseconds at most."""

    def write_at_once(self, offset: int, parts: Sequence[Bytes]) -> None:
        """Write and sync as `write` does, in the thread of the caller. No other write may be under way."""

    def close(self) -> None: ...


class Files(Protocol):
    """The directory of one shard."""

    def lock(self) -> None:
        """Lock the directory until `unlock` or the end of the process; raise `InUse` if another process has it."""

    def unlock(self) -> None: ...

    async def list(self) -> dict[str, int]:
        """Return every file below the directory with its size in bytes, sorted by path."""

    async def read(self, path: str, offset: int = 0, length: int | None = None) -> pa.Buffer:
        """Return bytes of a file; fewer than `length` where the file ends."""

    def read_blocking(self, path: str, offset: int, length: int) -> pa.Buffer:
        """Read in the thread of the caller, which waits for the disk. Never call it in the event loop."""

    async def preallocate(self, path: str, size: int, recycled: str | None = None) -> File:
        """Make `path` with `size` bytes of real disk space, durable in its directory, and open it.

        With `recycled`, that file is renamed and reused with its old bytes: overwriting allocated blocks is the
        cheapest write. Raises OSError(ENOSPC), and leaves no file behind, if there is no space.
        """

    async def open(self, path: str) -> File:
        """Open an existing file for writing in place; its name is durable on return.

        A process that was killed between the rename of a file and the sync of its directory leaves a name that a power
        cut could still undo, together with everything written to the file since.
        """

    async def put(self, path: str, parts: Sequence[Bytes]) -> None:
        """Write a whole file: after a crash it is complete or missing (temporary name, sync, rename, sync)."""

    async def remove(self, paths: Sequence[str]) -> None:
        """Remove files, durably."""

    async def compute(self, work: Callable[[], T]) -> T:
        """Run long work outside the event loop. `work` must read only data that is not modified meanwhile."""

    def free_bytes(self) -> int:
        """Return the bytes that this process may still allocate."""
