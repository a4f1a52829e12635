"""What went through topics: rollups by Spark, as values that JSON, a page and plots are made of.

Two passes over the log: one to counts by topic, minute and key, from which all sums come; one to percentiles, which
do not add up. The rows themselves never come to the driver.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

VERSION = 1
PERCENTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
MINUTE_MS = 60_000

T = TypeVar("T")
Watch = Callable[[str, Callable[[], T]], T]
"""Does one part of the work, named, and shows how far it is."""


class Percentiles(msgspec.Struct, frozen=True):
    """Values that so many of a hundred do not exceed."""

    p50: float
    p90: float
    p99: float
    max: float


class Minute(msgspec.Struct, frozen=True):
    """What was published to a topic in one minute."""

    topic: str
    minute_ms: int
    messages: int
    bytes: int
    keys: int


class Topic(msgspec.Struct, frozen=True):
    """What a topic holds."""

    name: str
    messages: int
    bytes: int
    keys: int
    first_ms: int
    last_ms: int
    size: Percentiles
    age_ms: Percentiles
    """From the publish until this report."""


class HotKey(msgspec.Struct, frozen=True):
    """A key with many messages, and when they came."""

    topic: str
    key: str
    messages: int
    bytes: int
    share: float
    minutes: list[tuple[int, int]]


class Dead(msgspec.Struct, frozen=True):
    """Dead letters of one reason."""

    topic: str
    subscription: str
    reason: str
    error: str
    messages: int
    attempts: float
    took_ms: Percentiles
    """From the publish until it died."""


class Subscription(msgspec.Struct, frozen=True):
    """How far a reader is."""

    topic: str
    name: str
    ready: int
    leased: int
    scheduled: int
    dead: int
    lag: int
    lag_ms: int


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """All of it; `report.json` is this."""

    version: int = VERSION
    made_ms: int
    broker: str
    start: str
    topics: list[Topic]
    minutes: list[Minute]
    keys: list[HotKey]
    dead: list[Dead]
    subscriptions: list[Subscription]
    delivery_ms: Percentiles | None = None
    """From the publish until it is handed over, of all messages since the broker started; by the bounds of buckets."""


class Rollups:
    """The questions, for the topics of one broker."""

    def __init__(self, spark: SparkSession, broker: Mapping[str, str], topics: list[str], start: str) -> None:
        self._spark, self._broker, self._topics, self._start = spark, dict(broker), topics, start

    def report(self, watch: Watch[Any], *, hot: int = 10, delivery_ms: Percentiles | None = None) -> Report:
        """Ask all of them; `watch` sees each on its way."""
        made_ms = int(time.time() * 1_000)
        counts = self._counts().persist()
        try:
            minutes = watch("counting by topic, minute and key", lambda: self._minutes(counts))
            keys = watch("finding hot keys", lambda: self._hot(counts, hot))
        finally:
            counts.unpersist()
        return Report(
            made_ms=made_ms,
            broker=self._broker["url"],
            start=self._start,
            topics=watch("measuring sizes and ages", lambda: self._sizes(made_ms)),
            minutes=minutes,
            keys=keys,
            dead=watch("reading dead letters", self._dead),
            subscriptions=watch("reading subscriptions", self._subscriptions),
            delivery_ms=delivery_ms,
        )

    def _log(self, columns: str) -> DataFrame:
        options = {"topic": ",".join(self._topics), **self._broker}
        options |= {"startingOffsets": "earliest"} if self._start == "earliest" else {"startingTime": self._start}
        return self._spark.read.format("wherry").options(**options).schema(columns).load()

    def _counts(self) -> DataFrame:
        from pyspark.sql import functions as f  # noqa: PLC0415 - heavy

        rows = self._log("topic STRING, key STRING, published TIMESTAMP, payload BINARY")
        minute = (f.unix_millis("published") / MINUTE_MS).cast("long") * MINUTE_MS
        return rows.groupBy("topic", minute.alias("minute_ms"), "key").agg(
            f.count(f.lit(1)).alias("messages"), f.sum(f.octet_length("payload")).alias("bytes")
        )

    def _minutes(self, counts: DataFrame) -> list[Minute]:
        from pyspark.sql import functions as f  # noqa: PLC0415

        sums = counts.groupBy("topic", "minute_ms").agg(
            f.sum("messages").alias("messages"), f.sum("bytes").alias("bytes"), f.count("key").alias("keys")
        )
        rows = sums.orderBy("minute_ms", "topic").collect()
        return [Minute(row["topic"], row["minute_ms"], row["messages"], row["bytes"], row["keys"]) for row in rows]

    def _hot(self, counts: DataFrame, hot: int) -> list[HotKey]:
        """The keys with the most messages of each topic; a list of minutes for those alone."""
        from pyspark.sql import Window  # noqa: PLC0415
        from pyspark.sql import functions as f  # noqa: PLC0415

        of_topic = Window.partitionBy("topic")
        ranked = (
            counts.groupBy("topic", "key")
            .agg(f.sum("messages").alias("messages"), f.sum("bytes").alias("bytes"))
            .withColumn("share", f.col("messages") / f.sum("messages").over(of_topic))
            .filter("key IS NOT NULL")
            .withColumn("rank", f.row_number().over(of_topic.orderBy(f.desc("messages"), "key")))
            .filter(f.col("rank") <= hot)
        )
        moments = counts.select("topic", "key", f.struct("minute_ms", f.col("messages").alias("count")).alias("moment"))
        rows = (
            ranked.join(moments, ["topic", "key"])
            .groupBy("topic", "key", "messages", "bytes", "share", "rank")
            .agg(f.sort_array(f.collect_list("moment")).alias("minutes"))
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
                [(each["minute_ms"], each["count"]) for each in row["minutes"]],
            )
            for row in rows
        ]

    def _sizes(self, now_ms: int) -> list[Topic]:
        from pyspark.sql import functions as f  # noqa: PLC0415

        size, sent = f.octet_length("payload"), f.unix_millis("published")
        rows = (
            self._log("topic STRING, key STRING, published TIMESTAMP, payload BINARY")
            .groupBy("topic")
            .agg(
                f.count(f.lit(1)).alias("messages"),
                f.sum(size).alias("bytes"),
                f.approx_count_distinct("key").alias("keys"),
                f.min(sent).alias("first_ms"),
                f.max(sent).alias("last_ms"),
                _percentiles("size", size),
                _percentiles("age", f.lit(now_ms) - sent),
            )
            .orderBy("topic")
            .collect()
        )
        return [
            Topic(
                **{name: row[name] for name in ("messages", "bytes", "keys", "first_ms", "last_ms")},
                name=row["topic"],
                size=Percentiles(*row["size"]),
                age_ms=Percentiles(*row["age"]),
            )
            for row in rows
        ]

    def _dead(self) -> list[Dead]:
        from pyspark.sql import functions as f  # noqa: PLC0415

        found: list[Dead] = []
        for topic in self._topics:
            rows = self._spark.read.format("wherry").options(**self._broker, table="dead", topic=topic).load()
            took = f.unix_millis("died") - f.unix_millis("published")
            sums = rows.groupBy("topic", "subscription", "reason", f.coalesce("error", f.lit("")).alias("error")).agg(
                f.count(f.lit(1)).alias("messages"), f.avg("attempts").alias("attempts"), _percentiles("took", took)
            )
            found += [
                Dead(
                    **{name: row[name] for name in ("topic", "subscription", "reason", "error", "messages")},
                    attempts=round(row["attempts"], 2),
                    took_ms=Percentiles(*row["took"]),
                )
                for row in sums.collect()
            ]
        return sorted(found, key=lambda each: (-each.messages, each.topic, each.reason, each.error))

    def _subscriptions(self) -> list[Subscription]:
        rows = self._spark.read.format("wherry").options(**self._broker, table="subscriptions").load().collect()
        names = Subscription.__struct_fields__
        found = [Subscription(*(row[name] for name in names)) for row in rows if row["topic"] in self._topics]
        return sorted(found, key=lambda each: (each.topic, each.name))


def _percentiles(name: str, value: Any) -> Any:
    from pyspark.sql import functions as f  # noqa: PLC0415

    parts = f.percentile_approx(value, [*PERCENTILES.values(), 1.0])
    return parts.cast("array<double>").alias(name)


def of_buckets(text: str, name: str) -> Percentiles | None:
    r"""Percentiles of a histogram in the text of Prometheus, in milliseconds: the upper bound of their bucket.

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
