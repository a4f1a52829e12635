"""Topics as views of Spark's SQL, each under the name of its topic, decoded where its labels name a schema."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from wherry.model.errors import InvalidInput

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from wherry.spark.link import Body

_log = logging.getLogger("wherry.spark")

VIEWS_MAX = 500
"""The most views of one call: Spark starts a Python process for each."""

DECODING = ("payload", "payloadSchema")
"""Labels of a topic that say how its payloads are decoded; options of a load have the same names."""


def register_topics(spark: SparkSession, topics: str = "*", **options: Any) -> list[str]:
    """Create a temporary view for each topic that exists, and return the names.

    A view has the name of its topic; in SQL, a name with a dot or hyphen is written in backticks. Where a topic has the
    labels `payload` and `payloadSchema`, the view has the columns `value` and `error`. Like any load, a view has the
    messages that exist when it is first used: call this again for newer messages and topics.

    Parameters
    ----------
    topics
        A topic, several with commas between, or a pattern.
    options
        Options of the loads.

    Examples
    --------
    >>> register_topics(spark, "shop.*")  # doctest: +SKIP
    ['shop.orders', 'shop.returns']
    >>> spark.sql("SELECT count(*) FROM `shop.orders`").show()  # doctest: +SKIP
    """
    from wherry.spark.link import link  # noqa: PLC0415 - slow to import: it needs Arrow Flight
    from wherry.spark.options.parsing import parse  # noqa: PLC0415
    from wherry.spark.read.topics import resolve  # noqa: PLC0415

    parsed = parse({name: _text(value) for name, value in options.items()} | {"topic": topics})
    broker = link(parsed)
    names = resolve(broker, parsed.topics)
    known: dict[str, Body] = {each["name"]: each for each in broker.action("topics", {})["topics"]}
    _check(names, known)
    for name in names:
        _decoded(spark, name, options, known[name].get("labels") or {}).createOrReplaceTempView(f"`{name}`")
    return names


def _check(names: list[str], known: dict[str, Body]) -> None:
    """Raise unless each topic exists, and has a view that no other topic would replace."""
    if len(names) > VIEWS_MAX:
        raise InvalidInput("topics", f"{len(names)} of them", f"at most {VIEWS_MAX} in one call: name fewer")
    folded: dict[str, str] = {}
    for name in names:
        if name not in known:
            raise InvalidInput("topics", name, "topics of the broker")
        if "`" in name:
            raise InvalidInput("topics", name, "names without a backtick: load this topic and name the view yourself")
        other = folded.setdefault(name.lower(), name)
        if other != name:
            raise InvalidInput("topics", f"{other} and {name}", "names that differ in more than upper and lower case")


def _decoded(spark: SparkSession, topic: str, options: dict[str, Any], labels: dict[str, str]) -> DataFrame:
    """Return the load of a topic; undecoded if its labels are wrong, since any client may write labels."""
    from pyspark.errors import PySparkException  # noqa: PLC0415 - an extra

    given = {name.lower() for name in options}
    added = {} if "payload" in given else {name: labels[name] for name in DECODING if name in labels}
    if "payload" in added:
        try:
            return _load(spark, topic, added | options)
        except PySparkException as fault:
            reason = str(fault).strip().splitlines()[-1]
            _log.warning("the payloads of topic %s are not decoded: its labels are wrong: %s", topic, reason)
    return _load(spark, topic, options)


def _load(spark: SparkSession, topic: str, options: dict[str, Any]) -> DataFrame:
    return spark.read.format("wherry").options(**options).option("topic", topic).load()


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
