"""The journal's files in a real directory of a local disk.

Decides how bytes become durable: what is synced when, and in which thread. It must never report success before the
device did; never retry a sync that failed, because the kernel may have dropped the pages and would report success the
second time; and never map a file into memory, because a disk error would then be a signal and not an exception.

Threads: writes go through one thread (`worker`), so that writes to a file and its closing happen in the order of the
calls, and a write with its sync is one job. Where syncs are quick, small writes are made by the thread of the loop
itself (`SyncPace`). Everything else shares a small pool.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from itertools import count
from pathlib import Path
from time import perf_counter
from typing import Final, TypeVar

import pyarrow as pa

from wherry.journal.disk.files import Bytes, File
from wherry.journal.worker import Worker
from wherry.model.errors import Closed, InUse

LOCK_NAME: Final = "lock"
PARTIAL_SUFFIX: Final = ".partial"  # a file that does not have its final name yet; removed when the directory is locked
IOV_PARTS_MAX: Final = min(1024, os.sysconf("SC_IOV_MAX"))
POOL_THREADS: Final = 2

QUICK_SYNC_S: Final = 0.0004
"""Syncs that take longer on average are left to the worker thread: two hand-overs cost the loop about 0.1 ms."""
PACE_SYNCS: Final = 8
"""The weight of the past in the average, in syncs."""
LONGEST_SYNC_S: Final = 0.005
"""A longer sync of the loop counts as one of this: a lone outlier must not keep the loop from syncing for long."""
TRY_EACH_S: Final = 0.25
"""How often the loop tries a disk that was slow: a sync of 5 ms then holds it up for 2 % of the time."""

T = TypeVar("T")


FOLDER_MODE, FILE_MODE = 0o700, 0o600
"""The files contain messages, secrets of webhooks and URLs of callbacks: no other user may read them."""


class SyncPace:
    """How long syncs of a directory take, by a running average; it decides in which thread small writes are made.

    The worker thread measures too much: after its sync it waits for the interpreter, which the loop has. So its times
    count only where they are below the average, and the loop itself tries now and then whether the disk is quick.
    """

    __slots__ = ("_tried_at_s", "average_s")

    def __init__(self) -> None:
        self.average_s = 0.0
        self._tried_at_s = 0.0

    def is_quick(self) -> bool:
        """Return whether the loop may wait for a sync itself: because the disk is quick, or to see whether it is."""
        return self.average_s <= QUICK_SYNC_S or perf_counter() - self._tried_at_s >= TRY_EACH_S

    def note(self, seconds: float) -> None:
        """Note how long a write of the loop with its sync took."""
        self._tried_at_s = perf_counter()
        self.average_s += (min(seconds, LONGEST_SYNC_S) - self.average_s) / PACE_SYNCS

    def note_in_thread(self, seconds: float) -> None:
        """Note how long a write of the worker thread with its sync took, at most."""
        if seconds < self.average_s:
            self.average_s += (seconds - self.average_s) / PACE_SYNCS


class RealFile:
    """One open file; its methods but `write_at_once` go through the writer thread, in order."""

    def __init__(self, path: str, size: int, fd: int, writer: Worker, pace: SyncPace) -> None:
        self.path, self.size = path, size
        self._fd: int | None = fd
        self._writer = writer
        self._pace = pace

    async def write(self, offset: int, parts: Sequence[Bytes]) -> None:
        """Write and fdatasync as one job; see `File.write`."""
        await self._writer.do(partial(_write_and_sync, self._open_fd(), offset, parts, self._pace.note_in_thread))

    def is_quick(self) -> bool:
        """See `File.is_quick`."""
        return self._pace.is_quick()

    def write_at_once(self, offset: int, parts: Sequence[Bytes]) -> None:
        """See `File.write_at_once`."""
        fd, data = self._open_fd(), parts[0] if len(parts) == 1 else b"".join(parts)
        began = perf_counter()
        written = os.pwrite(fd, data, offset)
        if written < len(data):  # the kernel may take a part only
            _write_all(fd, offset + written, [memoryview(data)[written:]])
        os.fdatasync(fd)
        self._pace.note(perf_counter() - began)

    def _open_fd(self) -> int:
        if self._fd is None:
            raise Closed(f"{self.path} is closed")
        return self._fd

    def close(self) -> None:
        """Close after the writes under way: their descriptor must not be reused for another file before."""
        if self._fd is not None:
            self._writer.post(partial(os.close, self._fd))
            self._fd = None


class RealFiles:
    """The directory of one shard, on a local file system with working `flock`; made if it is missing."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._lock_fd: int | None = None
        self._numbers = count()
        self._writer: Worker | None = None
        self._pace = SyncPace()
        self._pool: ThreadPoolExecutor | None = None

    def lock(self) -> None:
        """Lock the directory. The lock belongs to the open file, so a second `lock` in this process is refused too."""
        _make_folder(self.root)
        fd = os.open(self.root / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(fd, 20, 0).decode("ascii", "replace").strip() or "unknown"
            os.close(fd)
            raise InUse(f"{self.root} is in use by process {holder}; one process at a time may open it") from None
        os.ftruncate(fd, 0)
        os.pwrite(fd, b"%d\n" % os.getpid(), 0)
        self._lock_fd = fd
        self._writer = Worker("wherry-write")
        self._pool = ThreadPoolExecutor(POOL_THREADS, thread_name_prefix="wherry-files")
        for left in self.root.rglob(f"*{PARTIAL_SUFFIX}"):
            left.unlink()

    def unlock(self) -> None:
        """Unlock the directory after all jobs in the threads are done: the next owner must not meet one."""
        if self._writer is not None:
            self._writer.stop()
        if self._pool is not None:
            self._pool.shutdown(wait=True)
        self._writer = self._pool = None
        if self._lock_fd is not None:
            os.close(self._lock_fd)
            self._lock_fd = None

    async def list(self) -> dict[str, int]:
        return await self._in_pool(self._list)

    async def read(self, path: str, offset: int = 0, length: int | None = None) -> pa.Buffer:
        return await self._in_pool(partial(read_part, self.root / path, offset, length))

    def read_blocking(self, path: str, offset: int, length: int) -> pa.Buffer:
        return read_part(self.root / path, offset, length)

    async def preallocate(self, path: str, size: int, recycled: str | None = None) -> File:
        return await self._in_pool_to_file(path, partial(self._preallocate, path, size, recycled))

    async def open(self, path: str) -> File:
        return await self._in_pool_to_file(path, partial(_open, self.root / path))

    async def put(self, path: str, parts: Sequence[Bytes]) -> None:
        await self._in_pool(partial(self._put, path, parts))

    async def remove(self, paths: Sequence[str]) -> None:
        await self._in_pool(partial(self._remove, paths))

    async def compute(self, work: Callable[[], T]) -> T:
        return await self._in_pool(work)

    def free_bytes(self) -> int:
        space = os.statvfs(self.root)
        return space.f_bavail * space.f_frsize

    async def _in_pool(self, work: Callable[[], T]) -> T:
        if self._pool is None:
            raise Closed(f"{self.root} is not locked by this process")
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)

    async def _in_pool_to_file(self, path: str, work: Callable[[], int]) -> File:
        """Run `work`, which opens a descriptor; close the descriptor if the caller was cancelled meanwhile."""
        if self._pool is None or self._writer is None:
            raise Closed(f"{self.root} is not locked by this process")
        opening = self._pool.submit(work)
        try:
            fd = await asyncio.wrap_future(opening)
        except asyncio.CancelledError:
            opening.add_done_callback(_close_opened)
            raise
        return RealFile(path, os.fstat(fd).st_size, fd, self._writer, self._pace)

    def _list(self) -> dict[str, int]:
        found = (path for path in self.root.rglob("*") if path.is_file())
        names = {path.relative_to(self.root).as_posix(): path.stat().st_size for path in found}
        return {name: names[name] for name in sorted(names) if name != LOCK_NAME and not name.endswith(PARTIAL_SUFFIX)}

    def _preallocate(self, path: str, size: int, recycled: str | None) -> int:
        """Allocate a file.

        A reused file keeps its old name until it has its size, a new one has a partial name until then.
        """
        target = self.root / path
        _make_folder(target.parent)
        source = target.with_name(target.name + PARTIAL_SUFFIX) if recycled is None else self.root / recycled
        create = os.O_CREAT if recycled is None else 0
        fd = os.open(source, os.O_RDWR | os.O_CLOEXEC | create, FILE_MODE)
        try:
            os.posix_fallocate(fd, 0, size)
            os.ftruncate(fd, size)
            os.fsync(fd)
            os.rename(source, target)
            _sync_folders([source.parent, target.parent])
        except BaseException:
            os.close(fd)
            if recycled is None:
                source.unlink(missing_ok=True)
            raise
        return fd

    def _put(self, path: str, parts: Sequence[Bytes]) -> None:
        target = self.root / path
        _make_folder(target.parent)
        # A name of its own: a caller that was cancelled has not stopped its write, and may begin the same one again.
        source = target.with_name(f"{target.name}.{next(self._numbers)}{PARTIAL_SUFFIX}")
        fd = os.open(source, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, FILE_MODE)
        try:
            _write_all(fd, 0, parts)
            os.fsync(fd)
            os.rename(source, target)
            _sync_folders([target.parent])
        except BaseException:
            source.unlink(missing_ok=True)
            raise
        finally:
            os.close(fd)

    def _remove(self, paths: Sequence[str]) -> None:
        targets = [self.root / path for path in paths]
        for target in targets:
            target.unlink(missing_ok=True)
        _sync_folders([target.parent for target in targets])


def _write_and_sync(fd: int, offset: int, parts: Sequence[Bytes], note: Callable[[float], None]) -> None:
    began = perf_counter()
    _write_all(fd, offset, parts)
    os.fdatasync(fd)
    note(perf_counter() - began)


def _write_all(fd: int, offset: int, parts: Sequence[Bytes]) -> None:
    """Write every byte of every part: the kernel takes a limited number of parts at once, and may write only some."""
    views = [memoryview(part).cast("B") for part in parts if len(part)]
    at = 0
    while at < len(views):
        written = os.pwritev(fd, views[at : at + IOV_PARTS_MAX], offset)
        if not written:
            raise OSError(errno.EIO, "the kernel took no byte of a write")
        offset += written
        while at < len(views) and written >= views[at].nbytes:
            written -= views[at].nbytes
            at += 1
        if written:
            views[at] = views[at][written:]


def read_part(path: Path, offset: int, length: int | None) -> pa.Buffer:
    """Return bytes of a file, as many as there are; without `length` up to its end."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        rest = max(0, os.fstat(fd).st_size - offset)
        buffer = pa.allocate_buffer(rest if length is None else min(length, rest))
        view, done = memoryview(buffer), 0
        while done < len(view):
            got = os.preadv(fd, [view[done:]], offset + done)
            if not got:
                break
            done += got
        return buffer.slice(0, done)
    finally:
        os.close(fd)


def _open(path: Path) -> int:
    _sync_folders([path.parent])
    return os.open(path, os.O_RDWR | os.O_CLOEXEC)


def _close_opened(opening: Future[int]) -> None:
    if not opening.cancelled() and opening.exception() is None:
        os.close(opening.result())


def _make_folder(folder: Path) -> None:
    """Make the missing directories, each durable in its parent."""
    if not folder.is_dir():
        _make_folder(folder.parent)
        folder.mkdir(FOLDER_MODE, exist_ok=True)
        _sync_folders([folder.parent])


def _sync_folders(folders: Sequence[Path]) -> None:
    for folder in dict.fromkeys(folders):
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
