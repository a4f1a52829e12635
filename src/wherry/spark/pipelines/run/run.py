"""Runs a pipeline: a streaming query for each sink, and one for the bad rows of each source; watches all of them.

A query that fails starts again from its checkpoint after a pause. After several failures without a micro-batch in
between it stays failed, and the others continue.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from wherry.model.errors import AlreadyExists, InvalidInput
from wherry.spark.link import FlightLink
from wherry.spark.pipelines.archive import retention
from wherry.spark.pipelines.run.address import BrokerAddress
from wherry.spark.pipelines.run.figures import Meter, QueryFigures
from wherry.spark.pipelines.run.frames import Frames, words
from wherry.spark.pipelines.run.interrupts import noted
from wherry.spark.pipelines.run.spec import BAD, Spec
from wherry.spark.read.topics import resolve
from wherry.spark.sessions.checkpoints import clear_unbegun

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

LOOK_S = 0.5
PAUSE_S = 1.0
REASON_CHARS_MAX = 300

CONF = {"spark.sql.ansi.enabled": "false"}
"""A value that cannot be cast is null, so that one row does not stop a query."""

_CAUSE = "Caused by: "
_PYTHON = re.compile(r"Traceback \(most recent call last\):\n(?:[ ].*\n)+(\S.*)")
"""Matches the error line of a Python traceback: the first line after the calls that is not indented."""

ReportFigures = Callable[[list[QueryFigures]], None]


class Running:
    """One query, over its restarts."""

    def __init__(self, spark: SparkSession, spec: Spec, address: BrokerAddress, query: str, *, once: bool) -> None:
        self._spark, self._spec, self._address, self.name, self._once = spark, spec, address, query, once
        self._frames = Frames(spark, spec, address.options(self._master), query)
        self._query: StreamingQuery | None = None
        self._meter = Meter(query, _target(spec, query))
        self._failures, self._again_at = 0, 0.0

    @property
    def figures(self) -> QueryFigures:
        return self._meter.figures

    @property
    def is_over(self) -> bool:
        return self.figures.state in ("done", "failed", "stopped")

    def start(self) -> None:
        """Start the query from its checkpoint, or from the beginning."""
        clear_unbegun(self._spec.checkpoint_of(self.name))
        self._query = self._written(self._frames.rows())
        self._frames.forget()

    def check(self) -> None:
        """Raise if this is not a valid query, or reads a queue twice."""
        self._frames.check(self._address.link())

    def subscribe(self) -> None:
        """Create the subscriptions of the query."""
        self._frames.subscribe()

    def update(self) -> None:
        """Update the figures, and restart a failed query when its pause is over."""
        if self._query is None:
            if time.monotonic() >= self._again_at and not self.is_over:
                self._begin_again()
            return
        query = self._query
        active = query.isActive  # read before the progress, so that no progress after it is lost
        if self._meter.take(query.recentProgress):
            self._failures = 0
        self._meter.measure_lag(self._address.link(), set(self._frames.subscriptions.values()))
        if active:
            busy = bool(query.status.get("isTriggerActive")) and bool(query.status.get("isDataAvailable"))
            self.figures.state = "running" if busy else "waiting"
            return
        fault = query.exception()
        self._query = None
        if fault is None:
            self.figures.state = "done"
        else:
            self._failed(fault)

    def stop(self) -> None:
        """Stop the query. The next run repeats the micro-batch that was cut off, and nothing is written twice."""
        if self._query is not None:
            with suppress(PySparkException):
                self._query.stop()
            self._meter.take(self._query.recentProgress)
            self._query = None
        if not self.is_over:
            self.figures.state = "stopped"

    def _begin_again(self) -> None:
        self.figures.restarts += 1
        try:
            self.start()
        except PySparkException as fault:
            self._failed(fault)

    def _failed(self, fault: BaseException) -> None:
        figures = self.figures
        figures.reason = reason(fault)
        self._failures += 1
        figures.state = "restarting" if self._failures <= self._spec.restarts else "failed"
        self._again_at = time.monotonic() + PAUSE_S * 2 ** (self._failures - 1)

    @property
    def _master(self) -> str:
        return "local" if hasattr(self._spark, "_jsparkSession") else "sc://"

    def _written(self, rows: DataFrame) -> StreamingQuery:
        spec, name = self._spec, self.name
        writer = rows.writeStream.queryName(f"{spec.name}.{name}")
        writer = writer.option("checkpointLocation", spec.checkpoint_of(name))
        source = name.removesuffix(f".{BAD}")
        sink = None if source != name else spec.sinks[name]
        if self._once:
            writer = writer.trigger(availableNow=True)
        elif sink is not None and sink.every is not None:
            writer = writer.trigger(processingTime=sink.every)
        if sink is None:
            return self._to_topic(writer, spec.dead_topic(source)).start()
        writer = writer.outputMode(sink.mode).options(**words(sink.options))
        if sink.kind == "topic":
            return self._to_topic(writer, sink.target).start()
        if sink.partition_by:
            writer = writer.partitionBy(*sink.partition_by)
        if sink.kind == "parquet":
            return writer.format("parquet").start(spec.place(sink.target))
        _have_table(self._spark, spec, sink.target, rows)
        return writer.toTable(sink.target)

    def _to_topic(self, writer: DataStreamWriter, topic: str) -> DataStreamWriter:
        return writer.format("wherry").options(topic=topic, **self._address.options(self._master))


def _topics_of(link: FlightLink, spec: Spec) -> list[str]:
    """Return the topics that the sources name or that match their patterns, without those that the pipeline creates."""
    names = [name.strip() for source in spec.sources.values() for name in source.topic.split(",")]
    made = spec.made_topics()
    return [topic for topic in resolve(link, tuple(names)) if topic not in made]


def check_sources(link: FlightLink, spec: Spec, *, consume: bool) -> None:
    """Raise what would stop a pipeline later: `NotFound`, or `OnlyReader` of a queue. Needs no Spark."""
    topics = _topics_of(link, spec)
    for topic in topics:
        link.action("extents", {"topic": topic})
    if not consume:
        retention.check_readers(link, topics, f"pipeline {spec.name}")


class Pipeline:
    """All queries of a pipeline.

    Examples
    --------
    >>> Pipeline(spark, spec, BrokerAddress("grpc://127.0.0.1:7072"), once=True).run(print)  # doctest: +SKIP
    """

    def __init__(
        self, spark: SparkSession, spec: Spec, address: BrokerAddress, *, once: bool = False, consume: bool = False
    ) -> None:
        self._spec, self._address, self._consume = spec, address, consume
        self.queries = [Running(spark, spec, address, name, once=once) for name in spec.queries()]

    @property
    def figures(self) -> list[QueryFigures]:
        return [query.figures for query in self.queries]

    def start(self) -> None:
        """Create the topics and start all queries; none of them if one is wrong."""
        check_sources(self._address.link(), self._spec, consume=self._consume)
        self._have_topics()
        try:
            for query in self.queries:  # all before the first one subscribes: a wrong query leaves nothing behind
                query.check()
            for query in self.queries:  # all before the first one reads: a queue may delete what it settles
                query.subscribe()
            for query in self.queries:
                query.start()
        except AnalysisException as fault:
            self.stop()
            raise InvalidInput(
                f"pipeline {self._spec.name}, {query.name}", None, f"a query ({reason(fault)})"
            ) from None
        except BaseException:
            self.stop()
            raise

    def run(self, report: ReportFigures, *, is_over: Callable[[], bool] = lambda: False) -> list[QueryFigures]:
        """Run until all queries have ended, `is_over` returns true, or Ctrl-C; call `report` twice a second."""
        with noted() as is_interrupted:
            try:
                self.start()
                while not (all(query.is_over for query in self.queries) or is_over() or is_interrupted()):
                    for query in self.queries:
                        query.update()
                    report(self.figures)
                    time.sleep(LOOK_S)
            except KeyboardInterrupt:  # the second one, while a call to Java took long
                pass
            finally:
                self.stop()
        report(self.figures)
        return self.figures

    def stop(self) -> None:
        for query in self.queries:
            query.stop()

    def _have_topics(self) -> None:
        broker, spec = self._address.link(), self._spec
        there = {topic["name"] for topic in broker.action("topics", {})["topics"]}
        for topic, fields in spec.made_topics().items():
            if topic not in there:
                with suppress(AlreadyExists):
                    broker.action("create-topic", {"name": topic, **fields})


def reason(fault: BaseException) -> str:
    """Return the line of a Spark error that states the cause.

    This is the last Python error in it, or the last cause in Java, or the first line.
    """
    text = str(fault)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    causes = [line.removeprefix(_CAUSE) for line in lines if line.startswith(_CAUSE)]
    found = (_PYTHON.findall(text) or causes or lines[:1] or [type(fault).__name__])[-1].strip()
    return found[:REASON_CHARS_MAX]


def _target(spec: Spec, query: str) -> str:
    source = query.removesuffix(f".{BAD}")
    if source != query:
        return f"topic {spec.dead_topic(source)}"
    sink = spec.sinks[query]
    return f"{sink.kind} {sink.target}"


def _have_table(spark: SparkSession, spec: Spec, name: str, rows: DataFrame) -> None:
    """Create a table of Parquet files beside the pipeline, unless the catalog has it.

    The catalog of a session does not outlast the session, but the files do.
    """
    if not spark.catalog.tableExists(name):
        path = spec.place(f"tables/{name}")
        spark.catalog.createTable(name, path=path, source="parquet", schema=rows.schema)


def summary(figures: list[QueryFigures]) -> dict[str, Any]:
    """Return the totals of a run."""
    return {
        "queries": len(figures),
        "failed": [each.query for each in figures if each.state == "failed"],
        "rows_in": sum(each.rows_in for each in figures),
        "rows_out": sum(each.rows_out for each in figures),
        "bad": sum(each.rows_out for each in figures if each.query.endswith(f".{BAD}")),
    }
