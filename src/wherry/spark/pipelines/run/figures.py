"""The figures of a running query: from the progress that Spark reports, and from the broker."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal

import msgspec

from wherry.model.errors import WherryError
from wherry.spark.link import FlightLink
from wherry.spark.pipelines.run.frames import IN_BAD, OUT

State = Literal["starting", "running", "waiting", "restarting", "done", "stopped", "failed"]

WINDOW_S = 10.0
"""The time over which a rate is taken."""


class QueryFigures(msgspec.Struct, kw_only=True):
    """One line of the live table."""

    query: str
    target: str
    state: State = "starting"
    batch: int = -1
    rows_in: int = 0
    rows_out: int = 0
    bad: int = 0
    in_per_s: float = 0.0
    out_per_s: float = 0.0
    lag: int | None = None
    lag_ms: int | None = None
    restarts: int = 0
    reason: str | None = None


class Meter:
    """Adds up the progress of one query, also over its restarts."""

    def __init__(self, query: str, target: str) -> None:
        self.figures = QueryFigures(query=query, target=target)
        self._last = ""
        self._positions: dict[str, dict[str, int]] = {}
        self._marks: deque[tuple[float, int, int]] = deque([(time.monotonic(), 0, 0)])

    def take(self, progress: Sequence[Any]) -> bool:
        """Take the latest progress, oldest first; return whether rows were read since the last call."""
        new = [each for each in progress if each.timestamp > self._last]
        for each in new:
            self._add(each)
        self._rates()
        return any(each.numInputRows for each in new)

    def _add(self, progress: Any) -> None:
        figures, self._last = self.figures, progress.timestamp
        figures.batch = max(figures.batch, progress.batchId)
        figures.rows_in += max(0, progress.numInputRows)
        counted: dict[str, int] = {}
        for row in (progress.observedMetrics or {}).values():
            counted = _sum(counted, observed(row.asDict()))
        figures.rows_out += counted.get(OUT, max(0, progress.sink.numOutputRows or 0))
        figures.bad += counted.get(IN_BAD, 0)
        for source in progress.sources:
            self._positions |= positions(source.endOffset)

    def _rates(self) -> None:
        figures, now = self.figures, time.monotonic()
        self._marks.append((now, figures.rows_in, figures.rows_out))
        while len(self._marks) > 2 and self._marks[1][0] < now - WINDOW_S:
            self._marks.popleft()
        since, rows_in, rows_out = self._marks[0]
        seconds = max(now - since, 1e-9)
        figures.in_per_s = round((figures.rows_in - rows_in) / seconds, 1)
        figures.out_per_s = round((figures.rows_out - rows_out) / seconds, 1)

    def measure_lag(self, broker: FlightLink, subscriptions: Collection[str]) -> None:
        """Measure how far the query is behind; unknown while the broker does not answer."""
        figures = self.figures
        try:
            figures.lag = sum(_behind(broker, topic, at) for topic, at in self._positions.items())
            figures.lag_ms = _oldest_ms(broker, list(self._positions), subscriptions) if figures.lag else 0
        except WherryError:
            figures.lag = figures.lag_ms = None


def positions(offset: str | None) -> dict[str, dict[str, int]]:
    """Return the offsets by topic and partition in an offset of the source.

    Examples
    --------
    >>> positions('{"version": 1, "positions": {"orders": {"0": 17}}}')
    {'orders': {'0': 17}}
    >>> positions("None")
    {}
    """
    try:
        found = msgspec.json.decode(offset or "{}")
    except msgspec.DecodeError:
        return {}
    return found.get("positions", {}) if isinstance(found, dict) else {}


def observed(metrics: Mapping[str, Any]) -> dict[str, int]:
    """Return the observed counts by name. Spark Connect sends the values and their schema separately.

    Examples
    --------
    >>> observed({"values": [5], "schema": {"fields": [{"name": "_out"}]}})
    {'_out': 5}
    """
    if "schema" not in metrics:
        return dict(metrics)
    return {field["name"]: value for field, value in zip(metrics["schema"]["fields"], metrics["values"], strict=True)}


def _sum(one: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    """Add the counts of several sources."""
    return {name: one.get(name, 0) + other.get(name, 0) for name in (*one, *other)}


def _behind(broker: FlightLink, topic: str, at: Mapping[str, int]) -> int:
    ends: dict[str, int] = broker.action("extents", {"topic": topic})["stop"]
    return sum(max(0, end - int(at.get(partition, 0))) for partition, end in ends.items())


def _oldest_ms(broker: FlightLink, topics: list[str], subscriptions: Collection[str]) -> int | None:
    """Return the age of the oldest message that one of the subscriptions has not read."""
    ages = [
        row["lag_ms"]
        for topic in topics
        for row in broker.action("stats", {"topic": topic})["subscriptions"]
        if row["name"] in subscriptions and row["lag"]
    ]
    return max(ages, default=None)
