"""`replay`: messages of a log or of an archive once more into a topic, by time and filter, at a rate.

What is replayed is fixed when the job first runs: offsets of each partition, of the log as it was then or of the
archive's manifest. Chunks are cut at fixed offsets, so that every run of the job has the same ones.

A job on a log is a durable subscription of its topic until it is done: what it has still to read is not let go.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa

from wherry.model.errors import HistoryLost, InvalidInput, NotFound, WherryError
from wherry.model.where import Where
from wherry.spark.link import Link
from wherry.spark.pipelines import archive_files, manifest, replay_ledger
from wherry.spark.pipelines.archive_tasks import Unwatched, Watch
from wherry.spark.pipelines.manifest import File, Manifest, Stretch
from wherry.spark.pipelines.manifest_store import Store, store
from wherry.spark.pipelines.replay_ledger import Ledger, Outcome

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SENT = ("key", "priority", "headers", "envelope", "payload")
SAME = ("topic", "into", "archive", "times", "terms", "keep_ids", "keep_times")
"""What a job that is run again must be asked for once more."""


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    """What to replay."""

    topic: str
    into: str
    archive: str | None = None
    """Where to read: this archive of the topic, or its log."""
    where: Where = Where()
    rate: float | None = None
    keep_ids: bool = False
    go_on_after_loss: bool = False
    """Whether messages that left the log before they were read are left out; else they are an error."""
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
    """Offsets of a partition, and the files of an archive that have some of them."""

    partition: int
    start: int
    stop: int
    files: tuple[File, ...] = ()


def replay(spark: SparkSession, link: Link, job: str, ask: Ask, watch: Watch | None = None) -> Outcome:
    """Replay, once for each name of a job: run again it goes on, and does nothing when it is done."""
    ask.where.checked()
    if ask.archive is None and ask.topic == ask.into and ask.keep_ids:
        raise InvalidInput("keep_ids", True, "False, when messages go into the topic that they are in")
    replay_ledger.check_rate(ask.rate)
    book = replay_ledger.ledger(link, "replay", job)
    replay_ledger.needs_topic(link, ask.into)
    here = None if ask.archive is None else store(ask.archive).under(manifest.folder(ask.topic))
    asked = msgspec.structs.replace(ask, archive=None if here is None else here.plain)
    plan = book.planned(lambda: _planned(link, job, asked, here), Plan)
    replay_ledger.same_plan(book, plan, asked, SAME)
    watch = watch or Unwatched()
    if here is None:
        return _of_log(spark, book, plan, ask, watch)
    parts = with_files(chunks(plan), manifest.need(here, ask.topic))
    work = partial(_rows, plan, partial(_archived, here, plan))
    return replay_ledger.publish(spark, book, plan.into, parts, work, rate=ask.rate, watch=watch)


def _of_log(spark: SparkSession, book: Ledger, plan: Plan, ask: Ask, watch: Watch) -> Outcome:
    held, strict = Held(plan.topic, _holder(book.job)), not ask.go_on_after_loss
    if strict and not book.known.done:
        held.check(book.link)
    work = partial(_rows, plan, partial(_logged, book.link, plan, strict))
    done = replay_ledger.publish(spark, book, plan.into, chunks(plan), work, rate=ask.rate, watch=watch)
    held.release(book.link)
    return done


class Held(NamedTuple):
    """The subscription that holds back what a job reads. It settles nothing, so a queue without readers stays whole."""

    topic: str
    name: str

    def hold(self, link: Link) -> None:
        """From now on nothing goes."""
        link.action("subscribe", {"topic": self.topic, "name": self.name, "start": "earliest"})

    def check(self, link: Link) -> None:
        """`WherryError` if somebody deleted it: then nobody knows what went."""
        told = link.action("stats", {"topic": self.topic})
        if not any(each["name"] == self.name for each in told["subscriptions"]):
            raise WherryError(
                f"the subscription {self.name!r} of the job on {self.topic!r} was deleted: messages that were settled"
                " since may be missing; go on after the loss, or begin another job"
            )

    def release(self, link: Link) -> None:
        """The job is done."""
        with suppress(NotFound):
            link.action("unsubscribe", {"topic": self.topic, "name": self.name})


def _holder(job: str) -> str:
    return f"replay-{job}"


def with_files(given: list[Chunk], found: Manifest) -> list[Chunk]:
    """Chunks, each with the files of an archive that it needs, so that no task gets the whole manifest."""
    made = list(given)
    for partition in {chunk.partition for chunk in given}:
        files = [file for file in found.files if file.partition == partition]
        firsts, lasts = (np.array([getattr(file, name) for file in files], np.int64) for name in ("first", "last"))
        for number, chunk in enumerate(given):
            if chunk.partition == partition:
                some = np.flatnonzero((firsts < chunk.stop) & (lasts >= chunk.start))
                made[number] = chunk._replace(files=tuple(files[each] for each in some.tolist()))
    return made


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


def _planned(link: Link, job: str, ask: Ask, here: Store | None) -> Plan:
    if here is None:
        Held(ask.topic, _holder(job)).hold(link)  # first: what is planned must stay
        spans, bytes_each = _log(link, ask)
    else:
        found = manifest.need(here, ask.topic)
        spans = dict(found.covered)
        bytes_each = sum(file.content for file in found.files) / max(1, found.rows)
    offsets = sum(stop - start for start, stop in spans.values())
    return Plan(
        topic=ask.topic,
        into=ask.into,
        archive=ask.archive,
        where=ask.where,
        keep_ids=ask.keep_ids,
        keep_times=ask.keep_times,
        spans=spans,
        chunk_rows=replay_ledger.rows_per_chunk(bytes_each, offsets, ask.rate),
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


def _rows(plan: Plan, read: Callable[[Chunk], Iterator[pa.RecordBatch]], chunk: Chunk) -> Iterator[pa.RecordBatch]:
    """In a task: the messages of a chunk, as they are published."""
    names = [*SENT, *(("id",) if plan.keep_ids else ()), *(("due", "expires") if plan.keep_times else ())]
    for batch in read(chunk):
        yield pa.RecordBatch.from_arrays([batch.column(name) for name in names], names=names)


def _logged(link: Link, plan: Plan, strict: bool, chunk: Chunk) -> Iterator[pa.RecordBatch]:
    """Messages of the log; with `strict` it is an error that some went before they were read."""
    ticket: dict[str, Any] = {"topic": plan.topic, "partition": chunk.partition, "strict": strict}
    ticket |= {"start": chunk.start, "stop": chunk.stop, "where": msgspec.to_builtins(plan.where)}
    try:
        yield from link.read(ticket)
    except HistoryLost as fault:
        fault.args = (f"{fault}; --on-loss go-on replays what there is",)
        raise


def _archived(here: Store, plan: Plan, chunk: Chunk) -> Iterator[pa.RecordBatch]:
    for file in chunk.files:
        for batch in archive_files.read(here, file, None, chunk.start, chunk.stop):
            mask = plan.where.mask(batch)
            yield batch if mask is None else batch.filter(mask)
