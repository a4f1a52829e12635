"""Filters, columns and limits reduce what is read and never change the rows: beside the engines' work on all rows."""

import random
from collections.abc import Callable
from functools import partial

import duckdb
import polars as pl
import pyarrow as pa
import pytest
from polars.testing import assert_frame_equal

from tests.examples import scaled
from tests.scanning.predicates import PolarsPredicates, SqlPredicates, times_of
from tests.scanning.worlds import World

VALUE = pa.schema([("n", pa.int64()), ("city", pa.string())])
SEED = 17

PREDICATES = pytest.mark.parametrize("count", [100, pytest.param(500, marks=pytest.mark.long)])


@pytest.fixture(scope="module")
def world(broker, tmp_path_factory):
    """Make rows of three days in an archive, in many small files, and in the log behind it."""
    made, chance = World(broker, tmp_path_factory.mktemp("lake")), random.Random(SEED)
    for days_ago in (2, 0):
        for _ in range(5):
            made.publish(60, chance)
        made.archive(days_ago=days_ago)
    for _ in range(5):
        made.publish(60, chance)
    return made


@pytest.fixture(scope="module")
def scan(world):
    return world.scan(archive=world.to, payload="json", payload_schema=VALUE)


@pytest.fixture(scope="module")
def full(scan, world):
    rows = scan.polars().collect()
    assert rows.height == world.published == 900
    assert rows["published"].dt.date().n_unique() == 3
    return rows


def some_columns(chance, schema):
    return chance.sample(schema.names, chance.randrange(1, 5))


def filtered(predicate, columns, frame):
    return frame.filter(predicate).select(columns)


def first_of_filtered(predicate, columns, count, frame):
    return frame.filter(predicate).filter(pl.col("offset") > 20).head(count).select(columns)


def filtered_of_first(predicate, columns, start, count, frame):
    return frame.slice(start, count).filter(predicate).select(columns)


def last_of_filtered(predicate, frame):
    return frame.filter(predicate).tail(5)


def counted(predicate, frame):
    return frame.filter(predicate).select(pl.len())


def joined_with_itself(predicate, frame):
    return frame.filter(predicate).join(frame, on=["partition", "offset"]).select("key", "key_right")


@pytest.mark.rows("A22")
@PREDICATES
def test_polars_has_the_same_rows_with_pushdown(scan, full, count):
    chance = random.Random(SEED + count)
    drawn = PolarsPredicates(chance, times_of(full), 300)
    lazy, matched = scan.polars(), 0
    for number in range(scaled(count)):
        predicate, columns = drawn.one(), some_columns(chance, scan.schema)
        start, rows = chance.choice((0, chance.randrange(200))), chance.randrange(700)
        shapes: list[Callable[[pl.LazyFrame], pl.LazyFrame]] = [
            partial(filtered, predicate, columns),
            partial(first_of_filtered, predicate, columns, rows),
            partial(filtered_of_first, predicate, columns, start, rows),
            partial(last_of_filtered, predicate),
            partial(counted, predicate),
            partial(joined_with_itself, predicate),
        ]
        shape = chance.choices(shapes, (6, 2, 4, 1, 1, 1))[0]
        expected = shape(full.lazy()).collect()
        got = shape(lazy).collect(engine=chance.choice(("in-memory", "streaming")))
        matched += 0 < expected.height < full.height
        try:
            assert_frame_equal(got, expected, check_row_order=False)
        except AssertionError as fault:
            raise AssertionError(f"{number}: {predicate}") from fault
    assert matched > 0


@pytest.mark.rows("A22")
@PREDICATES
def test_duckdb_has_the_same_rows_with_pushdown(scan, full, count):
    chance = random.Random(SEED + count)
    drawn = SqlPredicates(chance, times_of(full), 300)
    con = duckdb.connect()
    con.execute("SET TimeZone = 'Asia/Tokyo'")
    rows = scan.duckdb(con)
    con.execute("CREATE TABLE whole AS SELECT * FROM rows")
    for number in range(scaled(count)):
        where = drawn.one()
        names = ", ".join(f'"{name}"' for name in some_columns(chance, scan.schema))
        form = chance.choice(
            (
                f"SELECT {names} FROM TABLE_NAME WHERE {where} ORDER BY ALL",
                f"SELECT count(*) FROM TABLE_NAME WHERE {where}",
                f'SELECT "offset" FROM TABLE_NAME WHERE {where} ORDER BY "offset", partition LIMIT 7',
                'SELECT count(*), count(key) FROM TABLE_NAME JOIN (SELECT partition, "offset" FROM TABLE_NAME'
                f' WHERE {where}) USING (partition, "offset")',
                f'SELECT key, count(*) FROM TABLE_NAME WHERE {where} AND "offset" > 20 GROUP BY key ORDER BY ALL',
            )
        )
        expected = con.sql(form.replace("TABLE_NAME", "whole")).fetchall()
        assert con.sql(form.replace("TABLE_NAME", "rows")).fetchall() == expected, f"{number}: {where}"
    assert rows.filter("key = 'ann'").aggregate("count(*)").fetchall() == [(full.filter(key="ann").height,)]
