"""Appends to the journal on a disk: rolls over, admits, trims, and stops for good at the first failure.

What it promises, and why old bytes are never read as frames, is explained in `disk`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from wherry.journal.disk.files import Bytes, File, Files
from wherry.journal.disk.scan import JournalFile, journal_path
from wherry.journal.disk.space import Spares
from wherry.journal.engine import Appended, AppendFenced, AppendResult, EntryTooLarge
from wherry.journal.format import (
    ALIGNMENT,
    FILE_HEADER_BYTES,
    FRAME_OVERHEAD_BYTES_MAX,
    FileHeader,
    byte_count,
    encode_file_header,
    encode_frame,
    frame_bytes,
)
from wherry.model.errors import Closed, DiskFull, InvalidInput, StorageError, WriterFailed


@dataclass(frozen=True, slots=True)
class Layout:
    """The sizes of one journal, and the source of seeds for its files."""

    file_bytes: int
    reserve_bytes: int
    entry_bytes_max: int
    new_seed: Callable[[], int]

    @property
    def capacity(self) -> int:
        """Bytes of frames that fit into an empty file."""
        return self.file_bytes - FILE_HEADER_BYTES

    def check(self) -> None:
        frame_bytes_max = frame_bytes(self.entry_bytes_max)
        if self.file_bytes % ALIGNMENT or self.capacity < frame_bytes_max:
            allowed = f"a multiple of {ALIGNMENT}, from {frame_bytes_max + FILE_HEADER_BYTES} for this entry_bytes_max"
            raise InvalidInput("file_bytes", self.file_bytes, allowed)
        if not 0 <= self.reserve_bytes < self.capacity:
            raise InvalidInput("reserve_bytes", self.reserve_bytes, f"0 to {self.capacity - 1}, less than a file holds")


class DiskWriter:
    """The one writer, from `DiskEngine.open` until `close` or the first failure."""

    def __init__(
        self, files: Files, layout: Layout, kept: list[JournalFile], file: File, last: int, spares: Spares
    ) -> None:
        self.last = last
        self.syncs = True
        self.entry_bytes_max = layout.entry_bytes_max
        self.reserve_bytes = layout.reserve_bytes
        self.file_bytes = layout.file_bytes
        self.kept = kept
        self._files, self._layout, self._file, self._spares = files, layout, file, spares
        self._writing = asyncio.Lock()  # one group at a time, otherwise `synced` in a frame would mean nothing
        self._trimming = asyncio.Lock()
        self._writing_bytes = 0  # frames of the group being written that `end` does not include yet
        self._failed: str | None = None
        self._closed = False

    def admit(self, new_bytes: int, *, essential: bool, entries: int = 1) -> int | None:
        """See `Writer.admit`. Counts only space that is already allocated."""
        kept_back = self._writing_bytes + entries * FRAME_OVERHEAD_BYTES_MAX
        if not essential:
            kept_back += self._layout.reserve_bytes
        if new_bytes + kept_back <= self.kept[-1].rest_bytes:  # there is at least so much room
            return None
        left = max(0, self._room_bytes() - kept_back)
        return None if new_bytes <= left else left

    async def make_room(self, new_bytes: int, entries: int = 1) -> bool:
        """See `Writer.make_room`."""
        while self.admit(new_bytes, essential=False, entries=entries) is not None:
            if self._closed or self._failed or not await self._spares.grow(self._spares.count + 1):
                return False
        return True

    async def append(self, bodies: Sequence[Sequence[Bytes]], expected: int) -> AppendResult:
        """See `Writer.append`. If it is cancelled during a write, the writer has failed: what is stored is unknown."""
        async with self._writing:
            self._check_usable()
            if expected != self.last:
                return AppendFenced(self.last)
            lengths = [byte_count(parts) for parts in bodies]
            if max(lengths, default=0) > self.entry_bytes_max:
                return EntryTooLarge(self.entry_bytes_max)
            sizes = [frame_bytes(length) for length in lengths]
            runs = self._split(sizes)
            if len(runs) > 1 and not await self._spares.grow(len(runs) - 1):
                raise DiskFull(sum(lengths), self.admit(sum(lengths), essential=True, entries=len(bodies)) or 0)
            self._writing_bytes = sum(sizes)
            try:
                await self._write(bodies, sizes, runs)
            except BaseException as error:
                self._failed = f"{type(error).__name__}: {error}".rstrip(": ")
                if isinstance(error, OSError):
                    raise self._failure() from error
                raise
            finally:
                self._writing_bytes = 0
            return Appended(self.last)

    def append_at_once(self, bodies: Sequence[Sequence[Bytes]], expected: int) -> Appended | None:
        """See `Writer.append_at_once`. Only into the rest of the current file, and while the disk is quick."""
        if self._writing.locked() or self._failed or self._closed or expected != self.last or not self._file.is_quick():
            return None
        current = self.kept[-1]
        group = b"".join(self._frames(bodies, current))
        if len(group) > min(self.entry_bytes_max, current.rest_bytes):
            return None
        try:
            self._file.write_at_once(current.end, [group])
        except OSError as error:
            self._failed = f"{type(error).__name__}: {error}".rstrip(": ")
            raise self._failure() from error
        current.end += len(group)
        self.last += len(bodies)
        self.look_ahead()
        return Appended(self.last)

    def _frames(self, bodies: Sequence[Sequence[Bytes]], file: JournalFile) -> list[Bytes]:
        """Return the frames of the next entries."""
        frames: list[Bytes] = []
        for position, parts in enumerate(bodies, self.last + 1):
            frames += encode_frame(position, self.last, parts, file.header.seed)
        return frames

    def look_ahead(self) -> None:
        """Have the next file allocated once this one is half full, so that rolling over does not wait for it."""
        current = self.kept[-1]
        if current.end > current.header.size // 2:
            self._spares.grow_in_background()

    async def reconcile(self) -> int:
        """Return the last position. It is always known here, because a writer that failed is never used again."""
        self._check_usable()
        return self.last

    async def trim(self, before: int) -> None:
        """Drop whole files, oldest first and one by one, so that a crash in between leaves no gap.

        The last file is begun again if all of it may go and the disk has no space for another one. Otherwise a disk
        with space for a single file would stay full for ever.
        """
        async with self._trimming:
            while len(self.kept) > 1 and self.kept[1].header.first <= before:
                self._check_usable()
                oldest = self.kept[0]
                try:
                    await self._drop(oldest)
                except OSError as error:
                    raise StorageError(f"{oldest.path} could not be removed: {error}") from error
                self.kept.pop(0)
            if self._begins_again(before):
                await self._begin_again(before)

    def _begins_again(self, before: int) -> bool:
        """Return whether the only file should be begun again: nothing in it is needed, and it is half full."""
        file = self.kept[-1]
        roomy = file.end <= file.header.size // 2 or file.header.size < self._layout.file_bytes
        return len(self.kept) == 1 and self.last < before and not roomy and self.is_short()

    async def _begin_again(self, before: int) -> None:
        """Rename the only file and give it a new header. After a crash in between, its name shows where to continue."""
        async with self._writing:
            self._check_usable()
            if not self._begins_again(before):
                return
            try:
                begun, file = await begin_file(self._files, self._layout, self.last + 1, self.kept[-1].path)
            except BaseException as error:
                self._failed = f"{type(error).__name__}: {error}".rstrip(": ")
                if isinstance(error, OSError):
                    raise self._failure() from error
                raise
            self._file.close()
            self._file, self.kept[-1] = file, begun

    def is_short(self) -> bool:
        """See `Writer.is_short`."""
        return not self._spares.count and not self._spares.has_space()

    def reclaimable(self, before: int) -> int:
        """See `Writer.reclaimable`."""
        if self._begins_again(before):
            return self.kept[0].end
        firsts = [file.header.first for file in self.kept[1:]]
        return sum(file.header.size for file, first in zip(self.kept, firsts, strict=False) if first <= before)

    def edges(self) -> list[int]:
        """See `Writer.edges`."""
        return [*(file.header.first for file in self.kept[1:]), self.last + 1]

    def stored_bytes(self) -> int:
        return sum(file.end - FILE_HEADER_BYTES for file in self.kept)

    async def close(self) -> None:
        """Stop and unlock. Everything that was confirmed is already synced."""
        async with self._trimming, self._writing:
            if not self._closed:
                self._closed = True
                try:
                    await self._spares.stop()
                finally:
                    self._file.close()
                    self._files.unlock()

    def _room_bytes(self) -> int:
        """Return the bytes of frames that certainly fit, however they are divided into entries.

        An entry that does not fit into the rest of a file leaves that rest unused, which is less than the largest
        entry. This can happen at the end of the current file and of each spare but the last.
        """
        rest, spares = self.kept[-1].rest_bytes, self._spares.count
        if not spares:
            return rest
        waste = frame_bytes(self.entry_bytes_max)
        behind = spares * self._layout.capacity - (spares - 1) * waste
        return max(rest, behind + max(0, rest - waste))

    def _split(self, sizes: list[int]) -> list[int]:
        """Return how many frames go to the current file, and to each file after it."""
        runs, rest = [0], self.kept[-1].rest_bytes
        for size in sizes:
            if size > rest:
                runs.append(0)
                rest = self._layout.capacity
            runs[-1] += 1
            rest -= size
        return runs

    async def _write(self, bodies: Sequence[Sequence[Bytes]], sizes: list[int], runs: list[int]) -> None:
        """Write the frames with one write per file.

        The next file begins only when this one is durable, because the header of the next file proves that.
        """
        done = 0
        for number, count in enumerate(runs):
            if number:
                begun, file = await begin_file(self._files, self._layout, self.last + 1, self._spares.take())
                self._file.close()
                self._file = file
                self.kept.append(begun)
            current = self.kept[-1]
            frames = self._frames(bodies[done : done + count], current)
            if frames:
                await self._file.write(current.end, frames)
            written = sum(sizes[done : done + count])
            current.end += written
            self._writing_bytes -= written
            self.last += count
            done += count
        self.look_ahead()

    async def _drop(self, file: JournalFile) -> None:
        if not await self._spares.give(file.path, file.header.size):
            # A failed attempt to make a spare of it may have renamed the file already.
            with suppress(FileNotFoundError):
                await self._files.remove([file.path])
            self._spares.space_returned()

    def _check_usable(self) -> None:
        if self._failed:
            raise self._failure()
        if self._closed:
            raise Closed("the journal is closed")

    def _failure(self) -> WriterFailed:
        return WriterFailed(f"the journal cannot be written after a failure: {self._failed}; open it again")


async def begin_file(files: Files, layout: Layout, first: int, recycled: str) -> tuple[JournalFile, File]:
    """Turn a file of full size into the journal file that begins at `first`; its header is durable on return."""
    path = journal_path(first)
    header = FileHeader(first, layout.file_bytes, layout.new_seed())
    file = await files.preallocate(path, layout.file_bytes, recycled)
    try:
        await file.write(0, [encode_file_header(header)])
    except BaseException:
        file.close()
        raise
    return JournalFile(path, header), file
