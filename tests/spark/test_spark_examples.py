"""The scripts of examples/spark run as printed; here with the Spark and the broker of the tests."""

import runpy
from pathlib import Path

import pytest

from wherry.spark.pipelines.run.address import BrokerAddress
from wherry.spark.pipelines.run.run import Pipeline
from wherry.spark.pipelines.run.spec import read

EXAMPLES = Path(__file__).parents[2] / "examples" / "spark"

PRINTS = {
    "read.py": ["Bonn", "total", "latest"],
    "stream.py": ["from 500: 500 rows", "1000 squares, 1000 different numbers"],
    "dead_letters.py": [
        "down.example timed out",
        "mended: ['bob@example.org', 'dora@example.org']",
        "still dead: ['address', 'address']",
    ],
    "archive_and_tail.py": ["archived 1000 rows", "2000 rows in all, 2000 different"],
    "explore.py": ["19960", "the picture is"],
}


def test_all_are_here():
    elsewhere = {"from_kafka.py"}  # in test_kafka_docs, where its topics are
    assert {path.name for path in EXAMPLES.glob("*.py")} == set(PRINTS) | elsewhere


@pytest.mark.parametrize("name", list(PRINTS))
def test_it_runs(name, spark, broker, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    for variable, value in (("WHERRY_FLIGHT_URL", broker.url), ("WHERRY_URL", broker.http), ("TMPDIR", str(tmp_path))):
        monkeypatch.setenv(variable, value)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("wherry.spark.session", lambda *_: spark)
    monkeypatch.setattr(type(spark), "stop", lambda _: None)
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    printed = capfd.readouterr().out
    assert [words for words in PRINTS[name] if words not in printed] == [], printed
    if name == "explore.py":
        assert (tmp_path / "explore.png").stat().st_size > 10_000


def test_the_pipeline_runs(spark, broker, tmp_path):
    text = (EXAMPLES / "pipeline.toml").read_text()
    (tmp_path / "pipeline.toml").write_text(text.replace("/tmp/wherry-example", str(tmp_path)))
    broker.link.action("create-topic", {"name": "example.orders"})
    broker.publish("example.orders", [b'{"number": 1, "city": "Oslo", "amount": 60}', b"{", b'{"amount": -1}'])
    pipeline = Pipeline(spark, read(tmp_path / "pipeline.toml"), BrokerAddress(broker.url), once=True, consume=True)
    first = pipeline.queries[0]
    begin = first.start

    def alone() -> None:
        """Run the first query before the others begin: what it settled must be there for them all the same."""
        begin()
        assert first._query is not None and first._query.awaitTermination(60)
        body = {"topic": "example.orders", "subscription": "example.topic.orders", "offsets": {"0": 3}}
        broker.link.action("advance", body)

    first.start = alone  # type: ignore[method-assign]
    reports = pipeline.run(lambda _: None)
    assert [(each.query, each.state) for each in reports] == [
        ("topic", "done"),
        ("files", "done"),
        ("orders.bad", "done"),
    ]
    assert len(broker.payloads("example.orders.large")) == 1
    assert spark.read.parquet(str(tmp_path / "large")).count() == 1
    assert len(broker.payloads("example.orders.bad")) == 2
