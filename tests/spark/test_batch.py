"""Batch reads on a real Spark and a real broker."""

import json
import time

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException

from wherry.model.errors import HistoryLost
from wherry.spark.columns.schema import MESSAGES
from wherry.spark.options.parsing import parse
from wherry.spark.read.batch import BatchReader

KEPT = {"keep": "age", "keep_ms": 3_600_000}


@pytest.fixture(scope="module")
def orders(broker):
    """Fill two partitions; every tenth message is not JSON."""
    topic = broker.create(partitions=2, name="orders", **KEPT)
    rows = [json.dumps({"n": n, "name": f"é{n}"}).encode() if n % 10 else b"{broken" for n in range(1_000)]
    headers = [[("kind", "odd" if n % 2 else "even")] for n in range(1_000)]
    keys, priority = [f"k{n % 5}" for n in range(1_000)], [n % 100 for n in range(1_000)]
    for at in range(0, 1_000, 100):
        some = slice(at, at + 100)
        broker.publish(topic, rows[some], key=keys[some], priority=priority[some], headers=with_headers(headers[some]))
    return topic


def with_headers(rows):
    return pa.array(rows, pa.map_(pa.string(), pa.string()))


@pytest.mark.rows("A22", "D25")
def test_all_of_a_topic_in_several_tasks(queries, broker, orders):
    rows = queries.load(orders, rowsPerTask=150)
    assert rows.rdd.getNumPartitions() >= 6
    found = {(row["partition"], row["offset"]): row for row in rows.collect()}
    assert len(found) == 1_000
    for stored in broker.rows(orders)[::97]:
        row = found[stored["partition"], stored["offset"]]
        assert (row["topic"], row["key"], row["priority"]) == (orders, stored["key"], stored["priority"])
        assert (bytes(row["payload"]), row["headers"]) == (stored["payload"], dict(stored["headers"]))
        assert row["published"].timestamp() == pytest.approx(stored["published"].timestamp())
        assert row["due"] is row["expires"] is row["id"] is None


@pytest.mark.rows("A14")
def test_filters_and_columns_are_the_brokers_work(queries, orders):
    def count(**options):
        return queries.load(orders, columns="offset long, key string", **options).count()

    assert count(keys="k1,k2") == 400
    assert count(headers='{"kind": "odd"}') == 500
    assert count(priorityMin=10, priorityMax=19) == 100
    assert count(keys="k1", headers='{"kind": "odd"}', priorityMax=49) == 50
    columns = "payload binary, topic string, partition int"
    assert queries.load(orders, columns=columns).columns == ["payload", "topic", "partition"]


@pytest.mark.rows("A14")
def test_ranges_by_offset_and_by_time(queries, broker):
    topic = broker.create(**KEPT)
    broker.publish(topic, [b"old"] * 10)
    time.sleep(0.02)
    moment = int(time.time() * 1_000)
    time.sleep(0.02)
    broker.publish(topic, [b"new"] * 7)

    def count(**options):
        return queries.load(topic, columns="offset long", **options).count()

    assert count(startingOffsets=json.dumps({topic: {"0": 4}}), endingOffsets=json.dumps({topic: {"0": 12}})) == 8
    assert (count(startingTime=moment), count(endingTime=moment), count(startingTime="10 minutes ago")) == (7, 10, 17)
    assert count(startingOffsets="latest") == 0


def test_partitions_and_topics_that_offsets_do_not_name_are_read_whole(queries, broker):
    first, second = broker.create(partitions=2, **KEPT), broker.create(**KEPT)
    for topic, partition in ((first, 0), (first, 1), (second, 0)):
        batch = pa.record_batch({"payload": pa.array([b"x"] * 10, pa.binary())})
        broker.link.put({"topic": topic, "partition": partition}, batch.schema, iter([batch]))

    def counts(**options):
        rows = queries.load(f"{first},{second}", columns="topic string, partition int", **options)
        return {
            (row["topic"], row["partition"]): row["count"]
            for row in rows.groupBy("topic", "partition").count().collect()
        }

    assert counts(endingOffsets=json.dumps({first: {"0": 3}})) == {(first, 0): 3, (first, 1): 10, (second, 0): 10}
    assert counts(startingOffsets=json.dumps({first: {"0": 3}})) == {(first, 0): 7, (first, 1): 10, (second, 0): 10}


def test_what_is_loaded_stays_what_it_was_and_filters_do_not_stick(queries, broker):
    topic = broker.create(**KEPT)
    broker.publish(topic, [b"x"] * 100)
    rows = queries.load(topic)
    assert rows.count() == 100
    broker.publish(topic, [b"x"] * 10)
    assert rows.filter("offset < 10").count() == 10
    assert rows.count() == 100
    assert queries.load(topic).count() == 110


def test_several_topics_and_patterns(queries, broker):
    first = broker.create(name="several")
    second = f"{first}-b"
    broker.link.action("create-topic", {"name": second})
    broker.publish(first, [b"1"] * 3)
    broker.publish(second, [b"2"] * 4)
    columns = "topic string"
    for given in (f"{first},{second}", f"{first}*"):
        found = queries.load(given, columns=columns).groupBy("topic").count().collect()
        assert {row["topic"]: row["count"] for row in found} == {first: 3, second: 4}


def test_rows_that_do_not_decode_keep_their_bytes_and_their_error(queries, orders):
    rows = queries.load(orders, payload="json", payloadSchema="n INT, name STRING").cache()
    assert rows.count() == 1_000
    bad = rows.filter("error IS NOT NULL").collect()
    assert len(bad) == 100
    assert {(bytes(row["payload"]), row["value"]) for row in bad} == {(b"{broken", None)}
    assert "malformed" in bad[0]["error"]
    total = rows.selectExpr("sum(value.n)").collect()[0][0]
    assert total == sum(n for n in range(1_000) if n % 10)
    rows.unpersist()


def test_the_type_of_a_value_may_be_in_the_schema(queries, orders):
    rows = queries.load(orders, columns="value struct<n:bigint>, error string", payload="json", rowsPerTask=1_000)
    assert rows.filter("error IS NULL").selectExpr("max(value.n)").collect()[0][0] == 999
    texts = queries.load(orders, columns="value string", payload="text")
    assert texts.filter("value = '{broken'").count() == 100


def test_a_view_in_sql(queries, broker, orders):
    queries.spark.sql(
        f"CREATE OR REPLACE TEMPORARY VIEW orders USING wherry OPTIONS (url '{broker.url}', topic '{orders}')"
    )
    assert queries.spark.sql("SELECT count(DISTINCT key) FROM orders WHERE priority < 50").collect()[0][0] == 5
    queries.spark.catalog.dropTempView("orders")


def test_a_table_in_sql_is_made_read_and_written(queries, broker):
    topic, sql = broker.create(name="it's", **KEPT), queries.spark.sql
    broker.publish(topic, [b'{"n": 1}', b'{"n": 2}'], key=["a", "b"])
    options = f"url '{broker.url}', topic \"{topic}\""
    sql(f"CREATE TABLE plain USING wherry OPTIONS ({options}) COMMENT 'orders of the shop'")
    sql(f"CREATE TABLE decoded USING wherry OPTIONS ({options}, payload 'json', payloadSchema 'n INT')")
    sql(f"CREATE TABLE narrow (key STRING, payload BINARY) USING wherry OPTIONS ({options})")
    try:
        assert sql("SELECT key FROM plain ORDER BY offset").collect() == [("a",), ("b",)]
        assert sql("SELECT sum(value.n) FROM decoded").collect() == [(3,)]
        wanted = f"WITH (url = '{broker.url}', topic = \"{topic}\")"
        assert sql(f"SELECT count(*) FROM narrow {wanted}").collect() == [(2,)]
        with pytest.raises(PySparkException, match="Spark does not hand on the options of a table"):
            sql("SELECT * FROM narrow").collect()
        sql("INSERT INTO plain (key, payload) VALUES ('c', cast('{}' AS BINARY))")
        assert [row["key"] for row in broker.rows(topic)] == ["a", "b", "c"]
    finally:
        for name in ("plain", "decoded", "narrow"):
            sql(f"DROP TABLE IF EXISTS {name}")


def test_offsets_that_are_gone_are_reported_unless_asked_not_to(queries, broker):
    topic = broker.create()
    broker.publish(topic, [b"x"] * 10)
    broker.link.action("subscribe", {"topic": topic, "name": "s"})
    broker.link.action("advance", {"topic": topic, "subscription": "s", "offsets": {"0": 4}})
    gone = json.dumps({topic: {"0": 2}})
    with pytest.raises(PySparkException, match="offset 2 is gone"):
        queries.load(topic, startingOffsets=gone).count()
    assert queries.load(topic, startingOffsets=gone, failOnDataLoss="false").count() == 6
    assert queries.load(topic, startingOffsets=json.dumps({topic: {"0": 4}})).count() == 6
    assert queries.load(topic, endingOffsets=json.dumps({topic: {"0": 7}})).count() == 3, "earliest is what there is"
    assert queries.load(topic, startingTime="1 hour ago").count() == 6


@pytest.mark.parametrize("keep", ["settled", "age"])
def test_messages_that_are_removed_between_planning_and_reading(broker, keep):
    """Remove messages meanwhile: a stream has lost them, a queue has dropped settled ones, as queues do."""
    topic = broker.create(**(KEPT if keep == "age" else {}))
    broker.publish(topic, [b"x"] * 10)
    broker.link.action("subscribe", {"topic": topic, "name": "s"})
    reader = BatchReader(parse({"topic": topic, "url": broker.url}), MESSAGES)
    (part,) = reader.partitions()
    broker.link.action("advance", {"topic": topic, "subscription": "s", "offsets": {"0": 10}})
    if keep == "settled":
        assert list(reader.read(part)) == []
        return
    broker.link.action("create-topic", {"name": topic, "keep_ms": 0})
    until = time.monotonic() + 60
    while broker.link.action("extents", {"topic": topic})["start"]["0"] < 10:
        assert time.monotonic() < until
        time.sleep(0.05)
    with pytest.raises(HistoryLost):
        list(reader.read(part))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"topik": "x"}, "option topik: got 'x'"),
        ({"topic": "nowhere"}, "no topic named 'nowhere'"),
        ({"topic": "x", "startingTime": "yesterday"}, "startingTime: got 'yesterday'"),
        ({"topic": "x", "url": "grpc://127.0.0.1:1", "retrySeconds": "0"}, "Unavailable"),
        ({"topic": "x", "endingOffsets": '{"y": {"0": 1}}'}, "endingOffsets: got 'y'; allowed: topics of the load: x"),
        ({"topic": "x", "subscription": "s"}, "option subscription: got 'read'"),
        ({"table": "dead", "keys": "k"}, "option keys: got 'read'"),
    ],
)
def test_a_wrong_option_is_refused(spark, broker, options, message):
    with pytest.raises(PySparkException, match=message):
        spark.read.format("wherry").options(**{"url": broker.url, **options}).load().count()
