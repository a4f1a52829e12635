"""The example of Spark's declarative pipelines: its definitions in one session, and as printed by the real command."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.pipelines.graph_element_registry import GraphElementRegistry, graph_element_registration_context

EXAMPLE = Path(__file__).parents[2] / "examples" / "spark" / "declared"
RUN_S = 500
ORDERS = [b'{"number": 1, "city": "Oslo", "amount": 60}', b'{"number": 2, "city": "Bonn", "amount": 5}']


def tables(folder):
    """Return the rows of the tables beside the file, read without Spark."""
    found = {}
    for name in ("orders", "cities"):
        files = [path for path in (folder / "tables" / name).glob("*.parquet") if not path.name.startswith(("_", "."))]
        found[name] = [row for path in files for row in pq.ParquetFile(path).read().to_pylist()]
    return found


class Definitions(GraphElementRegistry):
    """Keeps what the files of a pipeline define, as Spark Connect would be sent it."""

    def __init__(self):
        self.outputs, self.flows, self.queries = {}, {}, {}

    def register_output(self, output):
        self.outputs[output.name] = output

    def register_flow(self, flow):
        self.flows[flow.target] = flow

    def register_auto_cdc_flow(self, flow):
        raise AssertionError("the example has none")

    def register_sql(self, sql_text, file_path):
        ((name, query),) = re.findall(r"CREATE MATERIALIZED VIEW (\w+) AS\s(.*);", sql_text, re.DOTALL)
        self.queries[name] = query


@pytest.fixture
def topics(broker):
    broker.link.action("create-topic", {"name": "example.orders", "keep": "age", "keep_ms": 3_600_000})
    broker.link.action("create-topic", {"name": "example.large"})
    yield
    for name in ("example.orders", "example.large"):
        broker.link.action("delete-topic", {"topic": name})


@pytest.mark.usefixtures("topics")
def test_what_the_files_of_the_example_define(spark, broker, tmp_path):
    """Run each table and sink as a stream or query of this session, without Spark Connect and its catalog."""
    broker.publish("example.orders", ORDERS, key=["ann", "bob"])
    found = Definitions()
    with graph_element_registration_context(found):
        for path in sorted((EXAMPLE / "transformations").iterdir()):
            if path.suffix == ".sql":
                found.register_sql(path.read_text(), path)
            elif path.suffix == ".py":
                with_url = path.read_text().replace('.option("topic"', f'.option("url", "{broker.url}").option("topic"')
                exec(compile(with_url, str(path), "exec"), {"__name__": "orders"})

    def run(writer, name):
        return writer.option("checkpointLocation", str(tmp_path / name)).trigger(availableNow=True)

    try:
        table = run(found.flows["orders"].func().writeStream, "orders").toTable("orders", path=str(tmp_path / "t"))
        assert table.awaitTermination(120)
        sink = found.outputs["large"]
        rows = found.flows["large"].func().writeStream.format(sink.format).options(**sink.options, url=broker.url)
        assert run(rows, "large").start().awaitTermination(120)
        cities = {row["city"]: (row["orders"], row["amount"]) for row in spark.sql(found.queries["cities"]).collect()}
    finally:
        spark.sql("DROP TABLE IF EXISTS orders")
    assert cities == {"Oslo": (1, 60.0), "Bonn": (1, 5.0)}
    assert [(row["key"], row["payload"]) for row in broker.rows("example.large")] == [("ann", b'{"number":1}')]


@pytest.mark.usefixtures("topics")
@pytest.mark.parametrize("runs", [pytest.param(2, marks=pytest.mark.long)])
def test_the_declared_pipeline_runs(broker, tmp_path, runs):
    shutil.copytree(EXAMPLE, tmp_path / "declared")
    spec = tmp_path / "declared" / "spark-pipeline.yml"
    spec.write_text(spec.read_text().replace("/tmp/wherry-example", str(tmp_path)))
    for run in range(1, runs + 1):
        broker.publish("example.orders", ORDERS, key=["ann", "bob"])
        words = [
            sys.executable,
            "-m",
            "wherry",
            "pipeline",
            "run",
            str(spec),
            "--url",
            broker.url,
            "--master",
            "local[2]",
        ]
        done = subprocess.run(words, capture_output=True, text=True, timeout=RUN_S, check=False, env={**os.environ})
        assert done.returncode == 0, done.stdout[-4_000:] + done.stderr[-4_000:]
        found = tables(spec.parent)
        assert [row["number"] for row in found["orders"]] == [1, 2] * run
        cities = {row["city"]: (row["orders"], row["amount"]) for row in found["cities"]}
        assert cities == {"Oslo": (run, 60.0 * run), "Bonn": (run, 5.0 * run)}
        assert [(row["key"], row["payload"]) for row in broker.rows("example.large")] == [
            ("ann", b'{"number":1}')
        ] * run
