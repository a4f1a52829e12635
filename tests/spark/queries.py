"""Loads and queries in few words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

PATIENCE_S = 120


class Queries:
    """What tests ask of Spark, at one broker."""

    def __init__(self, spark: SparkSession, url: str, folder: Path) -> None:
        self.spark, self.url, self.folder = spark, url, folder

    def load(self, topic: str | None = None, *, columns: str | None = None, **options: Any) -> DataFrame:
        reader = self.spark.read.format("wherry").options(url=self.url, **options)
        reader = reader if topic is None else reader.option("topic", topic)
        return (reader if columns is None else reader.schema(columns)).load()

    def follow(
        self,
        topic: str,
        *,
        columns: str | None = None,
        format: str = "wherry",  # noqa: A002
        **options: Any,
    ) -> DataFrame:
        reader = self.spark.readStream.format(format).options(url=self.url, topic=topic, **options)
        return (reader if columns is None else reader.schema(columns)).load()

    def save(self, rows: DataFrame, topic: str, *, format: str = "wherry", **options: Any) -> None:  # noqa: A002
        rows.write.format(format).options(url=self.url, topic=topic, **options).mode("append").save()

    def start(
        self,
        rows: DataFrame,
        topic: str,
        *,
        format: str = "wherry",  # noqa: A002
        name: str = "q",
        now: bool = True,
        **options: Any,
    ) -> StreamingQuery:
        """Start a query into a topic, checkpointed under its name."""
        writer = rows.writeStream.format(format).options(url=self.url, topic=topic, **options)
        writer = writer.option("checkpointLocation", str(self.checkpoint(name)))
        writer = writer.trigger(availableNow=True) if now else writer.trigger(processingTime="0 seconds")
        return writer.start()

    def run(self, rows: DataFrame, topic: str, **options: Any) -> StreamingQuery:
        """Run a query until it has read all there was."""
        query = self.start(rows, topic, **options)
        assert query.awaitTermination(PATIENCE_S)
        return query

    def checkpoint(self, name: str = "q") -> Path:
        return self.folder / "checkpoint" / name

    def forget_commit(self, name: str = "q") -> int:
        """Remove the last commit, as if the checkpoint were of a moment before: the last micro-batch is repeated."""
        folder = self.checkpoint(name) / "commits"
        last = max(int(path.name) for path in folder.iterdir() if path.name.isdecimal())
        for path in folder.glob(f"*{last}*"):
            path.unlink()
        return last
