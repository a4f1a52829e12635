"""The content types of messages: one function reads any of them, one writes any of them.

JSON, Avro and octets pass through `rows`, which collects the fields of single messages by column; Arrow has columns
already, and they are not copied.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from importlib.util import find_spec

import pyarrow as pa

from wherry.broker.waiting.slices import SLICE_BYTES, SLICE_MESSAGES, Slices
from wherry.model.calls.receipts import format_receipts, parse_receipts
from wherry.model.schema import Int64, Message, content_bytes
from wherry.wire import arrow_stream
from wherry.wire.arrow_stream import WHOLE_BYTES
from wherry.wire.http.api.problem import HttpError
from wherry.wire.http.api.trace_context import carried
from wherry.wire.http.formats import as_arrow, as_avro, as_json, as_octets
from wherry.wire.http.formats.as_avro import DELIVERED_AVRO_SCHEMA, MESSAGE_AVRO_SCHEMA, SCHEMAS
from wherry.wire.http.formats.as_json import DecodedMessage
from wherry.wire.http.formats.pieces import is_large
from wherry.wire.http.formats.rows import joined
from wherry.wire.http.protocol.message import (
    ARROW,
    AVRO,
    AVRO_SINGLE,
    JSON,
    NDJSON,
    OCTETS,
    Bytes,
    Request,
    Response,
)

__all__ = [
    "DELIVERED_AVRO_SCHEMA",
    "GIVES",
    "MESSAGE_AVRO_SCHEMA",
    "ONE_EACH",
    "SCHEMAS",
    "TAKES",
    "DecodedMessage",
    "format_receipts",
    "parse_receipts",
    "read_messages",
    "take_messages",
    "take_one",
    "write_messages",
    "write_page",
    "write_pull",
]

_READERS: dict[str, Callable[[Bytes], pa.RecordBatch]] = {
    JSON: as_json.read,
    NDJSON: as_json.read_lines,
    ARROW: arrow_stream.read,
    AVRO: as_avro.read,
    AVRO_SINGLE: as_avro.read_single,
}
_IN_PARTS: dict[str, Callable[[Bytes], Iterator[pa.RecordBatch | None]]] = {
    JSON: as_json.read_pieces,
    NDJSON: as_json.read_line_pieces,
    AVRO: as_avro.read_pieces,
    ARROW: lambda body: iter((arrow_stream.read(body),)),
}
_WRITERS: dict[str, Callable[[pa.RecordBatch, Int64 | None], Response]] = {
    JSON: as_json.write,
    NDJSON: as_json.write_lines,
    ARROW: as_arrow.write,
    AVRO: as_avro.write,
    OCTETS: as_octets.write,
    AVRO_SINGLE: as_avro.write_one,
}

ONE_BYTES_MAX = 64 << 10
"""Larger messages are not collected with those of other requests: beside the body a batch of its own is cheap."""

JOINED_MAX = 64
"""Most pieces that are joined on the loop; more are joined in a thread, which does not hold the interpreter."""

TAKES: tuple[str, ...] = (*_READERS, OCTETS)
"""Media types that are decoded; a body of any other type is a payload, like octets."""

GIVES: tuple[str, ...] = tuple(
    kind for kind in _WRITERS if kind not in (AVRO, AVRO_SINGLE) or find_spec("fastavro") is not None
)
"""Media types that this installation can answer in; others are refused before anything is pulled."""

ONE_EACH = frozenset({OCTETS, AVRO_SINGLE})
"""Media types of answers that carry one message."""


def read_messages(request: Request) -> pa.RecordBatch:
    """Return the messages of a request, at least one, as a batch for `model.schema.compact`, which checks bounds."""
    reader = _READERS.get(request.content_type())
    batch = as_octets.read(request) if reader is None else reader(request.body)
    return carried(batch, request.headers)


def take_one(request: Request) -> Message | None:
    """Return the only message of a small body of JSON or octets, None for any other: `take_messages` reads that."""
    kind = request.content_type()
    if "traceparent" in request.headers or len(memoryview(request.body)) > ONE_BYTES_MAX:
        return None
    if kind == JSON:
        return as_json.read_one(request.body)
    return as_octets.read_one(request) if kind not in _READERS else None


async def take_messages(request: Request, slices: Slices) -> pa.RecordBatch:
    """Do the same as `read_messages`; a large body is read in pieces or in a thread, and other tasks run meanwhile."""
    body, kind = request.body, request.content_type()
    is_json = kind in (JSON, NDJSON)
    if kind not in _IN_PARTS or not (is_large(body) if is_json else len(memoryview(body)) > WHOLE_BYTES):
        return read_messages(request)
    if kind == ARROW:
        batch = await asyncio.to_thread(arrow_stream.read, body)
    else:
        batches = []
        for piece in _IN_PARTS[kind](body):
            if piece is not None:
                batches.append(piece)
            await slices.turn()
        batch = await asyncio.to_thread(joined, batches) if len(batches) > JOINED_MAX else joined(batches)
    return carried(batch, request.headers)


def write_messages(kind: str, batch: pa.RecordBatch, *, leases: Int64 | None, columns: str = "all") -> Response:
    """Return messages, delivered or listed, as an answer.

    Parameters
    ----------
    kind
        One of `GIVES`. Those in `ONE_EACH` carry one message.
    leases
        The fencing token of each row of a pull, which makes the receipts; None for a listing.
    columns
        For Arrow: `all`, or `present` to leave out columns without values.
    """
    if kind == ARROW:
        return as_arrow.write(batch, leases, columns)
    if kind not in _WRITERS:
        raise HttpError("not-acceptable", f"{kind} is not written here; {', '.join(GIVES)} are")
    return _WRITERS[kind](batch, leases)


async def write_page(kind: str, batch: pa.RecordBatch, following: str | None, slices: Slices) -> Response:
    """Return a page of a listing as an answer, with the cursor of the next page; written slice by slice."""
    if kind not in (JSON, NDJSON, AVRO):
        return _followed(write_messages(kind, batch, leases=None), following)
    response = await _in_slices(kind, batch, None, slices, following)
    return response if kind == JSON else _followed(response, following)


async def write_pull(
    kind: str, batch: pa.RecordBatch, leases: Int64, slices: Slices, *, columns: str = "all"
) -> Response:
    """Return pulled messages as an answer; many are written slice by slice, and other tasks run between."""
    if kind in (JSON, NDJSON, AVRO) and _is_long(batch):
        return await _in_slices(kind, batch, leases, slices)
    return write_messages(kind, batch, leases=leases, columns=columns)


async def _in_slices(
    kind: str, batch: pa.RecordBatch, leases: Int64 | None, slices: Slices, following: str | None = None
) -> Response:
    writer: as_json.PageWriter | as_json.Lines | as_avro.Container
    if kind == AVRO:
        writer = as_avro.Container(batch.schema)
    else:
        writer = as_json.PageWriter(following) if kind == JSON else as_json.Lines()
    done = 0
    for block in _blocks(batch):
        await slices.turn()
        writer.add(block, None if leases is None else leases[done : done + block.num_rows])
        done += block.num_rows
    return writer.response()


def _followed(response: Response, following: str | None) -> Response:
    if following is not None:
        response.headers.append(("Wherry-Next", following))
    return response


def _is_long(batch: pa.RecordBatch) -> bool:
    """Return whether a batch is more than a slice."""
    rows = int(batch.num_rows)
    return rows > SLICE_MESSAGES or (rows > 1 and content_bytes(batch) > SLICE_BYTES)


def _blocks(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    rows = batch.num_rows
    if _is_long(batch):
        yield from _blocks(batch.slice(0, rows // 2))
        yield from _blocks(batch.slice(rows // 2))
    elif rows:
        yield batch
