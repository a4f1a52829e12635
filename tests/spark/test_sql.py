"""Topics in SQL: what Spark's catalog lets a Python data source do, and topics that are registered as views."""

import pytest
from pyspark.errors import PySparkException

from wherry.model.errors import InvalidInput
from wherry.spark import register_topics

KEPT = {"keep": "age", "keep_ms": 3_600_000}
ROW = "('c', CAST('{\"n\": 3}' AS BINARY))"


@pytest.fixture
def orders(broker):
    topic = broker.create(name="sql", **KEPT)
    broker.publish(topic, [b'{"n": 1}', b'{"n": 2}'], key=["a", "b"])
    return topic


def test_rows_are_inserted_into_a_view_and_a_table(spark, broker, orders):
    options, sql = f"OPTIONS (url '{broker.url}', topic '{orders}')", spark.sql
    sql(f"CREATE OR REPLACE TEMPORARY VIEW seen USING wherry {options}")
    sql(f"CREATE TABLE lasting USING wherry {options}")
    try:
        assert sql("SELECT count(*) FROM seen").collect() == sql("SELECT count(*) FROM lasting").collect() == [(2,)]
        sql(f"INSERT INTO seen (key, payload) VALUES {ROW}")
        sql("INSERT INTO lasting SELECT * FROM lasting WHERE key = 'c'")
        sql(f"INSERT INTO lasting WITH (commitKey = '{orders}') (key, payload) VALUES {ROW}")
        sql(f"INSERT INTO lasting WITH (commitKey = '{orders}') (key, payload) VALUES {ROW}")
        assert sql("SELECT count(*) FROM lasting").collect() == [(5,)], "each query reads what there is then"
        assert sql("SELECT count(*) FROM seen").collect() == [(2,)], "a view is one load, with one range"
        assert sql("SELECT count(*) FROM lasting WITH (offsetMin = '3')").collect() == [(2,)]
        sql("CREATE OR REPLACE TEMPORARY VIEW keys AS SELECT key FROM lasting WHERE key <> 'c'")
        assert sql("SELECT count(*) FROM keys").collect() == [(2,)]
    finally:
        sql("DROP TABLE lasting")
    assert len(broker.rows(orders)) == 5, "to drop a table leaves the topic as it is"


@pytest.mark.parametrize(
    ("statement", "why"),
    [
        ("INSERT OVERWRITE lasting SELECT * FROM lasting", "allowed: append: a log is only added to"),
        (
            "CREATE TABLE made USING wherry {options} AS SELECT 'a' AS payload",
            "create the table without AS, then INSERT INTO it",
        ),
        ("DELETE FROM lasting WHERE offset = 0", "does not support deletes"),
        ("UPDATE lasting SET key = 'b'", "does not support UPDATE"),
        ("TRUNCATE TABLE lasting", "does not support truncates"),
    ],
)
def test_statements_that_would_change_messages_are_refused(spark, broker, orders, statement, why):
    options = f"OPTIONS (url '{broker.url}', topic '{orders}')"
    spark.sql(f"CREATE TABLE lasting USING wherry {options}")
    try:
        with pytest.raises(PySparkException, match=why):
            spark.sql(statement.format(options=options)).collect()
    finally:
        spark.sql("DROP TABLE lasting")
        spark.sql("DROP TABLE IF EXISTS made")
    assert broker.payloads(orders) == [b'{"n": 1}', b'{"n": 2}']


def test_topics_are_registered_as_views_of_their_schema(spark, broker, caplog):
    plain = broker.create(name="reg.plain", **KEPT)
    labels = {"payload": "json", "payloadSchema": "n INT"}
    typed = broker.create(name="reg.typed", labels=labels, **KEPT)
    wrong = broker.create(name="reg.wrong", labels=labels | {"payloadSchema": "n NOTHING AT ALL"}, **KEPT)
    for topic in (plain, typed, wrong):
        broker.publish(topic, [b'{"n": 1}', b'{"n": 2}'])
    assert set(register_topics(spark, "reg.*", url=broker.url)) == {plain, typed, wrong}
    assert spark.sql(f"SELECT sum(value.n) FROM `{typed}`").collect() == [(3,)]
    for topic in (plain, wrong):
        assert "value" not in spark.table(f"`{topic}`").columns
    assert f"topic {wrong} are not decoded: its labels are wrong" in caplog.text
    assert register_topics(spark, typed, url=broker.url, payload="text") == [typed]
    assert spark.sql(f"SELECT max(value) FROM `{typed}`").collect() == [('{"n": 2}',)]
    spark.sql(f"INSERT INTO `{plain}` (key, payload) SELECT key, payload FROM `{typed}`")
    assert len(broker.rows(plain)) == 4


def test_topics_whose_views_would_be_one_are_refused(spark, broker):
    broker.link.action("create-topic", {"name": "Twice.x"})
    broker.link.action("create-topic", {"name": "twice.x"})
    with pytest.raises(InvalidInput, match="differ in more than upper and lower case"):
        register_topics(spark, "Twice.x,twice.x", url=broker.url)
    with pytest.raises(InvalidInput, match="topics: got 'nowhere'"):
        register_topics(spark, "nowhere", url=broker.url)
