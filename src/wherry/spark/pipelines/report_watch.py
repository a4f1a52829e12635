"""How far a batch job of Spark is: the tasks of its stages, while it runs."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")
LOOK_S = 0.1


def watched(spark: SparkSession, name: str, work: Callable[[], T], tell: Callable[[int, int], None]) -> T:
    """Do a piece of work; `tell` hears tasks done and tasks known of, until it is over.

    Spark Connect does not tell: there it is done without a word.
    """
    from pyspark import InheritableThread  # noqa: PLC0415 - heavy

    try:
        context = spark.sparkContext
    except Exception:  # noqa: BLE001, RUF100 - each version of Connect says no in its own way
        return work()
    group = f"wherry-{secrets.token_hex(4)}"
    answer: list[T] = []
    fault: list[BaseException] = []

    def run() -> None:
        context.setJobGroup(group, name, interruptOnCancel=True)
        try:
            answer.append(work())
        except BaseException as raised:  # noqa: BLE001, RUF100 - raised again by whoever waits
            fault.append(raised)

    thread = InheritableThread(target=run, daemon=True)
    thread.start()
    tracker: Any = context.statusTracker()
    try:
        while thread.is_alive():
            thread.join(LOOK_S)
            tell(*_tasks(tracker, group))
    except KeyboardInterrupt:
        context.cancelJobGroup(group)
        raise
    if fault:
        raise fault[0]
    return answer[0]


def _tasks(tracker: Any, group: str) -> tuple[int, int]:
    """Stages that were left out, because their rows were there already, count for nothing."""
    done = known = 0
    for job in tracker.getJobIdsForGroup(group):
        info = tracker.getJobInfo(job)
        for stage in info.stageIds if info is not None else ():
            told = tracker.getStageInfo(stage)
            if told is not None:
                done, known = done + told.numCompletedTasks, known + told.numTasks
    return done, known
