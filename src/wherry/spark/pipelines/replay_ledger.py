"""Jobs that publish exactly once by their name: the plan and every chunk are commits of the broker.

What a job is to do is fixed when it first runs: its plan is a message in the topic `wherry-jobs`, committed under a key
with the job's name. A chunk of the plan is staged by a task and committed under a key of its own; a key that was
committed stays so. Whoever runs the job again, from wherever, finds its plan and does what is left; the broker
remembers its last 100,000 commits.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import msgspec
import pyarrow as pa

from wherry.model import check, limits
from wherry.model.errors import AlreadyExists, NotFound
from wherry.spark.link import Link
from wherry.spark.pipelines import archive_tasks
from wherry.spark.pipelines.archive_tasks import Watch

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JOBS = "wherry-jobs"
JOB_CHARS_MAX = 128
CHUNK_BYTES = 8 << 20
CHUNK_ROWS = 20_000
COMMITS_PER_S = 4
"""With a rate, about so many chunks a second."""

WAVE = 8
_SCHEMA = pa.schema([("payload", pa.binary()), ("key", pa.string())])

T = TypeVar("T")
R = TypeVar("R")
P = TypeVar("P", bound=msgspec.Struct)


class Staged(NamedTuple):
    """What a task tells: its stage if it had rows."""

    stage: str | None
    rows: int


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a job."""

    job: str
    into: str
    rows: int
    """Published by this run."""
    rows_before: int
    """Published by runs before."""
    chunks: int
    repeated: bool
    """Whether the job was done before: then this run did nothing."""


class Ledger(NamedTuple):
    """One job at a broker; travels to the tasks."""

    link: Link
    kind: str
    job: str

    def key(self, part: str) -> str:
        """The key of a commit."""
        return f"job/{self.kind}/{self.job}/{part}"

    def committed(self, part: str) -> list[tuple[str, int, int, int]] | None:
        """Where it went; None if it was not committed."""
        placed = self.link.action("committed", {"key": self.key(part)})["placed"]
        return None if placed is None else [tuple(each) for each in placed]

    def commit(self, part: str, stage: str) -> list[tuple[str, int, int, int]]:
        """Make a stage visible, unless one was committed for this part before; where it went."""
        told = self.link.action("commit", {"key": self.key(part), "stages": [stage]})
        return [tuple(each) for each in told["placed"]]

    def stage(self, part: str, topic: str, batches: Iterator[pa.RecordBatch]) -> Staged:
        """In a task: put rows aside."""
        batches = (batch for batch in batches if batch.num_rows)
        first = next(batches, None)
        if first is None:
            return Staged(None, 0)
        stage = f"{self.key(part)}/{secrets.token_hex(8)}"
        return Staged(stage, self.link.put({"topic": topic, "stage": stage}, first.schema, chain([first], batches)))

    def noted(self, part: str, value: Callable[[], P], kind: type[P]) -> P:
        """A value that is fixed for ever by whoever is first: kept as a message of the topic of jobs."""
        placed = self.committed(part)
        if placed is None:
            self._topic()
            row = {"payload": msgspec.json.encode(value()), "key": f"{self.kind}/{self.job}"}
            batch = pa.RecordBatch.from_pylist([row], _SCHEMA)
            placed = self.commit(part, str(self.stage(part, JOBS, iter([batch])).stage))
        _, partition, offset, _ = placed[0]
        ticket = {"topic": JOBS, "partition": partition, "start": offset, "stop": offset + 1}
        for found in self.link.read({**ticket, "columns": ["offset", "payload"]}):
            if found.num_rows:
                return msgspec.json.decode(found.column("payload")[0].as_py(), type=kind)
        raise NotFound("plan of a job", f"{self.job} (the topic {JOBS} does not have it any more; use another name)")

    def _topic(self) -> None:
        fields = {"keep": "bytes", "keep_bytes": 64 << 20, "payload_bytes_max": limits.PAYLOAD_BYTES_MAX}
        if any(each["name"] == JOBS for each in self.link.action("topics", {})["topics"]):
            return
        self.link.action("create-topic", {"name": JOBS, **fields})


class _Done(msgspec.Struct, frozen=True):
    rows: int
    chunks: int


def ledger(link: Link, kind: str, job: str) -> Ledger:
    """The ledger of a job; `InvalidInput` for a name that cannot be one."""
    return Ledger(link, kind, check.name("job", job, JOB_CHARS_MAX))


def same_plan(book: Ledger, known: msgspec.Struct, asked: msgspec.Struct, fields: Sequence[str]) -> None:
    """A job that goes on must be asked for the same; else `AlreadyExists` says what differs."""
    for name in fields:
        before, now = getattr(known, name), getattr(asked, name)
        if before != now:
            raise AlreadyExists("job", book.job, f"{name} was {before!r}, now {now!r}; another job needs another name")


def rows_per_chunk(bytes_each: float, rate: float | None) -> int:
    """So many that a chunk is neither too large to be staged nor too much at a time for the rate."""
    rows = min(CHUNK_ROWS, int(CHUNK_BYTES / max(1.0, bytes_each)))
    if rate is not None:
        rows = min(rows, int(rate / COMMITS_PER_S))
    return max(1, rows)


class Pace:
    """Lets so many messages through a second."""

    def __init__(self, rate: float | None) -> None:
        self._rate, self._next_s = rate, 0.0

    def wait(self, rows: int) -> None:
        """Until these may go, too."""
        if self._rate is None:
            return
        now = time.monotonic()
        if self._next_s > now:
            time.sleep(self._next_s - now)
        self._next_s = max(self._next_s, now - 1 / COMMITS_PER_S) + rows / self._rate  # a little may be made up for


def publish(
    spark: SparkSession,
    book: Ledger,
    into: str,
    chunks: Sequence[T],
    work: Callable[[T], Iterator[pa.RecordBatch]],
    *,
    rate: float | None = None,
    watch: Watch,
) -> Outcome:
    """Publish all chunks that were not published: tasks stage them, a commit in order makes each visible."""
    done = book.committed("done")
    if done is not None:
        before = book.noted("done", lambda: _Done(0, 0), _Done)
        return Outcome(job=book.job, into=into, rows=0, rows_before=before.rows, chunks=before.chunks, repeated=True)
    rows = rows_before = 0
    pace = Pace(rate)
    watch.stage(f"{book.kind} {book.job}", len(chunks))
    todo = []
    for number in range(len(chunks)):
        placed = book.committed(str(number))
        if placed is None:
            todo.append(number)
        else:
            rows_before += sum(count for *_, count in placed)
            watch.done(1)

    def staged(number: int) -> Staged:
        return book.stage(str(number), into, work(chunks[number]))

    for wave, results in _ahead(todo, lambda wave: archive_tasks.run(spark, staged, wave)):
        for number, result in zip(wave, results, strict=True):
            if result.stage is not None:
                pace.wait(result.rows)
                book.commit(str(number), result.stage)
                rows += result.rows
            watch.done(1)
    told = _Done(rows + rows_before, len(chunks))
    book.noted("done", lambda: told, _Done)
    return Outcome(job=book.job, into=into, rows=rows, rows_before=rows_before, chunks=len(chunks), repeated=False)


def _ahead(todo: list[int], work: Callable[[list[int]], list[R]]) -> Iterator[tuple[list[int], list[R]]]:
    """Work wave by wave; while one is dealt with, the next is under way."""
    waves = [todo[at : at + WAVE] for at in range(0, len(todo), WAVE)]
    with ThreadPoolExecutor(1, "wherry wave") as thread:
        under_way = [thread.submit(work, wave) for wave in waves[:1]]
        for number, wave in enumerate(waves):
            results = under_way.pop().result()
            under_way += [thread.submit(work, each) for each in waves[number + 1 : number + 2]]
            yield wave, results


def needs_topic(link: Link, topic: str) -> None:
    """`NotFound` before anything is done, if there is no such topic."""
    link.action("extents", {"topic": topic})


def check_rate(rate: float | None) -> float | None:
    """Messages a second, or None for as fast as can be."""
    return None if rate is None else check.number("rate", rate, 0.001, 1e9)
