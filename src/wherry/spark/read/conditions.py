"""Reads a condition as Spark has understood it: with casts, constants and time zones resolved by Spark itself.

It takes the filter from the optimized plan of a query, so that nothing here parses SQL or knows its rules. It returns
None where the plan has another shape, or where the condition means something else when the query runs later (`now()`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from wherry.spark.read.narrowing import MEMBERS, SIGNS, Condition

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

NODES_MAX = 4_000
"""The most expressions that are read of one condition; each takes a call to the JVM for every part."""


class ConditionTooLarge(Exception):
    """A condition has more expressions than are read."""


def condition_of(rows: DataFrame) -> Condition | None:
    """Return the condition of a load with one filter; None if it cannot be known, as with Spark Connect."""
    if not hasattr(rows, "_jdf"):
        return None
    query = rows._jdf.queryExecution()  # there is no public way
    patterns = _patterns(rows)
    if any(query.analyzed().containsPattern(pattern) for pattern in patterns):
        return None
    plan = query.optimizedPlan()
    if _name(plan) != "Filter" or _name(plan.child()) != "DataSourceV2ScanRelation":
        return None
    try:
        return _Tree().read(plan.condition())
    except ConditionTooLarge:
        return None


def columns_of(rows: DataFrame) -> list[str] | None:
    """Return the names of the columns that the condition of a load uses; None with Spark Connect."""
    if not hasattr(rows, "_jdf"):
        return None
    found = rows._jdf.queryExecution().analyzed().condition().references().toSeq()
    return [found.apply(at).name() for at in range(found.size())]


def _patterns(rows: DataFrame) -> list[Any]:
    """Return Spark's marks for what may differ from run to run: the time, and other queries within the condition."""
    jvm: Any = rows.sparkSession._jvm
    marks = jvm.org.apache.spark.sql.catalyst.trees.TreePattern
    return [marks.CURRENT_LIKE(), marks.PLAN_EXPRESSION()]


class _Tree:
    """Copies expressions out of the JVM, as far as they can narrow a load, and counts them."""

    def __init__(self) -> None:
        self._left = NODES_MAX

    def read(self, node: Any) -> Condition:
        self._left -= 1
        if self._left < 0:
            raise ConditionTooLarge
        kind = _name(node)
        if kind == "Literal":
            return self._literal(node.value(), node.dataType().catalogString())
        if kind == "AttributeReference":
            return Condition(kind, (), node.name(), node.dataType().catalogString())
        if kind == "InSet":
            return self._set(node)
        if kind not in ("And", "Or", *MEMBERS, *SIGNS):
            return Condition(kind)  # narrows nothing, so its children do not matter
        children = node.children()
        if children.size() > self._left:
            raise ConditionTooLarge
        return Condition(kind, tuple(self.read(children.apply(at)) for at in range(children.size())))

    def _set(self, node: Any) -> Condition:
        listed, column = node.hset().toSeq(), node.child()
        if listed.size() > self._left:
            raise ConditionTooLarge
        kind = column.dataType().catalogString()
        literals = [self._literal(listed.apply(at), kind) for at in range(listed.size())]
        return Condition("InSet", (self.read(column), *literals))

    def _literal(self, value: Any, kind: str) -> Condition:
        return Condition("Literal", (), value.toString() if hasattr(value, "_target_id") else value, kind)


def _name(thing: Any) -> str:
    return str(thing.getClass().getSimpleName())
