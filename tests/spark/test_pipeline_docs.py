"""docs/pipelines.md: its commands work in the order in which they are printed, on a fresh broker."""

import re
import shlex
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import typer
from typer.testing import CliRunner

from tests.spark.brokers import broker as started
from wherry.cli import frame
from wherry.cli.commands.pipeline import archive as pipeline_archive
from wherry.cli.frame import CommandGroup
from wherry.spark.pipelines.run import session as run_session
from wherry.spark.pipelines.run.address import BrokerAddress
from wherry.spark.pipelines.run.run import Pipeline
from wherry.spark.pipelines.run.spec import read

PAGE = (Path(__file__).parents[2] / "docs" / "pipelines.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```(sh|python|toml)\n(.*?)```", PAGE, re.DOTALL)
LAKE = "s3://lake/wherry"


@pytest.fixture
def wherry(spark, monkeypatch):
    """Run jobs in the session of these tests: each command would start a Spark of its own."""
    monkeypatch.setattr(run_session, "opened", lambda *_: nullcontext(spark))
    monkeypatch.setattr(frame, "ORDER", (*frame.ORDER, "pipeline"))
    app, pipeline = typer.Typer(cls=CommandGroup), typer.Typer()
    app.callback()(lambda: None)
    pipeline_archive.register(pipeline)
    app.add_typer(pipeline, name="pipeline")

    def run(own, words):
        if words[0] != "pipeline":
            command = [sys.executable, "-m", "wherry", "--url", own.http, *words]
            done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
            assert done.returncode == 0, (words, done.stdout + done.stderr)
            return done.stdout + done.stderr
        invoked = CliRunner().invoke(app, [*words, "--url", own.url, "--master", "local[2]"])
        assert invoked.exit_code == 0, (words, invoked.output)
        return invoked.output

    return run


def test_the_commands_work_in_their_order(spark, wherry, tmp_path, monkeypatch):
    (tmp_path / "broker").mkdir()
    monkeypatch.chdir(tmp_path)
    pq.write_table(pa.table({"send_at": [1_800_000_000_000], "text": ["hello"]}), "july.parquet")
    Path("august.csv").write_text("send_at,text\n1800000000000,you\n")
    done = []
    with started(tmp_path / "broker") as own:
        for kind, block in BLOCKS:
            code = block.replace(LAKE, str(tmp_path / "lake")).replace("grpc://127.0.0.1:7072", own.url)
            if kind == "python" and "cluster" not in code:
                exec(compile(code.replace("session()", "spark"), "docs/pipelines.md", "exec"), {"spark": spark})
            if kind == "toml":
                Path("shop.toml").write_text(code)
                ends = Pipeline(spark, read(Path("shop.toml")), BrokerAddress(own.url), once=True).run(lambda _: None)
                assert [each.state for each in ends] == ["done"] * 3, ends
            lines = code.splitlines() if kind == "sh" else []
            done += [wherry(own, shlex.split(line)[1:]) for line in lines]
        assert len(own.rows("orders")) == 1, "read, and still there"
        assert own.payloads("orders-again") == own.payloads("orders")
        assert sorted(own.payloads("reminders")) == [b"hello", b"you"]
        assert len(own.payloads("orders.large")) == 1
    assert len(done) == 8
