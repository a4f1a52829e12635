"""Jobs that publish exactly once for their name: the plan and every chunk are commits of the broker.

The first run of a job fixes its work: the plan is a message in the topic `wherry-jobs`, with the job's name as its key.
A task stages each chunk of the plan, and the driver commits it together with a record of how far the job is, in the
same topic. Chunks are committed in order. So a later run, on any machine, reads the records and does the rest.

Each commit has a key of its own, too, so that two runs of a job at the same time publish a chunk once. The broker
remembers its last 100,000 commits; records are kept much longer, for the last 64 MiB of all jobs.
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
from wherry.spark.link import FlightLink
from wherry.spark.pipelines.archive import tasks as archive_tasks
from wherry.spark.pipelines.archive.tasks import ProgressListener

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JOBS = "wherry-jobs"
RECORDS_BYTES = 64 << 20
PLAN, DONE = "plan", "done"
JOB_CHARS_MAX = 128
CHUNK_BYTES = 8 << 20
CHUNK_ROWS = 20_000
COMMITS_PER_S = 4
"""About how many chunks a second a job with a rate has, unless these are too many chunks."""

CHUNKS_MAX = 50_000
"""The most chunks of a job, and so the most commit keys that it uses. Larger jobs have larger chunks."""

WAVE = 8
_SCHEMA = pa.schema([("payload", pa.binary()), ("key", pa.string()), ("headers", pa.map_(pa.string(), pa.string()))])

T = TypeVar("T")
R = TypeVar("R")
P = TypeVar("P", bound=msgspec.Struct)


class StagedChunk(NamedTuple):
    """What a task returns: its stage, if it had rows."""

    stage: str | None
    rows: int


class JobResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a job has done."""

    job: str
    into: str
    rows: int
    """Messages that this run published."""
    rows_before: int
    """Messages that earlier runs published."""
    chunks: int
    repeated: bool = False
    """Whether the job was done before, so that this run did nothing."""


class Reached(msgspec.Struct, frozen=True):
    """How far a job is: chunks that are done, and the rows that were published with them."""

    chunks: int = 0
    rows: int = 0


class Records(NamedTuple):
    """The records of a job; without a plan there is no job."""

    plan: bytes | None = None
    reached: Reached = Reached()
    done: bool = False


class Ledger(NamedTuple):
    """One job at a broker; sent to the tasks."""

    link: FlightLink
    kind: str
    job: str
    known: Records = Records()
    """The records when the run began."""

    @property
    def name(self) -> str:
        """The name of the job among all jobs: the key of its records."""
        return f"{self.kind}/{self.job}"

    def key(self, part: str) -> str:
        """Return the key of a commit."""
        return f"spark/job/{self.name}/{part}"

    def commit(self, part: str, *stages: str) -> list[tuple[str, int, int, int]]:
        """Make stages visible together, unless this part was committed before; return where the rows are."""
        answer = self.link.action("commit", {"key": self.key(part), "stages": list(stages)})
        return [tuple(each) for each in answer["placed"]]

    def stage(self, part: str, topic: str, batches: Iterator[pa.RecordBatch]) -> StagedChunk:
        """Stage rows; a task stages those of a chunk."""
        batches = (batch for batch in batches if batch.num_rows)
        first = next(batches, None)
        if first is None:
            return StagedChunk(None, 0)
        stage = f"{self.key(part)}/{secrets.token_hex(8)}"
        return StagedChunk(
            stage, self.link.put({"topic": topic, "stage": stage}, first.schema, chain([first], batches))
        )

    def recorded(self, part: str, value: msgspec.Struct) -> str:
        """Stage a record, to be committed; return its stage."""
        row = {"payload": msgspec.json.encode(value), "key": self.name, "headers": [("part", part)]}
        return str(self.stage(part, JOBS, iter([pa.RecordBatch.from_pylist([row], _SCHEMA)])).stage)

    def records(self) -> Records:
        """Read all records of the job."""
        found = Records()
        for part, payload in notes(self.link, self.name):
            if part == PLAN:
                found = found._replace(plan=found.plan or payload)
            else:
                reached = msgspec.json.decode(payload, type=Reached)
                found = found._replace(reached=max(found.reached, reached, key=lambda each: each.chunks))
                found = found._replace(done=found.done or part == DONE)
        return found

    def planned(self, value: Callable[[], P], kind: type[P]) -> P:
        """Return the plan of the job, which the first run fixes for ever."""
        plan = self.known.plan
        if plan is None:
            if self.link.action("committed", {"key": self.key(PLAN)})["placed"] is None:
                make_topic(self.link)
                self.commit(PLAN, self.recorded(PLAN, value()))
            plan = self.records().plan  # the plan of the run that was first
        if plan is None:
            why = f"{self.job} (the topic {JOBS} does not have it any more; use another name)"
            raise NotFound("plan of a job", why)
        return msgspec.json.decode(plan, type=kind)


def notes(link: FlightLink, key: str) -> Iterator[tuple[str, bytes]]:
    """Yield part and payload of each record with a key, oldest first; none if there are no records at all."""
    if not any(each["name"] == JOBS for each in link.action("topics", {})["topics"]):
        return
    extents = link.action("extents", {"topic": JOBS})
    for text, stop in extents["stop"].items():
        ticket = {"topic": JOBS, "partition": int(text), "start": extents["start"][text], "stop": stop}
        where = {"keys": [key]}
        for batch in link.read({**ticket, "where": where, "columns": ["offset", "headers", "payload"]}):
            for row in batch.to_pylist():
                yield dict(row["headers"]).get("part", ""), row["payload"]


def make_topic(link: FlightLink) -> None:
    """Create the topic of the records, if there is none."""
    fields = {"keep": "bytes", "keep_bytes": RECORDS_BYTES, "payload_bytes_max": limits.PAYLOAD_BYTES_MAX}
    if not any(each["name"] == JOBS for each in link.action("topics", {})["topics"]):
        link.action("create-topic", {"name": JOBS, **fields})


def ledger(link: FlightLink, kind: str, job: str) -> Ledger:
    """Return the ledger of a job with its records; raise `InvalidInput` for a name that cannot be one."""
    book = Ledger(link, kind, check.name("job", job, JOB_CHARS_MAX))
    return book._replace(known=book.records())


def same_plan(book: Ledger, known: msgspec.Struct, asked: msgspec.Struct, fields: Sequence[str]) -> None:
    """Raise `AlreadyExists`, with what differs, if a job continues with other arguments than before."""
    for name in fields:
        before, now = getattr(known, name), getattr(asked, name)
        if before != now:
            raise AlreadyExists("job", book.job, f"{name} was {before!r}, now {now!r}; another job needs another name")


def rows_per_chunk(bytes_each: float, rows_all: int, rate: float | None) -> int:
    """Return the rows of a chunk: few enough to be staged and for the rate, enough to limit the number of chunks.

    Examples
    --------
    >>> rows_per_chunk(100.0, 1_000, rate=400.0)
    100
    >>> rows_per_chunk(100.0, 50_000_000, rate=400.0)
    1000
    """
    rows = min(CHUNK_ROWS, int(CHUNK_BYTES / max(1.0, bytes_each)))
    if rate is not None:
        rows = min(rows, int(rate / COMMITS_PER_S))
    return max(1, rows, -(-rows_all // CHUNKS_MAX))


class Pace:
    """Limits the messages a second."""

    def __init__(self, rate: float | None) -> None:
        self._rate, self._next_s = rate, 0.0

    def wait(self, rows: int) -> None:
        """Wait until these rows may be published."""
        if self._rate is None:
            return
        now = time.monotonic()
        if self._next_s > now:
            time.sleep(self._next_s - now)
        # A short delay may be made up for.
        self._next_s = max(self._next_s, now - 1 / COMMITS_PER_S) + rows / self._rate


def publish(
    spark: SparkSession,
    book: Ledger,
    into: str,
    chunks: Sequence[T],
    work: Callable[[T], Iterator[pa.RecordBatch]],
    *,
    rate: float | None = None,
    watch: ProgressListener,
) -> JobResult:
    """Publish all chunks that are not published yet: tasks stage them, and commits in order make them visible."""
    before = book.known
    outcome = JobResult(job=book.job, into=into, rows=0, rows_before=before.reached.rows, chunks=len(chunks))
    if before.done:
        return msgspec.structs.replace(outcome, repeated=True)
    reached, pace = before.reached, Pace(rate)
    watch.stage(f"{book.kind} {book.job}", len(chunks))
    watch.done(reached.chunks)

    def staged(task: tuple[int, T]) -> StagedChunk:
        number, chunk = task
        return book.stage(str(number), into, work(chunk))

    def wave_of(numbers: list[int]) -> list[StagedChunk]:
        return archive_tasks.run(spark, staged, [(number, chunks[number]) for number in numbers])

    for wave, results in _ahead(list(range(reached.chunks, len(chunks))), wave_of):
        for number, result in zip(wave, results, strict=True):
            reached = Reached(number + 1, reached.rows + result.rows)
            if result.stage is not None:  # a chunk without rows needs no commit: the next record covers it
                record = book.recorded(str(number), reached)
                pace.wait(result.rows)
                book.commit(str(number), result.stage, record)
            watch.done(1)
    book.commit(DONE, book.recorded(DONE, Reached(len(chunks), reached.rows)))
    return msgspec.structs.replace(outcome, rows=reached.rows - before.reached.rows)


def _ahead(todo: list[int], work: Callable[[list[int]], list[R]]) -> Iterator[tuple[list[int], list[R]]]:
    """Work wave by wave; while the caller handles one wave, the next is being worked on."""
    waves = [todo[at : at + WAVE] for at in range(0, len(todo), WAVE)]
    with ThreadPoolExecutor(1, "wherry wave") as thread:
        under_way = [thread.submit(work, wave) for wave in waves[:1]]
        for number, wave in enumerate(waves):
            results = under_way.pop().result()
            under_way += [thread.submit(work, each) for each in waves[number + 1 : number + 2]]
            yield wave, results


def needs_topic(link: FlightLink, topic: str) -> None:
    """Raise `NotFound` before anything is done, if there is no such topic."""
    link.action("extents", {"topic": topic})


def check_rate(rate: float | None) -> float | None:
    """Return the messages a second, or None for no limit; raise if the rate is out of bounds."""
    return None if rate is None else check.number("rate", rate, 0.001, 1e9)
