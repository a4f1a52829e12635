"""Entries as bytes: what is inside a journal frame, whoever keeps the journal.

    ┌──────────────┬─────────────────────────────┬─────┬──────────────────┬─────┬───
    │ u32 length   │ control: msgpack            │ pad │ batch: Arrow IPC │ pad │ …
    │ of control   │ (at_us, ops, batch lengths) │ → 8 │ record batch     │ → 8 │
    └──────────────┴─────────────────────────────┴─────┴──────────────────┴─────┴───

The control part is small and says everything but the messages; a batch has no schema of its own, since the `columns`
of its operation name it. Batches are aligned to 8 bytes so that they are read in place.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

import msgspec
import numpy as np
import pyarrow as pa

from wherry.journal.bodies.body import Chunks, adopt
from wherry.journal.disk.files import Bytes
from wherry.model import ops
from wherry.model.ops import AnyOp, Entry
from wherry.model.schema import stored_schema

_LENGTH = struct.Struct("<I")
_ALIGN = 8


class Control(msgspec.Struct, frozen=True, array_like=True):
    """Everything of an entry but the batches."""

    at_us: int
    ops: list[AnyOp]
    lengths: list[int]


class Undecodable(Exception):
    """Bytes that passed their checksum and still are no entry: a newer version wrote them, or a bug."""


def pack_array(value: object) -> bytes:
    """Arrays travel as little-endian int64."""
    if isinstance(value, np.ndarray):
        return np.ascontiguousarray(value, "<i8").tobytes()
    raise NotImplementedError(f"{type(value)} has no place in the journal")


def unpack_array(kind: object, value: object) -> object:
    """The way back from `pack_array`."""
    if isinstance(value, bytes):
        return np.frombuffer(value, np.int64)
    raise NotImplementedError(f"{kind} is not how arrays travel")


_ENCODER = msgspec.msgpack.Encoder(enc_hook=pack_array)
_DECODER = msgspec.msgpack.Decoder(Control, dec_hook=unpack_array)


def columns_of(op: AnyOp) -> int | None:
    """The columns of the batch that an operation carries, None if it carries none."""
    if isinstance(op, ops.Publish):
        return op.columns
    if isinstance(op, ops.Replace):
        return op.publish.columns
    return op.columns if isinstance(op, ops.Stage) and op.count else None


def encode(entry: Entry) -> tuple[Chunks, int, Entry]:
    """An entry as parts to write, their size, and the same entry with the batches to keep."""
    bodies = [adopt(batch) for batch in entry.batches]
    control = _ENCODER.encode(Control(entry.at_us, entry.ops, [size for _, _, size in bodies]))
    head = _LENGTH.pack(len(control)) + control
    parts: Chunks = [head + _padding(len(head))]
    total = len(parts[0])
    for _, body, size in bodies:
        parts += body
        pad = _padding(size)
        if pad:
            parts.append(pad)
        total += size + len(pad)
    return parts, total, Entry(entry.at_us, entry.ops, [kept for kept, _, _ in bodies], entry.volatile)


class Packed(NamedTuple):
    """A batch that is still bytes: a message that waits, or is settled later in the journal, need not be more."""

    body: Bytes
    at: int
    size: int
    columns: int

    def unpack(self) -> pa.RecordBatch:
        """As a batch, which holds on to the bytes."""
        schema = stored_schema(self.columns)
        return pa.ipc.read_record_batch(pa.py_buffer(self.body).slice(self.at, self.size), schema)


def split(body: Bytes) -> tuple[Control, list[Packed]]:
    """Bytes as what they say and the batches they carry; `Undecodable` where they are no entry."""
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
    """Bytes as an entry; `Undecodable` where they are none."""
    control, packed = split(body)
    try:
        return Entry(control.at_us, control.ops, [each.unpack() for each in packed])
    except (pa.ArrowException, ValueError, OSError) as fault:
        raise Undecodable(str(fault)) from fault


def _padding(size: int) -> bytes:
    return b"\0" * (-size % _ALIGN)
