"""The bytes and the names of a disk, once as they are on the medium and once as cached; a power cut drops the cache.

Reads return the cache. A sync writes changes from the cache to the medium; in a crash, chance decides which other
changes had been written already. In a file, chance decides sector by sector: any subset of the changed sectors may be
written, in any order, but a sector is never half old and half new, and never has a later change without an earlier
one, since the cache had both by then. For names, chance decides change by change.

Pure: no waiting and no faults of its own; chance is an argument.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Final, NamedTuple

SECTOR_BYTES: Final = 512


class _Write(NamedTuple):
    number: int
    offset: int
    data: bytes | None  # None: the file was given the size `offset`


class Sectors:
    """The contents of one file."""

    def __init__(self) -> None:
        self.durable = bytearray()
        self.cached = bytearray()
        self._unsynced: list[_Write] = []
        self._last = 0

    @property
    def allocated_bytes(self) -> int:
        return round_up(max(len(self.durable), len(self.cached)))

    @property
    def last(self) -> int:
        """Return the number of the newest change: a sync that begins now covers all up to it."""
        return self._last

    def write(self, offset: int, data: bytes) -> None:
        self._change(offset, data)

    def resize(self, size: int) -> None:
        """Cut off the end, or append zeros."""
        self._change(size, None)

    def sync(self, upto: int) -> None:
        """Make the changes up to number `upto` durable; later ones began after the sync."""
        for change in self._unsynced:
            if change.number <= upto:
                _apply(self.durable, change)
        self._unsynced = [change for change in self._unsynced if change.number > upto]

    def drop_cache(self, random: Random, share: Callable[[], float]) -> None:
        """Drop changes that are not durable, after each sector of each was written with the chance of its `share`."""
        if not self._unsynced:
            return
        cache = bytearray(self.durable)
        for change in self._unsynced:
            _apply(cache, change)
            chance = share()
            if change.data is None:
                if random.random() < chance:
                    _apply(self.durable, change)
                continue
            first = change.offset // SECTOR_BYTES * SECTOR_BYTES
            for at in range(first, change.offset + len(change.data), SECTOR_BYTES):
                if random.random() < chance:
                    _apply(self.durable, _Write(0, at, bytes(cache[at : at + SECTOR_BYTES])))
        self._unsynced.clear()
        self.cached = bytearray(self.durable)

    def _change(self, offset: int, data: bytes | None) -> None:
        self._last += 1
        change = _Write(self._last, offset, data)
        _apply(self.cached, change)
        self._unsynced.append(change)


class _Naming(NamedTuple):
    file: Sectors
    path: str | None  # None: the file has no name any more
    folder: str  # the folder whose sync makes the change durable


class DirectoryTree:
    """Which file has which path. A file has at most one name; folders need not be created."""

    def __init__(self) -> None:
        self.durable: dict[str, Sectors] = {}
        self.cached: dict[str, Sectors] = {}
        self._unsynced: list[_Naming] = []

    def give(self, file: Sectors, path: str) -> None:
        """Create or rename: `file` has the name `path` from now on; a file that had it before has no name."""
        self._change(_Naming(file, path, folder_of(path)))

    def take(self, path: str) -> None:
        """Remove the name `path`, which exists."""
        self._change(_Naming(self.cached[path], None, folder_of(path)))

    def sync(self, folder: str) -> None:
        """Make the changes in one folder durable."""
        for change in [change for change in self._unsynced if change.folder == folder]:
            _rename(self.durable, change)
            # An older name of the same file in another folder must not come back when that folder is synced.
            upto = self._unsynced.index(change)
            older = [other for other in self._unsynced[:upto] if other.file is not change.file]
            self._unsynced = older + self._unsynced[upto + 1 :]

    def drop_cache(self, random: Random, share: float) -> None:
        """Drop changes that are not durable, after each was written with the chance `share`."""
        for change in self._unsynced:
            if random.random() < share:
                _rename(self.durable, change)
        self._unsynced.clear()
        self.cached = dict(self.durable)

    def files(self) -> list[Sectors]:
        """Return all files that take up space: a removed file does until its removal is durable."""
        return list({id(file): file for file in (*self.cached.values(), *self.durable.values())}.values())

    def _change(self, change: _Naming) -> None:
        _rename(self.cached, change)
        self._unsynced.append(change)


def folder_of(path: str) -> str:
    """Return the part of a path before its last `/`; empty for the directory itself."""
    return path.rpartition("/")[0]


def round_up(size: int) -> int:
    """Return the bytes of the whole sectors that hold `size` bytes."""
    return -(-size // SECTOR_BYTES) * SECTOR_BYTES


def _apply(image: bytearray, change: _Write) -> None:
    if change.data is None:
        del image[change.offset :]
    if len(image) < change.offset:
        image.extend(bytes(change.offset - len(image)))
    if change.data is not None:
        image[change.offset : change.offset + len(change.data)] = change.data


def _rename(names: dict[str, Sectors], change: _Naming) -> None:
    for path in [path for path, file in names.items() if file is change.file]:
        del names[path]
    if change.path is not None:
        names[change.path] = change.file
