"""`wherry.scan`: what a user gives, checked once; and the batches that Polars, DuckDB and Arrow are given."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from wherry.model import check, limits
from wherry.model.calls.narrowing import WHOLE, Interval, Narrowing
from wherry.model.errors import InvalidInput
from wherry.scanning import archived, decode, logged
from wherry.scanning.alternatives import ANYTHING, Alternatives, all_hold, pieces
from wherry.scanning.columns import DECODED, MESSAGES, cast, to_read
from wherry.scanning.cut import ArchivedPart, Cut, Part, resolve
from wherry.scanning.decode import Payload
from wherry.spark.link import FlightLink
from wherry.spark.options.options import RETRY_S, SCHEMES, URL
from wherry.spark.options.times import instant_ms

if TYPE_CHECKING:
    import duckdb
    import polars as pl

Place = str | datetime | Mapping[int, int] | None


def scan(  # noqa: PLR0913 - options by name, each with a default
    topic: str,
    *,
    url: str | None = None,
    key: str | None = None,
    ca: str | None = None,
    archive: str | None = None,
    start: Place = None,
    end: Place = None,
    payload: Payload = "bytes",
    payload_schema: pa.Schema | pa.DataType | None = None,
    local_files: bool = True,
    fail_on_loss: bool = True,
) -> Scan:
    """Return the rows of a topic as they are now, to be read by Polars, DuckDB or Arrow.

    The end is fixed here: each use of the scan, and of what is made of it, has the same rows, whatever is published,
    archived or deleted meanwhile. Nothing is read before a use, and a use reads the columns and rows that it needs.

    Parameters
    ----------
    url, key, ca
        The broker's Flight address, the API key, and a file of the certificates to trust; by default
        `WHERRY_FLIGHT_URL`, `WHERRY_KEY` and `WHERRY_CA`.
    archive
        The folder or URL that `wherry pipeline archive --to` was given: older rows are read there.
    start, end
        Offsets by partition, `{0: 1000}`; or the time of publish: a `datetime` with a zone, or a text such as
        `"2 hours ago"` or `"2027-05-01"`. The end is not included.
    payload, payload_schema
        `"text"` or `"json"` adds the columns `value` and `error`; for JSON with the fields of the value.
    local_files
        Read history from the broker's files, where the broker is on this machine.
    fail_on_loss
        Raise `HistoryLost` for messages of a stream that are deleted before they are read; else leave them out.

    Examples
    --------
    >>> import wherry
    >>> orders = wherry.scan("orders", start="2 hours ago")  # doctest: +SKIP
    >>> orders.polars().group_by("key").len().collect()  # doctest: +SKIP
    """
    check.name("topic", topic, limits.TOPIC_NAME_BYTES_MAX)
    link = _link(url, key, ca)
    kind = decode.value_type(payload, payload_schema)
    first, from_us = _place("start", start)
    last, to_us = _place("end", end)
    cut = resolve(link, topic, first, last, archive)
    published = Interval(WHOLE.low if from_us is None else from_us, WHOLE.high if to_us is None else to_us - 1)
    settled_may_go = cut.is_queue and cut.here is None  # what an archive covers leaves the queue after it was archived
    return Scan(
        link, cut, published, (payload, kind), local_files=local_files, strict=fail_on_loss and not settled_may_go
    )


def _link(url: str | None, key: str | None, ca: str | None) -> FlightLink:
    environ = os.environ.get
    address = url or environ("WHERRY_FLIGHT_URL") or URL
    if not isinstance(address, str) or not address.startswith(SCHEMES):
        raise InvalidInput("url", address, f"an address of Arrow Flight, such as {URL} or grpc+tls://host:7072")
    return FlightLink(address, _key(key or environ("WHERRY_KEY") or None), ca or environ("WHERRY_CA") or None, RETRY_S)


def _key(given: object) -> str | None:
    """Return an API key that can be sent; the text of the error does not show it."""
    if given is None or (isinstance(given, str) and given.isascii() and given.isprintable()):
        return given
    raise InvalidInput(
        "key", "something else", "an API key as text, of visible characters of ASCII, without a line end"
    )


def _place(field: str, given: Place) -> tuple[Mapping[int, int], int | None]:
    """Return offsets by partition, and a time in microseconds."""
    if given is None:
        return {}, None
    if isinstance(given, Mapping):
        return given, None
    if isinstance(given, datetime) and given.tzinfo is not None:
        return {}, pa.scalar(given, pa.timestamp("us", tz="UTC")).value
    if isinstance(given, str):
        return {}, instant_ms(field, given, int(time.time() * 1_000)) * 1_000
    raise InvalidInput(field, given, "offsets by partition, a datetime with a time zone, or a time as text")


class Scan:
    """The rows of a topic at one moment. `wherry.scan` makes it; any number of uses, in any threads, may read it."""

    def __init__(
        self,
        link: FlightLink,
        cut: Cut,
        published: Interval,
        payload: tuple[Payload, pa.DataType | None],
        *,
        local_files: bool,
        strict: bool,
    ) -> None:
        self._link, self._cut, self._published = link, cut, published
        self._payload, kind = payload
        self._local_files, self._strict = local_files, strict
        self._schema = MESSAGES
        if kind is not None:
            self._schema = MESSAGES.append(pa.field("value", kind)).append(pa.field("error", pa.string()))

    def __repr__(self) -> str:
        return f"Scan({self._cut.topic!r}, stop={self._cut.stop})"

    @property
    def schema(self) -> pa.Schema:
        """The columns and their types."""
        return self._schema

    @property
    def stop(self) -> dict[int, int]:
        """The offset behind the last row of each partition: where a next scan can begin, by `start`."""
        return dict(self._cut.stop)

    def polars(self) -> pl.LazyFrame:
        """Return a lazy frame; its filters, columns and `head` reduce what is read."""
        from wherry.scanning.polars_frame import frame  # noqa: PLC0415  an extra

        return frame(self)

    def duckdb(self, connection: duckdb.DuckDBPyConnection | None = None) -> duckdb.DuckDBPyRelation:
        """Return a relation on a connection, by default DuckDB's own; its filters and columns reduce what is read."""
        from wherry.scanning.duckdb_relation import relation  # noqa: PLC0415  an extra

        return relation(self, connection)

    def arrow(self, columns: Sequence[str] | None = None) -> pa.RecordBatchReader:
        """Return the rows as a stream of batches."""
        names = self._schema.names if columns is None else list(columns)
        return pa.RecordBatchReader.from_batches(self.projected(names), self.batches(names))

    def projected(self, names: Sequence[str]) -> pa.Schema:
        """Return the schema of some columns; raise for one that the scan does not have."""
        for name in names:
            if name not in self._schema.names:
                raise InvalidInput("columns", name, "some of " + ", ".join(self._schema.names))
        return pa.schema([self._schema.field(name) for name in names])

    def batches(self, names: Sequence[str], wanted: Alternatives = ANYTHING) -> Iterator[pa.RecordBatch]:
        """Yield all rows that are inside `wanted`, with some columns, by partition; others may be among them."""
        schema = self.projected(names)
        wanted = all_hold(wanted, (Narrowing(published=self._published),))
        parts = [
            (part._replace(start=piece.start, stop=piece.stop), piece.wanted)
            for part in self._cut.parts
            for piece in pieces(part.partition, part.start, part.stop, wanted)
        ]
        if not parts:
            return
        self._cut.check_same(self._link)
        reading = to_read(names)
        if self._published != WHOLE and "published" not in reading:
            reading.append("published")
        decoded = None
        if any(name in DECODED for name in names):
            decoded = decode.decoder(self._payload, self._schema.field("value").type)
        for part, inside in parts:
            for batch in self._part(part, reading, inside):
                rows = self._in_time(batch)
                if rows.num_rows:
                    made = () if decoded is None else decoded(rows.column("payload"))
                    yield cast(schema, rows, self._cut.topic, part.partition, made)

    def _part(self, part: Part, columns: list[str], wanted: Narrowing) -> Iterator[pa.RecordBatch]:
        if isinstance(part, ArchivedPart):
            assert self._cut.here is not None
            return archived.batches(self._cut.here, part, columns, wanted)
        options: dict[str, Any] = {"strict": self._strict, "files": self._local_files}
        return logged.batches(self._link, self._cut, part, columns, wanted, **options)

    def _in_time(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows that were published in the time of the scan."""
        if self._published == WHOLE:
            return batch
        published = batch.column("published").view(pa.int64()).to_numpy()
        low, high = max(self._published.low, -(1 << 63)), min(self._published.high, (1 << 63) - 1)
        return batch.filter(pa.array((published >= low) & (published <= high)))
