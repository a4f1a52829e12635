"""A pipeline as DataFrames: what each of its queries reads, computes and writes."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import StringType

from wherry.model import limits
from wherry.model.errors import InvalidInput
from wherry.spark.link import FlightLink
from wherry.spark.options.parsing import parse
from wherry.spark.pipelines.run.plan import Loads
from wherry.spark.pipelines.run.spec import (
    BAD,
    PipelineSource,
    Spec,
    Word,
)
from wherry.spark.read.stream import subscribe
from wherry.spark.read.topics import resolve
from wherry.spark.sessions.state import check_stateful
from wherry.spark.write.sink import TAKEN, columns

REASON = "_reason"
OUT, IN_BAD = "_out", "_bad"
"""The counts that are observed: rows that are written, and bad rows that were read."""

ORIGIN = ("wherry-reason", "wherry-topic", "wherry-partition", "wherry-offset")
"""Headers of a bad row: why it is bad, and which message it was."""
LEFT_OUT = "wherry-headers-left-out"
"""The header of a bad row whose own headers were left out for lack of room."""
REASON_CHARS_MAX = 500
_BODIES = ("payload", "value")


def words(options: Mapping[str, Word]) -> dict[str, str]:
    """Return options as text, in the form that Spark takes."""
    return {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in options.items()}


class Frames:
    """The DataFrames of one query. Each query loads its sources itself, with subscriptions of its own."""

    def __init__(self, spark: SparkSession, spec: Spec, broker: Mapping[str, str], query: str) -> None:
        self._spark, self._spec, self._query = spark, spec, query
        self._broker = dict(broker)
        """Options that name the broker."""
        self._read: list[str] = []
        """Subscriptions that the query reads, as far as Spark's plan shows them."""

    @property
    def subscriptions(self) -> dict[str, str]:
        """The names of the subscriptions by source, of all sources that the query may read."""
        spec = self._spec
        return {source: spec.subscription_of(self._query, source) for source in spec.sources_of(self._query)}

    def check(self, broker: FlightLink) -> None:
        """Raise if this is not a valid query, reads a queue twice, or needs what is not here."""
        loads = Loads(self.rows())
        self.forget()
        if loads.is_stateful:
            check_stateful(self._spark)
        twice = loads.read_twice(self.subscriptions.values())
        for source, name in self.subscriptions.items():
            if name in twice:
                self._check_stream(broker, source)
        self._read = loads.read(self.subscriptions.values())

    def _check_stream(self, broker: FlightLink, source: str) -> None:
        """Raise if a source that is read twice is a queue.

        A queue deletes messages that were read, so the slower of the two reads would miss some.
        """
        topic = self._spec.sources[source].topic
        names = resolve(broker, tuple(name.strip() for name in topic.split(",")))
        keeps = {each["name"]: each["keep"] for each in broker.action("topics", {})["topics"]}
        for name in names:
            if keeps.get(name) == "settled":
                allowed = f"no queue joined with itself, in {self._query}: make a second source of topic {name}"
                raise InvalidInput(f"sources.{source}", topic, allowed)

    def rows(self) -> DataFrame:
        """Return the rows that the query writes, with a count of them."""
        spec, name = self._spec, self._query
        source = name.removesuffix(f".{BAD}")
        if source != name:
            made = _dead_letters(self._judged(source))
        else:
            sink = spec.sinks[name]
            made = self._view(sink.source)
            if sink.kind == "topic":
                made = _message(made)
                columns(made.schema)  # a column that does not fit is an error before anything starts
        return made.observe(OUT, f.count(f.lit(1)).alias(OUT))

    def _view(self, wanted: str) -> DataFrame:
        """Create a view and all views that it is made of, after dropping those of other queries with these names."""
        self.forget()
        made: dict[str, DataFrame] = {}
        for name in self._spec.needed(wanted):
            made[name] = self._one(name, made)
            made[name].createOrReplaceTempView(name)
        return made[wanted]

    def forget(self) -> None:
        """Drop the views from the session."""
        for name in (*self._spec.sources, *self._spec.tables, *self._spec.steps):
            self._spark.catalog.dropTempView(name)

    def _one(self, name: str, made: Mapping[str, DataFrame]) -> DataFrame:
        spec = self._spec
        if name in spec.sources:
            return self._good(name)
        if name in spec.tables:
            return self._table(name)
        step = spec.steps[name]
        if step.sql is not None:
            return self._spark.sql(step.sql)
        return _called(spec, name, {**made, "spark": self._spark})

    def _table(self, name: str) -> DataFrame:
        table = self._spec.tables[name]
        reader = self._spark.read.format(table.format).options(**words(table.options))
        if table.format == "wherry":
            reader = reader.options(**self._broker)
        if table.schema is not None:
            reader = reader.schema(table.schema)
        return reader.load() if table.path is None else reader.load(self._spec.place(table.path))

    def _judged(self, name: str) -> DataFrame:
        """Return the rows of a source, each with what is wrong with it, or null; with a count of the bad ones."""
        source = self._spec.sources[name]
        rows = self._spark.readStream.format("wherry").options(**self._load(name)).load()
        rows = rows.withColumn(REASON, _reason(source)).drop("error")
        return rows.observe(name, f.count(REASON).alias(IN_BAD))

    def _load(self, name: str) -> dict[str, str]:
        source = self._spec.sources[name]
        options = {**words(source.options), "subscription": self._spec.subscription_of(self._query, name)}
        options |= {"topic": source.topic, "payload": source.payload, **self._broker}
        return options if source.schema is None else {**options, "payloadSchema": source.schema}

    def subscribe(self) -> None:
        """Create the subscriptions of the query, before another query settles messages that this one has to read."""
        for source, name in self.subscriptions.items():
            if name in self._read:
                subscribe(parse(self._load(source)).made_for("readStream"))

    def _good(self, name: str) -> DataFrame:
        rows = self._judged(name)
        rows = rows.filter(f.col(REASON).isNull()).drop(REASON)
        late = self._spec.sources[name].watermark
        return rows if late is None else rows.withWatermark("published", late)


def _reason(source: PipelineSource) -> Column:
    """Return the first thing that is wrong with a row. A condition that is null is not met."""
    found = [f.col("error")] if source.payload != "bytes" else []
    for name, condition in source.expect.items():
        met = f.coalesce(f.expr(condition), f.lit(False))
        found.append(f.when(~met, f.lit(f"not as expected: {name}")))
    return f.coalesce(*found) if found else f.lit(None).cast("string")


def _dead_letters(rows: DataFrame) -> DataFrame:
    """Return the bad rows unchanged, with the reason and the place as headers, which replace older ones of these names.

    A message without room for four more headers keeps only these, and gets one that marks the others as left out.
    """
    empty = f.create_map().cast("map<string,string>")
    kept = f.coalesce(f.map_filter("headers", lambda name, _: ~name.isin(*ORIGIN, LEFT_OUT)), empty)
    values = (f.left(f.col(REASON), f.lit(REASON_CHARS_MAX)), _text("topic"), _text("partition"), _text("offset"))
    origin = f.create_map(*(each for name, value in zip(ORIGIN, values, strict=True) for each in (f.lit(name), value)))
    fits = (f.size(kept) + len(ORIGIN) <= limits.HEADERS_MAX) & (
        _size(kept) + _size(origin) <= limits.HEADERS_BYTES_MAX
    )
    instead = f.create_map(f.lit(LEFT_OUT), f.lit("true"))
    headers = f.map_concat(f.when(fits, kept).otherwise(instead), origin)
    bad = rows.filter(f.col(REASON).isNotNull())
    return bad.select("key", "priority", headers.alias("headers"), "payload")


def _size(headers: Column) -> Column:
    """Return the bytes of names and values together."""
    texts = f.concat(f.map_keys(headers), f.map_values(headers))
    return f.aggregate(texts, f.lit(0), lambda total, text: total + f.octet_length(text))


def _text(name: str) -> Column:
    return f.col(name).cast("string")


def _message(rows: DataFrame) -> DataFrame:
    """Return rows as messages: columns with the name of a message field are that field, the others become JSON."""
    parts = [name for name in rows.columns if name in TAKEN and name not in _BODIES]
    if "payload" in rows.columns:
        return rows.select(*parts, "payload")
    if "value" in rows.columns:
        plain = isinstance(rows.schema["value"].dataType, StringType)
        return rows.select(*parts, f.col("value") if plain else f.to_json("value").alias("value"))
    others = [name for name in rows.columns if name not in TAKEN]
    if not others:
        raise InvalidInput("columns", rows.columns, "a payload, a value, or columns to make JSON of")
    return rows.select(*parts, f.to_json(f.struct(*(f"`{name}`" for name in others))).alias("payload"))


def _called(spec: Spec, name: str, given: Mapping[str, Any]) -> DataFrame:
    """Call a function of a file with the views that its arguments are named after; return the DataFrame."""
    python = spec.steps[name].python or ""
    path, _, function = python.rpartition(":")
    found = _names_of(spec.folder / path).get(function)
    if not callable(found):
        raise InvalidInput(f"steps.{name}.python", python, f"a function of {path}")
    wanted = inspect.signature(found).parameters
    missing = [each for each in wanted if each not in given]
    if missing:
        raise InvalidInput(f"steps.{name}.python", missing, "arguments named after sources, tables and steps above")
    made = found(**{each: given[each] for each in wanted})
    if not isinstance(made, DataFrame):
        raise InvalidInput(f"steps.{name}.python", type(made).__name__, "a DataFrame as what it returns")
    return made


def _names_of(path: Path) -> dict[str, Any]:
    """Run a file and return its names. It cannot be imported as a module, so Spark sends its code with the query."""
    names: dict[str, Any] = {"__name__": f"<{path.name}>", "__file__": str(path)}
    exec(compile(path.read_text(encoding="utf-8"), str(path), "exec", dont_inherit=True), names)
    return names
