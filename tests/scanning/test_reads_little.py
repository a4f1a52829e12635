"""A limit, few columns and a filter read little: counted in bytes that the broker sent, and rows of the archive."""

import random
from datetime import timedelta

import duckdb
import polars as pl
import pyarrow as pa
import pytest

import wherry
from tests.scanning.counting import counted
from tests.scanning.worlds import World
from wherry.spark.pipelines.archive.manifest_store import Store

ROWS, SIZE = 80_000, 300
ALL = ROWS * SIZE

col = pl.col


@pytest.fixture(scope="module")
def topic(broker):
    """Publish 24 MB in one partition, 800 messages of each key, and the last 1,000 of them a second later at least."""
    name = broker.create(keep="bytes", keep_bytes=1 << 40)
    keys = [f"user-{n % 100}" for n in range(ROWS)]
    payloads = [n.to_bytes(4, "big") * (SIZE // 4) for n in range(ROWS)]
    for at in range(0, ROWS, 10_000):
        some = slice(at, at + 10_000)
        priority = pa.array([at // 10_000] * 10_000, pa.uint16())
        broker.publish(name, payloads[some], key=pa.array(keys[some]), priority=priority)
    return name


@pytest.fixture
def proxy(broker):
    with counted(broker.url) as counter:
        yield counter


@pytest.fixture
def scan(proxy, topic):
    return wherry.scan(topic, url=proxy.url, local_files=False)


def sent(proxy, query):
    before = proxy.received
    return query(), proxy.since(before)


def test_all_of_it(scan, proxy):
    rows, size = sent(proxy, scan.polars().select("payload").collect)
    assert rows.height == ROWS
    assert size > ALL, "the proxy counts what there is"


def test_a_limit_reads_little(scan, proxy):
    con = duckdb.connect()
    for query in (
        scan.polars().head(10).collect,
        lambda: scan.polars().head(10).collect(engine="streaming"),
        scan.duckdb(con).limit(10).pl,
        lambda: pl.from_arrow(next(scan.arrow())).head(10),
    ):
        rows, size = sent(proxy, query)
        assert rows["payload"].to_list() == [n.to_bytes(4, "big") * (SIZE // 4) for n in range(10)]
        assert size < ALL / 2


def test_a_limit_in_polars_reads_the_first_ticket(scan, proxy):
    _, size = sent(proxy, scan.polars().head(10).collect)
    assert size < ALL / 10


def test_few_columns_read_little(scan, proxy):
    con = duckdb.connect()
    relation = scan.duckdb(con)
    assert relation.columns
    for query in (
        scan.polars().select("key", "offset").collect,
        con.sql('SELECT key, "offset" FROM relation').pl,
        scan.arrow(["key", "offset"]).read_all,
    ):
        rows, size = sent(proxy, query)
        assert len(rows) == ROWS
        assert size < ALL / 5


def test_a_count_reads_nothing(scan, proxy):
    con = duckdb.connect()
    relation = scan.duckdb(con)
    assert relation.columns
    count, size = sent(proxy, scan.polars().select(pl.len()).collect)
    assert count.item() == ROWS
    assert size < 100_000
    count, size = sent(proxy, con.sql("SELECT count(*) FROM relation").fetchall)
    assert count == [(ROWS,)]
    assert size < 100_000


@pytest.mark.parametrize(
    ("predicate", "where", "rows"),
    [
        (col("offset") >= ROWS - 1_000, f'"offset" >= {ROWS - 1_000}', 1_000),
        (col("offset").is_between(500, 599), '"offset" BETWEEN 500 AND 599', 100),
        (col("offset").is_in([5, 99]), '"offset" IN (5, 99)', 2),
        (col("key") == "user-7", "key = 'user-7'", 800),
        (col("key").is_in(["user-7", "user-8"]), "key IN ('user-7', 'user-8')", 1_600),
        (col("priority") < 1, "priority < 1", 10_000),
        ((col("key") == "user-7") & (col("offset") < 1_000), "key = 'user-7' AND \"offset\" < 1000", 10),
        (col("topic").is_null() & (col("offset") < 10), 'topic IS NULL AND "offset" < 10', 0),
        ((col("partition") == 7) | col("partition").is_between(8, 9), "partition >= 7", 0),
        ((col("key") == "user-7") | (col("offset") < 100), "key = 'user-7' OR \"offset\" < 100", 899),
        (
            (col("offset") < 100) | (col("offset") >= ROWS - 100) | (col("key") == "user-7") & (col("priority") == 1),
            f'"offset" < 100 OR "offset" >= {ROWS - 100} OR key = \'user-7\' AND priority = 1',
            300,
        ),
    ],
)
def test_a_filter_reads_little(scan, proxy, predicate, where, rows):
    con = duckdb.connect()
    relation = scan.duckdb(con)
    assert relation.columns
    for query in (scan.polars().filter(predicate).collect, con.sql(f"FROM relation WHERE {where}").pl):
        found, size = sent(proxy, query)
        assert found.height == rows
        assert size < max(100_000, 2 * rows * SIZE), "not much more than the rows that match"


def test_a_time_reads_little(scan, proxy):
    published = scan.polars().select("published").collect()["published"]
    last = published.max()
    frame, size = sent(proxy, scan.polars().filter(col("published") >= last).collect)
    assert frame.height == (published == last).sum()
    assert size < max(100_000, 2 * frame.height * SIZE)
    _, size = sent(proxy, scan.polars().filter(col("published") > last + timedelta(seconds=1)).collect)
    assert size < 100_000


def test_an_archive_is_read_in_part(broker, tmp_path):
    world, chance = World(broker, tmp_path, partitions=2), random.Random(1)
    for _ in range(6):
        world.publish(200, chance)
        world.archive(days_ago=world.published // 200)
    scan = world.scan(archive=world.to)
    opened = list[str]()
    original = Store.open

    def noted(here, path):
        opened.append(path)
        return original(here, path)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Store, "open", noted)
        whole = scan.polars().collect()
        assert len(opened) >= 20
        for predicate, most in (
            ((col("partition") == 1) & (col("offset") < 50), 4),
            (col("published") < min(whole["published"].to_list()) + timedelta(hours=1), 4),
            (col("offset") > 10_000, 0),
        ):
            opened.clear()
            rows = scan.polars().filter(predicate).collect()
            assert rows.height == whole.filter(predicate).height
            assert len(opened) <= most
