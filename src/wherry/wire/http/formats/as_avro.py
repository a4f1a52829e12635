"""Messages as Avro: object container files, and single objects by fingerprint.

The framing of a container is read by code of this module, so that nothing inflates beyond a bound, and its schema may
only have fields of the message schema: a schema of the client's choice could ask for a billion values that take no
bytes. A block of a container then equals a block of an Avro array, count first, so all its records are decoded at once.
"""

from __future__ import annotations

import importlib
import io
import zlib
from collections.abc import Iterator
from functools import lru_cache
from http import HTTPStatus
from typing import Any, TypeAlias

import msgspec
import pyarrow as pa

from wherry.model import limits
from wherry.model.errors import InvalidInput, TooLarge
from wherry.model.schema import Int64
from wherry.wire.http.api.problem import HttpError
from wherry.wire.http.formats.rows import COLUMN_OF, counted_from, joined, to_batch, to_fields
from wherry.wire.http.protocol.message import (
    AVRO,
    AVRO_SINGLE,
    Bytes,
    Response,
)

Schema: TypeAlias = dict[str, Any]

INFLATED_BYTES_MAX = 64 << 20
BLOCKS_MAX = 65_536
"""Most blocks of one container: each costs as much as several messages, and a block may hold only one."""

BLOCK_BYTES_MAX, BLOCK_MESSAGES_MAX = 64 << 10, 2_048
"""Bounds of a block that is decoded at once; a larger one is read record by record, and other tasks run between."""

SOME_MESSAGES = 512
"""Records of a large block that are read before other tasks run."""

META_MAX = 64
SCHEMA_BYTES_MAX = 64 << 10

_MAGIC = b"Obj\x01"
_SINGLE = b"\xc3\x01"
_SYNC_BYTES = 16
_TEXT_MAP = {"type": "map", "values": "string"}


def _nullable(name: str, kind: object) -> Schema:
    return {"name": name, "type": ["null", kind], "default": None}


MESSAGE_AVRO_SCHEMA: Schema = {
    "type": "record",
    "name": "Message",
    "namespace": "wherry",
    "fields": [
        {"name": "payload", "type": "bytes"},
        _nullable("id", "string"),
        _nullable("key", "string"),
        _nullable("priority", "int"),
        _nullable("due_ms", "long"),
        _nullable("expires_ms", "long"),
        _nullable("headers", _TEXT_MAP),
    ],
}
"""Fields that a producer may give; only `payload` is required."""

DELIVERED_AVRO_SCHEMA: Schema = {
    "type": "record",
    "name": "Delivered",
    "namespace": "wherry",
    "fields": [
        *MESSAGE_AVRO_SCHEMA["fields"],
        {"name": "offset", "type": "long"},
        {"name": "published_ms", "type": "long"},
        _nullable("partition", "int"),
        _nullable("attempt", "int"),
        _nullable("receipt", "string"),
    ],
}
"""Fields that a consumer gets; listings add fields after these."""

_KINDS: dict[str, tuple[object, ...]] = {
    "payload": ("bytes", "string"),
    "id": ("string",),
    "key": ("string",),
    "priority": ("int", "long"),
    "due_ms": ("int", "long"),
    "expires_ms": ("int", "long"),
    "headers": (_TEXT_MAP,),
}


@lru_cache(maxsize=1)
def _fastavro() -> Any:
    try:
        return importlib.import_module("fastavro")
    except ImportError:
        raise HttpError("unsupported-media-type", f"{AVRO} needs fastavro here: pip install wherry[avro]") from None


SCHEMAS: dict[str, Schema] = {"message": MESSAGE_AVRO_SCHEMA, "delivered": DELIVERED_AVRO_SCHEMA}
"""Schemas by the names they are published under."""


@lru_cache(maxsize=2)
def _fingerprint(name: str = "message") -> bytes:
    """Return the CRC-64-AVRO of a schema's canonical form, little-endian."""
    schema = _fastavro().schema
    return bytes.fromhex(schema.fingerprint(schema.to_parsing_canonical_form(SCHEMAS[name]), "CRC-64-AVRO"))


def read(body: Bytes) -> pa.RecordBatch:
    """Read every message of an object container."""
    return joined([batch for batch in read_pieces(body) if batch is not None])


def read_pieces(body: Bytes) -> Iterator[pa.RecordBatch | None]:
    """Read as `read` does, some messages at a time; None where other tasks may run meanwhile."""
    done, waiting, size = 0, list[dict[str, Any]](), 0
    for records, length in _pieces(_Cursor(memoryview(body).cast("B"))):
        waiting += records
        size += length
        if size > BLOCK_BYTES_MAX or len(waiting) >= SOME_MESSAGES:
            yield _batch(waiting, done) if waiting else None
            done, waiting, size = done + len(waiting), [], 0
    if waiting:
        yield _batch(waiting, done)


def _pieces(cursor: _Cursor) -> Iterator[tuple[list[dict[str, Any]], int]]:
    """Yield the records of a container and their size in bytes: block by block, and large blocks in parts."""
    _fastavro()
    if cursor.take(len(_MAGIC)) != _MAGIC:
        raise _refused("no magic", "an Avro object container, which begins with Obj and 01")
    meta = _meta(cursor)
    codec = meta.get("avro.codec", b"null").decode("latin-1")
    if codec not in ("null", "deflate"):
        raise _refused(f"codec {codec}", "codec null or deflate")
    schema = _writer_schema(meta.get("avro.schema", b""))
    sync, left, total = cursor.take(_SYNC_BYTES), INFLATED_BYTES_MAX, 0
    for _ in range(BLOCKS_MAX):
        if cursor.done:
            return
        count, head, data = _block(cursor, sync)
        if not 0 <= count <= limits.BATCH_MESSAGES_MAX - total:
            raise InvalidInput("messages", total + count, f"1 to {limits.BATCH_MESSAGES_MAX} in one call")
        plain = data if codec == "null" else _inflated(data, left)
        left -= len(plain)
        total += count
        if len(plain) > BLOCK_BYTES_MAX or count > BLOCK_MESSAGES_MAX:
            yield from _some_each(schema["items"], count, plain)
        else:
            yield (_records(schema, head, plain) if count else []), len(plain)
    raise _refused(f"{BLOCKS_MAX} blocks or more", f"fewer than {BLOCKS_MAX} in one call")


def _some_each(schema: Schema, count: int, data: Bytes) -> Iterator[tuple[list[dict[str, Any]], int]]:
    """Yield the records of a block that is too large to be decoded at once."""
    source, read = io.BytesIO(data), _fastavro().schemaless_reader
    for begin in range(0, count, SOME_MESSAGES):
        before = source.tell()
        try:
            records = [read(source, schema, None) for _ in range(min(SOME_MESSAGES, count - begin))]
        except Exception as fault:  # fastavro has no errors of its own for bad bytes: any exception may come
            raise _refused(repr(fault), "records of their schema") from None
        yield records, source.tell() - before
    if source.read(1):
        raise _refused("bytes after the last record", "as many records as a block says")


def _block(cursor: _Cursor, sync: memoryview) -> tuple[int, memoryview, memoryview]:
    """Return the count of the next block, that count as it is written, and the data of the block."""
    start = cursor.at
    count = cursor.long()
    head, data = cursor.data[start : cursor.at], cursor.take(cursor.long())
    if cursor.take(_SYNC_BYTES) != sync:
        raise _refused("a block without the sync marker", "an Avro object container")
    return count, head, data


def read_single(body: Bytes) -> pa.RecordBatch:
    """Read one message in single-object encoding: C3 01, the schema's fingerprint, the record."""
    data, wanted = memoryview(body).cast("B"), _SINGLE + _fingerprint()
    if data[: len(wanted)] != wanted:
        allowed = f"{AVRO_SINGLE}: {wanted.hex()}, then a record of the schema at GET /v1/schemas/message"
        raise _refused(bytes(data[: len(wanted)]).hex(), allowed)
    return _batch(_records(_as_array(MESSAGE_AVRO_SCHEMA), b"\x02", data[len(wanted) :]))


def write_single(record: dict[str, Any], name: str = "message") -> bytes:
    """Return one message in single-object encoding."""
    sink = io.BytesIO()
    sink.write(_SINGLE + _fingerprint(name))
    _fastavro().schemaless_writer(sink, SCHEMAS[name], record)
    return sink.getvalue()


def write_one(batch: pa.RecordBatch, leases: Int64 | None) -> Response:
    """Return the only message of a batch in single-object encoding as an answer; 204 if there is none."""
    if not batch.num_rows:
        return Response(HTTPStatus.NO_CONTENT)
    if batch.num_rows > 1:
        raise HttpError("not-acceptable", f"{AVRO_SINGLE} carries one message, and there are {batch.num_rows}")
    record = {name: value for name, (value,) in to_fields(batch, leases).items()}
    return Response(body=[write_single(record, "delivered")], content_type=AVRO_SINGLE)


def _batch(records: list[dict[str, Any]], before: int = 0) -> pa.RecordBatch:
    """Return records as messages, which follow `before` other messages."""
    with counted_from(before):
        return to_batch({name: [record.get(name) for record in records] for name in COLUMN_OF})


def _records(array: Schema, head: Bytes, data: Bytes) -> list[dict[str, Any]]:
    """Decode the records of a block: count, records, and the 0 that ends an Avro array."""
    source = io.BytesIO(b"".join((head, data, b"\x00")))
    try:
        records: list[dict[str, Any]] = _fastavro().schemaless_reader(source, array, None)
    except Exception as fault:  # fastavro has no errors of its own for bad bytes: any exception may come
        raise _refused(repr(fault), "records of their schema") from None
    if source.read(1):
        raise _refused("bytes after the last record", "as many records as a block says")
    return records


def _as_array(record: Schema) -> Schema:
    parsed: Schema = _fastavro().parse_schema({"type": "array", "items": record})
    return parsed


def _writer_schema(text: bytes) -> Schema:
    """Return the array schema for a container's schema, which may have any fields of a message, null allowed or not."""
    try:
        given = msgspec.json.decode(text[: SCHEMA_BYTES_MAX + 1])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        given = None
    if not isinstance(given, dict) or given.get("type") != "record" or not isinstance(given.get("fields"), list):
        raise _refused(text[:80], "a container of records: the schema is at GET /v1/schemas/message")
    fields = dict(map(_writer_field, given["fields"]))
    if "payload" not in fields or len(fields) < len(given["fields"]):
        raise InvalidInput("schema", [*fields], "a record with a payload, and each field once")
    plain = [{"name": name, "type": kind} for name, kind in fields.items()]
    return _as_array({"type": "record", "name": "Message", "fields": plain})


def _writer_field(field: object) -> tuple[str, object]:
    """Return a field's name, and its type in the simplest form."""
    name, kind = (field.get("name"), field.get("type")) if isinstance(field, dict) else (None, None)
    if not isinstance(name, str) or name not in _KINDS:
        raise InvalidInput("schema", name, "fields " + ", ".join(_KINDS))
    options = [*map(_simplest, kind)] if isinstance(kind, list) else [_simplest(kind)]
    values = [option for option in options if option != "null"]
    nulls = 0 if name == "payload" else 1
    if len(values) != 1 or values[0] not in _KINDS[name] or len(options) > len(values) + nulls:
        allowed = " or ".join(map(str, _KINDS[name])) + ", or null with it" * nulls
        raise InvalidInput(f"schema.{name}", kind, allowed)
    return name, options if isinstance(kind, list) else options[0]


def _simplest(kind: object) -> object:
    """Return a type without extra attributes: {"type": "string", "avro.java.string": "String"} is a string."""
    if isinstance(kind, dict) and kind.get("type") == "map":
        return {"type": "map", "values": _simplest(kind.get("values"))}
    if isinstance(kind, dict) and isinstance(kind.get("type"), str):
        return kind["type"]
    return kind


def _meta(cursor: _Cursor) -> dict[str, bytes]:
    """Read the map at the head of a container."""
    meta: dict[str, bytes] = {}
    while count := cursor.long():
        if count < 0:
            cursor.long()  # the size of the block, which allows skipping it
        if abs(count) > META_MAX - len(meta):
            raise _refused(f"{abs(count)} entries of metadata", f"at most {META_MAX}")
        for _ in range(abs(count)):
            name = bytes(cursor.take(cursor.long())).decode("latin-1")
            meta[name] = bytes(cursor.take(cursor.long()))
    return meta


def _inflated(data: memoryview, bytes_max: int) -> bytes:
    engine = zlib.decompressobj(-zlib.MAX_WBITS)
    try:
        plain = engine.decompress(data, bytes_max + 1)
    except zlib.error as fault:
        raise _refused(str(fault), "blocks in deflate") from None
    if len(plain) > bytes_max:
        raise TooLarge("the inflated container", INFLATED_BYTES_MAX + 1, INFLATED_BYTES_MAX)
    if not engine.eof:  # bytes after the end are allowed: fastavro leaves some of zlib's checksum there
        raise _refused("a block cut off", "whole blocks in deflate")
    return plain


def _refused(given: object, allowed: str) -> InvalidInput:
    return InvalidInput("body", given, allowed)


class _Cursor:
    """Reads Avro's framing, from the start to the end."""

    def __init__(self, data: memoryview) -> None:
        self.data, self.at = data, 0

    @property
    def done(self) -> bool:
        return self.at == len(self.data)

    def take(self, size: int) -> memoryview:
        if not 0 <= size <= len(self.data) - self.at:
            raise _refused(f"{len(self.data)} bytes", "a whole Avro object container")
        self.at += size
        return self.data[self.at - size : self.at]

    def long(self) -> int:
        """Read an integer: seven bits a byte, least first, at most ten bytes; the sign is the last bit."""
        value = shift = 0
        while True:
            (byte,) = self.take(1)
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return (value >> 1) ^ -(value & 1)
            if shift == 70:
                raise _refused("a number of more than ten bytes", "an Avro object container")


def write(batch: pa.RecordBatch, leases: Int64 | None) -> Response:
    """Return an object container as an answer."""
    avro = _fastavro()
    fields = to_fields(batch, leases)
    records = [dict(zip(fields, row, strict=True)) for row in zip(*fields.values(), strict=True)]
    sink = io.BytesIO()
    avro.writer(sink, _schema_of(tuple(batch.schema)), records)
    return Response(body=[sink.getbuffer()], content_type=AVRO)


class Container:
    """Writes an object container, block by block."""

    def __init__(self, columns: pa.Schema) -> None:
        writer = importlib.import_module("fastavro.write").Writer
        self._sink = io.BytesIO()
        self._writer = writer(self._sink, _schema_of(tuple(columns)))

    def add(self, block: pa.RecordBatch, leases: Int64 | None = None) -> None:
        """Append messages."""
        fields = to_fields(block, leases)
        for row in zip(*fields.values(), strict=True):
            self._writer.write(dict(zip(fields, row, strict=True)))

    def response(self) -> Response:
        """Return all that was added as an answer."""
        self._writer.flush()
        return Response(body=[self._sink.getbuffer()], content_type=AVRO)


@lru_cache(maxsize=64)
def _schema_of(columns: tuple[pa.Field, ...]) -> Schema:
    """Return the schema of a delivered message, with a field for each column of a listing that it lacks."""
    known = {field["name"] for field in DELIVERED_AVRO_SCHEMA["fields"]} | {"envelope", "blob", "mac"}
    more = []
    for column in columns:
        name = f"{column.name}_ms" if pa.types.is_timestamp(column.type) else column.name
        if name not in known:
            more.append(_nullable(name, "string" if column.type == pa.string() else "long"))
    parsed: Schema = _fastavro().parse_schema(
        {**DELIVERED_AVRO_SCHEMA, "fields": [*DELIVERED_AVRO_SCHEMA["fields"], *more]}
    )
    return parsed
