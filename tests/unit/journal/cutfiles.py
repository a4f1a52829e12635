"""A disk in memory that loses power: what was not synced reaches it sector by sector, in any order, or not at all."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import TypeVar

import pyarrow as pa

from wherry.journal.disk.files import Bytes, File
from wherry.model.errors import InUse

SECTOR_BYTES = 512
T = TypeVar("T")


class PowerCut(Exception):
    """Raised when the power is cut in the middle of a call."""


class CutFile:
    def __init__(self, files: CutFiles, path: str) -> None:
        self._files, self.path = files, path
        self.size = len(files.disk[path])

    def is_quick(self) -> bool:
        return True

    async def write(self, offset: int, parts: Sequence[Bytes]) -> None:
        self.write_at_once(offset, parts)

    def write_at_once(self, offset: int, parts: Sequence[Bytes]) -> None:
        data = b"".join(parts)
        disk = self._files.disk[self.path]
        assert offset + len(data) <= len(disk), "a preallocated file does not grow"
        self._files.writes.append((self.path, offset, data))
        if not self._files.has_power():
            self._files.tear(disk, offset, data)
            raise PowerCut
        disk[offset : offset + len(data)] = data

    def close(self) -> None: ...


class CutFiles:
    """`Files` that die at the call number `calls_left`; build the next machine from the `disk` of this one."""

    def __init__(self, disk: dict[str, bytearray] | None = None, calls_left: int = 1 << 60, seed: int = 0) -> None:
        self.disk = {path: bytearray(data) for path, data in (disk or {}).items()}
        self.writes: list[tuple[str, int, bytes]] = []
        self.calls_left = calls_left
        self.free = 1 << 40
        self.refuse_preallocate: Callable[[], OSError | None] = lambda: None
        self._random = random.Random(seed)
        self._locked = False

    def has_power(self) -> bool:
        self.calls_left -= 1
        return self.calls_left >= 0

    def tear(self, disk: bytearray, offset: int, data: bytes) -> None:
        at = 0
        while at < len(data):
            step = min(SECTOR_BYTES - (offset + at) % SECTOR_BYTES, len(data) - at)
            if self._random.random() < 0.5:
                disk[offset + at : offset + at + step] = data[at : at + step]
            at += step

    def lock(self) -> None:
        if self._locked:
            raise InUse("in use")
        self._locked = True

    def unlock(self) -> None:
        self._locked = False

    async def list(self) -> dict[str, int]:
        return {path: len(self.disk[path]) for path in sorted(self.disk)}

    async def read(self, path: str, offset: int = 0, length: int | None = None) -> pa.Buffer:
        data = self.disk[path]
        return pa.py_buffer(bytes(data[offset : len(data) if length is None else offset + length]))

    def read_blocking(self, path: str, offset: int, length: int) -> pa.Buffer:
        return pa.py_buffer(bytes(self.disk[path][offset : offset + length]))

    async def compute(self, work: Callable[[], T]) -> T:
        return work()

    async def preallocate(self, path: str, size: int, recycled: str | None = None) -> File:
        if recycled is None and (error := self.refuse_preallocate()):
            raise error
        alive = self.has_power()
        if alive or self._random.random() < 0.5:
            before = bytearray() if recycled is None else self.disk.pop(recycled)
            self.disk[path] = before[:size].ljust(size, b"\0")
        if not alive:
            raise PowerCut
        return CutFile(self, path)

    async def open(self, path: str) -> File:
        return CutFile(self, path)

    async def put(self, path: str, parts: Sequence[Bytes]) -> None:
        raise NotImplementedError

    async def remove(self, paths: Sequence[str]) -> None:
        for path in paths:
            alive = self.has_power()
            if alive or self._random.random() < 0.5:
                del self.disk[path]
            if not alive:
                raise PowerCut

    def free_bytes(self) -> int:
        return self.free
