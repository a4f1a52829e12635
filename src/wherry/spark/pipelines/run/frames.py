"""A pipeline as DataFrames: what each query of it reads, makes of it, and writes."""

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
from wherry.spark.link import Link
from wherry.spark.options import parse
from wherry.spark.pipelines.run.plan import Loads
from wherry.spark.pipelines.run.spec import (
    BAD,
    Source,
    Spec,
    Word,
)
from wherry.spark.read.stream import subscribe
from wherry.spark.read.topics import resolve
from wherry.spark.write.sink import TAKEN, columns

REASON = "_reason"
OUT, IN_BAD = "_out", "_bad"
"""What is counted on the way: rows that are written, and bad ones that were read."""

TOLD = ("wherry-reason", "wherry-topic", "wherry-partition", "wherry-offset")
"""Headers of a bad row: why it is one, and where it was."""
LEFT_OUT = "wherry-headers-left-out"
"""The header of a bad row that had no room for its own."""
REASON_CHARS_MAX = 500
_BODIES = ("payload", "value")


def words(options: Mapping[str, Word]) -> dict[str, str]:
    """Options as Spark takes them."""
    return {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in options.items()}


class Frames:
    """The DataFrames of one query. Each query loads its sources itself: it is a subscription of its own."""

    def __init__(self, spark: SparkSession, spec: Spec, broker: Mapping[str, str], query: str) -> None:
        self._spark, self._spec, self._query = spark, spec, query
        self._broker = dict(broker)
        """Options that name the broker."""
        self._read: list[str] = []
        """Subscriptions that it has, as far as Spark said."""

    @property
    def subscriptions(self) -> dict[str, str]:
        """Names of subscriptions by source, of all that the query may read."""
        spec = self._spec
        return {source: spec.subscription_of(self._query, source) for source in spec.sources_of(self._query)}

    def check(self, broker: Link) -> None:
        """That it is a query, and reads no queue twice."""
        loads = Loads(self.rows())
        self.forget()
        twice = loads.read_twice(self.subscriptions.values())
        for source, name in self.subscriptions.items():
            if name in twice:
                self._check_stream(broker, source)
        self._read = loads.read(self.subscriptions.values())

    def _check_stream(self, broker: Link, source: str) -> None:
        """A queue lets go of what was read: whoever reads it twice at two paces misses some the second time."""
        topic = self._spec.sources[source].topic
        names = resolve(broker, tuple(name.strip() for name in topic.split(",")))
        keeps = {each["name"]: each["keep"] for each in broker.action("topics", {})["topics"]}
        for name in names:
            if keeps.get(name) == "settled":
                allowed = f"no queue joined with itself, in {self._query}: make a second source of topic {name}"
                raise InvalidInput(f"sources.{source}", topic, allowed)

    def rows(self) -> DataFrame:
        """What the query writes, counted."""
        spec, name = self._spec, self._query
        source = name.removesuffix(f".{BAD}")
        if source != name:
            made = _dead_letters(self._judged(source))
        else:
            sink = spec.sinks[name]
            made = self._view(sink.source)
            if sink.kind == "topic":
                made = _message(made)
                columns(made.schema)  # what does not fit is told before anything starts
        return made.observe(OUT, f.count(f.lit(1)).alias(OUT))

    def _view(self, wanted: str) -> DataFrame:
        """A view, and before it all that it is made of; what other queries made under these names is gone by then."""
        self.forget()
        made: dict[str, DataFrame] = {}
        for name in self._spec.needed(wanted):
            made[name] = self._one(name, made)
            made[name].createOrReplaceTempView(name)
        return made[wanted]

    def forget(self) -> None:
        """Leave no view in the session."""
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
        """The rows of a source, each with what is wrong with it, or null; counted."""
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
        """Have the subscriptions of the query, before another one reads and settles what it has to read too."""
        for source, name in self.subscriptions.items():
            if name in self._read:
                subscribe(parse(self._load(source)).made_for("readStream"))

    def _good(self, name: str) -> DataFrame:
        rows = self._judged(name)
        rows = rows.filter(f.col(REASON).isNull()).drop(REASON)
        late = self._spec.sources[name].watermark
        return rows if late is None else rows.withWatermark("published", late)


def _reason(source: Source) -> Column:
    """The first thing that is wrong with a row. A condition that is null is not met."""
    found = [f.col("error")] if source.payload != "bytes" else []
    for name, condition in source.expect.items():
        met = f.coalesce(f.expr(condition), f.lit(False))
        found.append(f.when(~met, f.lit(f"not as expected: {name}")))
    return f.coalesce(*found) if found else f.lit(None).cast("string")


def _dead_letters(rows: DataFrame) -> DataFrame:
    """Bad rows as they came, with the reason and the place as headers; what had these headers before has them anew.

    A message that has no room for four headers more has only these, and one that says so.
    """
    empty = f.create_map().cast("map<string,string>")
    kept = f.coalesce(f.map_filter("headers", lambda name, _: ~name.isin(*TOLD, LEFT_OUT)), empty)
    values = (f.left(f.col(REASON), f.lit(REASON_CHARS_MAX)), _text("topic"), _text("partition"), _text("offset"))
    told = f.create_map(*(each for name, value in zip(TOLD, values, strict=True) for each in (f.lit(name), value)))
    fits = (f.size(kept) + len(TOLD) <= limits.HEADERS_MAX) & (_size(kept) + _size(told) <= limits.HEADERS_BYTES_MAX)
    instead = f.create_map(f.lit(LEFT_OUT), f.lit("true"))
    headers = f.map_concat(f.when(fits, kept).otherwise(instead), told)
    bad = rows.filter(f.col(REASON).isNotNull())
    return bad.select("key", "priority", headers.alias("headers"), "payload")


def _size(headers: Column) -> Column:
    """Bytes of names and values together."""
    texts = f.concat(f.map_keys(headers), f.map_values(headers))
    return f.aggregate(texts, f.lit(0), lambda total, text: total + f.octet_length(text))


def _text(name: str) -> Column:
    return f.col(name).cast("string")


def _message(rows: DataFrame) -> DataFrame:
    """Rows as messages: columns with the name of a part of a message are that part, the others are its JSON."""
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
    """What a function of a file makes of the views that its arguments are named after."""
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
    """Run a file. It is no module that could be imported, so what workers need of it travels with the query."""
    names: dict[str, Any] = {"__name__": f"<{path.name}>", "__file__": str(path)}
    exec(compile(path.read_text(encoding="utf-8"), str(path), "exec", dont_inherit=True), names)
    return names
