"""Work on Spark: a list of tasks, a function, a list of results; and the progress, for a progress bar.

Tasks run by `mapInArrow`, which a local Spark, a cluster and Spark Connect all have. An error of the broker or the disk
is raised again as that error, not as a trace of Spark.
"""

from __future__ import annotations

import pickle
import secrets
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import pyarrow as pa

from wherry.client.link.errors import KINDS
from wherry.model.errors import WherryError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

POLL_S = 0.1

T = TypeVar("T")
R = TypeVar("R")


class ProgressListener(Protocol):
    """Receives the progress of a job, for example to draw a bar."""

    def stage(self, name: str, total: float | None) -> None:
        """Begin a stage that is complete at `total`."""

    def done(self, amount: float) -> None:
        """Add to what is done of the stage."""


class SilentListener:
    """A listener that shows nothing."""

    def stage(self, name: str, total: float | None) -> None:
        """Do nothing."""

    def done(self, amount: float) -> None:
        """Do nothing."""


def run(
    spark: SparkSession, work: Callable[[T], R], tasks: Sequence[T], on_done: Callable[[float], None] | None = None
) -> list[R]:
    """Run each task on Spark, and return the results in order. `on_done` gets the share that is done, 0 to 1."""
    if not tasks:
        return []
    given = list(tasks)

    def each(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                result = pickle.dumps(_tried(work, given[number]))
                yield pa.record_batch(
                    {"number": pa.array([number], pa.int64()), "result": pa.array([result], pa.binary())}
                )

    frame = spark.range(0, len(given), 1, len(given)).mapInArrow(each, "number long, result binary")
    rows = frame.collect() if on_done is None else _shared(spark, frame.collect, on_done)
    results: list[Any] = [None] * len(given)
    for row in rows:
        results[row["number"]] = _result(pickle.loads(bytes(row["result"])))
    return results


def _tried(work: Callable[[T], R], task: T) -> tuple[Any, ...]:
    try:
        return (work(task),)
    except WherryError as fault:
        return fault.code, str(fault), dict(vars(fault))
    except OSError as fault:
        return "os", str(fault), {}


def _result(result: tuple[Any, ...]) -> Any:
    if len(result) == 1:
        return result[0]
    code, text, fields = result
    if code == "os":
        raise OSError(text)
    kind = KINDS.get(code, WherryError)
    fault = kind.__new__(kind)
    fault.args = (text,)
    for name, value in fields.items():
        setattr(fault, name, value)
    raise fault


def _shared(spark: SparkSession, collect: Callable[[], T], on_done: Callable[[float], None]) -> T:
    return watched(spark, "wherry pipeline", collect, lambda done, known: on_done(done / known if known else 0.0))


def watched(spark: SparkSession, name: str, work: Callable[[], T], report: Callable[[int, int], None]) -> T:
    """Do the work; call `report` with the tasks done and the tasks known, until the work is complete.

    Spark Connect reports no progress: there `report` is not called.
    """
    from pyspark import InheritableThread  # noqa: PLC0415 - missing where only Spark Connect is installed
    from pyspark.errors import PySparkException  # noqa: PLC0415

    try:
        context = spark.sparkContext
    except PySparkException:
        return work()
    group, answers, faults = f"wherry-{secrets.token_hex(4)}", list[T](), list[BaseException]()

    def run() -> None:
        try:
            context.setJobGroup(group, name, interruptOnCancel=True)
            answers.append(work())
        except BaseException as fault:  # noqa: BLE001, RUF100 - raised again by the waiting thread
            faults.append(fault)

    thread = InheritableThread(target=run, session=spark, daemon=True)
    thread.start()
    try:
        while thread.is_alive():
            thread.join(POLL_S)
            report(*_tasks(context.statusTracker(), group))
    except BaseException:
        context.cancelJobGroup(group)
        raise
    if faults:
        raise faults[0]
    return answers[0]


def _tasks(tracker: Any, group: str) -> tuple[int, int]:
    """Return the tasks done and known. Stages that Spark skips, because it has their rows, do not count."""
    done = known = 0
    for job in tracker.getJobIdsForGroup(group):
        info = tracker.getJobInfo(job)
        for stage in info.stageIds if info is not None else ():
            stage_info = tracker.getStageInfo(stage)
            if stage_info is not None:
                done, known = done + stage_info.numCompletedTasks, known + stage_info.numTasks
    return done, known
