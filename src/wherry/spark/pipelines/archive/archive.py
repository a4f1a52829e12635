"""`archive`: writes the log of a topic to Parquet files, so that the broker may delete what is archived.

The archive is a durable subscription of the topic. In a run, Spark tasks read the new messages and write files, and the
driver commits a manifest that covers the files. Only then the driver advances the subscription, so a queue keeps all
messages that no manifest covers. A run that dies leaves either files that no manifest names, or a manifest that is
ahead of the subscription: the next run advances the subscription, and a run after a day removes the files.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from wherry.model import check
from wherry.model.errors import HistoryLost, InvalidInput, WherryError
from wherry.spark.link import FlightLink
from wherry.spark.pipelines.archive import (
    compact as archive_compact,
)
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
from wherry.spark.pipelines.archive.manifest import (
    ArchiveFile,
    Conflict,
    Manifest,
    OffsetRange,
)
from wherry.spark.pipelines.archive.manifest_store import Store, store
from wherry.spark.pipelines.archive.tasks import ProgressListener, SilentListener

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TARGET_BYTES = 128 << 20
ROWS_PER_TASK = 1_000_000
ROWS_PER_TASK_MIN = 10_000
WAVE = 8
"""Tasks between two commits: at most this much is done again after a crash."""

GRACE_S = 3_600.0
"""How long files that were compacted away are kept: a reader may have them open."""

ORPHAN_S = 86_400.0
"""How long files that no commit names are kept: longer than a wave of a running job takes."""


class ArchiveOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How to archive."""

    target_bytes: int = TARGET_BYTES
    rows_per_task: int | None = None
    wave: int = WAVE
    compact: bool = True
    go_on_after_loss: bool = False
    grace_s: float = GRACE_S
    orphan_s: float = ORPHAN_S
    subscription: str | None = None
    """The subscription of a new archive; by default a random name."""
    consume: bool = False
    """Whether a new archive may be the only reader of a queue, which deletes what is archived."""

    def checked(self) -> ArchiveOptions:
        """Return these options; raise `InvalidInput` for the first that is out of its bounds."""
        check.integer("target_bytes", self.target_bytes, 1_024, 1 << 40)
        check.optional_integer("rows_per_task", self.rows_per_task, 1, 1 << 40)
        check.integer("wave", self.wave, 1, 10_000)
        check.number("grace_s", self.grace_s, 0, 1e9)
        check.number("orphan_s", self.orphan_s, 0, 1e9)
        return self


class Done(msgspec.Struct, frozen=True, kw_only=True):
    """What a run did, and what the archive has now."""

    topic: str
    rows: int
    """Rows that this run archived."""
    files_compacted: int
    files_removed: int
    archived_rows: int
    archived_files: int
    archived_bytes: int
    sum: str
    ends: dict[int, int]
    commit: int


class ArchiveTask(NamedTuple):
    """The work of one task: offsets of a partition."""

    link: FlightLink
    store: Store
    topic: str
    partition: int
    start: int
    stop: int
    target_bytes: int


class _Run(NamedTuple):
    """What all parts of a run need; `token` is the name of the run in commits."""

    spark: SparkSession
    link: FlightLink
    here: Store
    token: str
    options: ArchiveOptions
    watch: ProgressListener


def archive(
    spark: SparkSession,
    link: FlightLink,
    topic: str,
    to: str,
    options: ArchiveOptions | None = None,
    watch: ProgressListener | None = None,
) -> Done:
    """Archive all messages that a topic has now and the archive does not."""
    options, watch = (options or ArchiveOptions()).checked(), watch or SilentListener()
    token = secrets.token_hex(8)
    here = store(to).under(manifest.folder(topic))
    check_topic(link, topic, to, consume=options.consume)
    name = options.subscription or f"archive-{token}"
    found = manifest.begun(here, topic, name, token)
    _subscribe(link, found, options)
    advance(link, found)
    extents = link.action("extents", {"topic": topic})  # only now, when the subscription keeps the messages
    cleaned = archive_compact.clean(here, found, options.grace_s, options.orphan_s)
    before = found.rows
    retention.note_archive(link, topic, here)  # before the broker deletes anything
    found = _append(_Run(spark, link, here, token, options, watch), found, extents, cleaned.gone)
    grown, fewer = found.rows - before, 0
    if options.compact:
        found, fewer = archive_compact.compact(spark, here, token, options.target_bytes, options.wave, watch)
    return Done(
        topic=topic,
        rows=grown,
        files_compacted=fewer,
        files_removed=cleaned.removed,
        archived_rows=found.rows,
        archived_files=len(found.files),
        archived_bytes=found.bytes,
        sum=f"{found.sum:016x}",
        ends=found.ends(),
        commit=found.number,
    )


def check_topic(link: FlightLink, topic: str, to: str, *, consume: bool) -> None:
    """Raise what would stop an archive later: `NotFound`, or `OnlyReader` of a queue. Needs no Spark."""
    link.action("extents", {"topic": topic})
    if not consume and manifest.load(store(to).under(manifest.folder(topic))) is None:
        retention.check_readers(link, [topic], "the archive")


def verify(spark: SparkSession, topic: str, to: str, watch: ProgressListener | None = None) -> Manifest:
    """Read all files of a topic's archive again; raise `Corrupt` for the first that differs from the manifest."""
    watch = watch or SilentListener()
    here = store(to).under(manifest.folder(topic))
    found = manifest.need(here, topic)
    watch.stage(f"{topic}: verify", len(found.files))
    for at in range(0, len(found.files), 64):
        some = found.files[at : at + 64]
        archive_tasks.run(spark, partial(archive_files.checked, here), some)
        watch.done(len(some))
    return found


def advance(link: FlightLink, found: Manifest) -> None:
    """Advance the subscription to the end of the manifest, so that the broker may delete what it covers."""
    if found.covered:
        body = {"topic": found.topic, "subscription": found.subscription, "offsets": found.ends()}
        link.action("advance", body)


def _subscribe(link: FlightLink, found: Manifest, options: ArchiveOptions) -> None:
    """Create the subscription, so that the topic keeps what is not archived.

    Raise if the subscription of an archive was deleted: messages may be gone since.
    """
    if found.covered and not options.go_on_after_loss and not _subscribed(link, found):
        raise WherryError(
            f"the subscription {found.subscription!r} of the archive of {found.topic!r} was deleted: messages that were"
            " settled since may be missing; go on after the loss, or begin another archive"
        )
    link.action("subscribe", {"topic": found.topic, "name": found.subscription, "start": "earliest"})


def _subscribed(link: FlightLink, found: Manifest) -> bool:
    stats = link.action("stats", {"topic": found.topic})
    return any(each["name"] == found.subscription for each in stats["subscriptions"])


def _append(run: _Run, found: Manifest, extents: dict[str, Any], forgotten: Sequence[str]) -> Manifest:
    """Archive new messages, with a commit for each wave. The first commit also names the `forgotten` files."""
    starts, lost = _starts(found, extents, go_on=run.options.go_on_after_loss)
    stops = {int(partition): stop for partition, stop in extents["stop"].items()}
    rows = run.options.rows_per_task or _rows_per_task(run.link, found.topic, run.options.target_bytes)
    tasks = [
        ArchiveTask(run.link, run.here, found.topic, partition, at, min(at + rows, stop), run.options.target_bytes)
        for partition, stop in stops.items()
        for at in range(starts[partition], stop, rows)
    ]
    run.watch.stage(f"{found.topic}: archive", sum(task.stop - task.start for task in tasks))
    for at in range(0, len(tasks), run.options.wave):
        wave = tasks[at : at + run.options.wave]
        offsets = sum(task.stop - task.start for task in wave)
        shares = _Shares(run.watch, offsets)
        work = partial(_written, not run.options.go_on_after_loss)
        try:
            made = archive_tasks.run(run.spark, work, wave, shares)
        except HistoryLost as fault:
            raise _explained(run, fault) from None
        covers: dict[int, OffsetRange] = {}
        for task in wave:
            begin = found.end(task.partition)
            begin = task.start if begin is None else begin
            covers[task.partition] = (covers.get(task.partition, (begin, 0))[0], task.stop)
        gone = [each for each in lost if each[0] in covers]
        found = manifest.append(run.here, run.token, covers, list(chain.from_iterable(made)), gone, forgotten)
        forgotten = ()
        lost = [each for each in lost if each not in gone]
        advance(run.link, found)
        shares(1.0)
    if lost:  # no messages came after the lost ones
        covers = {partition: (end, first) for partition, end, first in lost}
        found = manifest.append(run.here, run.token, covers, [], lost, forgotten)
    return found


def _starts(
    found: Manifest, extents: dict[str, Any], *, go_on: bool
) -> tuple[dict[int, int], list[tuple[int, int, int]]]:
    """Return where to begin in each partition, and which offsets are lost."""
    starts: dict[int, int] = {}
    lost = []
    for text, first in extents["start"].items():
        partition, stop = int(text), extents["stop"][text]
        end = found.end(partition)
        if end is not None and end > stop:
            raise InvalidInput(
                f"topic {found.topic}",
                f"offsets of partition {partition} up to {stop}",
                f"at least {end} of them, as archived: this is another topic of that name; archive it elsewhere",
            )
        starts[partition] = first if end is None else end
        if end is not None and go_on and first > end:
            starts[partition] = first
            lost.append((partition, end, first))
    return starts, lost


def _rows_per_task(link: FlightLink, topic: str, target_bytes: int) -> int:
    """Return about as many rows as fill a file, by the average size of the topic's messages."""
    stats = link.action("stats", {"topic": topic})
    each = max(1, stats["bytes"] // max(1, stats["messages"]))
    return max(ROWS_PER_TASK_MIN, min(ROWS_PER_TASK, 2 * target_bytes // each))


def _written(strict: bool, task: ArchiveTask) -> list[ArchiveFile]:
    """Read offsets of the log and write them to files. Runs in a task."""
    ticket = {"topic": task.topic, "partition": task.partition, "start": task.start, "stop": task.stop}
    batches = task.link.read({**ticket, "strict": strict})
    return archive_files.write(task.store, task.partition, batches, task.target_bytes)


def _explained(run: _Run, fault: HistoryLost) -> WherryError:
    """Return the error for a message that is gone: lost, or archived and released by another job meanwhile."""
    end = manifest.need(run.here, fault.topic).end(fault.partition)
    if end is not None and end > fault.offset:
        return Conflict(
            f"another job archived partition {fault.partition} of {fault.topic!r} up to offset {end} in between;"
            " nothing is lost: run this one again when that one is done"
        )
    fault.args = (f"{fault}; --on-loss go-on archives what there is, and notes what is missing",)
    return fault


class _Shares:
    """Converts shares of a wave to amounts for the listener."""

    def __init__(self, watch: ProgressListener, amount: int) -> None:
        self._watch, self._amount, self._reported = watch, amount, 0.0

    def __call__(self, share: float) -> None:
        now = share * self._amount
        if now > self._reported:
            self._watch.done(now - self._reported)
            self._reported = now
