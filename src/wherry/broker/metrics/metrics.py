"""What a broker does, in figures: a few microseconds a batch when they are on, nothing when they are off.

`shard.metrics` is None until a `Metrics` is made. What the core counts anyway (published, acked, dead, …) is read on
request, never counted a second time; here are only times, sizes, and what is not in the state: deliveries and refusals.
"""

from __future__ import annotations

import asyncio
import gc
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from time import perf_counter
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics

from wherry.broker.metrics import figures
from wherry.broker.metrics.figures import Labels, MetricsSnapshot, Timing
from wherry.core.inspect import stats
from wherry.core.state.state import SubscriptionState
from wherry.model.calls.lease import DeliveredRow
from wherry.model.errors import NotFound, WherryError
from wherry.model.schema import integers

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from wherry.broker.broker import Broker

T = TypeVar("T")

SHORT = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Bounds in seconds for calls whose client waits."""
LONG = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0, 600.0, 3_600.0, 86_400.0)
"""Bounds in seconds for messages that wait in a topic."""
ENTRIES = tuple(float(1 << power) for power in range(0, 13, 2))
BYTES = tuple(float(1 << power) for power in range(10, 24, 2))

GROUPS_MAX = 256
"""Groups of entries that are counted together."""

TOPICS_A_TURN = 100
"""Topics that are read before other tasks of the loop get their turn."""


class Histogram:
    """Counts by upper bound. The loop alone touches it, so it needs no lock, and costs a third of a microsecond."""

    __slots__ = ("_edges", "bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0
        self._edges = np.array(bounds)

    def observe(self, value: float, count: int = 1) -> None:
        """Count a value so many times."""
        self.counts[bisect_left(self.bounds, value)] += count
        self.total += value * count

    def observe_all(self, values: np.ndarray) -> None:
        """Count each of several values once."""
        found = np.bincount(np.searchsorted(self._edges, values), minlength=len(self.counts))
        self.counts = [old + new for old, new in zip(self.counts, found.tolist(), strict=True)]
        self.total += float(values.sum())

    def timing(self, name: str, about: str, **labels: str) -> Timing:
        """Return a copy of the histogram as it is now."""
        return Timing(name, about, labels, self.bounds, tuple(self.counts), self.total)


class Gauge(NamedTuple):
    """A figure that is read on request."""

    name: str
    about: str
    read: Callable[[], float]


class CounterMetric(NamedTuple):
    """Figures that only grow, by their labels; read on request."""

    name: str
    about: str
    labels: Labels
    read: Callable[[], Mapping[Labels, float]]


class LabelledGauge(NamedTuple):
    """Figures of now, by their labels; read on request."""

    name: str
    about: str
    labels: Labels
    read: Callable[[], Mapping[Labels, float]]


@contextmanager
def uncollected() -> Iterator[None]:
    """Pause the garbage collector while the figures of many topics are read.

    Tens of thousands of objects come and go meanwhile. They would make the collector scan everything that the broker
    holds, which stops the loop: for 100 ms at 2,000 topics.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


class Metrics:
    """The figures of one broker, which are on from its construction."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.publish, self.settle, self.loop_lag = Histogram(SHORT), Histogram(SHORT), Histogram(SHORT)
        self.pull, self.delivery = Histogram(LONG), Histogram(LONG)
        self.sync, self.group_entries, self.group_bytes = Histogram(SHORT), Histogram(ENTRIES), Histogram(BYTES)
        self._groups: list[tuple[float, int, int]] = []
        """Groups of entries that are not counted yet: seconds, entries and bytes."""
        self.requests: dict[tuple[str, int], Histogram] = {}
        """By route and class of status: as many as there are endpoints, however many paths are asked for."""
        self.deliveries: Counter[int] = Counter()
        """Messages handed over, by subscription."""
        self.refusals: Counter[tuple[int, str]] = Counter()
        """Publishes that were refused, by topic and code of the error."""
        self.checkpoints = 0
        self.gauges: list[Gauge] = []
        self.counts: list[CounterMetric] = []
        self.labelled: list[LabelledGauge] = []
        self.registry = CollectorRegistry()
        self._collector = figures.Collector(self._snapshot)
        self._looking = asyncio.Lock()
        self.registry.register(self._collector)
        ProcessCollector(registry=self.registry)
        broker.shard.metrics = broker.shard.committer.metrics = self

    # --------------------------------------------------------------------------------------------- called by the broker

    async def publishing(self, topics: Iterable[str], call: Awaitable[T]) -> T:
        """Time a publish, from the call until its messages are durable."""
        began = perf_counter()
        try:
            answer = await call
        except WherryError as fault:
            for name in topics:
                self.refused(name, fault)
            raise
        self.publish.observe(perf_counter() - began)
        return answer

    def refused(self, topic: str, fault: WherryError) -> None:
        """Count a refused publish."""
        self.refusals[self._number(topic), fault.code] += 1

    def synced(self, seconds: float, entries: int, size: int) -> None:
        """Count a group of entries that was written and synced."""
        self._groups.append((seconds, entries, size))
        if len(self._groups) >= GROUPS_MAX:
            self._count_groups()

    def _count_groups(self) -> None:
        """Count the groups that were noted since the last time, all together: a lone message pays for each call."""
        if self._groups:
            columns = np.array(self._groups, np.float64).T
            for histogram, values in zip((self.sync, self.group_entries, self.group_bytes), columns, strict=True):
                histogram.observe_all(values)
            self._groups = []

    def delivered(
        self, subscription: SubscriptionState, batch: pa.RecordBatch | list[DeliveredRow], now_us: int
    ) -> None:
        """Count messages that are handed over. If the first and the last have the same age, so have those between."""
        if isinstance(batch, list):
            self.deliveries[subscription.number] += len(batch)
            for row in batch:
                self.delivery.observe(max(0, now_us - row.published_us) / 1e6)
            return
        self.deliveries[subscription.number] += batch.num_rows
        published = batch.column("published")
        first_us = published[0].value
        if first_us == published[-1].value:
            self.delivery.observe(max(0, now_us - first_us) / 1e6, len(published))
        else:
            self.delivery.observe_all(np.maximum(now_us - integers(batch, "published", 0), 0) / 1e6)

    def requested(self, route: str, status: int, seconds: float) -> None:
        """Count a request that was answered; `route` is the template of its path, empty if there is none."""
        key = (route, status // 100)
        known = self.requests.get(key)
        if known is None:
            known = self.requests[key] = Histogram(SHORT)
        known.observe(seconds)

    def gauge(self, name: str, about: str, read: Callable[[], float]) -> None:
        """Add a figure."""
        self.gauges.append(Gauge(name, about, read))

    def count(self, name: str, about: str, labels: Labels, read: Callable[[], Mapping[Labels, float]]) -> None:
        """Add figures that only grow; their number must have a bound."""
        self.counts.append(CounterMetric(name, about, labels, read))

    def gauges_of(self, name: str, about: str, labels: Labels, read: Callable[[], Mapping[Labels, float]]) -> None:
        """Add figures of now, by their labels; their number must have a bound."""
        self.labelled.append(LabelledGauge(name, about, labels, read))

    def _number(self, topic: str) -> int:
        """Return the name to count a topic under: names are user input, so only existing topics have their own."""
        try:
            return self._broker.shard.state.topic(topic).number
        except (NotFound, TypeError):
            return 0

    # ------------------------------------------------------------------------------------------------------- on request

    async def text(self, *, openmetrics: bool = False) -> bytes:
        """Return all figures in the text format of Prometheus, or OpenMetrics. A thread writes it, one at a time."""
        return await self._rendered(generate_openmetrics if openmetrics else generate_latest)

    async def families(self) -> list[Metric]:
        """Return all figures as families of Prometheus."""
        return await self._rendered(lambda registry: list(registry.collect()))

    async def _rendered(self, render: Callable[[CollectorRegistry], T]) -> T:
        async with self._looking:
            with uncollected():
                self._collector.snapshot = await self._look()
                return await asyncio.to_thread(render, self.registry)

    async def _look(self) -> MetricsSnapshot:
        """Read all figures; with many topics, over a few turns of the loop."""
        state, now_ms = self._broker.shard.state, self._broker.shard.now().wall_ms
        snapshot = self._snapshot()
        for place, topic in enumerate(list(state.topics.values()), 1):
            if topic.number in state.topics:
                snapshot.add(topic.number, stats.of_topic(state, topic, now_ms))
            if place % TOPICS_A_TURN == 0:
                await asyncio.sleep(0)
        self._forget_the_gone()
        for number, count in self.deliveries.items():
            config = state.subscriptions[number].config
            snapshot.delivered[config.topic, config.name] = count
        for (number, code), count in self.refusals.items():
            snapshot.refused[state.topics[number].config.name if number else "", code] = count
        return snapshot

    def _forget_the_gone(self) -> None:
        state = self._broker.shard.state
        for number in [number for number in self.deliveries if number not in state.subscriptions]:
            del self.deliveries[number]
        for key in [key for key in self.refusals if key[0] and key[0] not in state.topics]:
            del self.refusals[key]

    def _snapshot(self) -> MetricsSnapshot:
        return MetricsSnapshot(
            self._broker.figures(),
            [(gauge.name, gauge.about, gauge.read()) for gauge in self.gauges],
            [(count.name, count.about, count.labels, dict(count.read())) for count in self.counts],
            self._timings(),
            [(each.name, each.about, each.labels, dict(each.read())) for each in self.labelled],
        )

    def _timings(self) -> list[Timing]:
        self._count_groups()
        timings = [
            self.publish.timing("wherry_publish_seconds", "From the call of a publish until its messages are durable"),
            self.settle.timing("wherry_settle_seconds", "From the call of a settle until it is durable"),
            self.pull.timing("wherry_pull_wait_seconds", "What a pull waited for messages"),
            self.delivery.timing(
                "wherry_delivery_seconds", "Of each message, from its publish until it is handed over"
            ),
            self.sync.timing("wherry_journal_sync_seconds", "One write and one sync of a group of entries"),
            self.group_entries.timing("wherry_journal_group_entries", "Entries in a group"),
            self.group_bytes.timing("wherry_journal_group_bytes", "Bytes in a group"),
            self.loop_lag.timing("wherry_loop_lag_seconds", "By how much the event loop was late"),
        ]
        about = "From a whole request until its answer is on its way, by route and class of status"
        for (route, status), known in self.requests.items():
            labels = {"route": route or "(none)", "status": f"{status}xx"}
            timings.append(known.timing("wherry_http_request_seconds", about, **labels))
        return timings
