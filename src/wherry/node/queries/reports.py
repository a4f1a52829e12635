"""The streaming queries that report to a node, and how far each is behind. In memory only; it never touches a topic.

Drivers report how far their queries have read. The lag is computed here at each look, so it also grows while a query is
stuck or its driver is dead.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Literal

import msgspec

from wherry.broker.port.port import BrokerPort
from wherry.model import check, limits
from wherry.model.errors import InvalidInput, NotFound
from wherry.wire.http.api.terms import between, json_schema, name

QUERIES_MAX = 200
"""Queries that are kept; one more takes the place of the one that has been silent for longest."""
TOPICS_MAX = 100
"""Topics that one query may read, and subscriptions that it may have."""
TEXT_CHARS_MAX = 1_000
SILENT_S = 60.0
"""After so long without a report, a query that did not end counts as silent. Drivers report every 10 s."""
KEPT_S = 3_600.0
"""How long a query without reports is kept."""

Count = Annotated[int, between(0, limits.OFFSET_MAX)]
Words = Annotated[str, json_schema(maxLength=TEXT_CHARS_MAX)]
Offsets = Annotated[
    dict[int, int], json_schema(maxProperties=limits.PARTITIONS_MAX, propertyNames={"pattern": "^(0|[1-9][0-9]{0,5})$"})
]
Positions = Annotated[
    dict[str, Offsets],
    json_schema(
        minProperties=1, maxProperties=TOPICS_MAX, propertyNames=name(limits.TOPIC_NAME_BYTES_MAX).extra_json_schema
    ),
]
SubscriptionNames = Annotated[
    list[Annotated[str, name(limits.SUBSCRIPTION_NAME_CHARS_MAX)]], json_schema(maxItems=TOPICS_MAX)
]
State = Literal["running", "idle", "ended", "failed"]
ShownState = Literal["running", "idle", "ended", "failed", "silent"]


class QueryReport(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the driver of a streaming query knows of it.

    `positions` has the next offset to read by topic and partition; the caller needs the right to consume these topics.
    `rows`, `rows_written`, `batches` and `batches_ms` count since the driver began to report. `batch_ms` is the
    duration of the last micro-batch, whose number is `batch`.
    """

    name: Words
    state: State
    positions: Positions
    subscriptions: SubscriptionNames = []
    sink: Words = ""
    batch: int = -1
    rows: Count = 0
    rows_written: Count = 0
    batches: Count = 0
    batches_ms: Count = 0
    batch_ms: Count = 0
    rows_per_s: float = 0.0
    reason: Words | None = None

    def checked(self) -> QueryReport:
        """Return the report; raise `InvalidInput` for the first field that is wrong."""
        if not 1 <= len(self.positions) <= TOPICS_MAX:
            raise InvalidInput("positions", f"{len(self.positions)} topics", f"1 to {TOPICS_MAX} topics")
        for offsets in self.positions.values():
            if len(offsets) > limits.PARTITIONS_MAX:
                raise InvalidInput("positions", f"{len(offsets)} partitions", f"at most {limits.PARTITIONS_MAX}")
        if len(self.subscriptions) > TOPICS_MAX:
            allowed = f"at most {TOPICS_MAX} subscriptions"
            raise InvalidInput("subscriptions", f"{len(self.subscriptions)} of them", allowed)
        for each in self.subscriptions:
            check.name("subscriptions", each, limits.SUBSCRIPTION_NAME_CHARS_MAX)
        for field in ("name", "sink", "reason"):
            if len(getattr(self, field) or "") > TEXT_CHARS_MAX:
                raise InvalidInput(field, getattr(self, field)[:80], f"at most {TEXT_CHARS_MAX} characters")
        for field in ("rows", "rows_written", "batches", "batches_ms", "batch_ms"):
            check.integer(field, getattr(self, field), 0, limits.OFFSET_MAX)
        return self


class QueryView(msgspec.Struct, kw_only=True):
    """A streaming query as this node shows it.

    `lag` is how many messages of its topics the query has not read, and `lag_ms` the age of the oldest that its
    subscription has not settled, null where the query has no subscription.
    """

    id: str
    name: str
    state: ShownState
    topics: list[str]
    sink: str
    batch: int
    batch_ms: Count
    rows: Count
    rows_written: Count
    rows_per_s: float
    lag: Count
    lag_ms: Count | None
    silent_ms: Count
    reason: str | None


class QueryReports:
    """The last report of each query."""

    def __init__(self, broker: BrokerPort, clock: Callable[[], float]) -> None:
        self._broker, self._clock = broker, clock
        self._reports: dict[str, tuple[QueryReport, float]] = {}
        """By id, the one that reported last at the end."""

    def take(self, query: str, report: QueryReport) -> None:
        """Keep a report in place of the one before."""
        self._forget()
        self._reports.pop(query, None)
        if len(self._reports) >= QUERIES_MAX:
            del self._reports[next(iter(self._reports))]
        self._reports[query] = (report, self._clock())

    def all(self) -> dict[str, QueryReport]:
        """Return the reports that are kept, by the id of their query."""
        self._forget()
        return {query: report for query, (report, _) in self._reports.items()}

    def view(self, query: str) -> QueryView:
        """Return one query, with its lag as of now."""
        report, at_s = self._reports[query]
        silent_s, lag = self._clock() - at_s, self.lag(report)
        state: ShownState = report.state
        if silent_s > SILENT_S and report.state in ("running", "idle"):
            state = "silent"
        return QueryView(
            id=query,
            name=report.name,
            state=state,
            topics=list(report.positions),
            sink=report.sink,
            batch=report.batch,
            batch_ms=report.batch_ms,
            rows=report.rows,
            rows_written=report.rows_written,
            rows_per_s=report.rows_per_s,
            lag=lag,
            lag_ms=self.lag_ms(report) if lag else 0,
            silent_ms=int(silent_s * 1_000),
            reason=report.reason,
        )

    def lag(self, report: QueryReport) -> int:
        """Return how many messages of its topics a query has not read; topics that are gone have none."""
        behind = 0
        for topic, at in report.positions.items():
            try:
                extents = self._broker.extents(topic)
            except NotFound:
                continue
            behind += sum(max(0, stop - max(at.get(number, 0), start)) for number, start, stop in extents)
        return behind

    def lag_ms(self, report: QueryReport) -> int | None:
        """Return the age of the oldest message that the subscriptions of a query have not settled; None without any."""
        ages = []
        for topic in report.positions:
            try:
                found = self._broker.stats(topic).subscriptions
            except NotFound:
                continue
            ages += [each.lag_ms for each in found if each.name in report.subscriptions]
        return max(ages, default=None)

    def _forget(self) -> None:
        now_s = self._clock()
        for query in [query for query, (_, at_s) in self._reports.items() if now_s - at_s > KEPT_S]:
            del self._reports[query]
