"""Pipelines from a file, on a real Spark and a real broker."""

import json
import re
import traceback

import pyarrow as pa
import pytest

from wherry.model import limits
from wherry.model.errors import InvalidInput, WherryError
from wherry.spark.pipelines.run.address import BrokerAddress
from wherry.spark.pipelines.run.frames import ORIGIN
from wherry.spark.pipelines.run.run import Pipeline, reason
from wherry.spark.pipelines.run.spec import read

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
    """Make orders: of ten, one is no JSON, one has a wrong type, one is not as expected."""
    rows = []
    for n in range(first, first + count):
        order = {"id": n, "amount": float(n % 200 + 1), "city": "Bonn" if n % 2 else "Oslo"}
        body = json.dumps(
            order | {"amount": "much"} if n % 10 == 4 else order | {"amount": -1.0} if n % 10 == 7 else order
        )
        rows.append(b"{broken" if n % 10 == 0 else body.encode())
    return rows


def run(spark, broker, path, **how):
    return {
        each.query: each
        for each in Pipeline(spark, read(path), BrokerAddress(broker.url), once=True, consume=True).run(lambda _: None)
    }


@pytest.mark.rows("A22")
def test_a_pipeline_runs_is_run_again_and_its_bad_rows_are_dead_letters(spark, broker, made):
    topic, path = made
    broker.publish(topic, orders(0, 100), key=[f"k{n}" for n in range(100)])
    reports = run(spark, broker, path)
    assert {each.state for each in reports.values()} == {"done"}, reports
    assert (reports["priced"].rows_in, reports["priced"].bad, reports["priced"].lag) == (100, 30, 0)
    assert reports["orders.bad"].rows_out == 30
    assert reports["priced"].batch >= 2, "the limit of rows holds"

    broker.publish(topic, orders(100, 100), key=[f"k{n}" for n in range(100, 200)])
    again = run(spark, broker, path)
    assert again["priced"].rows_in == 100, "it continues where it was"

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
    reasons = {int(dict(row["headers"])["wherry-offset"]): dict(row["headers"])["wherry-reason"] for row in bad}
    assert sorted(reasons) == [n for n in range(200) if n % 10 in (0, 4, 7)]
    assert "malformed" in reasons[0]
    assert "amount" in reasons[4]
    assert reasons[7] == "not as expected: an amount above zero"
    assert {row["payload"] for row in bad} >= {b"{broken"}, "as it came"
    assert {row["key"] for row in bad} == {f"k{n}" for n in reasons}
    names = broker.subscriptions(topic)
    assert set(names) == {f"shop-{topic[-8:]}.{query}.orders" for query in reports}, "each query is a subscription"
    assert not {"orders", "cities", "large", "priced"} & {each.name for each in spark.catalog.listTables()}


def plain(spark, broker, path, text):
    """Make a pipeline whose name is that of the file."""
    path.write_text(text)
    return Pipeline(spark, read(path), BrokerAddress(broker.url), once=True, consume=True)


TWO = """
restarts = 0
[sources.slow]
topic = "{topic}"
options = {{ maxRowsPerBatch = 10 }}
[sources.fast]
topic = "{topic}"
options = {{ maxRowsPerBatch = 25 }}
[steps.both]
sql = "SELECT 'slow' AS key, payload FROM SLOW UNION ALL SELECT 'fast', payload FROM Fast -- not other"
[sources.other]
topic = "{topic}"
[sinks.out]
from = "both"
topic = "{topic}.out"
[sinks.again]
from = "both"
topic = "{topic}.again"
"""


def test_two_sources_of_one_queue_settle_nothing_of_each_other(spark, broker, tmp_path):
    topic = broker.create(name="two")
    broker.publish(topic, [str(n).encode() for n in range(50)])
    reports = plain(spark, broker, tmp_path / "two.toml", TWO.format(topic=topic)).run(lambda _: None)
    assert [(each.state, each.rows_in, each.reason) for each in reports] == [("done", 100, None)] * 2
    for out in ("out", "again"):
        rows = [(row["key"], int(row["payload"])) for row in broker.rows(f"{topic}.{out}")]
        assert sorted(rows) == sorted((key, n) for key in ("slow", "fast") for n in range(50))
    names = {f"two.{sink}.{source}" for sink in ("out", "again") for source in ("slow", "fast")}
    assert set(broker.subscriptions(topic)) == names, "a name in a comment makes no subscription"


JOINED = """
[sources.orders]
topic = "{topic}"
[steps.pairs]
sql = "SELECT a.key, a.payload FROM orders a JOIN orders b ON a.key = b.key"
[sinks.out]
from = "pairs"
topic = "{topic}.out"
"""


def test_a_queue_is_not_joined_with_itself_but_a_stream_may_be(spark, broker, tmp_path):
    queue, stream = broker.create(name="queue"), broker.create(name="stream", keep="age", keep_ms=3_600_000)
    with pytest.raises(
        InvalidInput, match=f"no queue joined with itself, in out: make a second source of topic {queue}"
    ):
        plain(spark, broker, tmp_path / "self.toml", JOINED.format(topic=queue)).start()
    assert not broker.subscriptions(queue)
    plain(spark, broker, tmp_path / "self.toml", JOINED.format(topic=stream)).queries[0].check()


HARD = """
restarts = 0
[sources.orders]
topic = "{topic}"
payload = "json"
schema = "id LONG NOT NULL, city STRING"
[sinks.out]
from = "orders"
parquet = "out"
"""


def test_no_bad_row_stops_a_query_however_large_it_is(spark, broker, tmp_path):
    topic = broker.create(name="hard", payload_bytes_max=limits.PAYLOAD_BYTES_MAX)
    many = [(f"h{n}", "v") for n in range(limits.HEADERS_MAX)]
    long, earlier = [("h", "x" * 65_500)], [("wherry-offset", "99"), ("a", "b")]
    bad = [b"{", b'{"city": "Bonn"}', b'{"id": null}', bytes(limits.PAYLOAD_BYTES_MAX), b"{many", b"{long", b"{earlier"]
    headers = [None, None, None, None, many, long, earlier]
    kind = pa.map_(pa.string(), pa.string())
    good = b'{"id": 7, "city": "Bonn"}'
    broker.publish(topic, [*bad, good], headers=pa.array([*headers, None], kind))
    reports = plain(spark, broker, tmp_path / "hard.toml", HARD.format(topic=topic)).run(lambda _: None)
    assert {each.query: (each.state, each.reason) for each in reports} == {
        "out": ("done", None),
        "orders.bad": ("done", None),
    }
    assert [row["value"]["id"] for row in spark.read.parquet(str(tmp_path / "out")).collect()] == [7]
    rows = {int(dict(row["headers"])["wherry-offset"]): row for row in broker.rows("hard.orders.bad")}
    assert [rows[n]["payload"] for n in range(len(bad))] == bad
    of = {n: dict(row["headers"]) for n, row in rows.items()}
    assert "missing required field `id`" in of[1]["wherry-reason"]
    assert "at `$.id`" in of[2]["wherry-reason"]
    assert of[4].keys() == of[5].keys() == {"wherry-headers-left-out", *ORIGIN}
    assert of[6].keys() == {"a", *ORIGIN}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("[sinks.priced]", "[sinks.priced]\nforeign = 1"), "foreign"),
        (('payload = "json"', 'payload = "xml"'), "one of bytes, text, json, avro"),
        (('from = "priced"', 'from = "cities"'), "the name of a source or a step"),
        (("[steps.priced]", "[steps.orders]"), "no other source, table or step"),
        (('parquet = "out/large"', ""), "topic, parquet or table"),
        (('python = "steps.py:priced"', ""), "sql or python"),
        (("[steps.large]", "[steps.4large]"), "letters, digits"),
        (("name =", "name"), "a pipeline"),
        (("[steps.priced]", "[steps.ORDERS]"), "no other source, table or step"),
        (("maxRowsPerBatch = 40", 'Subscription = "s"'), "each query has one for each of its sources"),
        (("maxRowsPerBatch = 40", 'payloadSchema = "s"'), "the field schema"),
        (('topic = "t.large"', 'topic = "t.large"\nmode = "complete"'), "append or update: nothing is taken back"),
        (("[sinks.files]", f"[sinks.{'s' * 250}]"), "at most 256 characters"),
    ],
)
def test_a_file_that_is_wrong_is_refused_with_the_place(tmp_path, change, message):
    path = tmp_path / "wrong.toml"
    (tmp_path / "steps.py").write_text(STEPS)
    path.write_text(PIPELINE.format(topic="t", name="n", table="t").replace(*change))
    with pytest.raises(InvalidInput, match=message):
        read(path)


def test_what_a_sink_is_made_of(made):
    spec = read(made[1])
    assert spec.needed("priced") == ["orders", "cities", "large", "priced"]
    assert spec.needed("large") == ["orders", "large"]
    made[1].write_text(made[1].read_text().replace("FROM orders", "FROM ORDERS"))
    assert read(made[1]).needed("large") == ["orders", "large"], "SQL knows names in any case"
    assert spec.queries() == ["priced", "files", "counted", "orders.bad"]


def test_sql_that_does_not_hold_is_refused_before_anything_starts(spark, broker, made):
    topic, path = made
    path.write_text(path.read_text().replace("value.amount >=", "value.price >="))
    with pytest.raises(InvalidInput, match="price"):
        run(spark, broker, path)
    assert not broker.subscriptions(topic)


def test_only_a_spark_without_our_environment_is_given_key_and_ca():
    address = BrokerAddress("grpc+tls://b:7072", "wk_1", "/ca.pem")
    assert address.options("sc://there:15002") == {"url": address.url, "apiKey": "wk_1", "ca": "/ca.pem"}
    assert BrokerAddress(address.url).options("sc://there:15002") == address.options("local[2]") == {"url": address.url}


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
    reports = run(spark, broker, path)["out"]
    assert (reports.state, reports.restarts, reports.rows_out) == ("done", 1, 3), reports
    assert reports.reason is not None and "not today" in reports.reason
    assert sorted(json.loads(payload)["number"] for payload in broker.payloads(f"{topic}.out")) == [1, 2, 3]


def kinds(of=WherryError):
    return {of} | {each for kind in of.__subclasses__() for each in kinds(kind)}


@pytest.mark.parametrize("kind", [*sorted(kinds(), key=lambda kind: kind.__name__), KeyError, KeyboardInterrupt])
def test_the_reason_is_found_whatever_the_error_is_called(kind):
    fault = kind.__new__(kind)
    fault.args = ("not today",)
    try:
        try:
            raise OSError("before")
        except OSError:
            raise fault  # noqa: B904
    except kind:
        trace = traceback.format_exc()
    text = f"[STREAM_FAILED] Job aborted: {trace}\n\tat org.apache.X\nCaused by: java.io.IOException: pipe\n\tat java.Y"
    assert re.fullmatch(rf"([\w.]+\.)?{kind.__name__}: '?not today'?", reason(Exception(text)))


def test_the_reason_is_a_line():
    text = "An exception\nTraceback (most recent call last):\n  File\nValueError: not today\n\tat org.apache"
    assert reason(Exception(text)) == "ValueError: not today"
    assert reason(Exception("[ERROR] first\nsecond")) == "[ERROR] first"
    lost = "Job aborted\n\tat org.apache.X\nCaused by: java.io.IOException: pipe\nCaused by: java.io.EOFException"
    assert reason(Exception(lost)) == "java.io.EOFException"
    assert reason(KeyError()) == "KeyError"
