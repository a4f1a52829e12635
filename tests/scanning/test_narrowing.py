"""What filters of Polars and of Arrow say about what can be skipped; and that what is not understood skips nothing."""

from datetime import UTC, datetime

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from wherry.model.calls.narrowing import EVERYTHING, Interval, Narrowing
from wherry.scanning import of_arrow, of_polars

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
