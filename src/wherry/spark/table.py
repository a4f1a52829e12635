"""A topic as a DataFrame that is read only as far as a condition needs.

Spark passes no filters to this data source (docs/adr/0038). So the condition is given to the load: its options let the
broker leave out messages that cannot match, and Spark evaluates the whole condition on the rest. The DataFrame always
contains the filter, so it is right however it is used: again, cached, joined with itself, as a view.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from wherry.model.errors import InvalidInput
from wherry.spark.options import kafka_options
from wherry.spark.read.conditions import columns_of, condition_of
from wherry.spark.read.narrowing import narrowed, options_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType


def table(
    spark: SparkSession,
    topic: str,
    *,
    where: str | Column | None = None,
    columns: Sequence[str] | None = None,
    **options: Any,
) -> DataFrame:
    """Return the messages of a topic for which a condition is true.

    Parameters
    ----------
    topic
        A topic, several with commas between, or a pattern, as the option `topic` of a load.
    where
        The condition, in SQL or as a column. Comparisons of `partition`, `offset`, `priority`, `published` and `key`
        with constants make the broker send fewer messages; other conditions are as fast as a filter of the whole load.
    columns
        Some of the columns; all by default. The payload is not read if neither they nor the condition need it.
    options
        Other options of a load. With Spark Connect, only they make the broker send fewer messages.

    Examples
    --------
    >>> table(spark, "orders", where="offset >= 1000 AND key = 'ann'", columns=["key", "due"])  # doctest: +SKIP
    """
    whole = _load(spark, topic, options)
    chosen = list(whole.columns) if columns is None else _checked(columns, whole.columns)
    schema = None if columns is None else _schema(whole.schema, chosen)
    if where is None:
        return _load(spark, topic, options, schema)
    probe = whole.where(where)
    given = options | _added(_narrower(probe, options), options)
    if schema is not None:
        used = columns_of(probe)
        schema = None if used is None else _schema(whole.schema, [*chosen, *used])
    rows = _load(spark, topic, given, schema).where(where)
    return rows if columns is None else rows.select(*chosen)


def _narrower(probe: DataFrame, options: dict[str, Any]) -> dict[str, str]:
    """Return the options that leave out messages which cannot match. Other tables have no such options."""
    if any(name.lower() == "table" and value != "messages" for name, value in options.items()):
        return {}
    condition = condition_of(probe)
    return {} if condition is None else options_of(narrowed(condition))


def _added(found: dict[str, str], given: dict[str, Any]) -> dict[str, str]:
    """Return the found options without those that were given: what the caller asked for is not changed."""
    names = {kafka_options.ALIASES.get(name.lower(), name).lower() for name in given}
    if "startingoffsets" in names:
        names.add("startingtime")
    return {name: value for name, value in found.items() if name.lower() not in names}


def _checked(columns: Sequence[str], known: list[str]) -> list[str]:
    for name in columns:
        if name not in known:
            raise InvalidInput("columns", name, "some of " + ", ".join(known))
    if not columns:
        raise InvalidInput("columns", [], "at least one of " + ", ".join(known))
    return list(dict.fromkeys(columns))


def _schema(whole: StructType, names: Sequence[str]) -> StructType:
    """Return some of the columns; the reason of an error depends on the type of the value, so both are read."""
    wanted = {*names, "value"} if "error" in names else set(names)
    return type(whole)([field for field in whole.fields if field.name in wanted])


def _load(spark: SparkSession, topic: str, options: dict[str, Any], schema: StructType | None = None) -> DataFrame:
    reader = spark.read.format("wherry").options(**options).option("topic", topic)
    return (reader if schema is None else reader.schema(schema)).load()
