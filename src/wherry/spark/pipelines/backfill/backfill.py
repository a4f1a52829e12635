"""`backfill`: publishes millions of scheduled messages from files to a topic, once for each name of a job.

Spark tasks stage pieces of the files in large batches, and each piece is committed. A run that ended early is continued
by the next, and a job that is done does nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from hashlib import blake2b
from typing import TYPE_CHECKING

import msgspec

from wherry.model.errors import InvalidInput
from wherry.spark.link import FlightLink
from wherry.spark.pipelines.archive.tasks import ProgressListener, SilentListener
from wherry.spark.pipelines.backfill import files as backfill_files
from wherry.spark.pipelines.backfill.files import ColumnNames, SourceFile
from wherry.spark.pipelines.replay import ledger as replay_ledger
from wherry.spark.pipelines.replay.ledger import JobResult

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CHUNK_BYTES = 4 << 20
PIECES_MAX = 2 * replay_ledger.CHUNKS_MAX
"""The most pieces of a job: more than the planned chunks, since each file and row group begins a new piece."""


class BackfillPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What a job does, for ever."""

    into: str
    files: list[SourceFile]
    names: ColumnNames
    chunk_rows: int
    chunk_bytes: int

    @property
    def digests(self) -> list[str]:
        """Return the digests of the files."""
        return [file.digest for file in self.files]


def backfill(
    spark: SparkSession,
    link: FlightLink,
    into: str,
    files: Sequence[str],
    *,
    job: str | None = None,
    names: ColumnNames | None = None,
    rate: float | None = None,
    watch: ProgressListener | None = None,
) -> JobResult:
    """Publish the messages of files. By default the job's name is a digest of the files, the topic and the columns."""
    check_files(link, into, files)
    replay_ledger.check_rate(rate)
    sources = [backfill_files.source(path) for path in files]
    names = names or ColumnNames()
    book = replay_ledger.ledger(link, "backfill", job or _called(into, sources, names))
    asked = _planned(into, sources, names, rate)
    plan = book.planned(lambda: asked, BackfillPlan)
    replay_ledger.same_plan(book, plan, asked, ("into", "digests", "names"))
    chunks = backfill_files.pieces(sources, plan.chunk_rows, plan.chunk_bytes)
    if len(chunks) > PIECES_MAX:
        allowed = f"at most {PIECES_MAX:,} in one job: fewer files, or larger row groups"
        raise InvalidInput("pieces of the files", f"{len(chunks):,}", allowed)
    # The digests are equal, so the files are the same, at whatever path.
    work = partial(backfill_files.read, sources, names)
    return replay_ledger.publish(spark, book, into, chunks, work, rate=rate, watch=watch or SilentListener())


def check_files(link: FlightLink, into: str, files: Sequence[str]) -> None:
    """Raise what would stop a job later: no files, or no topic. Needs no Spark."""
    if not files:
        raise InvalidInput("files", files, "at least one")
    replay_ledger.needs_topic(link, into)


def _planned(into: str, sources: list[SourceFile], names: ColumnNames, rate: float | None) -> BackfillPlan:
    """Return a plan: chunks for the rate, but not too many for a job; no secrets, since the broker keeps the plan."""
    estimates = [backfill_files.estimate(source) for source in sources]
    row_bytes = max(each.row_bytes for each in estimates)
    least = -(-sum(source.bytes for source in sources) // replay_ledger.CHUNKS_MAX)
    paced = (
        CHUNK_BYTES
        if rate is None
        else max(1_024, min(CHUNK_BYTES, int(rate * row_bytes / replay_ledger.COMMITS_PER_S)))
    )
    return BackfillPlan(
        into=into,
        files=[source.public() for source in sources],
        names=names,
        chunk_rows=replay_ledger.rows_per_chunk(row_bytes, sum(each.rows for each in estimates), rate),
        chunk_bytes=max(paced, least),
    )


def _called(into: str, sources: Sequence[SourceFile], names: ColumnNames) -> str:
    parts = [into, names.due, names.payload, *(source.digest for source in sources)]
    return blake2b("\n".join(parts).encode(), digest_size=8).hexdigest()
