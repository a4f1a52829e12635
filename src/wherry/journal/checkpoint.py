"""Checkpoints: the durable state at one journal position, so that the journal before it can go.

checkpoint/<position, 20 digits>      one file, written whole and renamed into place

offset  size  field
0       4     magic "WHCP"
4       4     version, 2; in version 1 directories were int64 columns
8       8     length of the body
16      4     CRC32C of the body
20      4     CRC32C of the 20 bytes before
24      …     body: msgpack of `Checkpoint`
"""

from __future__ import annotations

import secrets
import struct
from typing import TypeAlias

import google_crc32c
import msgspec
import numpy as np
import pyarrow as pa

from wherry.core.state.snapshot import Column, DirectoryImage, StateImage
from wherry.journal.bodies.image import StoreImage
from wherry.journal.codec import unpack_array
from wherry.journal.disk.files import Bytes, Files
from wherry.model.errors import Corrupt

MAGIC = b"WHCP"
VERSION = 2
FOLDER = "checkpoint/"

LARGE_BYTES = 1 << 16
"""Larger columns are written without a copy, which would double the memory and block the event loop."""

_HEAD = struct.Struct("<4sIQI")
_CRC = struct.Struct("<I")
_HEAD_BYTES = _HEAD.size + _CRC.size

StagedAt: TypeAlias = tuple[str, int, int, int]
"""Key, number of the part, journal position, number of the batch in that entry."""


class Checkpoint(msgspec.Struct, frozen=True, array_like=True):
    """What recovery needs to continue after `position`, together with the journal from `floor` on.

    Entries from `floor` to `position` are read again for their bodies only.
    """

    position: int
    floor: int
    state: StateImage
    store: StoreImage
    staged: list[StagedAt]


_BIN32 = struct.Struct(">BI")  # how msgpack begins a byte string of this length: 0xC6, length


def _unpack(kind: object, value: object) -> object:
    if kind is DirectoryImage and isinstance(value, bytes):
        return DirectoryImage([value])
    found = unpack_array(kind, value)
    return Column([found]) if kind is Column and isinstance(found, np.ndarray) else found


_DECODER = msgspec.msgpack.Decoder(Checkpoint, dec_hook=_unpack)


def encode(checkpoint: Checkpoint) -> list[Bytes]:
    """Encode a checkpoint as chunks of a file."""
    body, length, crc = _body(checkpoint), 0, 0
    for part in body:
        length += len(part)
        crc = google_crc32c.extend(crc, part)
    head = _HEAD.pack(MAGIC, VERSION, length, crc)
    return [head + _CRC.pack(google_crc32c.value(head)), *body]


def _body(image: object) -> list[bytes | pa.Buffer]:
    mark = secrets.token_bytes(16)  # placeholder for each large column; random, so that it occurs nowhere else
    large: list[list[pa.Buffer]] = []

    def pack(value: object) -> bytes | msgspec.Raw:
        pieces = _pieces(value)
        if sum(piece.size for piece in pieces) < LARGE_BYTES:
            return b"".join(pieces)
        large.append(pieces)
        return msgspec.Raw(mark)

    between = msgspec.msgpack.encode(image, enc_hook=pack).split(mark)
    parts: list[bytes | pa.Buffer] = [between[0]]
    for pieces, rest in zip(large, between[1:], strict=True):
        parts += [_BIN32.pack(0xC6, sum(piece.size for piece in pieces)), *pieces, rest]
    return parts


def _pieces(value: object) -> list[pa.Buffer]:
    """Return a column, an array or a directory as bytes, without a copy."""
    if isinstance(value, DirectoryImage):
        return list(map(pa.py_buffer, value.pieces))
    arrays = value.pieces if isinstance(value, Column) else [value]
    if not all(isinstance(each, np.ndarray) for each in arrays):
        raise NotImplementedError(f"{type(value)} has no place in a checkpoint")
    return [pa.py_buffer(np.ascontiguousarray(each, "<i8")) for each in arrays]


def decode(path: str, data: Bytes) -> Checkpoint:
    """Decode the bytes of a file; raise `Corrupt`, with the byte, if they are no valid checkpoint."""
    view = memoryview(data)
    if len(view) < _HEAD_BYTES:
        raise Corrupt(path, len(view), "the checkpoint ends inside its header")
    head = bytes(view[: _HEAD.size])
    magic, version, length, crc = _HEAD.unpack(head)
    if magic != MAGIC or _CRC.unpack(view[_HEAD.size : _HEAD_BYTES])[0] != google_crc32c.value(head):
        raise Corrupt(path, 0, "this is not a checkpoint header")
    if version > VERSION:
        raise Corrupt(path, 4, f"checkpoint version {version} is newer than this Wherry reads ({VERSION})")
    body = view[_HEAD_BYTES:]
    if len(body) != length or google_crc32c.value(bytes(body)) != crc:
        raise Corrupt(path, _HEAD_BYTES, "the body of the checkpoint is not what was written")
    return _DECODER.decode(body)


def path_of(position: int) -> str:
    """Return the path of a checkpoint."""
    return f"{FOLDER}{position:020d}"


async def newest(files: Files) -> Checkpoint | None:
    """Return the last checkpoint. A damaged one is an error, because the journal before it may be gone."""
    paths = [path for path in await files.list() if path.startswith(FOLDER)]
    if not paths:
        return None
    path = max(paths)
    return decode(path, await files.read(path))


async def write(files: Files, position: int, parts: list[Bytes]) -> None:
    """Make an encoded checkpoint durable, then remove older ones."""
    path = path_of(position)
    await files.put(path, parts)
    older = [name for name in await files.list() if name.startswith(FOLDER) and name < path]
    if older:
        await files.remove(older)
