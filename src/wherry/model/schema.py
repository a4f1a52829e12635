"""The message batch, schema version 1: the format on the wires, in the journal and in Spark.

There are two shapes of the same batch:

* **full**: every column of `MESSAGE`, as readers get it and segment files hold it;
* **compact**: what a producer gave, in the order of `STORED`, without `offset` and `published` (derived from the
  journal entry) and without columns that are all null. A compact batch of a thousand 256-byte messages is 256 KB;
  the full one is 340 KB.

`presence(batch)` is the bit set of the columns of a compact batch; bit numbers are part of the journal format.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from wherry.model import limits
from wherry.model.errors import InvalidInput

VERSION = 1

_INT64 = pa.int64()
_BINARY = pa.binary()
_MS = pa.timestamp("ms", tz="UTC")
_PUBLISHED = pa.timestamp("us", tz="UTC")
_HEADERS = pa.map_(pa.string(), pa.string())

MESSAGE = pa.schema(
    [
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("id", pa.string()),
        pa.field("key", pa.string()),
        pa.field("priority", pa.uint16(), nullable=False),
        pa.field("due", _MS),
        pa.field("expires", _MS),
        pa.field("published", _PUBLISHED, nullable=False),
        pa.field("headers", _HEADERS),
        pa.field("envelope", pa.binary()),
        pa.field("payload", pa.binary(), nullable=False),
        pa.field("blob", pa.string()),
        pa.field("mac", pa.binary(32)),
    ],
    metadata={b"wherry.schema": str(VERSION).encode()},
)

COLUMNS = tuple(MESSAGE.names)
DERIVED = ("offset", "published")
STORED = tuple(name for name in COLUMNS if name not in DERIVED)
BIT = {name: 1 << index for index, name in enumerate(STORED)}
TYPES = {field.name: field.type for field in MESSAGE}
TEXTS = ("id", "key", "headers", "blob")
VARIABLE = ("id", "key", "envelope", "payload", "blob")
"""Columns with a variable length; their bytes, and those of the headers, are the content bytes of a message."""

DELIVERED = MESSAGE.append(pa.field("partition", pa.uint16(), nullable=False)).append(
    pa.field("attempt", pa.uint16(), nullable=False)
)
"""What a consumer gets: the message, its partition, and the number of the attempt (1 for the first)."""

IGNORED = frozenset({*DERIVED, "partition", "attempt", "version"})
"""Columns of a delivered batch that a publish ignores, so that a delivered batch can be published as it is."""

WHOLE = ("priority", "due", "expires")

ABSENT_CACHED_MAX = 8_192
"""Absent columns up to this many rows are cached: pulls of one size need the same ones again and again."""

Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One message, for callers that have single messages. Times are Unix milliseconds."""

    payload: bytes
    id: str | None = None
    key: str | None = None
    priority: int | None = None
    due_ms: int | None = None
    expires_ms: int | None = None
    headers: dict[str, str] | None = None
    envelope: bytes | None = None


class PlainBatch(NamedTuple):
    """A compact batch of payloads, and perhaps envelopes, made of Python bytes: only payload sizes are unchecked."""

    batch: pa.RecordBatch
    payload_bytes: int
    """Bytes of the largest payload."""


def plain_batch(payloads: list[bytes], envelopes: list[bytes | None] | None) -> PlainBatch:
    """Return messages without other columns as a compact batch; each envelope is within its limit."""
    arrays = [pa.array(payloads, _BINARY)]
    if envelopes is not None:
        arrays.insert(0, pa.array(envelopes, _BINARY))
    schema = _schema_of(("payload",) if envelopes is None else ("envelope", "payload"))
    largest = len(payloads[0]) if len(payloads) == 1 else max(map(len, payloads))
    return PlainBatch(pa.RecordBatch.from_arrays(arrays, schema=schema), largest)


_SINGLE = (bytes, str, Message)
Publishable: TypeAlias = pa.RecordBatch | pa.Table | Sequence[bytes | str | Message] | bytes | str | Message


def compact(given: Publishable | PlainBatch, payload_bytes_max: int = limits.PAYLOAD_BYTES_MAX) -> pa.RecordBatch:
    """Return anything publishable as a checked compact batch.

    `InvalidInput` names the column and the first bad value.
    """
    if isinstance(given, PlainBatch):
        if given.payload_bytes <= payload_bytes_max:
            return given.batch
        given = given.batch
    if isinstance(given, _SINGLE):
        given = [given]
    if isinstance(given, pa.Table):
        given = _one_batch(given)
    columns = _from_arrow(given) if isinstance(given, pa.RecordBatch) else _from_rows(given)
    rows = len(columns["payload"])
    if not 1 <= rows <= limits.BATCH_MESSAGES_MAX:
        raise InvalidInput("messages", rows, f"1 to {limits.BATCH_MESSAGES_MAX} messages in one call")
    _check(columns, payload_bytes_max)
    kept = [name for name in STORED if name in columns and columns[name].null_count < rows]
    if "priority" in kept and columns["priority"].null_count:
        columns["priority"] = pc.fill_null(columns["priority"], pa.scalar(limits.PRIORITY_DEFAULT, pa.uint16()))
    return pa.RecordBatch.from_arrays([columns[name] for name in kept], schema=_schema_of(tuple(kept)))


def presence(batch: pa.RecordBatch) -> int:
    """Return the bit set of the columns of a compact batch."""
    return sum(BIT[name] for name in batch.schema.names)


@lru_cache(maxsize=1024)
def stored_schema(bits: int) -> pa.Schema:
    """Return the schema of a compact batch with these columns."""
    return _schema_of(tuple(name for name in STORED if BIT[name] & bits))


@lru_cache(maxsize=1024)
def _schema_of(names: tuple[str, ...]) -> pa.Schema:
    return pa.schema([MESSAGE.field(name) for name in names])


def expand(batch: pa.RecordBatch, offsets: Int64, published_us: int | Int64) -> pa.RecordBatch:
    """Return a compact batch as a full one."""
    rows = batch.num_rows
    present = set(batch.schema.names)
    stamps = np.full(rows, published_us, np.int64) if isinstance(published_us, int) else published_us
    arrays = []
    for name in COLUMNS:
        if name == "offset":
            arrays.append(pa.array(offsets, pa.int64()))
        elif name == "published":
            arrays.append(pa.array(stamps, pa.int64()).view(_PUBLISHED))
        else:
            arrays.append(batch.column(name) if name in present else absent(name, rows))
    return pa.RecordBatch.from_arrays(arrays, schema=MESSAGE)


def delivered(
    batch: pa.RecordBatch, offsets: Int64, published_us: int | Int64, partition: int, attempts: int | Int64
) -> pa.RecordBatch:
    """Return messages of one partition as a consumer gets them, without columns that the compact batch lacks."""
    rows = batch.num_rows
    stamps = np.full(rows, published_us, np.int64) if isinstance(published_us, int) else published_us
    columns = dict(zip(batch.schema.names, batch.columns, strict=True))
    columns["offset"] = pa.array(offsets, _INT64)
    columns["published"] = pa.Array.from_buffers(_PUBLISHED, rows, [None, pa.py_buffer(stamps)])
    columns["partition"] = _alike(partition, rows)
    columns["attempt"] = _attempts(attempts, rows)
    schema = _delivered_schema(tuple(batch.schema.names))
    return pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)


def _attempts(attempts: int | Int64, rows: int) -> pa.Array:
    """Return the column of attempts, limited to the range of its type: a redelivery never looks like the first one."""
    if isinstance(attempts, int):
        return _alike(min(attempts, limits.ATTEMPT_SHOWN_MAX), rows)
    return pa.array(np.minimum(attempts, limits.ATTEMPT_SHOWN_MAX).astype(np.uint16))


@lru_cache(maxsize=1024)
def _delivered_schema(stored: tuple[str, ...]) -> pa.Schema:
    names = {*stored, *DERIVED, "partition", "attempt"}
    return pa.schema([field for field in DELIVERED if field.name in names], metadata=DELIVERED.metadata)


def completed(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return a delivered batch with all columns."""
    rows, present = batch.num_rows, set(batch.schema.names)
    columns = [batch.column(name) if name in present else absent(name, rows) for name in DELIVERED.names]
    return pa.RecordBatch.from_arrays(columns, schema=DELIVERED)


def absent(name: str, rows: int) -> pa.Array:
    """Return the values of a stored column that a batch does not have: nulls, or the default priority."""
    return _absent(name, rows) if rows <= ABSENT_CACHED_MAX else _absent.__wrapped__(name, rows)


@lru_cache(maxsize=64)
def _absent(name: str, rows: int) -> pa.Array:
    if name == "priority":
        return pa.array(np.full(rows, limits.PRIORITY_DEFAULT, np.uint16))
    return nulls(rows, MESSAGE.field(name).type)


def nulls(rows: int, kind: pa.DataType) -> pa.Array:
    """Return a column of nulls. The maps of `pa.nulls` have children as long, which each slice is written with."""
    return pa.nulls(1, kind).take(pa.array(np.zeros(rows, np.int64))) if pa.types.is_map(kind) else pa.nulls(rows, kind)


def _alike(value: int, rows: int) -> pa.Array:
    """Return a column that repeats one small number."""
    return _same(value, rows) if rows <= ABSENT_CACHED_MAX else _same.__wrapped__(value, rows)


@lru_cache(maxsize=64)
def _same(value: int, rows: int) -> pa.Array:
    return pa.array(np.full(rows, value, np.uint16))


def shrink(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return a batch with all stored columns as a compact one."""
    rows = batch.num_rows
    kept = tuple(name for name in STORED if batch.column(name).null_count < rows)
    return pa.RecordBatch.from_arrays([batch.column(name) for name in kept], schema=_schema_of(kept))


def edges(column: pa.Array) -> Int64:
    """Return the positions in the data buffer where each value begins, and where the last one ends."""
    return raw_edges(column).astype(np.int64)


def raw_edges(column: pa.Array) -> npt.NDArray[np.int32]:
    """Return these positions without a copy.

    Arrow allows the buffer to be longer than the column, and to be missing if there is no value.
    """
    raw = column.buffers()[1]
    if len(column) == 0 or raw is None or raw.size == 0:
        return np.zeros(len(column) + 1, np.int32)
    return np.frombuffer(raw, np.int32, len(column) + 1, column.offset * 4)


def payload_bytes(batch: pa.RecordBatch) -> int:
    """Return the bytes of all payloads."""
    return _span(batch.column("payload"))


def content_bytes(batch: pa.RecordBatch) -> int:
    """Return the bytes that count against bounds: payloads, ids, keys, headers, envelopes; not Arrow's overhead."""
    total = 0
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        if name in VARIABLE:
            total += _span(column)
        elif name == "headers":
            low, high = _ends(column)
            total += _span(column.keys.slice(low, high - low)) + _span(column.items.slice(low, high - low))
    return total


def content_sizes(batch: pa.RecordBatch) -> Int64:
    """Return the content bytes of each message; their sum is `content_bytes`."""
    sizes = np.zeros(batch.num_rows, np.int64)
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        if name in VARIABLE:
            ends = raw_edges(column)
            sizes += ends[1:] - ends[:-1]
        elif name == "headers":
            sizes += header_bytes(column)
    return sizes


def content_sizes_at(batch: pa.RecordBatch, rows: Int64) -> Int64:
    """Return the content bytes of some messages, without a copy of anything else."""
    sizes = np.zeros(len(rows), np.int64)
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        if name in VARIABLE:
            ends = raw_edges(column)
            sizes += ends[rows + 1] - ends[rows]
        elif name == "headers":
            pairs = raw_edges(column)
            for texts in (column.keys, column.items):
                ends = raw_edges(texts)
                sizes += ends[pairs[rows + 1]] - ends[pairs[rows]]
    return sizes


def header_bytes(column: pa.Array) -> Int64:
    """Return the bytes of the header names and values of each message."""
    pairs = edges(column)
    sizes: Int64 = np.diff(edges(column.keys)[pairs]) + np.diff(edges(column.items)[pairs])
    return sizes


def integers(batch: pa.RecordBatch, name: str, default: int) -> Int64:
    """Return a numeric or time column of a compact batch as int64; nulls and a missing column become `default`."""
    if name not in batch.schema.names:
        return np.full(batch.num_rows, default, np.int64)
    column = batch.column(name)
    if name != "priority":
        column = column.view(pa.int64())
    if column.null_count:
        column = column.fill_null(default)
    return column.to_numpy(zero_copy_only=False).astype(np.int64)


def _ends(column: pa.Array) -> tuple[int, int]:
    raw = raw_edges(column)
    return int(raw[0]), int(raw[-1])


def _span(column: pa.Array) -> int:
    if not len(column):
        return 0
    low, high = _ends(column)
    return high - low


def _one_batch(table: pa.Table) -> pa.RecordBatch:
    batches = table.combine_chunks().to_batches()
    return batches[0] if batches else pa.RecordBatch.from_pylist([], schema=table.schema)


def _from_arrow(batch: pa.RecordBatch) -> dict[str, pa.Array]:
    columns = {}
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        if name in IGNORED:
            continue
        if name not in BIT:
            raise InvalidInput("column", name, "one of " + ", ".join(STORED))
        if name in columns:
            raise InvalidInput("column", name, "each column once")
        _check_memory(name, column)  # a cast follows any offsets, even beyond the end of the buffer
        columns[name] = column
        if column.type != TYPES[name]:
            columns[name] = _cast(name, column, TYPES[name])
            _check_memory(name, columns[name])
    if "payload" not in columns:
        raise InvalidInput("column", batch.schema.names, "a batch with a payload column")
    return columns


def _check_memory(name: str, column: pa.Array) -> None:
    """Raise `InvalidInput` if a column is invalid.

    Arrow accepts any bytes as offsets and text, and fails when they are read.
    """
    try:
        column.validate(full=True)
    except (pa.ArrowInvalid, pa.ArrowIndexError) as fault:
        allowed = "text that is valid UTF-8" if name in TEXTS else "a column that Arrow finds valid"
        raise InvalidInput(name, str(fault), allowed) from None


def _cast(name: str, column: pa.Array, wanted: pa.DataType) -> pa.Array:
    try:
        if pa.types.is_dictionary(column.type):
            column = column.dictionary_decode()
        if pa.types.is_timestamp(column.type) and column.type.tz is None and pa.types.is_timestamp(wanted):
            column = column.cast(pa.timestamp(column.type.unit, tz="UTC"))
        if pa.types.is_timestamp(column.type) and wanted == _MS and column.type.unit in ("us", "ns"):
            column = pc.ceil_temporal(column, unit="millisecond")  # rounded up, so that no message is early
        return column.cast(wanted)
    except (pa.ArrowInvalid, pa.ArrowIndexError, pa.ArrowNotImplementedError, pa.ArrowTypeError) as fault:
        raise InvalidInput(name, f"{column.type}: {fault}", f"values that fit {wanted}") from None


def _from_rows(rows: Iterable[bytes | str | Message]) -> dict[str, pa.Array]:
    allowed = "an Arrow batch or table, or a list of bytes, str or Message"
    if isinstance(rows, Mapping | Set):  # iterating one would publish its keys, in any order
        raise InvalidInput("messages", rows, allowed)
    try:
        listed = list(rows)
    except TypeError:
        raise InvalidInput("messages", rows, allowed) from None
    if all(type(row) is bytes for row in listed):
        return {"payload": pa.array(listed, pa.binary())}
    for index, row in enumerate(listed):
        if not isinstance(row, bytes | str | Message):
            raise InvalidInput(f"messages[{index}]", row, "bytes, str or Message")
    messages = [row if isinstance(row, Message) else Message(payload=_as_bytes(row)) for row in listed]
    sources = {name: name for name in ("id", "key", "priority", "payload", "headers", "envelope")}
    sources |= {"due": "due_ms", "expires": "expires_ms"}
    columns = {}
    for name, attribute in sources.items():
        values = [getattr(message, attribute) for message in messages]
        if name == "payload" or any(value is not None for value in values):
            columns[name] = _built(name, values)
    return columns


def _as_bytes(value: bytes | str) -> bytes:
    if isinstance(value, bytes):
        return value
    try:
        return value.encode()
    except UnicodeEncodeError:
        raise InvalidInput("payload", value, "bytes, or text that is valid Unicode") from None


def _built(name: str, values: list[Any]) -> pa.Array:
    wanted = TYPES[name]
    if name == "headers":
        values = [None if value is None else _header_pairs(value) for value in values]
    for index, value in enumerate(values) if name in WHOLE else ():
        if isinstance(value, float):  # Arrow would truncate it silently
            raise InvalidInput(f"messages[{index}].{name}", value, "a whole number")
    try:
        if name in ("due", "expires"):
            return pa.array(values, pa.int64()).view(wanted)
        return pa.array(values, wanted)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError, TypeError, UnicodeEncodeError) as fault:
        for index, value in enumerate(values):
            try:
                pa.array([value], pa.int64() if name in ("due", "expires") else wanted)
            except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError, TypeError, UnicodeEncodeError):
                raise InvalidInput(f"messages[{index}].{name}", value, f"a value that fits {wanted}") from None
        raise InvalidInput(name, str(fault), f"values that fit {wanted}") from None


def _header_pairs(value: object) -> list[tuple[str, str]]:
    if not isinstance(value, dict):
        raise InvalidInput("headers", value, "a dict of text to text")
    for key, text in value.items():
        if not isinstance(key, str) or not isinstance(text, str):
            raise InvalidInput("headers", {key: text}, "a dict of text to text")
    return list(value.items())


_LENGTHS = (
    ("id", 1, limits.MESSAGE_ID_BYTES_MAX),
    ("key", 0, limits.KEY_BYTES_MAX),
    ("envelope", 0, limits.ENVELOPE_BYTES_MAX),
)


def _check(columns: dict[str, pa.Array], payload_bytes_max: int) -> None:
    if columns["payload"].null_count:
        raise InvalidInput("payload", None, "bytes in every message (empty ones are allowed)")
    _check_lengths("payload", columns["payload"], 0, payload_bytes_max)
    for name, low, high in _LENGTHS:
        if name in columns:
            _check_lengths(name, columns[name], low, high)
    for name in ("due", "expires"):
        if name in columns:
            _check_times(name, columns[name])
    if "headers" in columns:
        _check_headers(columns["headers"])


def _check_lengths(name: str, column: pa.Array, low: int, high: int) -> None:
    if not low and _span(column) <= high:
        return  # no single value can be longer than all of them together
    sizes = np.diff(edges(column))
    bad = sizes > high
    if low:
        bad |= (sizes < low) & ~column.is_null().to_numpy(zero_copy_only=False)
    if bad.any():
        index = int(np.argmax(bad))
        raise InvalidInput(f"messages[{index}].{name}", f"{int(sizes[index])} bytes", f"{low} to {high} bytes")


def _check_times(name: str, column: pa.Array) -> None:
    stamps = column.view(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
    bad = (stamps < 0) | (stamps > limits.TIME_MS_MAX)
    if bad.any():
        index = int(np.argmax(bad))
        allowed = f"Unix milliseconds from 0 to {limits.TIME_MS_MAX}"
        raise InvalidInput(f"messages[{index}].{name}", int(stamps[index]), allowed)


def _check_headers(column: pa.Array) -> None:
    counts = np.diff(edges(column))
    if len(counts) and counts.max() > limits.HEADERS_MAX:
        index = int(np.argmax(counts))
        raise InvalidInput(f"messages[{index}].headers", f"{counts[index]} headers", f"at most {limits.HEADERS_MAX}")
    sizes = header_bytes(column)
    if len(sizes) and sizes.max() > limits.HEADERS_BYTES_MAX:
        index = int(np.argmax(sizes))
        allowed = f"at most {limits.HEADERS_BYTES_MAX} bytes of names and values"
        raise InvalidInput(f"messages[{index}].headers", f"{sizes[index]} bytes", allowed)
    low, high = _ends(column)
    if column.items.slice(low, high - low).null_count:
        raise InvalidInput("headers", None, "text for every header")
