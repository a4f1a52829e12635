"""Read journal files: which there are, where the journal ends, and whether an error is a torn tail or damage.

Nothing here changes the disk. `survey` finds out what has to be done, and `disk` does it.

The writer guarantees:

1. A file gets its header, durable, before its first frame, and only after the last frame of the file before it is
   durable. So the header of a later file proves that every frame before it was durable.
2. One group is written at a time, and its frames record in `synced` what was durable before it. So a frame whose
   `synced` is X or more proves that every frame up to X was durable.
3. The pages of a group that was not synced reach the disk in any order, or not at all. So a gap at X with frames of
   the same group after it is a torn write, and none of that group was ever confirmed.

It follows: an invalid frame that is proven to have been durable is damage (`Corrupt`); one without proof is a torn
tail.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import pyarrow as pa

from wherry.journal.disk.files import Files
from wherry.journal.format import (
    ALIGNMENT,
    COPIED_BYTES_MAX,
    FILE_HEADER_BYTES,
    FRAME_HEADER_BYTES,
    Broken,
    FileHeader,
    FrameHeader,
    Unsupported,
    WholeFrame,
    check_body,
    frame_bytes,
    frame_offsets,
    parse_file_header,
    parse_header,
    parse_header_unseeded,
    whole_frames,
)
from wherry.model.errors import Corrupt

FOLDER: Final = "journal"
CHUNK_BYTES: Final = 4 << 20  # bytes read at once; memory in use is this or one entry, whichever is larger
_JOURNAL_NAME: Final = re.compile(rf"{FOLDER}/(\d{{20}})\.log")
_SPARE_NAME: Final = re.compile(rf"{FOLDER}/spare-(\d+)\.log")


def journal_path(first: int) -> str:
    """Return the path of the file whose first frame has this position; 20 digits, so that names sort like positions."""
    return f"{FOLDER}/{first:020d}.log"


def spare_path(number: int) -> str:
    """Return the path of a file of full size that is not part of the journal."""
    return f"{FOLDER}/spare-{number}.log"


@dataclass(slots=True)
class JournalFile:
    """One file in use: its header, and where its frames end."""

    path: str
    header: FileHeader
    end: int = FILE_HEADER_BYTES

    @property
    def rest_bytes(self) -> int:
        return self.header.size - self.end


class SpareFile(NamedTuple):
    """A spare file that an earlier process left."""

    number: int
    path: str
    size: int


class Stop(NamedTuple):
    """Where the valid frames end, and why."""

    at: int
    why: str


@dataclass(slots=True)
class Survey:
    """What is on the disk, and what `open` has to do about it."""

    kept: list[JournalFile] = field(default_factory=list)
    last: int = 0
    unproven_at: int = FILE_HEADER_BYTES
    """In the last file, where the frames begin that are not proven durable: perhaps they are in the page cache only."""
    leftover_end: int = 0
    """In the last file, where the remains of a torn group end; they begin where its frames end."""
    unused: dict[str, int] = field(default_factory=dict)
    """Files that were never used, with their sizes: a crash came between their allocation and their header."""
    spares: list[SpareFile] = field(default_factory=list)


async def survey(files: Files) -> Survey:
    """Examine all files; raise `Corrupt` for damage."""
    sizes = await files.list()
    found = Survey()
    for path, size in sizes.items():
        if match := _SPARE_NAME.fullmatch(path):
            found.spares.append(SpareFile(int(match[1]), path, size))
    await _read_file_headers(
        files, {path: size for path, size in sizes.items() if _JOURNAL_NAME.fullmatch(path)}, found
    )
    for file, following in zip(found.kept, found.kept[1:], strict=False):
        await _check_sealed(files, file, following)
    if found.kept:
        await _find_end(files, found)
    for path, size in found.unused.items():
        await _check_unused(files, path, size, found.last)
    return found


async def walk(files: Files, file: JournalFile, limit: int) -> AsyncIterator[list[WholeFrame] | Stop]:
    """Yield the checked frames of one file in order, up to byte `limit`; the last item is the `Stop`."""
    window = _Window(files, file.path, limit)
    at, position, seed = FILE_HEADER_BYTES, file.header.first, file.header.seed
    while True:
        base, chunk = window.rest(at)
        frames, end = whole_frames(chunk, base, at, position, seed)
        if not frames:
            frame = await _next_frame(window, file, at, position)
            if isinstance(frame, Stop):
                yield frame
                return
            yield [frame]
            at, position = at + frame_bytes(len(frame.body)), position + 1
            continue
        yield frames
        at, position = end, position + len(frames)


async def _next_frame(window: _Window, file: JournalFile, at: int, position: int) -> WholeFrame | Stop:
    """Read one frame that may cross the end of a chunk; or return why there is none."""
    header = parse_header(await window.read(at, FRAME_HEADER_BYTES), 0, file.header.seed)
    if isinstance(header, Unsupported):
        raise Corrupt(file.path, at, header.why)
    if not isinstance(header, FrameHeader):
        return Stop(at, header.why if isinstance(header, Broken) else header.value)
    if header.position != position:
        return Stop(at, f"a frame of position {header.position} is in its place")
    rest = await window.read(at + FRAME_HEADER_BYTES, header.frame_bytes - FRAME_HEADER_BYTES)
    if broken := check_body(header, rest):
        return Stop(at, broken.why)
    body = rest.slice(0, header.length)
    small = header.length < COPIED_BYTES_MAX  # as in `whole_frames`: a small body must not keep the chunk in memory
    return WholeFrame(at, header.position, header.synced, body.to_pybytes() if small else body)


_NOTHING: Final = pa.py_buffer(b"")


class _Window:
    """The chunk of a file that is in memory; slices of it are returned without a copy."""

    def __init__(self, files: Files, path: str, limit: int) -> None:
        self._files, self._path, self._limit = files, path, limit
        self._base, self._chunk = 0, pa.py_buffer(b"")

    def rest(self, at: int) -> tuple[int, pa.Buffer]:
        """Return the chunk in memory if it contains `at`, and where it begins; else an empty one."""
        inside = self._base <= at < self._base + self._chunk.size
        return (self._base, self._chunk) if inside else (at, _NOTHING)

    async def read(self, at: int, length: int) -> pa.Buffer:
        """Return bytes from `at`; fewer than `length` at the limit."""
        length = min(length, self._limit - at)
        if length and not self._base <= at <= at + length <= self._base + self._chunk.size:
            wanted = min(max(length, CHUNK_BYTES), self._limit - at)
            self._base, self._chunk = at, await self._files.read(self._path, at, wanted)
        return self._chunk.slice(at - self._base, length) if length else pa.py_buffer(b"")


async def _read_file_headers(files: Files, sizes: dict[str, int], found: Survey) -> None:
    """Fill `kept` and `unused`. Only the newest file may lack its header.

    If there is no file before it, it is the very first one, or it was begun again after a checkpoint that covered all
    entries before it. Its name shows where the journal ends, and `open` compares that with the checkpoint.
    """
    for path, size in sizes.items():
        named = int(path[len(FOLDER) + 1 : -len(".log")])
        header = parse_file_header(await files.read(path, 0, FILE_HEADER_BYTES))
        if found.unused:
            raise Corrupt(next(iter(found.unused)), 0, f"the file header is wrong, and {path} proves that it existed")
        if isinstance(header, Unsupported):
            raise Corrupt(path, 0, header.why)
        if isinstance(header, FileHeader) and header.first == named:
            if header.size != size:
                raise Corrupt(path, size, f"the file has {size} bytes, its header says {header.size}")
            found.kept.append(JournalFile(path, header))
        else:
            found.unused[path] = size
            found.last = named - 1


async def _check_sealed(files: Files, file: JournalFile, following: JournalFile) -> None:
    """Check that every frame up to the next file is there: the header of that file proves that they were durable."""
    position, until = file.header.first, following.header.first
    async for step in walk(files, file, file.header.size):
        if isinstance(step, Stop):
            if position == until:
                file.end = step.at
                return
            why = f"entry {position} is missing or damaged ({step.why}); {following.path} goes on at {until}"
            raise Corrupt(file.path, step.at, why)
        position += len(step)
        if position > until:
            file.end = step[until - position].at
            return
    raise AssertionError("walk ends with a Stop")


async def _find_end(files: Files, found: Survey) -> None:
    """Find the end X of the last file, then search the bytes after it for a frame that proves X to be durable."""
    file = found.kept[-1]
    due, proven = file.header.first, file.header.first - 1
    starts: dict[int, int] = {}  # offsets of the frames that are not proven yet, at most one group
    stop = Stop(FILE_HEADER_BYTES, "")
    async for step in walk(files, file, file.header.size):
        if isinstance(step, Stop):
            stop = step
            break
        for frame in step:
            starts[due] = frame.at
            while proven < frame.synced and proven < due:
                proven += 1
                del starts[proven]
            due += 1
    found.last, file.end = due - 1, stop.at
    found.unproven_at = starts.get(proven + 1, stop.at)
    found.leftover_end = stop.at
    async for at, header in _frames_behind(files, file, stop.at):
        if header.position >= due and header.synced >= due:
            why = f"entry {due} is damaged ({stop.why}); entry {header.position} at byte {at} proves it was durable"
            raise Corrupt(file.path, stop.at, why)
        if header.position >= due:
            found.leftover_end = max(found.leftover_end, min(at + header.frame_bytes, file.header.size))


async def _frames_behind(files: Files, file: JournalFile, at: int) -> AsyncIterator[tuple[int, FrameHeader]]:
    """Yield every valid frame header of this file from `at` to its end, whatever its position."""
    async for base, chunk in _chunks(files, file.path, at, file.header.size):
        for offset in frame_offsets(chunk):
            header = parse_header(chunk, offset, file.header.seed)
            if isinstance(header, Unsupported):
                raise Corrupt(file.path, base + offset, header.why)
            if isinstance(header, FrameHeader):
                yield base + offset, header


async def _check_unused(files: Files, path: str, size: int, last: int) -> None:
    """Raise `Corrupt` if a file without a header holds a frame that continues the journal: then it was in use."""
    frames_max = size // FRAME_HEADER_BYTES
    async for base, chunk in _chunks(files, path, 0, size):
        for offset in frame_offsets(chunk):
            header = parse_header_unseeded(chunk, offset)
            if header is None or not last < header.position <= last + frames_max:
                continue
            at = base + offset
            body = await files.read(path, at + FRAME_HEADER_BYTES, header.frame_bytes - FRAME_HEADER_BYTES)
            if check_body(header, body) is None:
                raise Corrupt(path, 0, f"the file header is damaged; entry {header.position} is at byte {at}")


async def _chunks(files: Files, path: str, at: int, size: int) -> AsyncIterator[tuple[int, pa.Buffer]]:
    """Yield the rest of a file in chunks that overlap by almost a header, so that each header is complete in one."""
    while at < size:
        chunk = await files.read(path, at, min(CHUNK_BYTES, size - at))
        yield at, chunk
        if at + chunk.size >= size or chunk.size <= FRAME_HEADER_BYTES:
            return
        at += (chunk.size - FRAME_HEADER_BYTES) // ALIGNMENT * ALIGNMENT + ALIGNMENT
