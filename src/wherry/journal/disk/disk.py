"""The journal on a local disk: the default engine.

Decides what is written where, and what counts as durable. Files are allocated ahead at full size and written in place
from front to back, with one write and one sync for each group of entries: their size never changes, so a sync in a
reused file has no metadata to write. Rolling over takes a spare file (`space`). Opening finds the end of the journal
and distinguishes a torn tail from damage (`scan`).

It must never confirm what is not synced; never write again after a write or sync failed, because the kernel may have
dropped the pages and reports that once; never change anything on a disk with damage before the end of the journal; and
never access the disk except through `Files`, because the simulator runs this code.

When a disk has no space for a second file and nothing in the only file is needed any more, that file is begun again.

Two things keep old frames from being read as new ones. A reused file gets a new seed in its header, durable before the
file is used, and its old frames have lower positions anyway. The remains of a torn group are overwritten with zeros
when the journal is opened, because a new frame of the same length would end exactly where they begin.

Known limits. Damage inside the last synced group cannot be distinguished from a torn write, because nothing after it
proves that it was durable: it is cut off. A sector of 512 bytes is assumed to be written completely or not at all, as
every journal written in place must assume.
"""

from __future__ import annotations

import errno
import secrets
from collections.abc import AsyncIterator, Callable
from typing import Final

from wherry.journal.disk.files import Bytes, File, Files
from wherry.journal.disk.scan import (
    JournalFile,
    Stop,
    Survey,
    survey,
    walk,
)
from wherry.journal.disk.space import Spares
from wherry.journal.disk.writer import DiskWriter, Layout, begin_file
from wherry.journal.engine import ProvenPosition, Record, Writer
from wherry.journal.format import FILE_HEADER_BYTES
from wherry.model.errors import Closed, Corrupt, DiskFull

FILE_BYTES: Final = 64 << 20
RESERVE_BYTES: Final = 4 << 20
ENTRY_BYTES_MAX: Final = 32 << 20


def random_seed() -> int:
    """Return 32 bits that a producer cannot know, so that no payload can imitate a frame."""
    return secrets.randbits(32)


class DiskEngine:
    """A journal in one directory.

    Parameters
    ----------
    files
        The directory.
    file_bytes
        Size of a journal file. Existing files of another size are read, and filled up as they are.
    reserve_bytes
        Reserved twice: inside the journal files for essential entries, and free on the disk for checkpoints.
    entry_bytes_max
        The largest entry; it must fit into a file.
    new_seed
        Returns 32 random bits for each file; see `format`.
    """

    def __init__(
        self,
        files: Files,
        *,
        file_bytes: int = FILE_BYTES,
        reserve_bytes: int = RESERVE_BYTES,
        entry_bytes_max: int = ENTRY_BYTES_MAX,
        new_seed: Callable[[], int] = random_seed,
    ) -> None:
        self._files = files
        self._layout = Layout(file_bytes, reserve_bytes, entry_bytes_max, new_seed)
        self._layout.check()
        self._writer: DiskWriter | None = None

    async def open(self, proven_position: ProvenPosition | None = None) -> Writer:
        """Lock and survey the directory, and only then repair it: a damaged journal is left as it was found."""
        self._files.lock()
        try:
            found = await survey(self._files)
            _check_complete(found, await proven_position() if proven_position is not None else 0)
            self._writer = await self._repair(found)
        except BaseException:
            self._files.unlock()
            raise
        self._writer.look_ahead()
        return self._writer

    async def read(self, start: int) -> AsyncIterator[Record]:
        """Yield entries from `start` on, for recovery right after `open`.

        Large bodies are slices of the chunk that was read, and keep that chunk (some MB) in memory as long as they
        live.
        """
        if self._writer is None:
            raise Closed("the journal is not open")
        # Copied first: appends and trims may happen while this waits for the disk.
        ends = [(file, file.end) for file in self._writer.kept]
        firsts = [file.header.first for file, _ in ends] + [self._writer.last + 1]
        for (file, end), due, until in zip(ends, firsts, firsts[1:], strict=False):
            if until <= start:
                continue
            position = due
            async for step in walk(self._files, file, end):
                if not isinstance(step, Stop):
                    position += len(step)
                    for frame in step:
                        if frame.position >= start:
                            yield Record(frame.position, frame.body)
                elif position != until:
                    why = f"entry {position} was damaged after the journal was opened: {step.why}"
                    raise Corrupt(file.path, step.at, why)

    async def _repair(self, found: Survey) -> DiskWriter:
        spares = Spares(self._files, self._layout.file_bytes, self._layout.reserve_bytes)
        await spares.adopt(found.spares)
        if found.kept:
            for path, size in found.unused.items():
                if not await spares.give(path, size):
                    await self._files.remove([path])
            file = await self._files.open(found.kept[-1].path)
            try:
                await self._settle_tail(file, found)
            except BaseException:
                file.close()
                raise
            return DiskWriter(self._files, self._layout, found.kept, file, found.last, spares)
        begun, file = await self._begin(found, spares)
        return DiskWriter(self._files, self._layout, [begun], file, found.last, spares)

    async def _begin(self, found: Survey, spares: Spares) -> tuple[JournalFile, File]:
        """Begin the only file. A file without a header keeps its name, which shows where the journal continues."""
        lone = next(iter(found.unused), None)
        if lone is None and not await spares.grow(1):
            raise DiskFull(self._layout.file_bytes, self._files.free_bytes())
        try:
            return await begin_file(self._files, self._layout, found.last + 1, lone or spares.take())
        except OSError as fault:
            if fault.errno in (errno.ENOSPC, errno.EDQUOT):
                raise DiskFull(self._layout.file_bytes, self._files.free_bytes()) from fault
            raise

    async def _settle_tail(self, file: File, found: Survey) -> None:
        """Make the found frames durable, and overwrite the remains of a torn group, in one write.

        Frames that nothing proves to be durable are written again, not just synced: after a failed sync the page cache
        shows bytes that are not on the disk, and considers them clean.
        """
        start, end = found.unproven_at, found.kept[-1].end
        if start == FILE_HEADER_BYTES:
            start = 0  # no frame follows that proves the file header to be durable, so it is written again too
        parts: list[Bytes] = [await self._files.read(file.path, start, end - start)] if start < end else []
        if end < found.leftover_end:
            parts.append(bytes(found.leftover_end - end))
        if parts:
            await file.write(start, parts)


def _check_complete(found: Survey, proven: int) -> None:
    if found.last < proven:
        path, at = (found.kept[-1].path, found.kept[-1].end) if found.kept else ("journal", 0)
        raise Corrupt(
            path, at, f"the journal ends with entry {found.last}, but a checkpoint was made after entry {proven}"
        )
    if not found.kept and found.last != proven:
        (path,) = found.unused
        why = "the file header is missing or of another file, and no file before it is left to go on from"
        raise Corrupt(path, 0, why)
