"""The example of Spark's own declarative pipelines, run as printed by the real command, twice."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

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


@pytest.mark.parametrize("runs", [1, pytest.param(2, marks=pytest.mark.long)])
def test_the_declared_pipeline_runs(broker, tmp_path, runs):
    shutil.copytree(EXAMPLE, tmp_path / "declared")
    spec = tmp_path / "declared" / "spark-pipeline.yml"
    spec.write_text(spec.read_text().replace("/tmp/wherry-example", str(tmp_path)))
    broker.link.action("create-topic", {"name": "example.orders", "keep": "age", "keep_ms": 3_600_000})
    broker.link.action("create-topic", {"name": "example.large"})
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
    broker.link.action("delete-topic", {"topic": "example.orders"})
    broker.link.action("delete-topic", {"topic": "example.large"})
