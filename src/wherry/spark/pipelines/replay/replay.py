"""`replay`: publishes messages of a log or an archive again to a topic, by time and filter, at a rate.

The first run of a job fixes what is replayed: offsets of each partition, of the log at that time or of the archive's
manifest. Chunks are cut at fixed offsets, so that every run of the job has the same ones.

A job on a log is a durable subscription of its topic until it is done, so the topic keeps what the job has to read.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa

from wherry.model.calls.where import Where
from wherry.model.errors import HistoryLost, InvalidInput, NotFound, WherryError
from wherry.spark.link import FlightLink
from wherry.spark.pipelines.archive import (
    files as archive_files,
)
from wherry.spark.pipelines.archive import (
    manifest,
    retention,
)
from wherry.spark.pipelines.archive import (
    tasks as archive_tasks,
)
from wherry.spark.pipelines.archive.manifest import ArchiveFile, Manifest, OffsetRange
from wherry.spark.pipelines.archive.manifest_store import Store, store
from wherry.spark.pipelines.archive.tasks import ProgressListener, SilentListener
from wherry.spark.pipelines.replay import ledger as replay_ledger
from wherry.spark.pipelines.replay.ledger import JobResult, Ledger

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOOK_ROWS = 500_000
"""Offsets in which one task searches for matching messages, before a job with a rate begins."""

SOUGHT = ["offset", "key", "priority", "published", "headers"]
"""Columns that conditions use."""

SENT = ("key", "priority", "headers", "envelope", "payload")
SAME = ("topic", "into", "archive", "times", "terms", "keep_ids", "keep_times")
"""Arguments that must be the same when a job is run again."""


class ReplayRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What to replay."""

    topic: str
    into: str
    archive: str | None = None
    """The archive of the topic to read; without it the log."""
    where: Where = Where()
    rate: float | None = None
    keep_ids: bool = False
    go_on_after_loss: bool = False
    """Whether to leave out messages that were deleted before they were read; otherwise they are an error."""
    keep_times: bool = False
    """Whether messages keep their due and expiry times; past times mean "at once" and "expired"."""
    times: tuple[str, str] = ("", "")
    """The times of `where` as the user wrote them, such as "2h ago": the same words mean the same job."""

    @property
    def terms(self) -> Where:
        """The conditions, without times that were written in words."""
        return _terms(self.where, self.times)


class ReplayPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What a job does, for ever."""

    topic: str
    into: str
    archive: str | None
    where: Where
    keep_ids: bool
    keep_times: bool
    spans: dict[int, OffsetRange]
    chunk_rows: int
    times: tuple[str, str] = ("", "")
    cuts: dict[int, list[int]] | None = None
    """With a rate and conditions: the offsets by partition at which chunks begin, and at which the last one ends."""

    @property
    def terms(self) -> Where:
        """The conditions, as in `ReplayRequest`."""
        return _terms(self.where, self.times)


class Chunk(NamedTuple):
    """Offsets of a partition, and the files of an archive that have some of them."""

    partition: int
    start: int
    stop: int
    files: tuple[ArchiveFile, ...] = ()


def replay(
    spark: SparkSession, link: FlightLink, job: str, request: ReplayRequest, watch: ProgressListener | None = None
) -> JobResult:
    """Replay once for each name of a job: a second run continues the job, or does nothing if the job is done."""
    book, here = check_request(link, job, request), _archive_of(request)
    asked = msgspec.structs.replace(request, archive=None if here is None else here.plain)
    plan = book.planned(lambda: _planned(spark, link, job, asked, here), ReplayPlan)
    replay_ledger.same_plan(book, plan, asked, SAME)
    watch = watch or SilentListener()
    if here is None:
        return _of_log(spark, book, plan, request, watch)
    parts = with_files(chunks(plan), manifest.need(here, request.topic))
    work = partial(_rows, plan, partial(_archived, here, plan, None))
    return replay_ledger.publish(spark, book, plan.into, parts, work, rate=request.rate, watch=watch)


def check_request(link: FlightLink, job: str, request: ReplayRequest) -> Ledger:
    """Return the ledger of a job; raise what is wrong with the arguments, as far as that needs no Spark."""
    request.where.checked()
    if request.archive is None and request.topic == request.into and request.keep_ids:
        raise InvalidInput("keep_ids", True, "False, when messages go into the topic that they are in")
    replay_ledger.check_rate(request.rate)
    book, here = replay_ledger.ledger(link, "replay", job), _archive_of(request)
    replay_ledger.needs_topic(link, request.into)
    if here is not None:
        manifest.need(here, request.topic)
    elif book.known.plan is None:
        _log(link, request)
    return book


def _archive_of(request: ReplayRequest) -> Store | None:
    return None if request.archive is None else store(request.archive).under(manifest.folder(request.topic))


def _of_log(
    spark: SparkSession, book: Ledger, plan: ReplayPlan, request: ReplayRequest, watch: ProgressListener
) -> JobResult:
    held, strict = HoldingSubscription(plan.topic, _holder(book.job)), not request.go_on_after_loss
    if strict and not book.known.done:
        held.check(book.link)
    work = partial(_rows, plan, partial(_logged, book.link, plan, strict, None))
    done = replay_ledger.publish(spark, book, plan.into, chunks(plan), work, rate=request.rate, watch=watch)
    held.release(book.link)
    return done


class HoldingSubscription(NamedTuple):
    """The subscription that makes a topic keep what a job reads. It settles nothing, so a queue keeps all."""

    topic: str
    name: str

    def hold(self, link: FlightLink) -> None:
        """Create the subscription: from now on the topic keeps its messages."""
        link.action("subscribe", {"topic": self.topic, "name": self.name, "start": "earliest"})

    def check(self, link: FlightLink) -> None:
        """Raise `WherryError` if the subscription was deleted: messages may be gone that the job had to read."""
        stats = link.action("stats", {"topic": self.topic})
        if not any(each["name"] == self.name for each in stats["subscriptions"]):
            raise WherryError(
                f"the subscription {self.name!r} of the job on {self.topic!r} was deleted: messages that were settled"
                " since may be missing; go on after the loss, or begin another job"
            )

    def release(self, link: FlightLink) -> None:
        """Delete the subscription when the job is done."""
        with suppress(NotFound):
            link.action("unsubscribe", {"topic": self.topic, "name": self.name})


def _holder(job: str) -> str:
    return f"replay-{job}"


def with_files(given: list[Chunk], found: Manifest) -> list[Chunk]:
    """Return chunks with the files of an archive that each needs, so that no task gets the whole manifest."""
    made = list(given)
    for partition in {chunk.partition for chunk in given}:
        files = [file for file in found.files if file.partition == partition]
        firsts, lasts = (np.array([getattr(file, name) for file in files], np.int64) for name in ("first", "last"))
        for number, chunk in enumerate(given):
            if chunk.partition == partition:
                some = np.flatnonzero((firsts < chunk.stop) & (lasts >= chunk.start))
                made[number] = chunk._replace(files=tuple(files[each] for each in some.tolist()))
    return made


def chunks(plan: ReplayPlan) -> list[Chunk]:
    """Return the chunks of a plan: partitions in turn, each in its order."""
    turns: list[tuple[int, Chunk]] = []
    for partition, (start, stop) in plan.spans.items():
        begins = list(range(start, stop, plan.chunk_rows)) if plan.cuts is None else plan.cuts.get(partition, [])
        for turn, (at, end) in enumerate(pairwise([*begins, stop])):
            turns.append((turn, Chunk(partition, at, end)))
    return [chunk for _, chunk in sorted(turns)]


def _terms(where: Where, times: tuple[str, str]) -> Where:
    since, until = times
    return msgspec.structs.replace(
        where, from_ms=None if since else where.from_ms, to_ms=None if until else where.to_ms
    )


def _planned(spark: SparkSession, link: FlightLink, job: str, request: ReplayRequest, here: Store | None) -> ReplayPlan:
    if here is not None:
        return _plan_of_archive(spark, request, here)
    held = HoldingSubscription(request.topic, _holder(job))
    held.hold(link)  # first, so that planned messages are kept
    try:
        return _plan_of_log(spark, link, request)
    except BaseException:
        held.release(link)  # the plan failed, so there is no job
        raise


def _plan_of_log(spark: SparkSession, link: FlightLink, request: ReplayRequest) -> ReplayPlan:
    spans, stats = _log(link, request), link.action("stats", {"topic": request.topic})
    bytes_each = stats["bytes"] / max(1, stats["messages"])
    plan = _plan(request, spans, bytes_each)
    return _cut(spark, plan, _looks(plan), partial(_logged, link, plan, False, ["offset"]), bytes_each, request.rate)


def _plan_of_archive(spark: SparkSession, request: ReplayRequest, here: Store) -> ReplayPlan:
    found = manifest.need(here, request.topic)
    bytes_each = sum(file.content for file in found.files) / max(1, found.rows)
    plan = _plan(request, dict(found.covered), bytes_each)
    looks = with_files(_looks(plan), found)
    return _cut(spark, plan, looks, partial(_archived, here, plan, SOUGHT), bytes_each, request.rate)


def _plan(request: ReplayRequest, spans: dict[int, OffsetRange], bytes_each: float) -> ReplayPlan:
    offsets = sum(stop - start for start, stop in spans.values())
    return ReplayPlan(
        topic=request.topic,
        into=request.into,
        archive=request.archive,
        where=request.where,
        keep_ids=request.keep_ids,
        keep_times=request.keep_times,
        spans=spans,
        chunk_rows=replay_ledger.rows_per_chunk(bytes_each, offsets, request.rate),
        times=request.times,
    )


def _looks(plan: ReplayPlan) -> list[Chunk]:
    return chunks(msgspec.structs.replace(plan, chunk_rows=LOOK_ROWS))


def _cut(
    spark: SparkSession,
    plan: ReplayPlan,
    looks: list[Chunk],
    read: Callable[[Chunk], Iterator[pa.RecordBatch]],
    bytes_each: float,
    rate: float | None,
) -> ReplayPlan:
    """Cut chunks by matching messages, not by offsets: the rate counts only these, and they may be few of many."""
    if rate is None or plan.where == Where():
        return plan
    each = replay_ledger.rows_per_chunk(bytes_each, 0, rate)
    cuts: dict[int, list[int]] = {}
    for look, found in zip(looks, archive_tasks.run(spark, partial(_every, read, each), looks), strict=True):
        cuts.setdefault(look.partition, []).extend(found)
    step = max(1, -(-sum(map(len, cuts.values())) // replay_ledger.CHUNKS_MAX))
    return msgspec.structs.replace(plan, cuts={number: sorted(found)[::step] for number, found in cuts.items()})


def _every(read: Callable[[Chunk], Iterator[pa.RecordBatch]], each: int, chunk: Chunk) -> list[int]:
    """Return the first matching offset, and then every so many matches the next. Runs in a task."""
    offsets = [batch.column("offset").to_numpy() for batch in read(chunk)]
    return [] if not offsets else np.concatenate(offsets)[::each].tolist()


def _log(link: FlightLink, request: ReplayRequest) -> dict[int, OffsetRange]:
    """Return the offsets of the log now, from the asked time on; raise `HistoryLost` if messages asked for are gone."""
    extents = link.action("extents", {"topic": request.topic})
    stops = {int(partition): stop for partition, stop in extents["stop"].items()}
    starts = begins = {int(partition): start for partition, start in extents["start"].items()}
    if request.where.from_ms is not None:
        offsets = link.action("offsets-at", {"topic": request.topic, "time_ms": request.where.from_ms})["offsets"]
        begins = {partition: max(start, offsets[str(partition)]) for partition, start in starts.items()}
    if not request.go_on_after_loss and (stops == starts or _asks_for_gone(link, request)):
        # If the first message that is left is older than the asked time, the messages that are gone were not asked for.
        _check_there(link, request.topic, [number for number, start in starts.items() if begins[number] == start])
    return {partition: (begins[partition], stop) for partition, stop in stops.items() if begins[partition] < stop}


def _asks_for_gone(link: FlightLink, request: ReplayRequest) -> bool:
    """Return whether the request reaches back before the log: all of a queue, or times that a stream does not keep.

    A request for all of a stream does not: it means the messages that the stream still has.
    """
    (config,) = (each for each in link.action("topics", {})["topics"] if each["name"] == request.topic)
    if config["keep"] == "settled" or request.where.from_ms is None:
        return bool(config["keep"] == "settled")
    return config["keep"] == "bytes" or request.where.from_ms < time.time() * 1_000 - config["keep_ms"]


def _check_there(link: FlightLink, topic: str, partitions: list[int]) -> None:
    """Raise `HistoryLost`, with where the messages are, if the first messages of these partitions are gone."""
    command = {"topic": topic, "start": {"offsets": dict.fromkeys(map(str, partitions), 0)}, "strict": True}
    try:
        if partitions:
            link.parts(command)
    except HistoryLost as fault:
        fault = retention.with_whereabouts(link, fault)
        fault.args = (f"{fault}. --on-loss go-on replays what is left. The name of the job is still free",)
        raise fault from None


def _rows(
    plan: ReplayPlan, read: Callable[[Chunk], Iterator[pa.RecordBatch]], chunk: Chunk
) -> Iterator[pa.RecordBatch]:
    """Yield the messages of a chunk, as they are published. Runs in a task."""
    names = [*SENT, *(("id",) if plan.keep_ids else ()), *(("due", "expires") if plan.keep_times else ())]
    for batch in read(chunk):
        yield pa.RecordBatch.from_arrays([batch.column(name) for name in names], names=names)


def _logged(
    link: FlightLink, plan: ReplayPlan, strict: bool, columns: list[str] | None, chunk: Chunk
) -> Iterator[pa.RecordBatch]:
    """Yield messages of the log; with `strict` raise if some were deleted before they were read."""
    ticket: dict[str, Any] = {"topic": plan.topic, "partition": chunk.partition, "strict": strict}
    ticket |= {} if columns is None else {"columns": columns}
    ticket |= {"start": chunk.start, "stop": chunk.stop, "where": msgspec.to_builtins(plan.where)}
    try:
        yield from link.read(ticket)
    except HistoryLost as fault:
        fault.args = (f"{fault}; --on-loss go-on replays what there is",)
        raise


def _archived(here: Store, plan: ReplayPlan, columns: list[str] | None, chunk: Chunk) -> Iterator[pa.RecordBatch]:
    for file in chunk.files:
        for batch in archive_files.read(here, file, columns, chunk.start, chunk.stop):
            mask = plan.where.mask(batch)
            yield batch if mask is None else batch.filter(mask)
