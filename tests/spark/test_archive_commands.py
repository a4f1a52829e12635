"""`wherry pipeline archive` and its sisters, as commands."""

import json
import os
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from tests.spark.archives import keys, texts
from wherry.cli import frame
from wherry.cli.commands.pipeline import archive as pipeline_archive
from wherry.cli.frame import CommandGroup
from wherry.spark.pipelines.run import session as run_session


@pytest.fixture
def wherry(broker, spark, monkeypatch):
    monkeypatch.setattr(run_session, "opened", lambda *_: nullcontext(spark))  # else closed by the command
    app = typer.Typer(cls=CommandGroup)
    app.callback()(lambda: None)
    pipeline = typer.Typer()
    pipeline_archive.register(pipeline)
    app.add_typer(pipeline, name="pipeline")

    def run(*words, code=0):
        done = CliRunner().invoke(
            app, ["pipeline", *words, *(() if "--master" in words else ("--master", "local[2]")), "--url", broker.url]
        )
        assert done.exit_code == code, done.output
        return done

    return run


@pytest.fixture(autouse=True)
def _order(monkeypatch):
    monkeypatch.setattr(frame, "ORDER", (*frame.ORDER, "pipeline"))


def test_the_commands(spark, broker, tmp_path, wherry):
    topic, there = broker.create(name="cli", keep="age", keep_ms=3_600_000), broker.create()
    broker.publish(topic, texts(0, 30), key=keys(30))
    to = str(tmp_path / "lake")
    (printed,) = map(
        json.loads, wherry("archive", f"{topic[:-1]}*", "--to", to, "--verify", "--json").stdout.splitlines()
    )
    assert (printed["rows"], printed["verified"], printed["ends"]) == (30, True, {"0": 30})
    shown = wherry("archive", topic, "--to", to).stdout
    assert "new rows" in shown
    assert topic in shown
    job = f"job-{topic}"
    words = (
        "replay",
        topic,
        "--into",
        there,
        "--job",
        job,
        "--archive",
        to,
        "--since",
        "2h ago",
        "--key",
        "k3",
        "--json",
    )
    assert json.loads(wherry(*words).stdout)["rows"] == 3
    assert json.loads(wherry(*words).stdout)["repeated"] is True
    assert "already exists and differs: terms" in wherry(*words[:-2], "k4", code=1).output
    file = tmp_path / "due.csv"
    file.write_text("send_at,text\n2027-01-01T00:00:00,hello\n1800000000000,you\n")
    due = ("backfill", there, str(file), "--due", "send_at", "--payload", "text")
    assert "2 messages into" in wherry(*due).output
    assert "nothing to do" in wherry(*due).output
    assert Path(to).is_dir()
    assert "ends in" in wherry("backfill", there, "x.txt", code=1).output
    assert "no topic" in wherry("archive", "nobody", "--to", to, code=1).output


def test_no_job_empties_a_queue_unasked_and_a_replay_names_the_archive(broker, tmp_path, wherry):
    queue, read, there = (broker.create(name=name) for name in ("queue", "read", "there"))
    lake = tmp_path / "lake"
    for topic in (queue, read):
        broker.publish(topic, texts(0, 30), key=keys(30))
    printed = wherry("archive", queue, "--to", str(lake), code=1).output
    assert f"{queue}: a queue without a subscription" in printed
    assert all(words in printed for words in ("only reader", "--keep-for 7d", "--consume", "subscription create"))
    assert not lake.exists()
    assert (len(broker.rows(queue)), broker.subscriptions(queue)) == (30, {})

    broker.link.action("subscribe", {"topic": read, "name": "workers"})
    wherry("archive", read, "--to", str(lake))  # not the only one
    assert len(broker.rows(read)) == 30

    wherry("archive", queue, "--to", str(lake), "--consume")
    assert broker.rows(queue) == []
    wherry("archive", queue, "--to", str(lake))  # agreed to before
    job = ("replay", queue, "--into", there, "--job", f"b-{queue}")
    printed = wherry(*job, code=1).output
    assert "offset 0 is gone" in printed
    assert f"archived at {lake.as_uri()}" in printed
    assert "name of the job is still free" in printed
    assert not any(name.startswith("replay-") for name in broker.subscriptions(queue))
    assert "30 messages into" in wherry(*job, "--archive", str(lake)).output


def test_a_missing_topic_is_reported_before_spark_starts(broker, tmp_path, wherry, monkeypatch):
    """Fail if Spark is started, which takes as long as twenty commands."""
    monkeypatch.setattr(run_session, "opened", lambda *_: pytest.fail("Spark is started"))
    here, file = broker.create(), tmp_path / "x.csv"
    file.write_text("due,payload\n1,x\n")
    for words in (
        ("archive", here, "nobody", "--consume", "--to", str(tmp_path)),
        ("replay", "nobody", "--into", here, "--job", "x"),
        ("replay", here, "--into", "nobody", "--job", "x"),
        ("backfill", "nobody", str(file)),
    ):
        assert "no topic named 'nobody'" in wherry(*words, code=1).output
    assert (
        "an archive of topic"
        in wherry("replay", here, "--into", here, "--job", "x", "--archive", str(tmp_path), code=1).output
    )
    for file, topic in (("p.toml", "nobody"), ("q.toml", here)):
        (tmp_path / file).write_text(f'[sources.a]\ntopic = "{topic}"\n[sinks.b]\nfrom = "a"\ntopic = "b"\n')
    for command, message in (
        (("run", "p.toml"), "no topic named 'nobody'"),
        (("run", "q.toml"), "pipeline q would be its only reader"),
        (("report", "nobody"), "no topic named 'nobody'"),
    ):
        done = subprocess.run(
            [sys.executable, "-m", "wherry", "pipeline", *command, "--url", broker.url],
            cwd=tmp_path,
            env={**os.environ, "JAVA_HOME": str(tmp_path / "no java")},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 1, done.stdout + done.stderr
        assert message in " ".join(done.stderr.split())
    assert broker.subscriptions(here) == {}


def test_jobs_run_in_the_session_that_a_pipeline_has(broker, tmp_path, wherry, monkeypatch):
    made: dict[str, str] = {}

    def session(name, *, master, conf):
        made.update(conf)
        raise RuntimeError("planned")

    monkeypatch.undo()  # of the session of these tests
    monkeypatch.setattr(frame, "ORDER", (*frame.ORDER, "pipeline"))
    monkeypatch.setattr(run_session, "session", session)
    words = ("archive", broker.create(), "--to", str(tmp_path), "--consume", "--master")
    assert "local[2], spark://" in wherry(*words, "foo", code=1).output
    wherry(*words, "spark://127.0.0.1:7077", code=1)
    assert made["spark.executor.memory"] == "512m"
    assert made["spark.ui.showConsoleProgress"] == "false"
