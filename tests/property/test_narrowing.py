"""A narrowing has every row that its filter selects: in itself, as conditions of the broker, as options of Spark."""

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import scaled
from wherry.model import limits
from wherry.model.calls.narrowing import (
    EVERYTHING,
    NUMBERS,
    WHOLE,
    Interval,
    Narrowing,
    both,
    compared,
    either,
    one_of,
)
from wherry.model.calls.where import KEYS_MAX, Where
from wherry.spark.options.parsing import parse
from wherry.spark.read.narrowing import options_of

KEYS = ("a", "b", "c")
SIGNS = {
    "==": lambda one, other: one == other,
    "<": lambda one, other: one < other,
    "<=": lambda one, other: one <= other,
    ">": lambda one, other: one > other,
    ">=": lambda one, other: one >= other,
}
numbers = st.integers(0, 5)
times = st.integers(0, 4_000)
"""In microseconds, where the broker compares milliseconds."""

rows = st.fixed_dictionaries(
    {
        "offset": numbers,
        "partition": numbers,
        "priority": numbers,
        "published": times,
        "key": st.none() | st.sampled_from(KEYS),
    }
)


@st.composite
def parts(draw):
    """Return a comparison as a test of a row, and what it narrows to."""
    column = draw(st.sampled_from((*NUMBERS, "key", "payload")))
    if column == "payload":
        return (lambda _: True), EVERYTHING
    if column == "key":
        listed = draw(st.lists(st.sampled_from(KEYS), max_size=3))
        return (lambda row: row["key"] in listed), one_of("key", listed)
    values = st.integers(-1, 4_001) if column == "published" else st.integers(-1, 6)
    if draw(st.booleans()):
        members = draw(st.lists(values, max_size=3))
        return (lambda row: row[column] in members), one_of(column, members)
    sign, value = draw(st.sampled_from(tuple(SIGNS))), draw(values)
    return (lambda row: SIGNS[sign](row[column], value)), compared(column, sign, value)


def joined(children):
    return st.tuples(st.booleans(), children, children).map(_join)


def _join(drawn):
    is_both, (left, one), (right, other) = drawn
    if is_both:
        return (lambda row: left(row) and right(row)), both(one, other)
    return (lambda row: left(row) or right(row)), either(one, other)


def holds(narrowing, row):
    inside = all(getattr(narrowing, name).meets(row[name], row[name]) for name in NUMBERS)
    return inside and (narrowing.key is None or row["key"] in narrowing.key)


def passes(where, row):
    """Return whether the broker sends the row."""
    columns = {name: pa.array([row[name]]) for name in ("priority", "published")} | {
        "key": pa.array([row["key"]], pa.string())
    }
    mask = where.mask(pa.record_batch(columns))
    return mask is None or mask.to_pylist() == [True]


@settings(max_examples=scaled(300))
@given(st.recursive(parts(), joined, max_leaves=6), st.lists(rows, min_size=1, max_size=8))
def test_a_row_that_a_filter_selects_is_read(drawn, some):
    selects, narrowing = drawn
    options = parse({"topic": "t", **options_of(narrowing)})
    for row in some:
        if not selects(row):
            continue
        assert holds(narrowing, row) and not narrowing.is_empty
        assert passes(narrowing.where(), row)
        assert passes(options.where, row)
        assert options.start.time_ms is None or options.start.time_ms <= row["published"] // 1_000
        assert options.offsets.meets(row["offset"], row["offset"])
        assert options.partitions.meets(row["partition"], row["partition"])


@given(st.recursive(parts(), joined, max_leaves=4), st.recursive(parts(), joined, max_leaves=4), rows)
def test_both_is_exact_and_either_holds_the_two(first, second, row):
    one, other = first[1], second[1]
    assert holds(both(one, other), row) == (holds(one, row) and holds(other, row))
    assert holds(either(one, other), row) >= (holds(one, row) or holds(other, row))
    assert not (both(one, other).is_empty and holds(both(one, other), row))


@given(st.integers(-9, 9), st.integers(0, 20), st.integers(-9, 9), st.integers(0, 20))
def test_the_part_of_a_range_within_an_interval(low, more, start, count):
    interval, stop = Interval(low, low + more - 1), start + count
    first, behind = interval.clip(start, stop)
    assert list(range(first, behind)) == [n for n in range(start, stop) if interval.meets(n, n)]


def test_conditions_for_the_broker():
    assert EVERYTHING.where() == Where()
    found = Narrowing(priority=Interval(3, 7), published=Interval(1_500, 2_999), key=("a",)).where()
    assert found == Where(keys=["a"], from_ms=1, to_ms=3, priority_min=3, priority_max=7)
    assert Narrowing(published=Interval(2_000, 3_000)).where() == Where(from_ms=2, to_ms=4)
    wide = Narrowing(priority=Interval(-1, limits.PRIORITY_MAX), published=Interval(-5, limits.TIME_MS_MAX * 2_000))
    assert wide.where() == Where()
    many = one_of("key", [str(n) for n in range(KEYS_MAX + 1)])
    assert many.where().keys is None, "more keys than the broker takes: it sends all"
    assert one_of("key", [str(n) for n in range(KEYS_MAX)]).where().checked().keys is not None


def test_values_that_cannot_skip():
    assert compared("offset", "==", True) == compared("offset", "!=", 3) == compared("payload", "==", 3) == EVERYTHING
    assert compared("offset", "==", "3") == compared("key", "==", 3) == one_of("offset", [1, 2.5]) == EVERYTHING
    assert one_of("offset", []).is_empty
    assert one_of("color", []) == EVERYTHING
    assert Narrowing(offset=Interval(3, 2)).is_empty
    assert WHOLE.meets(-5, 5)
