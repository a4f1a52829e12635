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

import msgspec
import numpy as np
import pyarrow as pa

from wherry.journal.body import Parts, adopt
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


def encode(entry: Entry) -> tuple[Parts, int, Entry]:
    """An entry as parts to write, their size, and the same entry with the batches to keep."""
    bodies = [adopt(batch) for batch in entry.batches]
    control = _ENCODER.encode(Control(entry.at_us, entry.ops, [size for _, _, size in bodies]))
    head = _LENGTH.pack(len(control)) + control
    parts: Parts = [head + _padding(len(head))]
    total = len(parts[0])
    for _, body, size in bodies:
        parts += body
        pad = _padding(size)
        if pad:
            parts.append(pad)
        total += size + len(pad)
    return parts, total, Entry(entry.at_us, entry.ops, [kept for kept, _, _ in bodies], entry.volatile)


def decode(body: pa.Buffer) -> Entry:
    """Bytes as an entry; `Undecodable` where they are none."""
    try:
        (length,) = _LENGTH.unpack(body.slice(0, _LENGTH.size).to_pybytes())
        control = _DECODER.decode(memoryview(body)[_LENGTH.size : _LENGTH.size + length])
        at = _aligned(_LENGTH.size + length)
        batches = []
        schemas = [stored_schema(bits) for bits in map(columns_of, control.ops) if bits is not None]
        for schema, size in zip(schemas, control.lengths, strict=True):
            batches.append(pa.ipc.read_record_batch(body.slice(at, size), schema))
            at = _aligned(at + size)
    except (struct.error, msgspec.DecodeError, pa.ArrowException, ValueError, OSError, NotImplementedError) as fault:
        raise Undecodable(str(fault)) from fault
    return Entry(control.at_us, control.ops, batches)


def _aligned(at: int) -> int:
    return (at + _ALIGN - 1) // _ALIGN * _ALIGN


def _padding(size: int) -> bytes:
    return b"\0" * (-size % _ALIGN)
