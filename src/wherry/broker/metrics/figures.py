"""The figures of a snapshot in the shape of Prometheus. Runs in any thread, since a snapshot is immutable.

Names of topics and subscriptions are user input, so how many have series of their own is bounded; all others are one,
`(others)`: sums, and of lags in seconds the largest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from itertools import accumulate
from typing import NamedTuple, TypeAlias

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector as CollectorBase

from wherry.model.calls.stats import BrokerFigures, SubscriptionStats, TopicStats

TOPICS_MAX = 1_000
SUBSCRIPTIONS_MAX = 2_000
"""Topics and subscriptions with series of their own, the oldest ones."""
OTHERS = "(others)"
SUMMED = ("consumers", "ready", "leased", "scheduled", "dead", "lag")
"""Figures of a subscription that can be added up."""

Labels: TypeAlias = tuple[str, ...]
Series: TypeAlias = dict[Labels, float]


class Timing(NamedTuple):
    """A histogram at one time: counts by bound, and beyond the last one."""

    name: str
    about: str
    labels: Mapping[str, str]
    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    total: float


@dataclass(slots=True)
class MetricsSnapshot:
    """All figures, read at one time."""

    broker: BrokerFigures
    gauges: list[tuple[str, str, float]]
    counts: list[tuple[str, str, Labels, Series]]
    timings: list[Timing]
    labelled: list[tuple[str, str, Labels, Series]] = field(default_factory=list)
    topics: dict[int, TopicStats] = field(default_factory=dict)
    delivered: dict[tuple[str, str], int] = field(default_factory=dict)
    refused: dict[tuple[str, str], int] = field(default_factory=dict)

    def add(self, number: int, topic: TopicStats) -> None:
        """Add a topic; topics beyond the bound are summed at once, so that a million of them take no memory."""
        if len(self.topics) < TOPICS_MAX:
            self.topics[number] = topic
        else:
            self.topics[0] = _joined(self.topics.get(0), topic)


def _joined(others: TopicStats | None, topic: TopicStats) -> TopicStats:
    """Return all topics beyond the bound as one, with one subscription."""
    readers = topic.subscriptions if others is None else (*others.subscriptions, *topic.subscriptions)
    if readers:
        sums = {name: sum(getattr(each, name) for each in readers) for name in SUMMED}
        lag_ms, counters = max(each.lag_ms for each in readers), _counted(each.counters for each in readers)
        readers = (
            SubscriptionStats(topic=OTHERS, name=OTHERS, durable=True, lag_ms=lag_ms, counters=counters, **sums),
        )
    both = [topic] if others is None else [others, topic]
    messages, size, dead = (sum(getattr(each, name) for each in both) for name in ("messages", "bytes", "dead"))
    return TopicStats(OTHERS, "", 0, messages, size, dead, _counted(each.counters for each in both), readers)


def _counted(parts: Iterable[dict[str, int]]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for part in parts:
        total.update(part)
    return dict(total)


BROKER = {
    "leases": ("wherry_leases", "Leases that hold messages"),
    "journal_bytes": ("wherry_journal_bytes", "Journal on disk: what recovery would read"),
    "pending_bytes": ("wherry_journal_pending_bytes", "Queued for the journal"),
    "cache_bytes": ("wherry_cache_bytes", "Messages in memory"),
    "cache_bytes_max": ("wherry_cache_limit_bytes", "Budget for messages in memory"),
    "trouble": ("wherry_trouble", "1 while a flush or a checkpoint fails, and is tried again"),
    "failed": ("wherry_failed", "1 when the journal failed: nothing is stored or confirmed any more"),
}

OF_TOPIC = {
    "published": ("wherry_messages_published", "Messages published"),
    "overflowed": ("wherry_messages_overflowed", "Messages that did not fit and went to the dead letters"),
    "dropped": ("wherry_messages_dropped", "Messages dropped to make room for newer ones"),
    "expired": ("wherry_messages_expired", "Messages whose time was over before they were settled"),
    "cancelled": ("wherry_messages_cancelled", "Messages cancelled"),
    "trimmed": ("wherry_messages_trimmed", "Messages that left a stream by age or size"),
    "cut_off": ("wherry_subscriptions_cut_off", "Subscriptions cut off, since they fell too far behind"),
}
"""By the names of the core's counters."""

OF_SUBSCRIPTION = {
    "acked": ("wherry_messages_acked", "Messages acked"),
    "failed": (
        "wherry_messages_failed",
        "Deliveries that failed and will be tried again: nacked, or their lease ended",
    ),
    "buried": ("wherry_messages_dead", "Messages that became dead letters"),
    "redriven": ("wherry_messages_redriven", "Dead letters sent back"),
    "discarded": ("wherry_messages_discarded", "Messages thrown away"),
}
"""Counters of a subscription; with an empty name, of messages that no subscription had."""


class Collector(CollectorBase):
    """Yields all families of the last snapshot; before the first one, the current figures without topics."""

    def __init__(self, now: Callable[[], MetricsSnapshot]) -> None:
        self.snapshot: MetricsSnapshot | None = None
        self._now = now

    def collect(self) -> Iterator[Metric]:
        """See `prometheus_client`."""
        snapshot = self.snapshot or self._now()
        yield from _of_broker(snapshot)
        yield from _histograms(snapshot.timings)
        yield from _of_topics(snapshot)


def _of_broker(snapshot: MetricsSnapshot) -> Iterator[Metric]:
    for name, (shown, about) in BROKER.items():
        yield GaugeMetricFamily(shown, about, float(getattr(snapshot.broker, name)))
    yield CounterMetricFamily("wherry_checkpoints", "Checkpoints written", snapshot.broker.checkpoints)
    yield CounterMetricFamily("wherry_journal_entries", "Entries ever written and synced", snapshot.broker.entries)
    for name, about, value in snapshot.gauges:
        yield GaugeMetricFamily(name, about, value)
    for name, about, labels, series in snapshot.counts:
        yield _family(CounterMetricFamily, (name, about), labels, series)
    for name, about, labels, series in snapshot.labelled:
        yield _family(GaugeMetricFamily, (name, about), labels, series)
    yield _family(GaugeMetricFamily, ("wherry_build_info", "What runs here"), ("version",), {(version("wherry"),): 1.0})


def _histograms(timings: list[Timing]) -> Iterator[Metric]:
    families: dict[str, HistogramMetricFamily] = {}
    for each in timings:
        family = families.get(each.name)
        if family is None:
            family = families[each.name] = HistogramMetricFamily(each.name, each.about, labels=tuple(each.labels))
        names = [*(f"{bound:g}" for bound in each.bounds), "+Inf"]
        buckets = [(name, float(count)) for name, count in zip(names, accumulate(each.counts), strict=True)]
        family.add_metric(tuple(each.labels.values()), buckets, each.total)
    yield from families.values()


class _Names:
    """Which topics and subscriptions have series of their own."""

    def __init__(self, topics: dict[int, TopicStats]) -> None:
        self._topics = {each.name for number, each in topics.items() if number}
        pairs = [(topic.name, each.name) for topic in topics.values() for each in topic.subscriptions]
        self._pairs = set([pair for pair in pairs if pair[0] in self._topics][:SUBSCRIPTIONS_MAX])

    def topic(self, name: str) -> Labels:
        return (name,) if name in self._topics else (OTHERS,)

    def pair(self, topic: str, subscription: str) -> Labels:
        if (topic, subscription) in self._pairs:
            return topic, subscription
        return (*self.topic(topic), OTHERS if subscription else "")


def _of_topics(snapshot: MetricsSnapshot) -> Iterator[Metric]:
    names, topics = _Names(snapshot.topics), list(snapshot.topics.values())
    for counter, shown in OF_TOPIC.items():
        series = _summed((names.topic(each.name), each.counters.get(counter, 0)) for each in topics)
        yield _family(CounterMetricFamily, shown, ("topic",), series)
    yield from _topic_gauges(names, topics)
    yield from _subscription_counters(names, topics)
    yield from _subscription_gauges(names, topics)
    delivered: Series = {names.pair(each.name, sub.name): 0.0 for each in topics for sub in each.subscriptions}
    for (topic, subscription), count in snapshot.delivered.items():
        labels = names.pair(topic, subscription)
        delivered[labels] = delivered.get(labels, 0.0) + count
    shown = ("wherry_messages_delivered", "Messages handed over since the start, once for each time")
    yield _family(CounterMetricFamily, shown, ("topic", "subscription"), delivered)
    refused = _summed(
        ((*(names.topic(name) if name else ("",)), code), count) for (name, code), count in snapshot.refused.items()
    )
    shown = ("wherry_publishes_refused", "Calls refused since the start, by code: bounds hit, bad input, a full disk")
    yield _family(CounterMetricFamily, shown, ("topic", "code"), refused)


def _topic_gauges(names: _Names, topics: list[TopicStats]) -> Iterator[Metric]:
    for field_name, shown in {
        "messages": ("wherry_topic_messages", "Messages that count against the bounds of the topic"),
        "bytes": ("wherry_topic_bytes", "Their bytes"),
        "dead": ("wherry_topic_dead_letters", "Dead letters of the topic"),
    }.items():
        series = _summed((names.topic(each.name), getattr(each, field_name)) for each in topics)
        yield _family(GaugeMetricFamily, shown, ("topic",), series)


def _subscription_counters(names: _Names, topics: list[TopicStats]) -> Iterator[Metric]:
    for counter, shown in OF_SUBSCRIPTION.items():
        series = _summed(
            (names.pair(topic.name, each.name), each.counters.get(counter, 0))
            for topic in topics
            for each in topic.subscriptions
        )
        for topic in topics:
            if counter in topic.counters:
                labels = names.pair(topic.name, "")
                series[labels] = series.get(labels, 0.0) + topic.counters[counter]
        yield _family(CounterMetricFamily, shown, ("topic", "subscription"), series)


def _subscription_gauges(names: _Names, topics: list[TopicStats]) -> Iterator[Metric]:
    pairs = [(names.pair(topic.name, each.name), each) for topic in topics for each in topic.subscriptions]
    for field_name, shown in {
        "ready": ("wherry_subscription_ready_messages", "Messages that can be handed out now"),
        "leased": ("wherry_subscription_leased_messages", "Messages that consumers hold"),
        "scheduled": ("wherry_subscription_scheduled_messages", "Messages that wait for their time, or out a back-off"),
        "dead": ("wherry_subscription_dead_letters", "Dead letters of the subscription"),
        "lag": ("wherry_subscription_lag_messages", "Messages neither settled nor buried"),
        "consumers": ("wherry_subscription_consumers", "Consumers connected"),
    }.items():
        series = _summed((labels, getattr(each, field_name)) for labels, each in pairs)
        yield _family(GaugeMetricFamily, shown, ("topic", "subscription"), series)
    oldest: Series = {}
    for labels, each in pairs:
        oldest[labels] = max(oldest.get(labels, 0.0), each.lag_ms / 1000)
    shown = ("wherry_subscription_lag_seconds", "Age of the oldest message neither settled nor buried")
    yield _family(GaugeMetricFamily, shown, ("topic", "subscription"), oldest)


def _summed(rows: Iterator[tuple[Labels, float]]) -> Series:
    series: Series = {}
    for labels, value in rows:
        series[labels] = series.get(labels, 0.0) + value
    return series


def _family(
    kind: type[CounterMetricFamily] | type[GaugeMetricFamily],
    shown: tuple[str, str],
    names: Labels,
    series: Series,
) -> Metric:
    family = kind(shown[0], shown[1], labels=names)
    for labels, value in series.items():
        family.add_metric(labels, value)
    return family
