"""Spark's plan of a query before it runs: which loads of topics the query has, and how often each is read."""

from __future__ import annotations

import io
import re
from collections.abc import Iterable
from contextlib import redirect_stdout

from pyspark.sql import DataFrame

_RELATION = re.compile(r"StreamingRelationV2 [^,]*, wherry, [\w.]*@(\w+), \[(.*?)\], \[(.*?)\]")
_STATEFUL = "TransformWithState"
_HIDDEN = "subscription=***"
"""What Spark prints in the place of a value that looks like a secret."""


class Loads:
    """The streaming loads of a query, from its analysed plan."""

    def __init__(self, rows: DataFrame) -> None:
        text = io.StringIO()
        with redirect_stdout(text):  # with Spark Connect too, a DataFrame can only print its plan
            rows.explain(extended=True)
        analysed = text.getvalue().partition("== Analyzed Logical Plan ==")[2].partition("== Optimized")[0]
        self._found = set(_RELATION.findall(analysed))
        self.is_stateful = _STATEFUL in analysed
        """Whether the query uses `transformWithState`."""

    def read(self, subscriptions: Iterable[str]) -> list[str]:
        """Return those of the subscriptions that the query reads; all, if Spark hides the names."""
        shown = [f"[{options}]" for _, options, _ in self._found]
        return [name for name in subscriptions if any(_is_of(each, name) for each in shown)]

    def read_twice(self, subscriptions: Iterable[str]) -> list[str]:
        """Return the subscriptions of loads that Spark reads several times, each at its own pace, as in a self-join."""
        tables = [table for table, _, _ in self._found]
        shown = [f"[{options}]" for table, options, _ in self._found if tables.count(table) > 1]
        return [name for name in subscriptions if any(_is_of(each, name) for each in shown)]


def _is_of(options: str, subscription: str) -> bool:
    return _HIDDEN in options or re.search(rf"[\[ ]subscription={re.escape(subscription)}[,\]]", options) is not None
