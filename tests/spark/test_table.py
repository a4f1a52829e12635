"""`wherry.spark.table`: a condition makes the broker send less, and never changes the rows that a query returns.

The last test shows the fault of Spark for which the data source itself takes no filters.
"""

from functools import reduce

import pyarrow as pa
import pytest
from pyspark.sql import functions
from pyspark.sql.datasource import DataSource, DataSourceReader, GreaterThanOrEqual
from pyspark.sql.types import StructType

from tests.spark.predicates import ZONES, Predicates
from wherry.model.errors import InvalidInput
from wherry.spark import table
from wherry.spark.columns.schema import MESSAGES
from wherry.spark.options.parsing import parse
from wherry.spark.read.batch import BatchReader
from wherry.spark.read.conditions import condition_of
from wherry.spark.read.narrowing import narrowed, options_of

KEYS, ROWS = 9, 240
PLACE = StructType([MESSAGES["partition"], MESSAGES["offset"]])


@pytest.fixture(scope="module")
def mixed(broker):
    """Fill three partitions with all sorts of rows, published in several batches: without a key, without a due time."""
    topic = broker.create(partitions=3, name="t", order="priority", keep="age", keep_ms=3_600_000)
    keys = [None if n % 11 == 0 else f"k{n % KEYS}" for n in range(ROWS)]
    headers = [[] if n % 7 == 0 else [("kind", "odd" if n % 2 else "even")] for n in range(ROWS)]
    for at in range(0, ROWS, 20):
        some = slice(at, at + 20)
        broker.publish(
            topic,
            [str(n).encode() for n in range(ROWS)[some]],
            key=pa.array(keys[some], pa.string()),
            priority=[n % 100 for n in range(ROWS)[some]],
            headers=pa.array(headers[some], pa.map_(pa.string(), pa.string())),
        )
    return topic


def predicates(broker, topic, count, seed):
    rows = broker.rows(topic)
    made = Predicates(seed, [row["published"] for row in rows], KEYS, max(row["offset"] for row in rows))
    return [made.next() for _ in range(count)]


@pytest.fixture
def zones(spark):
    """Set the time zone of the session; it is the one from before after the test."""
    before = spark.conf.get("spark.sql.session.timeZone")
    yield lambda zone: spark.conf.set("spark.sql.session.timeZone", zone)
    spark.conf.set("spark.sql.session.timeZone", before)


def sent(broker, topic, options):
    """Return the places of the messages that a load with these options reads."""
    reader = BatchReader(parse({"url": broker.url, "topic": topic, **options}), PLACE)
    found = [row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]
    return {(row["partition"], row["offset"]) for row in found}


@pytest.mark.rows("A22")
@pytest.mark.parametrize(("count", "seed"), [(200, 1), pytest.param(5_000, 2, marks=pytest.mark.long)])
def test_the_broker_leaves_out_no_message_that_matches(spark, broker, queries, mixed, zones, count, seed):
    """Compare what is read for each condition with the rows for which Spark itself finds the condition true."""
    made, whole = predicates(broker, mixed, count, seed), queries.load(mixed)
    kept = spark.createDataFrame(whole.toArrow(), whole.schema)  # Spark then evaluates without a job for each query
    narrow = left_out = 0
    for at in range(0, count, 25):
        zones(ZONES[at // 25 % len(ZONES)])
        some = made[at : at + 25]
        truth = kept.select(
            "partition", "offset", *[functions.expr(each).alias(f"c{n}") for n, each in enumerate(some)]
        )
        rows = truth.collect()
        for n, each in enumerate(some):
            condition = condition_of(whole.where(each))
            options = {} if condition is None else options_of(narrowed(condition))
            read = sent(broker, mixed, options) if options else {(row["partition"], row["offset"]) for row in rows}
            missing = {(row["partition"], row["offset"]) for row in rows if row[f"c{n}"]} - read
            assert not missing, f"{each}\n{options}\n{sorted(missing)[:5]}"
            narrow, left_out = narrow + bool(options), left_out + ROWS - len(read)
    assert narrow > count / 8 and left_out > narrow * ROWS / 5, f"{narrow} narrowed, {left_out} rows left out"


@pytest.mark.parametrize(("count", "seed"), [(2, 3), pytest.param(60, 4, marks=pytest.mark.long)])
def test_a_table_that_is_used_several_times_has_its_rows_each_time(spark, broker, mixed, queries, count, seed):
    """Use one DataFrame filtered further, whole, joined with itself, cached, and in a view."""
    made, whole = predicates(broker, mixed, count, seed), queries.load(mixed).cache()
    for at in range(0, count, 4):
        some = made[at : at + 4]
        tables = [table(spark, mixed, where=each, url=broker.url) for each in some]
        tables[0].filter("offset < 3").collect()
        tables[0].cache()
        tables[1].createOrReplaceTempView("narrow")
        assert (
            spark.sql("SELECT * FROM narrow WHERE offset < 3").count()
            == whole.where(some[1]).where("offset < 3").count()
        )
        assert spark.sql("SELECT * FROM narrow").count() == whole.where(some[1]).count()
        joined = [rows.alias("a").join(rows.alias("b"), ["partition", "offset"]) for rows in tables]
        parts = [*tables, *joined, *[rows.filter("offset >= 3").union(rows.filter("offset < 3")) for rows in tables]]
        found = labelled(parts)
        wanted = labelled([whole.where(each) for each in some])
        for n, each in enumerate(some):
            for kind in range(3):
                assert found.get(n + kind * len(some), []) == wanted.get(n, []), (kind, each)
        tables[0].unpersist()


def labelled(frames):
    """Return the places of the rows of each DataFrame, by its number, from one job."""
    chosen = [rows.select(functions.lit(n).alias("n"), "partition", "offset") for n, rows in enumerate(frames)]
    found: dict[int, list[tuple[int, int]]] = {}
    for n, *place in reduce(lambda one, other: one.union(other), chosen).collect():
        found.setdefault(n, []).append(tuple(place))
    return {n: sorted(places) for n, places in found.items()}


@pytest.mark.parametrize(
    ("where", "options"),
    [
        ("offset >= 5 AND 9L > offset", {"offsetMin": "5", "offsetMax": "8"}),
        ("partition = 1 OR partition = 2", {"partitionMin": "1", "partitionMax": "2"}),
        ("key IN ('b', 'a', NULL)", {"keys": '["a","b"]'}),
        ("NOT (priority > 7) AND length(payload) > 3", {"priorityMax": "7"}),
        ("offset < '7'", {"offsetMax": "6"}),
        ("published < TIMESTAMP'1970-01-01 02:00:01 Europe/Berlin'", {"publishedTo": "3601000"}),
        ("published >= TIMESTAMP_MICROS(1500)", {"publishedFrom": "1", "startingTime": "1"}),
        ("offset > 5 AND offset < 2", {"offsetMin": "6", "offsetMax": "1"}),
        ("key IN ('a', 'b') AND key IN ('c', 'd')", {"offsetMin": "1", "offsetMax": "0"}),
        ("published < now()", {}),
        ("offset < (SELECT 5)", {}),
        ("key = 'a' OR priority = 3", {}),
        ("headers['kind'] = 'odd'", {}),
        ("upper(key) = 'A'", {}),
        ("offset % 5 = 0", {}),
        ("offset IN (" + ", ".join(map(str, range(5_000))) + ")", {}),
    ],
)
def test_what_a_condition_leaves_to_the_broker(queries, mixed, where, options):
    condition = condition_of(queries.load(mixed).where(where))
    assert ({} if condition is None else options_of(narrowed(condition))) == options


def test_columns_are_read_only_if_they_are_needed(spark, broker, mixed):
    rows = table(spark, mixed, where="key = 'k1' AND length(payload) = 2", columns=["offset", "key"], url=broker.url)
    assert rows.columns == ["offset", "key"]
    assert "expires" not in rows._jdf.queryExecution().optimizedPlan().toString()
    assert {row["key"] for row in rows.collect()} == {"k1"}
    assert table(spark, mixed, columns=["priority"], url=broker.url).columns == ["priority"]
    decoded = table(
        spark, mixed, where="error IS NULL", columns=["error"], payload="json", payloadSchema="INT", url=broker.url
    )
    assert decoded.count() == ROWS
    for columns in (["kez"], []):
        with pytest.raises(InvalidInput, match="columns: got"):
            table(spark, mixed, columns=columns, url=broker.url)


def test_options_that_were_given_stay_as_they_are(spark, broker, mixed):
    rows = table(spark, mixed, where="offset >= 2 AND published > TIMESTAMP'2020-01-01'", url=broker.url, offsetMin=5)
    assert rows.agg({"offset": "min"}).collect()[0][0] == 5
    start = f'{{"{mixed}": {{"0": 7}}}}'
    since = table(spark, mixed, where="published > TIMESTAMP'2020-01-01'", url=broker.url, startingOffsets=start)
    assert since.where("partition = 0").agg({"offset": "min"}).collect()[0][0] == 7
    recent = table(spark, mixed, where="published > TIMESTAMP'2020-01-01'", url=broker.url, startingTimestamp="0")
    assert recent.count() == ROWS, "an option of Kafka's counts as the one that it stands for"
    assert table(spark, mixed, where="reason = 'x'", table="dead", url=broker.url).count() == 0


class PushingReader(DataSourceReader):
    """Reads the numbers below ten, from the largest lower bound that Spark has pushed."""

    def __init__(self):
        self.low = 0

    def pushFilters(self, filters):  # noqa: N802 - the name that Spark calls
        for each in filters:
            self.low = max(self.low, each.value) if isinstance(each, GreaterThanOrEqual) else self.low
            yield each  # not handled: Spark is to evaluate it again

    def read(self, partition):
        return ((n,) for n in range(self.low, 10))


class PushingSource(DataSource):
    @classmethod
    def name(cls):
        return "pushing"

    def schema(self):
        return "n INT"

    def reader(self, schema):
        return PushingReader()


def test_spark_still_keeps_pushed_filters_beyond_their_query(spark):
    """Show the fault of Spark that docs/adr/0038 names. Once this fails, the data source may take filters."""
    setting = "spark.sql.python.filterPushdown.enabled"
    spark.conf.set(setting, "true")
    try:
        spark.dataSource.register(PushingSource)
        rows = spark.read.format("pushing").load()
        both = rows.filter("n >= 2").union(rows.filter("n >= 8"))
        assert both.count() == 4, "it is 10 without the fault: a filter leaks into the other scan of one query"
        assert rows.count() == 2, "it is 10 without the fault: a filter leaks into the next query"
    finally:
        spark.conf.set(setting, "false")
