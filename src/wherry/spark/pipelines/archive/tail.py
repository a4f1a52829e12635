"""The rows of a topic behind the end of its archive: from the log, and from the archive what the log no longer has.

The broker may delete rows, and an archive job may run, between the moment when a range was fixed and that when it is
read. A manifest covers such rows by then: so the log is read first, and the manifest after it. It needs no Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import pyarrow as pa
from pyroaring import BitMap64

from wherry.core.index.offsets import bitmap_of, members
from wherry.model.errors import HistoryLost
from wherry.spark.link import FlightLink
from wherry.spark.pipelines.archive import files as archive_files
from wherry.spark.pipelines.archive import manifest
from wherry.spark.pipelines.archive.manifest import Manifest
from wherry.spark.pipelines.archive.manifest_store import Store


class UnarchivedRange(NamedTuple):
    """Offsets of a partition that were not archived when the range was fixed."""

    topic: str
    partition: int
    start: int
    stop: int


Read: TypeAlias = Callable[[Mapping[str, Any]], Iterator[pa.RecordBatch]]
"""Yields the batches of a ticket, ascending, and raises `HistoryLost` for messages that are gone."""


def tail(
    link: FlightLink,
    here: Store,
    span: UnarchivedRange,
    columns: Sequence[str],
    more: Mapping[str, Any] | None = None,
    read: Read | None = None,
    *,
    strict: bool = True,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of some offsets from the log, and from the archive those that the log lost.

    `more` is added to the ticket. With conditions there, the result may have rows of the archive that do not meet them:
    the caller tests its conditions on all rows. `read` takes the place of `link.read`; it may leave out rows that the
    caller does not want. Rows that neither has are an error; without `strict` they are left out.
    """
    ticket = {"topic": span.topic, "partition": span.partition, "stop": span.stop, "columns": list(columns)}
    seen = BitMap64()
    at = span.start
    try:
        for batch in (read or link.read)({**ticket, **(more or {}), "start": at, "strict": strict}):
            if batch.num_rows:
                offsets = batch.column("offset").to_numpy()
                seen |= bitmap_of(offsets)
                at = int(offsets[-1]) + 1
            yield batch
        lost = None
    except HistoryLost as fault:
        lost = fault
    # Only now: rows that the log no longer had were archived, so this manifest covers them.
    found = manifest.need(here, span.topic)
    end = found.end(span.partition) or 0
    yield from _missing(here, found, span._replace(stop=min(end, span.stop)), columns, seen)
    if lost is None:
        return
    if end <= at:
        raise lost
    yield from tail(link, here, span._replace(start=min(end, span.stop)), columns, more, read, strict=strict)


def _missing(
    here: Store,
    found: Manifest,
    span: UnarchivedRange,
    columns: Sequence[str],
    seen: BitMap64,
) -> Iterator[pa.RecordBatch]:
    """Yield the archived rows of some offsets, without those that were seen."""
    for file in found.files:
        if file.partition != span.partition or file.last < span.start or file.first >= span.stop:
            continue
        for batch in archive_files.read(here, file, columns, span.start, span.stop):
            new = ~members(seen, batch.column("offset").to_numpy())
            if new.any():
                yield batch.filter(pa.array(new))
