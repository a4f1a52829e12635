"""Streaming reads on a real Spark and a real broker."""

import time

import pytest
from pyspark.errors import StreamingQueryException

from tests.spark import faulty
from wherry.spark.sessions.session import ADDED_BY_STREAMS, steady


def texts(first, count):
    return [f"m{n}".encode() for n in range(first, first + count)]


@pytest.mark.rows("A20")
def test_a_query_is_a_subscription_and_its_lag_is_true(queries, broker):
    here, there = broker.create(partitions=2), broker.create()
    broker.publish(here, texts(0, 300))
    rows = queries.follow(here, columns="payload binary", subscription="etl", maxRowsPerBatch=100)
    queries.run(rows, there)
    assert sorted(broker.payloads(there)) == sorted(texts(0, 300))
    assert broker.subscriptions(here)["etl"]["lag"] == 0
    broker.publish(here, texts(300, 50))
    time.sleep(0.1)
    waiting = broker.subscriptions(here)["etl"]
    assert waiting["lag"] == 50
    assert waiting["lag_ms"] >= 100
    queries.run(rows, there)
    assert sorted(broker.payloads(there)) == sorted(texts(0, 350))
    assert broker.subscriptions(here)["etl"]["lag"] == 0


def test_a_query_without_a_name_has_one_that_its_checkpoint_keeps(queries, broker):
    here, there = broker.create(), broker.create()
    rows = queries.follow(here, columns="payload binary")
    for first in (0, 10, 20):
        broker.publish(here, texts(first, 10))
        queries.run(rows, there)
    assert sorted(broker.payloads(there)) == sorted(texts(0, 30))
    (name,) = broker.subscriptions(here)
    assert name.startswith("spark-")


def test_without_a_subscription_the_broker_gets_no_report(queries, broker):
    here, there = broker.create(), broker.create()
    broker.publish(here, texts(0, 10))
    queries.run(queries.follow(here, columns="payload binary", subscription=""), there)
    assert len(broker.payloads(there)) == 10
    assert broker.subscriptions(here) == {}


def test_a_query_that_begins_at_the_end_sees_what_comes_while_it_runs(queries, broker):
    here, there = broker.create(keep="age", keep_ms=3_600_000), broker.create()
    broker.publish(here, texts(0, 5))
    rows = queries.follow(here, columns="payload binary", startingOffsets="latest")
    query = queries.start(rows, there, format="faulty", now=False)
    wait_for(lambda: query.lastProgress is not None)
    broker.publish(here, texts(5, 5))
    wait_for(lambda: len(broker.payloads(there)) == 5)
    query.stop()
    assert sorted(broker.payloads(there)) == texts(5, 5)


def test_a_first_batch_that_failed_is_read_again_from_the_same_place(queries, broker):
    here, there = broker.create(keep="age", keep_ms=3_600_000), broker.create()
    broker.publish(here, texts(0, 5))
    rows = queries.follow(here, columns="payload binary", startingTime="1 hour ago")
    faulty.plan("write-before")
    with pytest.raises(StreamingQueryException, match="planned"):
        queries.run(rows, there, format="faulty")
    later = queries.follow(here, columns="payload binary", startingOffsets="latest")
    queries.run(later, there, format="faulty")
    assert sorted(broker.payloads(there)) == texts(0, 5)


def test_a_topic_gains_partitions_between_runs_and_while_a_query_runs(queries, broker):
    here, there = broker.create(), broker.create()
    rows = queries.follow(here, columns="payload binary", subscription="etl")
    broker.publish(here, texts(0, 30), key=[f"k{n}" for n in range(30)])
    queries.run(rows, there)
    broker.link.action("create-topic", {"name": here, "partitions": 3})
    broker.publish(here, texts(30, 30), key=[f"k{n}" for n in range(30)])
    queries.run(rows, there)
    assert sorted(broker.payloads(there)) == sorted(texts(0, 60))
    query = queries.start(rows, there, now=False)
    broker.publish(here, texts(60, 30), key=[f"k{n}" for n in range(30)])
    wait_for(lambda: len(broker.payloads(there)) == 90)
    broker.link.action("create-topic", {"name": here, "partitions": 5})
    broker.publish(here, texts(90, 60), key=[f"k{n}" for n in range(60)])
    wait_for(lambda: len(broker.payloads(there)) == 150)
    query.stop()
    assert sorted(broker.payloads(there)) == sorted(texts(0, 150))


def wait_for(holds, seconds=60):
    until = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < until
        time.sleep(0.1)


def test_a_stream_of_a_steady_session_adds_nothing_to_the_variables_that_readers_share(spark, queries, broker):
    """Check the map, which two queries that start at once could break, and with it the session."""

    def added():
        before = shared()
        here, there = broker.create(), broker.create()
        broker.publish(here, texts(0, 5))
        queries.run(queries.follow(here, columns="payload binary", format="faulty"), there, name=there)
        return shared() - before

    def shared():
        manager = spark._jsparkSession.sessionState().dataSourceManager()
        return set(manager.lookupDataSource("faulty").dataSourceCls().envVars())

    spark.dataSource.register(faulty.FaultySource)
    assert added() == set(ADDED_BY_STREAMS)
    spark.dataSource.register(faulty.FaultySource)
    steady(spark, "faulty")
    assert added() == set()


def test_a_key_is_in_no_plan(queries, broker, capfd):
    queries.follow(broker.create(), apiKey="wk_hidden").explain(extended=True)
    plan = capfd.readouterr().out
    assert "StreamingRelationV2" in plan
    assert "wk_hidden" not in plan
