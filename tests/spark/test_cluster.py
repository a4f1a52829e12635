"""A real cluster of two workers, and the same pipeline on it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from wherry.cli.commands.pipeline.pipeline import pipeline
from wherry.model.errors import InvalidInput, Unavailable
from wherry.spark.pipelines.cluster import cluster, shipped
from wherry.spark.pipelines.run import declared as run_declared
from wherry.spark.pipelines.run.session import conf_of

PIPELINE = """
name = "{topic}"
[sources.numbers]
topic = "{topic}"
payload = "json"
schema = "n LONG"
dead = "{topic}.bad"
[steps.doubled]
python = "steps.py:doubled"
[sinks.doubled]
from = "doubled"
topic = "{topic}.doubled"
"""

STEPS = """
import os
from pyspark.sql.functions import col, udf

@udf("string")
def place(n: int) -> str:
    return os.environ.get("SPARK_EXECUTOR_DIRS", "")

def doubled(numbers):
    return numbers.selectExpr("value.n * 2 AS n").withColumn("place", place(col("n")))
"""
PATIENCE_S = 300


def archive(master, url, topic, to):
    """Archive a whole topic on the same cluster."""
    command = [sys.executable, "-m", "wherry", "pipeline", "archive", topic, "--to", str(to), "--verify", "--json"]
    words = [*command, "--master", master, "--url", url]
    done = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)


@pytest.mark.rows("A22")
@pytest.mark.parametrize("archives", [False, pytest.param(True, marks=pytest.mark.long)])
def test_a_pipeline_runs_unchanged_on_a_cluster(broker, tmp_path, monkeypatch, archives):
    monkeypatch.setenv("JDK_JAVA_OPTIONS", os.environ["SPARK_SUBMIT_OPTS"])  # executors too
    topic = broker.create(partitions=2, keep="age", keep_ms=3_600_000)
    broker.publish(
        topic, [json.dumps({"n": n}).encode() for n in range(100)] + [b"bad"], key=[f"k{n}" for n in range(101)]
    )
    (tmp_path / "pipeline.toml").write_text(PIPELINE.format(topic=topic))
    (tmp_path / "steps.py").write_text(STEPS)
    with cluster(2, folder=tmp_path / "cluster") as made:
        command = [sys.executable, "-m", "wherry", "pipeline", "run", "pipeline.toml", "--once", "--json"]
        done = subprocess.run(
            [*command, "--master", made.url, "--url", broker.url],
            cwd=tmp_path,
            env={**os.environ, "COLUMNS": "100"},
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        archived = archive(made.url, broker.url, topic, tmp_path / "lake") if archives else None
        assert made.fallen() == []
    assert json.loads(done.stdout.splitlines()[-1]) == {
        "queries": 2,
        "failed": [],
        "rows_in": 202,
        "rows_out": 101,
        "bad": 1,
    }
    rows = [json.loads(payload) for payload in broker.payloads(f"{topic}.doubled")]
    assert sorted(row["n"] for row in rows) == [n * 2 for n in range(100)]
    assert all(row["place"] for row in rows), "made by executors, not by the driver"
    jobs = 2 if archives else 1
    assert len(list((tmp_path / "cluster").glob("worker-*/app-*"))) == 2 * jobs, "each worker had a part of each job"
    assert archived is None or (archived["rows"], archived["verified"]) == (101, True)
    assert [each.poll() is None for each in made.processes] == [False] * 3


def test_a_cluster_that_does_not_come_up_reports_why_and_leaves_nothing(tmp_path):
    with pytest.raises(Unavailable, match="not ready in time"), cluster(1, folder=tmp_path, ready_s=0.2):
        pass


def test_what_a_session_on_a_cluster_needs():
    conf = conf_of("spark://127.0.0.1:7077")
    assert conf["spark.driver.host"] == "127.0.0.1"
    assert str(Path(__file__).parents[2] / "src") in shipped()["spark.executorEnv.PYTHONPATH"]
    assert "spark.driver.host" not in conf_of("spark://elsewhere:7077")
    assert conf_of("sc://here:15002") == {}
    with pytest.raises(InvalidInput, match="local"):
        conf_of("yarn")


def test_the_command_of_sparks_own_pipelines(tmp_path, monkeypatch):
    path = tmp_path / "spark-pipeline.yml"
    assert run_declared.is_declared(path) and not run_declared.is_declared(tmp_path / "p.toml")
    words = run_declared.command(path, "local[2]")
    assert words[0].endswith("spark-pipelines") and words[1:] == ["run", "--remote", "local[2]", "--spec", str(path)]
    conf = run_declared.settings(path, "local[2]")
    assert any(f"databaseName={tmp_path}" in value for value in conf.values()), "a catalog that lasts"
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "spark-defaults.conf").write_text("spark.ui.port 4050")
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path / "own"))
    (tmp_path / "conf").mkdir()
    written = (run_declared.configured(tmp_path / "conf", conf) / "spark-defaults.conf").read_text().splitlines()
    assert written[0] == "spark.ui.port 4050" and len(written) == len(conf) + 1
    assert run_declared.command(path, "sc://h:1")[1:] == ["run", "--remote", "sc://h:1", "--spec", str(path)]


@pytest.mark.parametrize(("words", "why"), [(("--seconds", "5"), "end by themselves"), (("--json",), "as JSON")])
def test_options_that_sparks_own_pipelines_do_not_have_are_refused(broker, tmp_path, monkeypatch, words, why):
    file = tmp_path / "spark-pipeline.yml"
    file.write_text("name: x\n")
    ran: list[object] = []

    def run(*given: object) -> int:
        ran.append(given)
        return 0

    monkeypatch.setattr(run_declared, "run", run)
    done = CliRunner().invoke(pipeline, ["run", str(file), "--url", broker.url, *words])
    assert (done.exit_code, ran) == (2, [])
    assert why in " ".join(done.output.replace("│", " ").split())
    assert CliRunner().invoke(pipeline, ["run", str(file), "--url", broker.url, "--once"]).exit_code == 0
    assert len(ran) == 1
