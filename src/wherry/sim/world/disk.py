"""A disk in memory that is slow, fails, fills up and loses power, all decided by one seeded `Random`.

`SimDisk` is the device and survives crashes; `SimFiles` is the disk as one process has it open, and implements the
journal's interface `Files`. It takes the same steps as `RealFiles`, with a virtual delay before each, so that a crash
can come between any two of them (between `write` and `sync`, a crash tears the write):

    write          write · sync
    put            create partial · write · sync · rename · sync-folder
    preallocate    create partial · allocate · sync · rename · sync-folder
     with recycled allocate · sync · rename · sync-folder of the old and of the new name
    remove         remove, for each path · sync-folder, for each folder
    list, read, open, compute: one step, which changes nothing

A waiting caller that is cancelled stops waiting, but the operation continues to its end, as in a worker thread.
After a crash, operations of earlier generations never end and have no further effect.
Nothing here may use a real file or the real clock.
"""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final, TypeVar

import pyarrow as pa

from wherry.journal.disk.files import Bytes
from wherry.model.errors import Closed, InUse
from wherry.sim.world.device import Device, DiskFaults
from wherry.sim.world.errors import Crashed
from wherry.sim.world.medium import (
    SECTOR_BYTES,
    Sectors,
    folder_of,
    round_up,
)

__all__ = ["DiskFaults", "SimDisk", "SimFile", "SimFiles"]

# a file that is being written, before it is renamed; removed when the disk is locked
PARTIAL_SUFFIX: Final = ".partial"

T = TypeVar("T")


class SimDisk(Device):
    """The device, to be opened by one process after the other."""

    def open(self) -> SimFiles:
        """Open the disk for a process that starts now. It may be open many times, but only one process can lock it."""
        return SimFiles(self)


class SimFiles:
    """One generation of the disk, for the process that opened it: implements `Files`."""

    def __init__(self, disk: Device) -> None:
        self._disk = disk
        self._generation = disk.generation
        self._under_way = 0
        self._unlocking = False
        self._last_write: asyncio.Future[None] | None = None

    @property
    def alive(self) -> bool:
        return self._generation == self._disk.generation

    def lock(self) -> None:
        self._check_alive()
        if self._disk.owner is not None:
            raise InUse("the simulated disk is in use by a process that is alive")
        self._disk.owner, self._unlocking = self, False
        for path in [path for path in self._disk.names.cached if path.endswith(PARTIAL_SUFFIX)]:
            self._disk.names.take(path)

    def unlock(self) -> None:
        """Unlock the disk when no operation is under way any more.

        The real files block until then; simulated ones cannot, so the lock is held a little longer. After a crash this
        does nothing: a late clean-up must not unlock the disk of the next owner.
        """
        self._unlocking = True
        if self._disk.owner is self and not self._under_way:
            self._disk.owner = None

    def free_bytes(self) -> int:
        self._check_alive()
        return self._disk.free_bytes()

    async def list(self) -> dict[str, int]:
        await self._step("list", "")
        names = self._disk.names.cached
        return {path: len(names[path].cached) for path in sorted(names) if not path.endswith(PARTIAL_SUFFIX)}

    async def read(self, path: str, offset: int = 0, length: int | None = None) -> pa.Buffer:
        await self._step("read", path)
        return self.read_blocking(path, offset, length)

    def read_blocking(self, path: str, offset: int, length: int | None) -> pa.Buffer:
        """Read at once: the caller is inside `compute`, which takes time itself."""
        if self._disk.chance(self._disk.faults.read_fails):
            raise _os_error(errno.EIO, path)
        end = None if length is None else offset + length
        return pa.py_buffer(bytes(self._find(path).cached[offset:end]))

    async def open(self, path: str) -> SimFile:
        await self._step("open", path)
        return SimFile(self, path, self._find(path))

    async def compute(self, work: Callable[[], T]) -> T:
        """Do the work at the end of its time, so that a caller which changes its input meanwhile is found."""
        await self._step("compute", "")
        return work()

    async def preallocate(self, path: str, size: int, recycled: str | None = None) -> SimFile:
        return await self._detached(self._preallocate(path, size, recycled))

    async def put(self, path: str, parts: Sequence[Bytes]) -> None:
        await self._detached(self._put(path, parts))

    async def remove(self, paths: Sequence[str]) -> None:
        await self._detached(self._remove(paths))

    async def write(self, file: Sectors, path: str, offset: int, parts: Sequence[Bytes]) -> None:
        """Write for `SimFile.write`: one write after the other in the order of the calls, as one writer thread does."""
        before, done = self._last_write, asyncio.get_running_loop().create_future()
        self._last_write = done
        await self._detached(self._write_in_turn(file, path, offset, parts, before, done))

    def is_quick(self) -> bool:
        """Return whether the loop itself may write, by chance: both ways of writing are to be met."""
        return self._disk.chance(self._disk.faults.quick)

    def write_at_once(self, file: Sectors, path: str, offset: int, parts: Sequence[Bytes]) -> None:
        """Write and sync for `SimFile.write_at_once`. No crash comes between: processes die between two callbacks."""
        self._check_alive()
        self._disk.note(f"write {path}")
        self._write(file, path, offset, b"".join(parts))
        self._disk.note(f"sync {path}")
        self._sync_now(file, path, file.last)

    async def _preallocate(self, path: str, size: int, recycled: str | None) -> SimFile:
        if recycled is None:
            source, file = await self._create_partial(path)
        else:
            source, file = recycled, self._find(recycled)
        try:
            await self._step("allocate", source)
            self._claim(source, round_up(size) - file.allocated_bytes)
            file.resize(size)
            await self._sync(file, source)
        except OSError:
            self._drop_partial(source)
            raise
        await self._rename(file, source, path)
        return SimFile(self, path, file)

    async def _put(self, path: str, parts: Sequence[Bytes]) -> None:
        source, file = await self._create_partial(path)
        try:
            await self._step("write", source)
            data = b"".join(parts)
            self._claim(source, len(data))
            self._write(file, source, 0, data)
            await self._sync(file, source)
        except OSError:
            self._drop_partial(source)
            raise
        await self._rename(file, source, path)

    async def _remove(self, paths: Sequence[str]) -> None:
        for path in paths:
            await self._step("remove", path)
            if path in self._disk.names.cached:
                self._disk.names.take(path)
        for folder in dict.fromkeys(map(folder_of, paths)):
            await self._sync_folder(folder)

    async def _write_in_turn(
        self,
        file: Sectors,
        path: str,
        offset: int,
        parts: Sequence[Bytes],
        before: asyncio.Future[None] | None,
        done: asyncio.Future[None],
    ) -> None:
        try:
            if before is not None:
                await before
            await self._step("write", path)
            # The bytes are copied only now, as a thread would: this finds a caller that changes its buffers too early.
            self._write(file, path, offset, b"".join(parts))
            await self._sync(file, path)
        finally:
            if not done.done():
                done.set_result(None)

    async def _create_partial(self, path: str) -> tuple[str, Sectors]:
        partial, file = path + PARTIAL_SUFFIX, Sectors()
        await self._step("create", partial)
        self._disk.names.give(file, partial)
        return partial, file

    def _drop_partial(self, path: str) -> None:
        if path.endswith(PARTIAL_SUFFIX) and path in self._disk.names.cached:
            self._disk.names.take(path)

    async def _rename(self, file: Sectors, source: str, target: str) -> None:
        await self._step("rename", f"{source} -> {target}")
        self._disk.names.give(file, target)
        for folder in dict.fromkeys([folder_of(source), folder_of(target)]):
            await self._sync_folder(folder)

    def _write(self, file: Sectors, path: str, offset: int, data: bytes) -> None:
        failed = self._disk.chance(self._disk.faults.write_fails)
        if failed:
            data = data[: self._disk.random.randrange(len(data) // SECTOR_BYTES + 1) * SECTOR_BYTES]
        file.write(offset, data)
        self._disk.note(f"wrote {path} {offset}+{len(data)}")
        if failed:
            raise _os_error(errno.EIO, path)

    def _claim(self, path: str, more_bytes: int) -> None:
        if round_up(more_bytes) > self._disk.free_bytes() and more_bytes > 0:
            raise _os_error(errno.ENOSPC, path)

    async def _sync(self, file: Sectors, path: str) -> None:
        covered = file.last
        await self._step("sync", path)
        self._sync_now(file, path, covered)

    def _sync_now(self, file: Sectors, path: str, covered: int) -> None:
        if self._disk.chance(self._disk.faults.sync_fails):
            file.drop_cache(self._disk.random, self._disk.share)
            raise _os_error(errno.EIO, path)
        if not self._disk.skip_sync:
            file.sync(covered)

    async def _sync_folder(self, folder: str) -> None:
        await self._step("sync-folder", folder)
        if self._disk.chance(self._disk.faults.sync_fails):
            raise _os_error(errno.EIO, folder)
        if not self._disk.skip_sync:
            self._disk.names.sync(folder)

    async def _step(self, what: str, path: str) -> None:
        """Wait for one step of the device; the effect that follows happens at once, and never after a crash."""
        if self.alive:
            if self._disk.owner is not self:
                raise Closed("the simulated disk is not locked by this process")
            await asyncio.sleep(self._disk.delay_s())
        if not self.alive:
            await asyncio.get_running_loop().create_future()  # wait for ever
        self._disk.note(f"{what} {path}")

    async def _detached(self, work: Coroutine[Any, Any, T]) -> T:
        """Finish `work` even if the caller is cancelled."""
        self._under_way += 1
        task = asyncio.get_running_loop().create_task(work)
        task.add_done_callback(self._ended)
        await asyncio.wait([task])  # unlike `await task`, this does not cancel the task with the caller
        return task.result()

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._under_way -= 1
        if self._unlocking:
            self.unlock()
        if not task.cancelled():
            task.exception()  # marks a failure as seen, since a cancelled caller does not read it

    def _find(self, path: str) -> Sectors:
        file = self._disk.names.cached.get(path)
        if file is None:
            raise _os_error(errno.ENOENT, path)
        return file

    def _check_alive(self) -> None:
        if not self.alive:
            raise Crashed("crashed")


class SimFile:
    """A file that is written in place: implements `File`."""

    def __init__(self, files: SimFiles, path: str, file: Sectors) -> None:
        self.path = path
        self.size = len(file.cached)
        self._files = files
        self._file = file
        self._closed = False

    def is_quick(self) -> bool:
        """See `File.is_quick`."""
        return self._files.is_quick()

    def write_at_once(self, offset: int, parts: Sequence[Bytes]) -> None:
        """See `File.write_at_once`."""
        self._check(offset, parts)
        self._files.write_at_once(self._file, self.path, offset, parts)

    async def write(self, offset: int, parts: Sequence[Bytes]) -> None:
        """See `File.write`."""
        self._check(offset, parts)
        await self._files.write(self._file, self.path, offset, parts)

    def _check(self, offset: int, parts: Sequence[Bytes]) -> None:
        if self._closed:
            raise Closed(f"{self.path} is closed")
        end = offset + sum(memoryview(part).nbytes for part in parts)
        if offset < 0 or end > self.size:
            raise ValueError(f"{self.path}: bytes {offset} to {end} were to be written into {self.size} preallocated")

    def close(self) -> None:
        self._closed = True


def _os_error(number: int, path: str) -> OSError:
    """Return the subclass that the real system raises too, such as FileNotFoundError."""
    return OSError(number, os.strerror(number), path)
