"""`dueOnly`: rows that are due, and each of the others once its time has come.

A mark of such a query has a time besides its positions. A micro-batch from (P0, T0) to (P1, T1) has the rows from P0 up
to P1 that are due at T1, and those below P0 that became due after T0, up to T1. So its rows depend only on its two
marks, and each row is in exactly one micro-batch. The driver remembers which messages still wait, as offsets and times.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from wherry.model.calls.where import Where
from wherry.model.errors import LimitReached
from wherry.spark.link import FlightLink
from wherry.spark.read.positions import Mark, Positions, Released

WAITING_MAX = 10_000_000
"""The most messages of a query that wait for their time: 16 bytes of the driver's memory each."""

Int64 = npt.NDArray[np.int64]


def now_ms() -> int:
    """Return the time at the driver."""
    return int(time.time() * 1_000)


class DueBetween(NamedTuple):
    """Which rows of a range are read: due at or before `until_ms`; with `after_ms`, only those due after it."""

    after_ms: int | None = None
    until_ms: int | None = None

    def of(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows of a batch that has the column `due`."""
        due = batch.column("due").cast(pa.timestamp("ms", tz="UTC")).cast(pa.int64())
        if self.until_ms is not None:
            batch, due = _where(batch, due, pc.less_equal(due, self.until_ms), missing=True)
        if self.after_ms is not None:
            batch, due = _where(batch, due, pc.greater(due, self.after_ms), missing=False)
        return batch


def _where(batch: pa.RecordBatch, due: pa.Array, mask: pa.Array, *, missing: bool) -> tuple[pa.RecordBatch, pa.Array]:
    mask = pc.fill_null(mask, missing)
    return batch.filter(mask), due.filter(mask)


class DuePlan(NamedTuple):
    """What a mark says about time: until when rows are due, the first offsets that wait, and what to read again."""

    until_ms: int | None
    waiting: Positions
    released: Released


class NotDueYet:
    """The messages of a query below its positions that are not due yet."""

    def __init__(self, link: FlightLink, where: Where) -> None:
        self._link, self._where = link, msgspec.to_builtins(where)
        self._known: dict[tuple[str, int], tuple[Int64, Int64]] = {}
        """Offsets and due times that wait, by topic and partition."""
        self._at: Mark | None = None

    def remember(self, mark: Mark) -> None:
        """Read again what waits at a mark, unless it is the one of the last plan."""
        if self._at is not None and (self._at.positions, self._at.due_ms) == (mark.positions, mark.due_ms):
            return
        self._known.clear()
        for topic, offsets in mark.waiting.items():
            self._add(topic, offsets, mark.positions.get(topic, {}), mark.due_ms)
        self._at = mark

    def plan(self, known: Positions, found: Positions, until_ms: int | None) -> DuePlan:
        """Return what a micro-batch up to `found` has; nothing is changed, so a plan may be made again."""
        waiting: Positions = {}
        released: Released = {}
        for (topic, number), (offsets, due) in self._known.items():
            now = np.ones(len(due), bool) if until_ms is None else due <= until_ms
            if now.any():
                chosen = offsets[now]
                released.setdefault(topic, {})[number] = (int(chosen.min()), int(chosen.max()) + 1)
            if not now.all():
                waiting.setdefault(topic, {})[number] = int(offsets[~now].min())
        for topic, ends in found.items() if until_ms is not None else ():
            for number, stop in ends.items():
                start = known.get(topic, {}).get(number, 0)
                first = next((int(each[0]) for each, _ in self._later(topic, number, start, stop, until_ms)), None)
                if first is not None:
                    waiting.setdefault(topic, {}).setdefault(number, first)
        return DuePlan(until_ms, waiting, released)

    def forget(self, topic: str) -> None:
        """Drop what waits in a topic that is not the one that was read."""
        for name in [name for name in self._known if name[0] == topic]:
            del self._known[name]

    def _add(self, topic: str, offsets: Mapping[int, int], stops: Mapping[int, int], after_ms: int | None) -> None:
        for number, start in offsets.items():
            parts = list(self._later(topic, number, start, stops.get(number, 0), after_ms))
            if parts:
                found = tuple(np.concatenate(column) for column in zip(*parts, strict=True))
                self._known[topic, number] = (found[0], found[1])
            count = sum(len(due) for _, due in self._known.values())
            if count > WAITING_MAX:
                raise LimitReached("messages that wait in a query with dueOnly", WAITING_MAX, count)

    def _later(
        self, topic: str, number: int, start: int, stop: int, after_ms: int | None
    ) -> Iterator[tuple[Int64, Int64]]:
        """Yield offsets and due times of messages of a range that are due after a time."""
        ticket: dict[str, Any] = {
            "topic": topic,
            "partition": number,
            "start": start,
            "stop": stop,
            "columns": ["offset", "due"],
        }
        if self._where:
            ticket["where"] = self._where
        for batch in self._link.read(ticket) if start < stop else ():
            due = batch.column("due").cast(pa.timestamp("ms", tz="UTC")).cast(pa.int64())
            later = batch.filter(pc.fill_null(pc.greater(due, -1 if after_ms is None else after_ms), False))
            if later.num_rows:
                times = later.column("due").cast(pa.timestamp("ms", tz="UTC")).cast(pa.int64())
                yield later.column("offset").to_numpy(), times.to_numpy()
