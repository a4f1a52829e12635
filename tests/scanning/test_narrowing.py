"""What filters of Polars and of Arrow say about what can be skipped; and that what is not understood skips nothing."""

import random
from datetime import UTC, datetime
from itertools import pairwise

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from wherry.model.calls.narrowing import (
    EVERYTHING,
    NOTHING,
    Interval,
    Narrowing,
    compared,
    one_of,
)
from wherry.scanning import of_arrow, of_polars
from wherry.scanning.alternatives import ANYTHING, MOST, Alternatives, Piece, all_hold, one_holds, pieces

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
    ((col("offset") < 5) | (col("offset") == 9), (compared("offset", "<", 5), compared("offset", "==", 9))),
    ((col("offset") < 5) | (col("key") == "a"), (compared("offset", "<", 5), one_of("key", ["a"]))),
    ((col("key") == "b") | (col("key") == "a"), one_of("key", ["a", "b"])),
    ((col("key") == "b") | (col("key") < "a"), EVERYTHING),
    (
        (col("key") == "b") & ((col("offset") < 5) | (col("priority") == 1)),
        (compared("offset", "<", 5)._replace(key=("b",)), compared("priority", "==", 1)._replace(key=("b",))),
    ),
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
    ((field("offset") < 5) | (field("key") == "a"), (compared("offset", "<", 5), one_of("key", ["a"]))),
    ((field("offset") < 5) | (field("payload") == b"a"), EVERYTHING),
    (
        ((field("offset") > 5) & (field("key") == "a")) & ((field("priority") == 1) & (field("offset") < 9)),
        Narrowing(offset=Interval(6, 8), priority=Interval(1, 1), key=("a",)),
    ),
    (pc.scalar(False), ()),
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


def alternatives(expected):
    return (expected,) if isinstance(expected, Narrowing) else expected


@pytest.mark.parametrize(("predicate", "expected"), POLARS, ids=str)
def test_predicates_of_polars(predicate, expected):
    assert of_polars.narrowing(predicate) == alternatives(expected)


@pytest.mark.parametrize(("expression", "expected"), ARROW, ids=str)
def test_filters_of_arrow(expression, expected):
    assert of_arrow.narrowing(expression) == alternatives(expected)


def test_the_columns_of_a_filter():
    assert of_arrow.columns((field("key") == "a") & (field("offset") > 1) & (field("key") < "b")) == ["key", "offset"]
    assert of_arrow.columns(field("value", "n") > 5) == [], "not known: all of them"


def test_neither_form_is_guessed_at():
    assert of_polars.narrowing(None) == ANYTHING  # type: ignore[arg-type]
    assert of_arrow.narrowing(None) == of_arrow.narrowing(5) == ANYTHING
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


def random_alternatives(chance, depth):
    if not depth or chance.random() < 0.3:
        return (some(chance),)
    joined = chance.choice((all_hold, one_holds))
    return joined(random_alternatives(chance, depth - 1), random_alternatives(chance, depth - 1))


def test_joined_alternatives_hold_all_rows_of_their_parts():
    chance = random.Random(2)
    for _ in range(1_000):
        first, second = random_alternatives(chance, 4), random_alternatives(chance, 2)
        numbers = {name: chance.randrange(5) for name in ("offset", "priority", "partition")}
        row = {**numbers, "key": chance.choice(("a", "b", "c", None))}
        one, other = (any(holds(each, row) for each in given) for given in (first, second))
        assert any(holds(each, row) for each in all_hold(first, second)) >= (one and other)
        assert any(holds(each, row) for each in one_holds(first, second)) >= (one or other)
        assert max(len(all_hold(first, second)), len(one_holds(first, second))) <= MOST


def test_pieces_hold_each_offset_once_and_all_that_match():
    chance = random.Random(3)
    cut = 0
    for _ in range(1_000):
        wanted, start, stop = random_alternatives(chance, 4), chance.randrange(3), chance.randrange(3, 6)
        found = pieces(1, start, stop, wanted)
        cut += len(found) > 1
        assert all(piece.start < piece.stop for piece in found)
        assert all(before.stop <= after.start for before, after in pairwise(found))
        for offset in range(6):
            row = {"offset": offset, "partition": 1, "priority": chance.randrange(5), "key": chance.choice(("a", None))}
            matches = start <= offset < stop and any(holds(each, row) for each in wanted)
            here = [piece for piece in found if piece.start <= offset < piece.stop]
            assert len(here) <= 1
            assert matches <= any(holds(piece.wanted, row) for piece in here)
    assert cut > 5, "some have several"


def test_pieces_of_an_or_over_several_columns():
    wanted = one_holds((compared("offset", "<", 5),), (one_of("key", ["a"]),))
    assert pieces(0, 0, 100, wanted) == [Piece(0, 5, EVERYTHING), Piece(5, 100, one_of("key", ["a"]))]
    there = [all_hold((compared("partition", "==", n),), (compared("offset", ">=", 10 * n + 10),)) for n in range(3)]
    wanted = one_holds(one_holds(there[0], there[1]), there[2])
    assert [pieces(n, 0, 40, wanted) for n in (1, 3)] == [[Piece(20, 40, EVERYTHING)], []]
    implied = one_holds(one_holds(*((compared("offset", ">=", 10 * n + 10),) for n in (0, 1))), (EVERYTHING,))
    assert implied == ANYTHING
    assert set(all_hold(wanted, implied)) == set(wanted), "what is inside another is left out"
    many: Alternatives = ()
    for n in range(MOST + 1):
        many = one_holds(many, (compared("offset", "==", 2 * n),))
    assert pieces(0, 0, 100, many) == [Piece(0, 2 * MOST + 1, EVERYTHING)], "too many: their hull"
