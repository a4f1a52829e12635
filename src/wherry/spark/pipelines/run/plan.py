"""What Spark says of a query before it runs: which loads of topics it has, and how often each of them is read."""

from __future__ import annotations

import io
import re
from collections.abc import Iterable
from contextlib import redirect_stdout

from pyspark.sql import DataFrame

_RELATION = re.compile(r"StreamingRelationV2 [^,]*, wherry, [\w.]*@(\w+), \[(.*?)\], \[(.*?)\]")
_HIDDEN = "subscription=***"
"""As Spark writes a value that looks like a secret to it."""


class Loads:
    """The streaming loads of a query, as its analysed plan has them."""

    def __init__(self, rows: DataFrame) -> None:
        text = io.StringIO()
        with redirect_stdout(text):  # a DataFrame prints its plan, and tells it in no other way that Connect has too
            rows.explain(extended=True)
        analysed = text.getvalue().partition("== Analyzed Logical Plan ==")[2].partition("== Optimized")[0]
        self._found = set(_RELATION.findall(analysed))

    def read(self, subscriptions: Iterable[str]) -> list[str]:
        """Those of the subscriptions that the query has; if Spark does not show names, all."""
        shown = [f"[{options}]" for _, options, _ in self._found]
        return [name for name in subscriptions if any(_is_of(each, name) for each in shown)]

    def read_twice(self, subscriptions: Iterable[str]) -> list[str]:
        """Those that are of loads which Spark reads several times, each time at a pace of its own: of a self-join."""
        tables = [table for table, _, _ in self._found]
        shown = [f"[{options}]" for table, options, _ in self._found if tables.count(table) > 1]
        return [name for name in subscriptions if any(_is_of(each, name) for each in shown)]


def _is_of(options: str, subscription: str) -> bool:
    return _HIDDEN in options or re.search(rf"[\[ ]subscription={re.escape(subscription)}[,\]]", options) is not None
