"""The bytes of a journal file, version 1. All integers are little endian.

A file begins with one file header. Frames follow without gaps, each beginning at a multiple of 8. The bytes after the
last frame are zeros (a new file) or anything (a reused file): a frame is valid only if its checksums, which start from
the seed of this file, are right, and if its position is the expected one.

File header, 64 bytes:

    offset size field     why it is there
    0      4    magic     `WHJF`: marks a journal file
    4      1    version   which of these tables applies
    5      1    flags     0; for later versions
    6      2    reserved  0
    8      8    first     position of the first frame: the files of a journal must join without a gap
    16     8    size      bytes of the whole file: shows that a file was truncated
    24     4    seed      start value of the checksum of each frame header: a frame from an earlier use of the file,
                          or inside the payload of another frame, is not a frame of this file
    28     32   reserved  0
    60     4    checksum  crc32c of bytes 0..59

Frame: header of 40 bytes, body, zeros up to a multiple of 8:

    offset size field     why it is there
    0      4    magic     `WHJ1`: lets a search after damage find the next frame
    4      1    version   which of these tables applies
    5      1    flags     0; for compression and encryption to come
    6      2    reserved  0
    8      8    position  dense sequence: shows a lost, repeated or old frame
    16     8    synced    highest position that was durable when this frame was written: damage below it is
                          no torn write
    24     4    length    bytes of the body, without padding
    28     4    body_crc  crc32c of the body
    32     4    reserved  0; brings the header to a multiple of 8
    36     4    checksum  crc32c of bytes 0..35, started from the seed of the file

Nothing here reads or writes a file. Input that is too short or broken is returned as a value and raises nothing.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple

import google_crc32c
import numpy as np
import pyarrow as pa

from wherry.journal.disk.files import Bytes

VERSION: Final = 1
ALIGNMENT: Final = 8  # bytes; every frame begins at a multiple of it

FILE_MAGIC: Final = b"WHJF"
FILE_FIELDS: Final = struct.Struct("<4sBBHQQI32x")
FILE_CHECKSUM_AT: Final = FILE_FIELDS.size
FILE_HEADER_BYTES: Final = FILE_CHECKSUM_AT + 4

FRAME_MAGIC: Final = b"WHJ1"
FRAME_FIELDS: Final = struct.Struct("<4sBBHQQII4x")
FRAME_CHECKSUM_AT: Final = FRAME_FIELDS.size
FRAME_HEADER_BYTES: Final = FRAME_CHECKSUM_AT + 4
FRAME_OVERHEAD_BYTES_MAX: Final = FRAME_HEADER_BYTES + ALIGNMENT - 1

COPIED_BYTES_MAX: Final = 1 << 16  # smaller bodies are copied out of the chunk that they were read in

_WHOLE: Final = struct.Struct("<QQQII4xI")  # a frame header; the fields that never differ are read as one number
_KIND: Final = int.from_bytes(FRAME_MAGIC + bytes([VERSION, 0, 0, 0]), "little")
_CHECKSUM: Final = struct.Struct("<I")
_ZEROS: Final = bytes(FILE_HEADER_BYTES)
_PADDING: Final = tuple(bytes(n) for n in range(ALIGNMENT))


class NoHeader(Enum):
    """There is no header, and that is no error."""

    SHORT = "fewer bytes than a header has"
    EMPTY = "zeros"


@dataclass(frozen=True, slots=True)
class Broken:
    """The bytes are not what a writer of this file wrote."""

    why: str


@dataclass(frozen=True, slots=True)
class Unsupported:
    """A valid header with an unknown version or unknown flags: it must not be treated as a torn write."""

    version: int
    flags: int

    @property
    def why(self) -> str:
        return f"written by another version ({self.version}, flags {self.flags}); this one reads version {VERSION}"


@dataclass(frozen=True, slots=True)
class FileHeader:
    """The fields of a file header."""

    first: int
    size: int
    seed: int


@dataclass(frozen=True, slots=True)
class FrameHeader:
    """The fields of a frame header. The body still has to be checked with `check_body`."""

    position: int
    synced: int
    length: int
    body_crc: int

    @property
    def frame_bytes(self) -> int:
        return frame_bytes(self.length)


def byte_count(parts: Sequence[Bytes]) -> int:
    """Return the bytes of all parts together."""
    total = 0
    for part in parts:
        total += len(part) if isinstance(part, bytes) else memoryview(part).nbytes
    return total


def frame_bytes(length: int) -> int:
    """Return the bytes that a body of `length` takes in a file, with header and padding."""
    return FRAME_HEADER_BYTES + length + -length % ALIGNMENT


def encode_file_header(header: FileHeader) -> bytes:
    """Return the first `FILE_HEADER_BYTES` bytes of a file."""
    fields = FILE_FIELDS.pack(FILE_MAGIC, VERSION, 0, 0, header.first, header.size, header.seed)
    return fields + _CHECKSUM.pack(_crc(0, fields))


def parse_file_header(data: Bytes) -> FileHeader | NoHeader | Broken | Unsupported:
    """Parse the header at the beginning of `data`; more bytes may follow."""
    head = bytes(memoryview(data)[:FILE_HEADER_BYTES])
    if len(head) < FILE_HEADER_BYTES:
        return NoHeader.SHORT
    magic, version, flags, reserved, first, size, seed = FILE_FIELDS.unpack_from(head)
    if magic != FILE_MAGIC:
        return NoHeader.EMPTY if head == _ZEROS else Broken("no journal file: the magic is wrong")
    if _CHECKSUM.unpack_from(head, FILE_CHECKSUM_AT)[0] != _crc(0, head[:FILE_CHECKSUM_AT]):
        return Broken("the checksum of the file header is wrong")
    if version != VERSION or flags or reserved:
        return Unsupported(version, flags)
    return FileHeader(first, size, seed)


def encode_frame(position: int, synced: int, parts: Sequence[Bytes], seed: int) -> list[Bytes]:
    """Return what to write for a frame: header, the parts themselves, which are not joined, and padding."""
    length = body_crc = 0
    for part in parts:
        if isinstance(part, bytes):
            length += len(part)
            body_crc = google_crc32c.extend(body_crc, part)
        else:
            length += memoryview(part).nbytes
            body_crc = _crc(body_crc, part)
    fields = FRAME_FIELDS.pack(FRAME_MAGIC, VERSION, 0, 0, position, synced, length, body_crc)
    head = fields + _CHECKSUM.pack(google_crc32c.extend(seed, fields))
    return [head, *parts, _PADDING[-length % ALIGNMENT]]


def parse_header(data: Bytes, offset: int, seed: int) -> FrameHeader | NoHeader | Broken | Unsupported:
    """Parse the frame header at `offset` of `data`, in a file with this `seed`."""
    head = bytes(memoryview(data)[offset : offset + FRAME_HEADER_BYTES])
    if len(head) < FRAME_HEADER_BYTES:
        return NoHeader.SHORT
    magic, version, flags, reserved, position, synced, length, body_crc = FRAME_FIELDS.unpack_from(head)
    if magic != FRAME_MAGIC:
        return NoHeader.EMPTY if head == _ZEROS[:FRAME_HEADER_BYTES] else Broken("no frame: the magic is wrong")
    if _CHECKSUM.unpack_from(head, FRAME_CHECKSUM_AT)[0] != _crc(seed, head[:FRAME_CHECKSUM_AT]):
        return Broken("the checksum of the frame header is wrong")
    if version != VERSION or flags or reserved:
        return Unsupported(version, flags)
    return FrameHeader(position, synced, length, body_crc)


def parse_header_unseeded(data: Bytes, offset: int) -> FrameHeader | None:
    """Return the fields at `offset` if they look like a frame of any file: for a file that lost its header and seed."""
    head = bytes(memoryview(data)[offset : offset + FRAME_HEADER_BYTES])
    if len(head) < FRAME_HEADER_BYTES or head[:4] != FRAME_MAGIC:
        return None
    return FrameHeader(*FRAME_FIELDS.unpack_from(head)[4:])


def check_body(header: FrameHeader, data: pa.Buffer) -> Broken | None:
    """Return None if `data`, the whole frame after its header, is what was written."""
    if data.size < header.frame_bytes - FRAME_HEADER_BYTES:
        return Broken(f"the body of {header.length} bytes continues after the end of the file")
    if _crc(0, data.slice(0, header.length)) != header.body_crc:
        return Broken("the checksum of the body is wrong")
    if any(memoryview(data)[header.length : header.frame_bytes - FRAME_HEADER_BYTES]):
        return Broken("the padding after the body is not zeros")
    return None


class WholeFrame(NamedTuple):
    """A complete frame with valid checksums and the expected position."""

    at: int
    position: int
    synced: int
    body: Bytes


def whole_frames(data: pa.Buffer, base: int, at: int, due: int, seed: int) -> tuple[list[WholeFrame], int]:
    """Return the complete frames from byte `at` of a file on, the first at position `due`, and where they end.

    `data` is the part of the file that is in memory, from byte `base` on. `parse_header` explains what follows the last
    frame: the rest of a frame that continues after `data`, or an error. Small bodies are copied, so that keeping one of
    them does not keep all of `data`.
    """
    raw, crc, unpack = data.to_pybytes(), google_crc32c.extend, _WHOLE.unpack_from
    size, frames = len(raw), []
    at -= base
    while at + FRAME_HEADER_BYTES <= size:
        kind, position, synced, length, body_crc, head_crc = unpack(raw, at)
        start = at + FRAME_HEADER_BYTES
        stop = start + length
        end = stop + -length % ALIGNMENT
        if kind != _KIND or position != due or end > size or crc(seed, raw[at : at + FRAME_CHECKSUM_AT]) != head_crc:
            break
        body = raw[start:stop] if length < COPIED_BYTES_MAX else data.slice(start, length)
        if crc(0, body) != body_crc or raw[stop:end] != _PADDING[end - stop]:
            break
        frames.append(WholeFrame(base + at, position, synced, body))
        at, due = end, due + 1
    return frames, base + at


def frame_offsets(data: pa.Buffer) -> list[int]:
    """Return the offsets in `data`, multiples of 8, at which the magic of a frame occurs: candidates to parse."""
    words = np.frombuffer(data, dtype="<u4", count=data.size // ALIGNMENT * 2)[::2]
    return [int(at) * ALIGNMENT for at in np.flatnonzero(words == int.from_bytes(FRAME_MAGIC, "little"))]


def _crc(start: int, data: Bytes) -> int:
    # The C extension takes bytes and Arrow buffers, but no memoryview.
    whole = pa.py_buffer(data) if isinstance(data, memoryview) else data
    return int(google_crc32c.extend(start, whole))
