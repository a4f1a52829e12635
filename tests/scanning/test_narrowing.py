"""What filters of Polars and of Arrow say about what can be skipped; and that what is not understood skips nothing."""

import random
from datetime import UTC, datetime

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from wherry.model import limits
from wherry.model.calls.where import KEYS_MAX, Where
from wherry.scanning import of_arrow, of_polars
from wherry.scanning.narrowing import (
    EVERYTHING,
    NOTHING,
    WHOLE,
    Interval,
    Narrowing,
    both,
    compared,
    either,
    one_of,
)

AT = datetime(2027, 1, 31, 12, tzinfo=UTC)
AT_US = int(AT.timestamp()) * 1_000_000
NS = pa.timestamp("ns", tz="UTC")
col, field = pl.col, pc.field

POLARS = [
    (col("offset") > 5, Narrowing(offset=Interval(low=6))),
    (col("offset") >= 5, Narrowing(offset=Interval(low=5))),
    (pl.lit(5) > col("offset"), Narrowing(offset=Interval(high=4))),
    (col("offset").is_between(2, 4), Narrowing(offset=Interval(2, 4))),
    ((col("offset") > 5) & (col("key") == "a"), Narrowing(offset=Interval(low=6), key=("a",))),
    ((col("offset") < 5) | (col("offset") == 9), Narrowing(offset=Interval(high=9))),
    ((col("offset") < 5) | (col("key") == "a"), EVERYTHING),
    (col("key").is_in(["b", "a"]), Narrowing(key=("a", "b"))),
    (col("key").is_in(["b", None]), Narrowing(key=("b",))),
    (col("key").is_in(["b", None], nulls_equal=True), EVERYTHING),
    (col("published") < AT, Narrowing(published=Interval(high=AT_US - 1))),
    (col("published") >= pl.lit(AT).cast(pl.Datetime("ms", "UTC")), EVERYTHING),
    (~(col("offset") > 5), EVERYTHING),
    (col("offset") > 5.5, EVERYTHING),
    (col("offset").cast(pl.Int8) == 5, EVERYTHING),
    (col("offset") > col("priority"), EVERYTHING),
    (col("key") < "a", EVERYTHING),
    (col("color") == 1, EVERYTHING),
    (col("offset").map_elements(lambda _: True, pl.Boolean), EVERYTHING),
]
ARROW = [
    (field("offset") > 5, Narrowing(offset=Interval(low=6))),
    (pc.scalar(5) > field("offset"), Narrowing(offset=Interval(high=4))),
    ((field("offset") >= 2) & (field("offset") <= 4), Narrowing(offset=Interval(2, 4))),
    ((field("offset") < 5) | (field("key") == "a"), EVERYTHING),
    (field("key").isin(["b", "a"]), Narrowing(key=("a", "b"))),
    (field("key").isin(["b", None]), EVERYTHING),
    (pc.if_else(field("key").is_valid(), field("offset") > 5, pc.scalar(False)), Narrowing(offset=Interval(low=6))),
    (field("published") < pa.scalar(AT), Narrowing(published=Interval(high=AT_US - 1))),
    (field("published") > pa.scalar(AT_US * 1_000 + 1, NS), Narrowing(published=Interval(low=AT_US + 1))),
    (field("published") < pa.scalar(AT_US * 1_000 + 1, NS), Narrowing(published=Interval(high=AT_US))),
    (~(field("offset") > 5), EVERYTHING),
    (field("offset") > 5.5, EVERYTHING),
    (field("value", "offset") > 5, EVERYTHING),
    (field("offset").cast("int8") > 5, EVERYTHING),
    (field("offset") > pa.scalar(None, pa.int64()), EVERYTHING),
]


@pytest.mark.parametrize(("predicate", "expected"), POLARS, ids=str)
def test_predicates_of_polars(predicate, expected):
    assert of_polars.narrowing(predicate) == expected


@pytest.mark.parametrize(("expression", "expected"), ARROW, ids=str)
def test_filters_of_arrow(expression, expected):
    assert of_arrow.narrowing(expression) == expected


def test_the_columns_of_a_filter():
    assert of_arrow.columns((field("key") == "a") & (field("offset") > 1) & (field("key") < "b")) == ["key", "offset"]
    assert of_arrow.columns(field("value", "n") > 5) == [], "not known: all of them"


def test_neither_form_is_guessed_at():
    assert of_polars.narrowing(None) == EVERYTHING  # type: ignore[arg-type]
    assert of_arrow.narrowing(None) == of_arrow.narrowing(5) == EVERYTHING
    assert of_arrow.columns(None) == []


def some(chance):
    narrowings = [
        EVERYTHING,
        NOTHING,
        compared(
            chance.choice(("offset", "priority")), chance.choice(("<", "<=", "==", ">", ">=")), chance.randrange(5)
        ),
        one_of("key", chance.sample(["a", "b", "c"], chance.randrange(3))),
        one_of("partition", chance.sample(range(4), chance.randrange(3))),
    ]
    return chance.choice(narrowings)


def holds(narrowing, row):
    numbers = all(getattr(narrowing, name).meets(row[name], row[name]) for name in ("offset", "priority", "partition"))
    return numbers and (narrowing.key is None or row["key"] in narrowing.key)


def test_both_and_either_hold_all_rows_of_their_parts():
    chance = random.Random(1)
    for _ in range(3_000):
        first, second = some(chance), some(chance)
        if chance.random() < 0.5:
            first = chance.choice((both, either))(first, some(chance))
        numbers = {name: chance.randrange(5) for name in ("offset", "priority", "partition")}
        row = {**numbers, "key": chance.choice(("a", "b", "c", None))}
        assert holds(both(first, second), row) == (holds(first, row) and holds(second, row))
        assert holds(either(first, second), row) >= (holds(first, row) or holds(second, row))
        assert not (both(first, second).is_empty and holds(both(first, second), row))


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
