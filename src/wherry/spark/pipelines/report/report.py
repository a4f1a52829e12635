"""The messages of topics in figures: Spark computes them, and JSON, a page and plots are made of them.

There are two passes over the same messages: one for percentiles, which cannot be added up, and for the span of time;
one for counts by topic, slot of time and key, which all sums come from. The length of a slot depends on the span, so
the number of slots is bounded. The driver gets no messages, only these bounded results.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

VERSION = 2
PERCENTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}

MINUTE_MS = 60_000
STEPS_MS = tuple(MINUTE_MS * minutes for minutes in (1, 5, 15, 60, 360, 1_440, 10_080, 43_200, 525_600))
SLOTS_MAX = 300
"""About the most slots of time in a report; the step is the shortest that gives no more."""

TOPICS_MAX = 50
"""Topics with figures by slot and by key: those with the most messages. The others are counted together."""
OTHERS = ""
"""The name for all other topics together; no topic has it."""

ERRORS_MAX = 5
ERROR_CHARS_MAX = 200
"""The most errors of each reason for dead letters, by frequency, and the most characters of each."""

T = TypeVar("T")
ShowProgress = Callable[[str, Callable[[], T]], T]
"""Does one named part of the work, and shows the progress."""


class Percentiles(msgspec.Struct, frozen=True):
    """Values that this percentage of all does not exceed."""

    p50: float
    p90: float
    p99: float
    max: float


class Slot(msgspec.Struct, frozen=True):
    """What was published to a topic in one slot of time."""

    topic: str
    at_ms: int
    messages: int
    bytes: int
    keys: int


class TopicSummary(msgspec.Struct, frozen=True):
    """The messages of a topic."""

    name: str
    messages: int
    bytes: int
    keys: int
    """The number of different keys."""
    first_ms: int
    last_ms: int
    size: Percentiles
    age_ms: Percentiles
    """The time from the publish until this report."""


class HotKey(msgspec.Struct, frozen=True):
    """A key with many messages, and when they were published: slots and counts."""

    topic: str
    key: str
    messages: int
    bytes: int
    share: float
    slots: list[tuple[int, int]]


class Dead(msgspec.Struct, frozen=True):
    """Dead letters of one reason."""

    topic: str
    subscription: str
    reason: str
    messages: int
    attempts: float
    took_ms: Percentiles
    """The time from the publish until the message died."""
    errors: list[tuple[str, int]]
    """The most frequent errors, cut, and how often each occurred."""


class Dying(msgspec.Struct, frozen=True):
    """How long messages that died in one slot of time had existed."""

    topic: str
    at_ms: int
    messages: int
    took_ms: Percentiles


class SubscriptionLag(msgspec.Struct, frozen=True):
    """How far a subscription is."""

    topic: str
    name: str
    ready: int
    leased: int
    scheduled: int
    dead: int
    lag: int
    lag_ms: int


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The whole report; `report.json` is this."""

    version: int = VERSION
    made_ms: int
    broker: str
    since_ms: int | None = None
    """Only messages that were published, or died, from this time on; without it all."""
    step_ms: int = MINUTE_MS
    """The length of a slot."""
    topics: list[TopicSummary]
    slots: list[Slot]
    keys: list[HotKey]
    dead: list[Dead]
    dying: list[Dying] = []
    dying_step_ms: int = MINUTE_MS
    """The length of a slot for dead letters, which may be much older than the messages in the log."""
    subscriptions: list[SubscriptionLag]
    delivery_ms: Percentiles | None = None
    """The time from publish to hand-over of all messages since the broker started, in bounds of its buckets."""

    def seconds(self, at_ms: int) -> float:
        """Return how many seconds of a slot the report covers: the first and the last slot are rarely whole.

        It is at least a tenth of the slot, so that a few messages in a very short time do not look like a peak.
        """
        begin, end = max(at_ms, self.since_ms or 0), min(at_ms + self.step_ms, self.made_ms)
        return max(self.step_ms / 10, end - begin) / 1_000


def step_of(span_ms: int) -> int:
    """Return the length of slots for a span of time.

    Examples
    --------
    >>> step_of(3_600_000), step_of(86_400_000), step_of(10 * 365 * 86_400_000)
    (60000, 300000, 2592000000)
    """
    return next((step for step in STEPS_MS if span_ms < step * SLOTS_MAX), STEPS_MS[-1])


class Rollups:
    """The queries of a report, for the topics of one broker."""

    def __init__(
        self, spark: SparkSession, broker: Mapping[str, str], topics: list[str], since_ms: int | None = None
    ) -> None:
        self._spark, self._broker, self._topics, self._since_ms = spark, dict(broker), topics, since_ms

    def report(self, watch: ShowProgress[Any], *, hot: int = 10, delivery_ms: Percentiles | None = None) -> Report:
        """Run all queries and return the report; `watch` runs each and shows its progress."""
        made_ms = int(time.time() * 1_000)
        rows = self._log()  # one load, so that the log has the same end in both passes
        topics = watch("measuring sizes and ages", lambda: _sizes(rows, made_ms))
        step_ms = _step(topics)
        largest = [each.name for each in sorted(topics, key=lambda each: (-each.messages, each.name))[:TOPICS_MAX]]
        counts = _counts(rows, step_ms).persist()
        try:
            slots = watch("counting by topic, time and key", lambda: _slots(counts, largest))
            keys = watch("counting keys", lambda: _keys(counts))
            hottest = watch("finding hot keys", lambda: _hot(counts, largest, hot))
        finally:
            counts.unpersist()
        dead, dying, dying_step_ms = watch("reading dead letters", self._dead)
        return Report(
            made_ms=made_ms,
            broker=self._broker["url"],
            since_ms=self._since_ms,
            step_ms=step_ms,
            topics=[msgspec.structs.replace(each, keys=keys[each.name]) for each in topics],
            slots=slots,
            keys=hottest,
            dead=dead,
            dying=dying,
            dying_step_ms=dying_step_ms,
            subscriptions=watch("reading subscriptions", self._subscriptions),
            delivery_ms=delivery_ms,
        )

    def _log(self) -> DataFrame:
        options = {"topic": ",".join(self._topics), **self._broker}
        if self._since_ms is not None:
            options["startingTime"] = str(self._since_ms)
        columns = "topic STRING, key STRING, published TIMESTAMP, payload BINARY"
        return self._spark.read.format("wherry").options(**options).schema(columns).load()

    def _dead(self) -> tuple[list[Dead], list[Dying], int]:
        from pyspark.sql import functions as f  # noqa: PLC0415 - heavy

        names = ",".join(self._topics)
        table = self._spark.read.format("wherry").options(**self._broker, table="dead", topic=names).load()
        rows = table.select(
            *("topic", "subscription", "reason", "attempts"),
            f.substring(f.coalesce("error", f.lit("")), 1, ERROR_CHARS_MAX).alias("error"),
            f.unix_millis("died").alias("died_ms"),
            (f.unix_millis("died") - f.unix_millis("published")).alias("took_ms"),
        )
        if self._since_ms is not None:
            rows = rows.filter(f.col("died_ms") >= self._since_ms)
        rows = rows.persist()
        try:
            dead = _reasons(rows)
            [span] = rows.agg((f.max("died_ms") - f.min("died_ms")).alias("ms")).collect()
            step_ms = step_of(span["ms"] or 0)
            return dead, _dying(rows, step_ms, _with_most(dead)), step_ms
        finally:
            rows.unpersist()

    def _subscriptions(self) -> list[SubscriptionLag]:
        rows = self._spark.read.format("wherry").options(**self._broker, table="subscriptions").load().collect()
        names = SubscriptionLag.__struct_fields__
        found = [SubscriptionLag(*(row[name] for name in names)) for row in rows if row["topic"] in self._topics]
        return sorted(found, key=lambda each: (each.topic, each.name))


def _step(topics: list[TopicSummary]) -> int:
    if not topics:
        return MINUTE_MS
    return step_of(max(each.last_ms for each in topics) - min(each.first_ms for each in topics))


# ----------------------------------------------------------------------------------------------------------- messages


def _sizes(rows: DataFrame, now_ms: int) -> list[TopicSummary]:
    """Return each topic; its keys are counted later."""
    from pyspark.sql import functions as f  # noqa: PLC0415

    size, sent = f.octet_length("payload"), f.unix_millis("published")
    sums = rows.groupBy("topic").agg(
        f.count(f.lit(1)).alias("messages"),
        f.sum(size).alias("bytes"),
        f.min(sent).alias("first_ms"),
        f.max(sent).alias("last_ms"),
        _percentiles("size", size),
        _percentiles("age", f.lit(now_ms) - sent),
    )
    return [
        TopicSummary(
            **{name: row[name] for name in ("messages", "bytes", "first_ms", "last_ms")},
            name=row["topic"],
            keys=0,
            size=Percentiles(*row["size"]),
            age_ms=Percentiles(*row["age"]),
        )
        for row in sums.orderBy("topic").collect()
    ]


def _counts(rows: DataFrame, step_ms: int) -> DataFrame:
    from pyspark.sql import functions as f  # noqa: PLC0415

    slot = _slot(f.unix_millis("published"), step_ms).alias("at_ms")
    return rows.groupBy("topic", slot, "key").agg(
        f.count(f.lit(1)).alias("messages"), f.sum(f.octet_length("payload")).alias("bytes")
    )


def _slots(counts: DataFrame, largest: list[str]) -> list[Slot]:
    from pyspark.sql import functions as f  # noqa: PLC0415

    topic = f.when(f.col("topic").isin(largest), f.col("topic")).otherwise(OTHERS).alias("topic")
    sums = counts.groupBy(topic, "at_ms").agg(
        f.sum("messages").alias("messages"), f.sum("bytes").alias("bytes"), f.count("key").alias("keys")
    )
    rows = sums.orderBy("at_ms", "topic").collect()
    return [Slot(row["topic"], row["at_ms"], row["messages"], row["bytes"], row["keys"]) for row in rows]


def _keys(counts: DataFrame) -> dict[str, int]:
    from pyspark.sql import functions as f  # noqa: PLC0415

    found = counts.select("topic", "key").distinct().groupBy("topic").agg(f.count("key").alias("keys"))
    return {row["topic"]: row["keys"] for row in found.collect()}


def _hot(counts: DataFrame, largest: list[str], hot: int) -> list[HotKey]:
    """Return the keys with the most messages of each topic, each with its slots."""
    from pyspark.sql import Window  # noqa: PLC0415
    from pyspark.sql import functions as f  # noqa: PLC0415

    of_topic = Window.partitionBy("topic")
    some = counts.filter(f.col("topic").isin(largest))
    ranked = (
        some.groupBy("topic", "key")
        .agg(f.sum("messages").alias("messages"), f.sum("bytes").alias("bytes"))
        .withColumn("share", f.col("messages") / f.sum("messages").over(of_topic))
        .filter("key IS NOT NULL")
        .withColumn("rank", f.row_number().over(of_topic.orderBy(f.desc("messages"), "key")))
        .filter(f.col("rank") <= hot)
    )
    moments = some.select("topic", "key", f.struct("at_ms", f.col("messages").alias("count")).alias("moment"))
    rows = (
        ranked.join(moments, ["topic", "key"])
        .groupBy("topic", "key", "messages", "bytes", "share", "rank")
        .agg(f.sort_array(f.collect_list("moment")).alias("slots"))
        .orderBy("topic", "rank")
        .collect()
    )
    return [
        HotKey(
            row["topic"],
            row["key"],
            row["messages"],
            row["bytes"],
            round(row["share"], 4),
            [(each["at_ms"], each["count"]) for each in row["slots"]],
        )
        for row in rows
    ]


# -------------------------------------------------------------------------------------------------------- dead letters


def _reasons(rows: DataFrame) -> list[Dead]:
    """Return the dead letters by reason. Each may have another error text, so only the most frequent ones are kept."""
    from pyspark.sql import Window  # noqa: PLC0415
    from pyspark.sql import functions as f  # noqa: PLC0415

    same = ["topic", "subscription", "reason"]
    frequent = Window.partitionBy(*same).orderBy(f.desc("count"), "error")
    errors = (
        rows.filter("error <> ''")
        .groupBy(*same, "error")
        .count()
        .withColumn("rank", f.row_number().over(frequent))
        .filter(f.col("rank") <= ERRORS_MAX)
        .groupBy(*same)
        .agg(f.sort_array(f.collect_list(f.struct("rank", "error", "count"))).alias("errors"))
    )
    sums = rows.groupBy(*same).agg(
        f.count(f.lit(1)).alias("messages"),
        f.avg("attempts").alias("attempts"),
        _percentiles("took", f.col("took_ms")),
    )
    found = [
        Dead(
            **{name: row[name] for name in (*same, "messages")},
            attempts=round(row["attempts"], 2),
            took_ms=Percentiles(*row["took"]),
            errors=[(each["error"], each["count"]) for each in row["errors"] or ()],
        )
        for row in sums.join(errors, same, "left").collect()
    ]
    return sorted(found, key=lambda each: (-each.messages, each.topic, each.subscription, each.reason))


def _with_most(dead: list[Dead]) -> list[str]:
    sums: dict[str, int] = {}
    for each in dead:
        sums[each.topic] = sums.get(each.topic, 0) + each.messages
    return sorted(sums, key=lambda topic: (-sums[topic], topic))[:TOPICS_MAX]


def _dying(rows: DataFrame, step_ms: int, largest: list[str]) -> list[Dying]:
    from pyspark.sql import functions as f  # noqa: PLC0415

    if not largest:
        return []
    slot = _slot(f.col("died_ms"), step_ms).alias("at_ms")
    sums = rows.filter(f.col("topic").isin(largest)).groupBy("topic", slot)
    found = sums.agg(f.count(f.lit(1)).alias("messages"), _percentiles("took", f.col("took_ms")))
    return [
        Dying(row["topic"], row["at_ms"], row["messages"], Percentiles(*row["took"]))
        for row in found.orderBy("at_ms", "topic").collect()
    ]


def _slot(ms: Column, step_ms: int) -> Column:
    return (ms / step_ms).cast("long") * step_ms


def _percentiles(name: str, value: Column) -> Column:
    from pyspark.sql import functions as f  # noqa: PLC0415

    parts = f.percentile_approx(value, [*PERCENTILES.values(), 1.0])
    return parts.cast("array<double>").alias(name)


# ------------------------------------------------------------------------------------------- what the broker measures


def of_buckets(text: str, name: str) -> Percentiles | None:
    r"""Return percentiles of a histogram in Prometheus text, in milliseconds: the upper bound of each one's bucket.

    Examples
    --------
    >>> lines = ['w_bucket{le="0.001"} 90', 'w_bucket{le="0.1"} 100', 'w_bucket{le="+Inf"} 100']
    >>> of_buckets("\n".join(lines), "w")
    Percentiles(p50=1.0, p90=1.0, p99=100.0, max=100.0)
    """
    buckets: list[tuple[float, float]] = []
    for line in text.splitlines():
        if line.startswith(f"{name}_bucket{{"):
            bound = line.partition('le="')[2].partition('"')[0]
            buckets.append((float(bound.replace("+Inf", "inf")), float(line.rsplit(" ", 1)[1])))
    total = max((count for _, count in buckets), default=0.0)
    if not total:
        return None
    largest = max(bound for bound, _ in buckets if bound != float("inf"))

    def at(share: float) -> float:
        bound = next(bound for bound, count in sorted(buckets) if count >= share * total)
        return round(min(bound, largest) * 1_000, 3)

    return Percentiles(at(0.5), at(0.9), at(0.99), at(1.0))
