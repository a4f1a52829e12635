"""Entries as bytes: the content of a journal frame, with any engine.

    ┌──────────────┬─────────────────────────────┬─────┬──────────────────┬─────┬───
    │ u32 length   │ control: msgpack            │ pad │ batch: Arrow IPC │ pad │ …
    │ of control   │ (at_us, ops, batch lengths) │ → 8 │ record batch     │ → 8 │
    └──────────────┴─────────────────────────────┴─────┴──────────────────┴─────┴───

The control part is small and holds everything but the messages. A batch has no schema of its own: the `columns` of its
operation define it. Batches are aligned to 8 bytes so that they can be read in place. A few messages are stored as
values and not as Arrow (`AS_ROWS` in `columns`): msgpack, a list for each column, in the order of `schema.STORED`.
"""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa

from wherry.journal.bodies.body import adopt
from wherry.journal.disk.files import Bytes
from wherry.model import ops
from wherry.model.ipc import ByteChunks
from wherry.model.ops import AnyOp, Entry
from wherry.model.row_batch import AS_ROWS, RowBatch, of_bodies
from wherry.model.schema import stored_schema

_LENGTH = struct.Struct("<I")
_ALIGN = 8
_PADDING = tuple(bytes(length) for length in range(_ALIGN))
_INT64 = np.dtype("<i8")


class Control(msgspec.Struct, frozen=True, array_like=True):
    """An entry without its batches."""

    at_us: int
    ops: list[AnyOp]
    lengths: list[int]


class Undecodable(Exception):
    """Bytes with a valid checksum that are not an entry: written by a newer version, or by a bug."""


def pack_array(value: object) -> bytes:
    """Encode an array as little-endian int64."""
    if isinstance(value, np.ndarray):
        return value.tobytes() if value.dtype == _INT64 else value.astype(_INT64).tobytes()
    raise NotImplementedError(f"{type(value)} has no place in the journal")


def unpack_array(kind: object, value: object) -> object:
    """Decode what `pack_array` encoded."""
    if isinstance(value, bytes):
        return np.frombuffer(value, np.int64)
    raise NotImplementedError(f"{kind} is not how arrays travel")


UNREADABLE = (pa.ArrowException, msgspec.DecodeError, ValueError, TypeError, KeyError, OSError)
"""What `Packed.unpack` raises for bytes that are no batch."""

_ROWS_ENCODER = msgspec.msgpack.Encoder()
_ROWS_DECODER = msgspec.msgpack.Decoder(list[list[Any]])
_ENCODER = msgspec.msgpack.Encoder(enc_hook=pack_array)
_DECODER = msgspec.msgpack.Decoder(Control, dec_hook=unpack_array)


def columns_of(op: AnyOp) -> int | None:
    """Return the columns of the batch that an operation carries, None if it carries none."""
    if isinstance(op, ops.Publish):
        return op.columns
    if isinstance(op, ops.Replace):
        return op.publish.columns
    return op.columns if isinstance(op, ops.Stage) and op.count else None


def encode(entry: Entry) -> tuple[ByteChunks, int, Entry]:
    """Encode an entry: return chunks to write, their size, and the same entry with the batches to keep in memory."""
    chunks: ByteChunks = []
    kept: list[pa.RecordBatch | RowBatch] = []
    lengths: list[int] = []
    total, is_small = 0, True
    for batch in entry.batches:
        if isinstance(batch, RowBatch):
            body = _ROWS_ENCODER.encode(batch.bodies())
            kept.append(batch)
            chunks.append(body)
            size = len(body)
        else:
            own, body_chunks, size = adopt(batch)
            kept.append(own)
            chunks += body_chunks
            is_small = False
        chunks.append(_PADDING[-size % _ALIGN])
        lengths.append(size)
        total += size + -size % _ALIGN
    control = _ENCODER.encode(Control(entry.at_us, entry.ops, lengths))
    head = _LENGTH.pack(len(control)) + control + _PADDING[-(_LENGTH.size + len(control)) % _ALIGN]
    if is_small:
        return [b"".join((head, *chunks))], len(head) + total, entry
    return [head, *chunks], len(head) + total, Entry(entry.at_us, entry.ops, kept, entry.volatile)


class Packed(NamedTuple):
    """A batch that is not decoded yet: many messages are settled later in the journal and never need to be decoded."""

    body: Bytes
    at: int
    size: int
    columns: int

    def unpack(self) -> pa.RecordBatch | RowBatch:
        """Decode the batch. One of Arrow keeps the bytes in memory."""
        if self.columns & AS_ROWS:
            return of_bodies(self.columns, _ROWS_DECODER.decode(memoryview(self.body)[self.at : self.at + self.size]))
        schema = stored_schema(self.columns)
        return pa.ipc.read_record_batch(pa.py_buffer(self.body).slice(self.at, self.size), schema)


def split(body: Bytes) -> tuple[Control, list[Packed]]:
    """Split the bytes of an entry into its control part and its batches; raise `Undecodable` if they are no entry."""
    try:
        (length,) = _LENGTH.unpack_from(body)
        at = _LENGTH.size + length
        control = _DECODER.decode(memoryview(body)[_LENGTH.size : at])
        columns = [bits for bits in map(columns_of, control.ops) if bits is not None]
        at += -at % _ALIGN
        packed = []
        for bits, size in zip(columns, control.lengths, strict=True):
            packed.append(Packed(body, at, size, bits))
            at += size + -size % _ALIGN
        if packed and at > len(body):
            raise ValueError(f"the batches end at byte {at} of {len(body)}")
    except (struct.error, msgspec.DecodeError, ValueError, NotImplementedError) as fault:
        raise Undecodable(str(fault)) from fault
    return control, packed


def decode(body: Bytes) -> Entry:
    """Decode an entry; raise `Undecodable` if the bytes are no entry."""
    control, packed = split(body)
    try:
        return Entry(control.at_us, control.ops, [each.unpack() for each in packed])
    except UNREADABLE as fault:
        raise Undecodable(str(fault)) from fault
