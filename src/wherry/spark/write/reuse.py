"""A `commitKey` that was used before: what was written under it, and whether it can be this job that runs again.

The same rows may be a job that a timer or a person ran again: a warning. Others cannot be, and would be lost: an error.
Rows are compared by their number, and then by a sum over keys and payloads, if those that were written are still there.
Micro-batches that Spark repeats are told apart before, in `sink`, and never come here.
"""

from __future__ import annotations

import logging
from datetime import UTC

import pyarrow as pa

from wherry.model.errors import AlreadyExists, WherryError
from wherry.spark.faults import RAISED
from wherry.spark.link import FlightLink
from wherry.spark.pipelines.archive import manifest_sums

_log = logging.getLogger("wherry.spark")

_Placed = list[tuple[str, int, int, int]]

COMPARED_ROWS_MAX = 1_000_000
COMPARED_BYTES_MAX = 256 << 20
"""How much the driver reads of what was written before; jobs with more are compared by their number of rows only."""


def content(batch: pa.RecordBatch) -> int:
    """Return the sum over keys and payloads of a batch, whatever the order of its rows."""
    columns = {"payload": batch.column("payload").cast(pa.binary())}
    if "key" in batch.schema.names:
        columns["key"] = batch.column("key").cast(pa.string())
    return manifest_sums.total(pa.record_batch(columns), tuple(columns))


def report_reuse(link: FlightLink, given: str, key: str, rows: int, contents: int | None) -> None:
    """Warn that a job wrote nothing because its key was used; raise `AlreadyExists` if it had other rows to write.

    `contents` is the sum over the rows of the job, None if it is not known.
    """
    placed: _Placed = link.action("committed", {"key": key})["placed"] or []
    before = sum(count for *_, count in placed)
    what = f"{before} rows were written under it{_where(placed)}{_when(link, placed)}"
    if before != rows or (contents is not None and _contents(link, placed) not in (None, contents)):
        had = f"{rows} rows" if before != rows else f"{rows} other rows"
        raise AlreadyExists(
            "commit key", given, f"{what}; this job has {had}, and wrote none of them. Choose a key for each job"
        )
    _log.warning("commit key %r was used before: %s; this job wrote nothing", given, what)


def _contents(link: FlightLink, placed: _Placed) -> int | None:
    """Return the sum over the rows that were written; None if some are gone, not readable, or too many to read."""
    left = rows = sum(count for *_, count in placed)
    found = size = 0
    if rows > COMPARED_ROWS_MAX:
        return None
    for topic, number, base, count in placed:
        ticket = {"topic": topic, "partition": number, "start": base, "stop": base + count}
        try:
            for batch in link.once({**ticket, "columns": ["offset", "key", "payload"]}):
                found, left, size = (
                    manifest_sums.added(found, content(batch)),
                    left - batch.num_rows,
                    size + batch.nbytes,
                )
                if size > COMPARED_BYTES_MAX:
                    return None
        except (*RAISED, WherryError):
            return None
    return None if left else found


def _where(placed: _Placed) -> str:
    first: dict[tuple[str, int], int] = {}
    for topic, number, base, _ in placed:
        first[topic, number] = min(base, first.get((topic, number), base))
    parts = [f"{topic!r} partition {number} from offset {base}" for (topic, number), base in first.items() if topic]
    more = f" and {len(parts) - 3} more places" if len(parts) > 3 else ""
    return " to " + ", ".join(parts[:3]) + more if parts else ""


def _when(link: FlightLink, placed: _Placed) -> str:
    """Return when the first of the rows was published, if it is still there."""
    for topic, number, base, _ in placed:
        ticket = {"topic": topic, "partition": number, "start": base, "stop": base + 1}
        try:
            for batch in link.once({**ticket, "columns": ["offset", "published"]}):
                for moment in batch.column("published").to_pylist():
                    return f" at {moment.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"
        except (*RAISED, WherryError):
            continue  # gone, or not readable with this API key
    return ""
