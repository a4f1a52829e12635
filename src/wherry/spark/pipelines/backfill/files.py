"""Files of messages: Parquet, NDJSON or CSV, cut into pieces that are the same in every run of a job.

A piece of a Parquet file is some rows of a row group. A piece of a text file is all lines that begin in a range of its
bytes, so a task finds them without reading the whole file. A line of CSV is a row: values have no line breaks.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from functools import lru_cache
from hashlib import blake2b
from io import BytesIO
from pathlib import PurePosixPath
from typing import Any, Literal, NamedTuple
from urllib.parse import unquote, urlsplit

import msgspec
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from wherry.model.errors import InvalidInput
from wherry.spark.options.times import instant_ms
from wherry.spark.pipelines.archive.manifest_store import Store, plain, store

Format = Literal["parquet", "ndjson", "csv"]
FORMATS: dict[str, Format] = {
    **dict.fromkeys((".parquet", ".pq"), "parquet"),
    **dict.fromkeys((".ndjson", ".jsonl", ".json"), "ndjson"),
    ".csv": "csv",
}
EDGE = 64 << 10
DIGEST_BYTES = 4 << 20
LINE_BYTES = 256.0
LINE_MAX = 4 << 20
COLUMNS = ("id", "key", "priority", "due", "expires", "headers", "payload")
_TIMES = ("due", "expires")
_MS = pa.timestamp("ms", tz="UTC")
_HEADERS = pa.map_(pa.string(), pa.string())
_TYPES = {"id": pa.string(), "key": pa.string(), "priority": pa.int64(), "headers": _HEADERS, "payload": pa.binary()}


class SourceFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file as it was when the job began."""

    url: str
    format: Format
    bytes: int
    digest: str
    """The digest of the whole content."""

    def public(self) -> SourceFile:
        """Return the source without secrets of its URL, for records and messages."""
        return msgspec.structs.replace(self, url=plain(self.url))


class ColumnNames(msgspec.Struct, frozen=True, kw_only=True):
    """The columns of the file that are due time and payload."""

    due: str = "due"
    payload: str = "payload"

    def of(self, column: str) -> str:
        """Return the message field that a column of the file becomes."""
        return {self.due: "due", self.payload: "payload"}.get(column, column)


class FilePiece(NamedTuple):
    """Rows `start..stop` of a row group, or lines that begin in bytes `start..stop`."""

    source: int
    group: int
    start: int
    stop: int


def source(path: str) -> SourceFile:
    """Return a file by its path or URL, with its digest."""
    place, name = _split(path)
    found = FORMATS.get(PurePosixPath(name).suffix.lower())
    if found is None:
        raise InvalidInput("file", plain(path), "a file whose name ends in " + ", ".join(FORMATS))
    try:
        with place.open(name) as stream:
            size, digest = stream.size(), blake2b(digest_size=12)
            while some := stream.read(DIGEST_BYTES):
                digest.update(some)
    except (FileNotFoundError, IsADirectoryError):
        raise InvalidInput("file", plain(path), "a file that is there") from None
    return SourceFile(url=place.under(name).url, format=found, bytes=size, digest=digest.hexdigest())


def _split(path: str) -> tuple[Store, str]:
    """Return the folder of a file, with all settings of its URL, and the file's name."""
    if "://" not in path:
        folder, _, name = path.rpartition("/")
        return store(folder or ("/" if path.startswith("/") else ".")), name
    parts = urlsplit(path)
    folder, _, name = parts.path.rpartition("/")
    return store(parts._replace(path=folder or "/").geturl()), unquote(name)


def pieces(sources: list[SourceFile], chunk_rows: int, chunk_bytes: int) -> list[FilePiece]:
    """Return the pieces of all files, in order."""
    found = []
    for number, each in enumerate(sources):
        if each.format != "parquet":
            found += [FilePiece(number, 0, at, at + chunk_bytes) for at in range(0, each.bytes, chunk_bytes)]
            continue
        with _parquet(each) as parquet:
            for group in range(parquet.num_row_groups):
                rows = parquet.metadata.row_group(group).num_rows
                found += [FilePiece(number, group, at, min(at + chunk_rows, rows)) for at in range(0, rows, chunk_rows)]
    return found


class RowEstimate(NamedTuple):
    """About how many messages a file has, and how many bytes each."""

    rows: int
    row_bytes: float


def estimate(each: SourceFile) -> RowEstimate:
    """Return about how many messages a file has and how large they are; for a text file both are guesses."""
    if each.format != "parquet":
        return RowEstimate(0, LINE_BYTES)
    with _parquet(each) as parquet:
        metadata = parquet.metadata
        size = sum(metadata.row_group(group).total_byte_size for group in range(metadata.num_row_groups))
        return RowEstimate(metadata.num_rows, size / max(1, metadata.num_rows))


def read(sources: list[SourceFile], names: ColumnNames, piece: FilePiece) -> Iterator[pa.RecordBatch]:
    """Yield the messages of a piece. Runs in a task."""
    each = sources[piece.source]
    if each.format == "parquet":
        rows = _group(each, piece.group).slice(piece.start, piece.stop - piece.start)
        table = rows
    else:
        header, text = _lines(each, piece)
        if not text.strip():
            return
        table = _json(each, text, names) if each.format == "ndjson" else _csv(header, text, names)
    yield from messages(table, names, plain(each.url)).to_batches()


def messages(table: pa.Table, names: ColumnNames, where: str) -> pa.Table:
    """Return columns of a file as columns of messages; raise `InvalidInput` for one that a message does not have."""
    columns: dict[str, Any] = {}
    for column in table.column_names:
        name = names.of(column)
        if name not in COLUMNS or name in columns:
            raise InvalidInput(f"{where}: column", column, "each once, some of " + ", ".join(COLUMNS))
        columns[name] = table.column(column)
    for name in ("due", "payload"):
        if name not in columns:
            raise InvalidInput(
                f"{where}: columns", table.column_names, f"a column {name!r}; --{name} names another one"
            )
    made = {}
    for name, column in columns.items():
        whole = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
        whole = pa.concat_arrays(whole.chunks) if isinstance(whole, pa.ChunkedArray) else whole
        try:
            made[name] = _times(whole, f"{where}: {name}") if name in _TIMES else _cast(whole, _TYPES[name])
        except pa.ArrowException as fault:
            raise InvalidInput(f"{where}: {name}", str(whole.type), f"values that fit ({fault})") from None
    return pa.table(made)


def _cast(column: pa.Array, wanted: pa.DataType) -> pa.Array:
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if pa.types.is_map(wanted) and pa.types.is_string(column.type):
        decode = msgspec.json.Decoder(dict[str, str]).decode
        values = [None if not text else list(decode(text).items()) for text in column.to_pylist()]
        return pa.array(values, wanted)
    return column if column.type == wanted else column.cast(wanted)


def _times(column: pa.Array, where: str) -> pa.Array:
    """Return times from timestamps, whole numbers of Unix milliseconds, or text."""
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if pa.types.is_null(column.type):
        return pa.nulls(len(column), _MS)
    if pa.types.is_integer(column.type):
        return column.cast(pa.int64()).cast(_MS)
    if pa.types.is_timestamp(column.type) or pa.types.is_date(column.type):
        zone = getattr(column.type, "tz", None)
        column = column if pa.types.is_timestamp(column.type) else column.cast(pa.timestamp("ms"))
        return column.cast(_MS, safe=False) if zone else column.cast(pa.timestamp("ms"), safe=False).cast(_MS)
    if not pa.types.is_string(column.type) and not pa.types.is_large_string(column.type):
        raise InvalidInput(where, str(column.type), "times, Unix milliseconds, or text")
    for way in (pa.int64(), pa.timestamp("ms"), _MS):
        try:
            return column.cast(way).cast(_MS)
        except pa.ArrowInvalid:
            continue
    values = [None if text is None else instant_ms(where, text, 0) for text in column.to_pylist()]
    return pa.array(values, pa.int64()).cast(_MS)


# ------------------------------------------------------------------------------------------------------------ parquet


def _parquet(each: SourceFile) -> pq.ParquetFile:
    place, name = _split(each.url)
    try:
        return pq.ParquetFile(place.open(name))
    except pa.ArrowInvalid as fault:
        raise InvalidInput("file", plain(each.url), f"a Parquet file ({fault})") from None


@lru_cache(maxsize=1)
def _group(each: SourceFile, group: int) -> pa.Table:
    """Read a row group, and keep it, since its pieces are read one after another."""
    with _parquet(each) as parquet:
        return parquet.read_row_group(group)


# -------------------------------------------------------------------------------------------------------------- lines


def _lines(each: SourceFile, piece: FilePiece) -> tuple[bytes, bytes]:
    """Return the first line of the file, for CSV, and the lines that begin in the piece."""
    place, name = _split(each.url)
    with place.open(name) as stream:
        header = _line(stream.read(EDGE)) if each.format == "csv" else b""
        # Start a byte earlier: a line begins in the piece if a line break comes before it.
        begin = max(0, piece.start - 1)
        stream.seek(begin)
        text = stream.read(piece.stop - begin)
        while piece.stop < each.bytes and not text.endswith(b"\n"):
            more = stream.read(EDGE)
            cut = more.find(b"\n") + 1
            text += more[:cut] if cut else more
            if not more:
                break  # the last line of the file has no line break
            if len(text) > piece.stop - begin + LINE_MAX:
                raise InvalidInput(plain(each.url), f"a line of more than {LINE_MAX} bytes", "lines that are messages")
    if piece.start == 0:
        return header, text[len(header) :]
    first = text.find(b"\n")
    # A line break at the last byte of the piece begins a line of the next piece.
    return header, text[first + 1 :] if 0 <= first < piece.stop - begin - 1 else b""


def _line(text: bytes) -> bytes:
    end = text.find(b"\n")
    return text if end < 0 else text[: end + 1]


class JsonLine(msgspec.Struct, gc=False):
    """A line of NDJSON; a payload that is not text is kept as JSON."""

    payload: msgspec.Raw
    due: int | str | None = None
    id: str | None = None
    key: str | None = None
    priority: int | None = None
    expires: int | str | None = None
    headers: dict[str, str] | None = None


def _json(each: SourceFile, text: bytes, names: ColumnNames) -> pa.Table:
    decoder = _decoder(names)
    try:
        lines = decoder.decode_lines(text)
    except msgspec.MsgspecError as fault:
        allowed = f'lines such as {{"payload": "…", "due": 1800000000000, "key": "…"}} ({fault})'
        raise InvalidInput(plain(each.url), text[:80], allowed) from None
    columns: dict[str, Any] = {names.payload: pa.array([_payload(line.payload) for line in lines], pa.binary())}
    for name in ("id", "key", "priority"):
        columns[name] = pa.array([getattr(line, name) for line in lines], _TYPES[name])
    for name in _TIMES:
        values = [getattr(line, name) for line in lines]
        if any(isinstance(value, str) for value in values):
            values = [
                instant_ms(f"{plain(each.url)}: {name}", value, 0) if isinstance(value, str) else value
                for value in values
            ]
        columns[names.due if name == "due" else name] = pa.array(values, pa.int64())
    given = [None if line.headers is None else list(line.headers.items()) for line in lines]
    columns["headers"] = pa.array(given, _HEADERS)
    return pa.table(
        {name: column for name, column in columns.items() if name == names.due or column.null_count < len(lines)}
    )


@lru_cache(maxsize=8)
def _decoder(names: ColumnNames) -> Any:
    """Return a decoder of lines with these names."""
    renamed = {"due": names.due, "payload": names.payload}
    kind = msgspec.defstruct(
        "Named", [], bases=(JsonLine,), rename=lambda name: renamed.get(name, name), forbid_unknown_fields=True
    )
    return msgspec.json.Decoder(kind)


def _payload(raw: msgspec.Raw) -> bytes:
    text = bytes(raw)
    return msgspec.json.decode(text, type=str).encode() if text[:1] == b'"' else text


def _csv(header: bytes, text: bytes, names: ColumnNames) -> pa.Table:
    """Read all columns as text; an empty value is null, except for a payload."""
    columns = next(csv.reader([header.decode("utf-8-sig")]), [])
    convert = pa.csv.ConvertOptions(
        column_types=dict.fromkeys(columns, pa.string()),
        strings_can_be_null=True,
        null_values=[""],
        quoted_strings_can_be_null=False,
    )
    table = pa.csv.read_csv(
        BytesIO(text), read_options=pa.csv.ReadOptions(column_names=columns), convert_options=convert
    )
    if names.payload not in columns:
        return table
    place = columns.index(names.payload)
    return table.set_column(place, names.payload, table.column(place).fill_null(""))
