"""Pipelines from a file, on a real Spark and a real broker."""

import json

import pytest

from wherry.model.errors import InvalidInput
from wherry.spark.pipelines.run import Pipeline, reason
from wherry.spark.pipelines.run_place import Place, flight_url
from wherry.spark.pipelines.spec import read

PIPELINE = """
name = "{name}"

[sources.orders]
topic = "{topic}"
payload = "json"
schema = "id LONG, amount DOUBLE, city STRING"
dead = "{topic}.bad"
options = {{ maxRowsPerBatch = 40 }}
[sources.orders.expect]
"an amount above zero" = "value.amount > 0"

[tables.cities]
format = "json"
path = "cities.json"
schema = "city STRING, country STRING"

[steps.large]
sql = "SELECT key, value.id AS number, value.amount, value.city FROM orders WHERE value.amount >= 100"

[steps.priced]
python = "steps.py:priced"

[sinks.priced]
from = "priced"
topic = "{topic}.large"

[sinks.files]
from = "large"
parquet = "out/large"
partition_by = ["city"]

[sinks.counted]
from = "orders"
table = "raw_{table}"
"""

STEPS = """
import pandas as pd
from pyspark.sql.functions import col, pandas_udf

RATE = 0.2

@pandas_udf("double")
def tax(amount: pd.Series) -> pd.Series:
    return amount * RATE

def priced(large, cities):
    return large.join(cities, "city").withColumn("tax", tax(col("amount")))
"""


@pytest.fixture
def made(broker, tmp_path):
    topic = broker.create(name="orders", keep="age", keep_ms=3_600_000)
    name = f"shop-{topic[-8:]}"
    (tmp_path / "pipeline.toml").write_text(PIPELINE.format(topic=topic, name=name, table=topic[-8:]))
    (tmp_path / "steps.py").write_text(STEPS)
    (tmp_path / "cities.json").write_text('{"city": "Bonn", "country": "DE"}\n{"city": "Oslo", "country": "NO"}\n')
    return topic, tmp_path / "pipeline.toml"


def orders(first, count):
    """Of ten, one is no JSON, one has a wrong type, one is not as expected."""
    rows = []
    for n in range(first, first + count):
        order = {"id": n, "amount": float(n % 200 + 1), "city": "Bonn" if n % 2 else "Oslo"}
        body = json.dumps(
            order | {"amount": "much"} if n % 10 == 4 else order | {"amount": -1.0} if n % 10 == 7 else order
        )
        rows.append(b"{broken" if n % 10 == 0 else body.encode())
    return rows


def run(spark, broker, path, **how):
    return {each.query: each for each in Pipeline(spark, read(path), Place(broker.url), once=True).run(lambda _: None)}


@pytest.mark.rows("A22")
def test_a_pipeline_runs_is_run_again_and_its_bad_rows_are_dead_letters(spark, broker, made):
    topic, path = made
    broker.publish(topic, orders(0, 100), key=[f"k{n}" for n in range(100)])
    told = run(spark, broker, path)
    assert {each.state for each in told.values()} == {"done"}, told
    assert (told["priced"].rows_in, told["priced"].bad, told["priced"].lag) == (100, 30, 0)
    assert told["orders.bad"].rows_out == 30
    assert told["priced"].batch >= 2, "the limit of rows holds"

    broker.publish(topic, orders(100, 100), key=[f"k{n}" for n in range(100, 200)])
    again = run(spark, broker, path)
    assert again["priced"].rows_in == 100, "it goes on where it was"

    good = [n for n in range(200) if n % 10 not in (0, 4, 7)]
    large = [n for n in good if n % 200 + 1 >= 100]
    written = [json.loads(payload) for payload in broker.payloads(f"{topic}.large")]
    assert sorted(row["number"] for row in written) == large
    assert all(row["tax"] == pytest.approx(row["amount"] * 0.2) and row["country"] in ("DE", "NO") for row in written)
    files = spark.read.parquet(str(path.parent / "out/large"))
    assert sorted(row["number"] for row in files.collect()) == large
    assert spark.read.parquet(str(path.parent / f"tables/raw_{topic[-8:]}")).count() == len(good)

    bad = broker.rows(f"{topic}.bad")
    assert len(bad) == 60
    told_of = {int(dict(row["headers"])["wherry-offset"]): dict(row["headers"])["wherry-reason"] for row in bad}
    assert sorted(told_of) == [n for n in range(200) if n % 10 in (0, 4, 7)]
    assert "malformed" in told_of[0]
    assert "amount" in told_of[4]
    assert told_of[7] == "not as expected: an amount above zero"
    assert {row["payload"] for row in bad} >= {b"{broken"}, "as it came"
    assert {row["key"] for row in bad} == {f"k{n}" for n in told_of}
    names = broker.subscriptions(topic)
    assert set(names) == {f"shop-{topic[-8:]}.{query}" for query in told}, "each query is a subscription"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (("[sinks.priced]", "[sinks.priced]\nforeign = 1"), "foreign"),
        (('payload = "json"', 'payload = "xml"'), "one of bytes, text, json, avro"),
        (('from = "priced"', 'from = "cities"'), "the name of a source or a step"),
        (("[steps.priced]", "[steps.orders]"), "no other source, table or step"),
        (('parquet = "out/large"', ""), "topic, parquet or table"),
        (('python = "steps.py:priced"', ""), "sql or python"),
        (("[steps.large]", "[steps.4large]"), "letters, digits"),
        (("name =", "name"), "a pipeline"),
    ],
)
def test_a_file_that_is_wrong_says_where(tmp_path, change, says):
    path = tmp_path / "wrong.toml"
    path.write_text(PIPELINE.format(topic="t", name="n", table="t").replace(*change))
    with pytest.raises(InvalidInput, match=says):
        read(path)


def test_what_a_sink_is_made_of(made):
    spec = read(made[1])
    assert spec.needed("priced") == ["orders", "cities", "large", "priced"]
    assert spec.needed("large") == ["orders", "large"]
    assert spec.queries() == ["priced", "files", "counted", "orders.bad"]


def test_sql_that_does_not_hold_is_told_before_anything_starts(spark, broker, made):
    topic, path = made
    path.write_text(path.read_text().replace("value.amount >=", "value.price >="))
    with pytest.raises(InvalidInput, match="price"):
        run(spark, broker, path)
    assert not broker.subscriptions(topic)


def test_where_flight_is(monkeypatch):
    monkeypatch.delenv("WHERRY_FLIGHT_URL", raising=False)
    assert flight_url("http://[::1]:7070") == "grpc://[::1]:7072"
    assert flight_url("http://b:1", "grpc://c:2") == "grpc://c:2"
    monkeypatch.setenv("WHERRY_FLIGHT_URL", "grpc://d:3")
    assert flight_url("http://b:1") == "grpc://d:3"


FAILING = """
from pathlib import Path
from pyspark.sql.functions import col, udf

FLAG = Path("{flag}")

@udf("long")
def once(n):
    if FLAG.exists():
        FLAG.unlink()
        raise ValueError("not today")
    return n

def passed(orders):
    return orders.select(once(col("value.id")).alias("number"))
"""


def test_a_query_that_fails_begins_again_and_writes_nothing_twice(spark, broker, made):
    topic, path = made
    flag = path.with_name("flag")
    path.with_name("fail.py").write_text(FAILING.format(flag=flag))
    head = path.read_text().partition("[tables.cities]")[0]
    path.write_text(
        f'restarts = 1\n{head}[steps.passed]\npython = "fail.py:passed"\n'
        f'[sinks.out]\nfrom = "passed"\ntopic = "{topic}.out"\n'
    )
    broker.publish(topic, orders(1, 3))
    flag.touch()
    told = run(spark, broker, path)["out"]
    assert (told.state, told.restarts, told.rows_out) == ("done", 1, 3), told
    assert told.reason is not None and "not today" in told.reason
    assert sorted(json.loads(payload)["number"] for payload in broker.payloads(f"{topic}.out")) == [1, 2, 3]


def test_the_reason_is_a_line():
    said = "An exception\nTraceback (most recent call last):\n  File\nValueError: not today\n\tat org.apache"
    assert reason(Exception(said)) == "ValueError: not today"
    assert reason(Exception("[ERROR] first\nsecond")) == "[ERROR] first"
    assert reason(KeyError()) == "KeyError"
