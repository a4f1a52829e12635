"""Dead letters as rows, sent back by a write; queues as tables."""

import pytest
from pyspark.errors import PySparkException

from tests.integration.shell import bury


@pytest.fixture
def buried(broker):
    """Make a topic of which every message was given up by one subscription."""
    topic = broker.create(name="buried")
    broker.link.action("subscribe", {"topic": topic, "name": "workers"})
    bury(broker.http, topic, *(f"m{n}" for n in range(20)), reason="bad")
    return topic


@pytest.mark.rows("A11")
def test_dead_letters_are_rows(queries, buried):
    rows = queries.load(buried, table="dead").collect()
    assert len(rows) == 20
    assert {(row["topic"], row["subscription"], row["reason"], row["error"]) for row in rows} == {
        (buried, "workers", "bad", "not a picture")
    }
    assert {bytes(row["payload"]) for row in rows} == {f"m{n}".encode() for n in range(20)}
    assert all(row["attempts"] == 1 and row["first_failed"] <= row["died"] for row in rows)


@pytest.mark.rows("A12")
def test_dead_letters_are_sent_back_by_sql_and_twice_is_once(queries, broker, buried):
    dead = queries.load(buried, table="dead").cache()
    assert dead.count() == 20
    dead.createOrReplaceTempView("dead")
    chosen = queries.spark.sql("SELECT * FROM dead WHERE cast(substr(id, 2) AS int) < 12")
    for _ in range(2):
        chosen.write.format("wherry").options(url=broker.url, table="dead", by="alice").mode("append").save()
        counts = broker.subscriptions(buried)["workers"]
        assert (counts["dead"], counts["ready"]) == (8, 12)
    assert queries.load(buried, table="dead").count() == 8
    queries.save(dead.select("partition", "offset", "subscription"), buried, table="dead")
    assert broker.subscriptions(buried)["workers"]["dead"] == 0
    dead.unpersist()


def test_what_a_redrive_needs(queries, broker, buried):
    rows = queries.load(buried, table="dead")
    with pytest.raises(PySparkException, match="partition int, offset bigint, subscription string"):
        queries.save(rows.select("partition", "offset"), buried, table="dead")
    with pytest.raises(PySparkException, match="one topic"):
        some = rows.select("partition", "offset", "subscription")
        some.write.format("wherry").options(url=broker.url, table="dead").mode("append").save()


def test_rows_of_another_topic_than_the_option_names_are_refused(queries, broker, buried):
    other = broker.create(name="other")
    broker.link.action("subscribe", {"topic": other, "name": "workers"})
    bury(broker.http, other, *(f"m{n}" for n in range(20)), reason="bad")
    with pytest.raises(PySparkException, match=f"dead letters of {other}, as the option topic asks"):
        queries.save(queries.load(buried, table="dead"), other, table="dead")
    for topic in (buried, other):
        assert broker.subscriptions(topic)["workers"]["dead"] == 20
    queries.save(queries.load(buried, table="dead"), buried, table="dead")
    assert broker.subscriptions(buried)["workers"]["dead"] == 0


def test_queues_as_tables(queries, broker, buried):
    state = queries.load(table="subscriptions").filter(f"topic = '{buried}'").collect()
    assert [(row["name"], row["durable"], row["dead"], row["ready"], row["lag"]) for row in state] == [
        ("workers", True, 20, 0, 0)
    ]
    topics = queries.load(table="topics", columns="name string, dead bigint, published bigint, partitions bigint")
    found = topics.filter(f"name = '{buried}'").collect()
    assert [tuple(row) for row in found] == [(buried, 20, 20, 1)]
