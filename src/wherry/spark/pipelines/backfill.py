"""`backfill`: millions of scheduled messages from files into a topic, each once for the name of the job.

Pieces of the files are staged by tasks of Spark in big batches, and committed one by one: a run that ended early is
taken up by the next, and a job that is done does nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from hashlib import blake2b
from typing import TYPE_CHECKING

import msgspec

from wherry.model.errors import InvalidInput
from wherry.spark.link import Link
from wherry.spark.pipelines import backfill_files, replay_ledger
from wherry.spark.pipelines.archive_tasks import Unwatched, Watch
from wherry.spark.pipelines.backfill_files import Names, Source
from wherry.spark.pipelines.replay_ledger import Outcome

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CHUNK_BYTES = 4 << 20


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What a job does, for ever."""

    into: str
    files: list[Source]
    names: Names
    chunk_rows: int
    chunk_bytes: int

    @property
    def digests(self) -> list[str]:
        """What is in the files."""
        return [file.digest for file in self.files]


def backfill(
    spark: SparkSession,
    link: Link,
    into: str,
    files: Sequence[str],
    *,
    job: str | None = None,
    names: Names | None = None,
    rate: float | None = None,
    watch: Watch | None = None,
) -> Outcome:
    """Publish the messages of files. Without a name the job is called after what is in the files, and the topic."""
    if not files:
        raise InvalidInput("files", files, "at least one")
    replay_ledger.check_rate(rate)
    sources = [backfill_files.source(path) for path in files]
    names = names or Names()
    book = replay_ledger.ledger(link, "backfill", job or _called(into, sources, names))
    replay_ledger.needs_topic(link, into)
    each = max(backfill_files.row_bytes(source) for source in sources)
    asked = Plan(
        into=into,
        files=sources,
        names=names,
        chunk_rows=replay_ledger.rows_per_chunk(each, rate),
        chunk_bytes=CHUNK_BYTES if rate is None else max(1_024, min(CHUNK_BYTES, int(rate * each / 4))),
    )
    plan = book.noted("plan", lambda: asked, Plan)
    replay_ledger.same_plan(book, plan, asked, ("into", "digests", "names"))
    chunks = backfill_files.pieces(sources, plan.chunk_rows, plan.chunk_bytes)
    work = partial(backfill_files.read, sources, names)  # the same files, perhaps elsewhere by now
    return replay_ledger.publish(spark, book, into, chunks, work, rate=rate, watch=watch or Unwatched())


def _called(into: str, sources: Sequence[Source], names: Names) -> str:
    parts = [into, names.due, names.payload, *(source.digest for source in sources)]
    return blake2b("\n".join(parts).encode(), digest_size=8).hexdigest()
