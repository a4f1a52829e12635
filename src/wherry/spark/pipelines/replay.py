"""`replay`: messages of a log or of an archive once more into a topic, by time and filter, at a rate.

What is replayed is fixed when the job first runs: offsets of each partition, of the log as it was then or of the
archive's manifest. Chunks are cut at fixed offsets, so that every run of the job has the same ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import pyarrow as pa

from wherry.model.errors import InvalidInput
from wherry.model.where import Where
from wherry.spark.link import Link
from wherry.spark.pipelines import archive_files, manifest, replay_ledger
from wherry.spark.pipelines.archive_tasks import Unwatched, Watch
from wherry.spark.pipelines.manifest import Manifest, Stretch
from wherry.spark.pipelines.manifest_store import Store, store
from wherry.spark.pipelines.replay_ledger import Outcome

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SENT = ("key", "priority", "headers", "envelope", "payload")
SAME = ("topic", "into", "archive", "times", "terms", "keep_ids", "keep_times")
"""What a job that is run again must be asked for once more."""

CHUNKS_MAX = 50_000
"""The broker remembers 100,000 commits, of all jobs."""


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    """What to replay."""

    topic: str
    into: str
    archive: str | None = None
    """Where to read: this archive of the topic, or its log."""
    where: Where = Where()
    rate: float | None = None
    keep_ids: bool = False
    keep_times: bool = False
    """Whether due and expiry times go along; those of the past mean "at once" and "gone"."""
    times: tuple[str, str] = ("", "")
    """The words for the times of `where`, as "2h ago": said again they mean the same job."""

    @property
    def terms(self) -> Where:
        """The conditions, without times that were said in words."""
        return _terms(self.where, self.times)


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What a job does, for ever."""

    topic: str
    into: str
    archive: str | None
    where: Where
    keep_ids: bool
    keep_times: bool
    spans: dict[int, Stretch]
    chunk_rows: int
    times: tuple[str, str] = ("", "")

    @property
    def terms(self) -> Where:
        """As of `Ask`."""
        return _terms(self.where, self.times)


class Chunk(NamedTuple):
    """Offsets of a partition."""

    partition: int
    start: int
    stop: int


def replay(spark: SparkSession, link: Link, job: str, ask: Ask, watch: Watch | None = None) -> Outcome:
    """Replay, once for each name of a job: run again it goes on, and does nothing when it is done."""
    ask.where.checked()
    if ask.archive is None and ask.topic == ask.into and ask.keep_ids:
        raise InvalidInput("keep_ids", True, "False, when messages go into the topic that they are in")
    replay_ledger.check_rate(ask.rate)
    book = replay_ledger.ledger(link, "replay", job)
    replay_ledger.needs_topic(link, ask.into)
    here = None if ask.archive is None else store(ask.archive).under(manifest.folder(ask.topic))
    asked = msgspec.structs.replace(ask, archive=None if here is None else here.url)
    plan = book.noted("plan", lambda: _planned(link, asked, here), Plan)
    replay_ledger.same_plan(book, plan, asked, SAME)
    found = None if here is None else manifest.need(here, ask.topic)
    work = partial(_rows, link, plan, here, found)
    return replay_ledger.publish(spark, book, plan.into, chunks(plan), work, rate=ask.rate, watch=watch or Unwatched())


def chunks(plan: Plan) -> list[Chunk]:
    """The chunks of a plan: partitions by turns, each in its order."""
    turns: list[tuple[int, Chunk]] = []
    for partition, (start, stop) in plan.spans.items():
        for turn, at in enumerate(range(start, stop, plan.chunk_rows)):
            turns.append((turn, Chunk(partition, at, min(at + plan.chunk_rows, stop))))
    return [chunk for _, chunk in sorted(turns)]


def _terms(where: Where, times: tuple[str, str]) -> Where:
    since, until = times
    return msgspec.structs.replace(
        where, from_ms=None if since else where.from_ms, to_ms=None if until else where.to_ms
    )


def _planned(link: Link, ask: Ask, here: Store | None) -> Plan:
    if here is None:
        spans, bytes_each = _log(link, ask)
    else:
        found = manifest.need(here, ask.topic)
        spans = dict(found.covered)
        bytes_each = sum(file.content for file in found.files) / max(1, found.rows)
    rows = replay_ledger.rows_per_chunk(bytes_each, ask.rate)
    rows = max(rows, -(-sum(stop - start for start, stop in spans.values()) // CHUNKS_MAX))
    return Plan(
        topic=ask.topic,
        into=ask.into,
        archive=ask.archive,
        where=ask.where,
        keep_ids=ask.keep_ids,
        keep_times=ask.keep_times,
        spans=spans,
        chunk_rows=rows,
        times=ask.times,
    )


def _log(link: Link, ask: Ask) -> tuple[dict[int, Stretch], float]:
    """Offsets of the log by now, without those that are too old or too new, and the size of a message."""
    extents = link.action("extents", {"topic": ask.topic})
    stops = {int(partition): stop for partition, stop in extents["stop"].items()}
    starts = {int(partition): start for partition, start in extents["start"].items()}
    if ask.where.from_ms is not None:
        told = link.action("offsets-at", {"topic": ask.topic, "time_ms": ask.where.from_ms})["offsets"]
        starts = {partition: max(start, told[str(partition)]) for partition, start in starts.items()}
    stats = link.action("stats", {"topic": ask.topic})
    spans = {partition: (starts[partition], stop) for partition, stop in stops.items() if starts[partition] < stop}
    return spans, stats["bytes"] / max(1, stats["messages"])


def _rows(link: Link, plan: Plan, here: Store | None, found: Manifest | None, chunk: Chunk) -> Iterator[pa.RecordBatch]:
    """In a task: the messages of a chunk, as they are published."""
    for batch in _read(link, plan, here, found, chunk):
        names = [*SENT, *(("id",) if plan.keep_ids else ()), *(("due", "expires") if plan.keep_times else ())]
        yield pa.RecordBatch.from_arrays([batch.column(name) for name in names], names=names)


def _read(link: Link, plan: Plan, here: Store | None, found: Manifest | None, chunk: Chunk) -> Iterator[pa.RecordBatch]:
    if here is None or found is None:
        ticket = {"topic": plan.topic, "partition": chunk.partition, "start": chunk.start, "stop": chunk.stop}
        where = msgspec.to_builtins(plan.where)
        yield from link.read({**ticket, "where": where} if where else ticket)
        return
    for file in found.files:
        if file.partition != chunk.partition or file.last < chunk.start or file.first >= chunk.stop:
            continue
        for batch in archive_files.read(here, file, None, chunk.start, chunk.stop):
            mask = plan.where.mask(batch)
            yield batch if mask is None else batch.filter(mask)
