"""What a filter says about the columns by which a read can skip. Pure.

A `Narrowing` is a necessary condition: every row that the filter selects is inside it, and rows inside it may be rows
that the filter does not select. So a reader may skip what is outside, and the filter is always applied again. A part
of a filter that is not understood is `EVERYTHING`, which skips nothing; that is always right, a guess never is.
Filters of Polars, DuckDB and Spark are each translated to it where they are read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from wherry.model import limits
from wherry.model.calls.where import KEYS_MAX, Where

LOW, HIGH = -(1 << 127), 1 << 127
"""Beyond every number that a column or a filter can have."""


class Interval(NamedTuple):
    """Whole numbers, both ends included."""

    low: int = LOW
    high: int = HIGH

    def meets(self, low: int, high: int) -> bool:
        """Return whether a number from `low` to `high` is in the interval."""
        return self.low <= high and low <= self.high

    def clip(self, start: int, stop: int) -> tuple[int, int]:
        """Return the part of `start..stop`, its end not included, that is in the interval.

        Examples
        --------
        >>> Interval(3, 5).clip(0, 10), Interval(high=5).clip(7, 10)
        ((3, 6), (7, 7))
        """
        first = max(start, self.low)
        return first, max(first, min(stop, self.high + 1))


WHOLE = Interval()


class Narrowing(NamedTuple):
    """Where the rows that a filter selects can be: all of these must hold."""

    offset: Interval = WHOLE
    partition: Interval = WHOLE
    priority: Interval = WHOLE
    published: Interval = WHOLE
    """Unix microseconds."""
    key: tuple[str, ...] | None = None
    """The keys, sorted; None means any key, and none."""

    @property
    def is_empty(self) -> bool:
        """Whether no row can match."""
        numbers = (self.offset, self.partition, self.priority, self.published)
        return self.key == () or any(each.low > each.high for each in numbers)

    def where(self) -> Where:
        """Return the conditions that the broker tests before it sends rows."""
        low_ms, high_ms = self.published.low // 1_000, -(-(self.published.high + 1) // 1_000)
        keys = self.key if self.key is not None and len(self.key) <= KEYS_MAX else None
        return Where(
            keys=None if keys is None else list(keys),
            from_ms=low_ms if 0 < low_ms <= limits.TIME_MS_MAX else None,
            to_ms=high_ms if 0 <= high_ms <= limits.TIME_MS_MAX else None,
            priority_min=self.priority.low if 0 < self.priority.low <= limits.PRIORITY_MAX else None,
            priority_max=self.priority.high if 0 <= self.priority.high < limits.PRIORITY_MAX else None,
        )


EVERYTHING = Narrowing()
NOTHING = Narrowing(key=())

NUMBERS = ("offset", "partition", "priority", "published")

FLIPPED = {"==": "==", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
"""Comparisons with their sides exchanged."""


def both(first: Narrowing, second: Narrowing) -> Narrowing:
    """Return where rows are that are in both."""
    key = first.key if second.key is None else second.key
    if first.key is not None and second.key is not None:
        others = frozenset(second.key)
        key = tuple(each for each in first.key if each in others)
    return _merged(first, second, lambda a, b: Interval(max(a.low, b.low), min(a.high, b.high)), key)


def either(first: Narrowing, second: Narrowing) -> Narrowing:
    """Return where rows are that are in one of the two: the smallest intervals that hold both."""
    if first.is_empty or second.is_empty:
        return second if first.is_empty else first
    key = None if first.key is None or second.key is None else tuple(sorted({*first.key, *second.key}))
    return _merged(first, second, lambda a, b: Interval(min(a.low, b.low), max(a.high, b.high)), key)


def _merged(
    first: Narrowing,
    second: Narrowing,
    merge: Callable[[Interval, Interval], Interval],
    key: tuple[str, ...] | None,
) -> Narrowing:
    return Narrowing(
        merge(first.offset, second.offset),
        merge(first.partition, second.partition),
        merge(first.priority, second.priority),
        merge(first.published, second.published),
        key,
    )


def compared(column: str, sign: str, low: object, high: object = None) -> Narrowing:
    """Return where `column sign value` can hold; `EVERYTHING` for columns, signs and values that cannot skip.

    A value between two whole numbers, such as half a microsecond, is given as the two: `low` and `high`.

    Examples
    --------
    >>> compared("offset", "<", 10).offset.high
    9
    >>> compared("key", "==", "ann").key
    ('ann',)
    >>> compared("payload", "==", b"x") == compared("key", "<", "ann") == EVERYTHING
    True
    """
    if column == "key":
        return Narrowing(key=(low,)) if sign == "==" and isinstance(low, str) else EVERYTHING
    high = low if high is None else high
    if column not in NUMBERS or not (_is_whole(low) and _is_whole(high)):
        return EVERYTHING
    assert isinstance(low, int)
    assert isinstance(high, int)
    intervals = {
        "==": Interval(low, high),
        "<": Interval(high=high - 1 if low == high else low),
        "<=": Interval(high=low),
        ">": Interval(low=low + 1 if low == high else high),
        ">=": Interval(low=high),
    }
    return _in_column(column, intervals[sign]) if sign in intervals else EVERYTHING


def one_of(column: str, values: Iterable[object]) -> Narrowing:
    """Return where the column can have one of the values."""
    given = list(values)
    if column == "key" and all(isinstance(value, str) for value in given):
        return Narrowing(key=tuple(sorted({str(value) for value in given})))
    if column not in NUMBERS or not all(_is_whole(value) for value in given):
        return EVERYTHING
    whole = [value for value in given if isinstance(value, int)]
    return _in_column(column, Interval(min(whole), max(whole))) if whole else NOTHING


def _in_column(column: str, interval: Interval) -> Narrowing:
    changed: dict[str, Any] = {column: interval}
    return EVERYTHING._replace(**changed)


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
