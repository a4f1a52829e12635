"""Messages of a client as an Arrow IPC stream, read without a copy of the payloads; for every wire that takes them.

Nothing in a stream from a client is trusted: Arrow checks its framing, and every column is validated before it is read.
Dictionaries, views and compression could grow beyond the body that was sent; they are refused by their metadata.
"""

from __future__ import annotations

import struct
from typing import TypeAlias

import pyarrow as pa
import pyarrow.types as kinds

from wherry.model import limits
from wherry.model.calls import given
from wherry.model.errors import InvalidInput

Bytes: TypeAlias = bytes | bytearray | memoryview | pa.Buffer

BATCHES_MAX = 4_096
"""Most batches of one stream: each costs a hundred times what a message of a large batch costs."""

WHOLE_BYTES = 64 << 10
"""Larger streams are read in a thread: validating the columns would hold up the loop."""

SHAPES_MAX, SHAPE_BYTES_MAX = 256, 2_048
"""Most schemas in the cache, and the longest of them."""

_SHAPES: dict[bytes, tuple[pa.Schema, list[str]]] = {}

# Numbers of fields in flatbuffer tables (Message.fbs, Schema.fbs of Arrow's format folder).
_MESSAGE_HEADER = 2
_SCHEMA_ENDIANNESS = 0
_BATCH_COMPRESSION = 3


def read(body: Bytes) -> pa.RecordBatch:
    """Return all batches of a stream as one, with the columns that a producer may give."""
    source = pa.BufferReader(pa.py_buffer(body))
    try:
        batches = _batches(source)
    except (pa.ArrowException, OSError, UnicodeDecodeError, struct.error) as fault:
        raise InvalidInput("body", f"{source.size()} bytes", f"an Arrow IPC stream ({fault})") from None
    if source.tell() != source.size():
        raise InvalidInput("body", f"{source.size() - source.tell()} bytes after its end", "one Arrow IPC stream")
    if not batches:
        raise InvalidInput("messages", 0, f"1 to {limits.BATCH_MESSAGES_MAX} messages in one call")
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


def _batches(source: pa.BufferReader) -> list[pa.RecordBatch]:
    messages = pa.ipc.MessageReader.open_stream(source)
    first = next(messages, None)
    if first is None or first.type != "schema":
        raise InvalidInput("body", "no schema", "an Arrow IPC stream, which begins with one")
    schema, taken = _shape(first)
    batches: list[pa.RecordBatch] = []
    rows = 0
    for message in messages:
        batch = _checked(message, schema)
        rows += batch.num_rows
        if rows > limits.BATCH_MESSAGES_MAX:
            raise InvalidInput("messages", rows, f"1 to {limits.BATCH_MESSAGES_MAX} messages in one call")
        if len(batches) == BATCHES_MAX:
            raise InvalidInput("body", f"more than {BATCHES_MAX} batches", f"at most {BATCHES_MAX} in one call")
        batches.append(pa.RecordBatch.from_arrays([_neat(batch.column(name)) for name in taken], taken))
    return batches


def _shape(message: pa.Message) -> tuple[pa.Schema, list[str]]:
    """Return the schema of a stream, and the columns to take; cached, as producers send the same schema each time."""
    metadata = message.metadata.to_pybytes()
    known = _SHAPES.get(metadata)
    if known is None:
        schema = pa.ipc.read_schema(message)
        _check_endianness(message)
        known = schema, given.taken(schema)
        if len(metadata) <= SHAPE_BYTES_MAX:
            if len(_SHAPES) == SHAPES_MAX:
                _SHAPES.clear()
            _SHAPES[metadata] = known
    return known


def _check_endianness(message: pa.Message) -> None:
    place = _slot(message.metadata, _header(message.metadata), _SCHEMA_ENDIANNESS)
    if place and message.metadata[place]:
        raise InvalidInput("body", "big-endian numbers", "little-endian ones")


def _checked(message: pa.Message, schema: pa.Schema) -> pa.RecordBatch:
    """Return a batch that was validated, so that reading it is safe."""
    if message.type != "record batch":
        raise InvalidInput("body", message.type, "record batches after the schema, and nothing else")
    if _slot(message.metadata, _header(message.metadata), _BATCH_COMPRESSION):
        raise InvalidInput("body", "a compressed batch", "batches without compression: they may grow without bound")
    batch = pa.ipc.read_record_batch(message, schema)
    for name, column in zip(schema.names, batch.columns, strict=True):
        try:
            column.validate(full=True)
        except pa.ArrowInvalid as fault:
            raise InvalidInput(name, str(fault), "a column that Arrow finds valid") from None
    given.check_broker_columns(batch)
    batch.validate()
    return batch


def _neat(column: pa.Array) -> pa.Array:
    """Return the column with one offset more than values: some writers leave out offsets of no values, or add bytes."""
    arrays = [column, column.keys, column.items] if kinds.is_map(column.type) else [column]
    for array in arrays if not kinds.is_primitive(column.type) else ():
        width = 8 if array.type in (pa.large_string(), pa.large_binary()) else 4
        if array.buffers()[1].size < width or array.buffers()[1].size % width:
            return pa.concat_arrays([column])
    return column


def _header(metadata: pa.Buffer) -> int:
    """Return where the table of the message's kind begins."""
    (root,) = struct.unpack_from("<I", metadata)
    place = _slot(metadata, root, _MESSAGE_HEADER)
    (ahead,) = struct.unpack_from("<I", metadata, place)
    return int(place + ahead)


def _slot(metadata: pa.Buffer, table: int, slot: int) -> int:
    """Return where a field of a flatbuffer table is; 0 if it is absent. Arrow has verified the buffer before."""
    (back,) = struct.unpack_from("<i", metadata, table)
    (size,) = struct.unpack_from("<H", metadata, table - back)
    if 4 + 2 * slot >= size:
        return 0
    (ahead,) = struct.unpack_from("<H", metadata, table - back + 4 + 2 * slot)
    return int(table + ahead) if ahead else 0
