"""The demo: all of it for two seconds, and its picture."""

import json
import os
import subprocess
import sys

from typer.testing import CliRunner

from wherry.cli.main import app
from wherry.spark.pipelines.demo.demo import (
    DRAIN_S,
    Counts,
    Story,
    Totals,
    _is_over,
)
from wherry.spark.pipelines.demo.picture import chart, rates, spark_line
from wherry.spark.pipelines.run.figures import QueryFigures

PATIENCE_S = 300


def test_the_demo_runs_and_leaves_a_picture_only(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "wherry", "demo", "--seconds", "3", "--rate", "500", "--json"],
        cwd=tmp_path,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["published"] > 100
    assert report["piped"] >= 100
    assert report["bad"] >= 1
    assert report["consumed"] > 0
    assert (report["piped"], report["lag"]) == (report["published"], 0), "it ends when all is through"
    assert (tmp_path / "wherry-demo.png").stat().st_size > 10_000
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith("wherry")] == ["wherry-demo.png"]


def test_a_demo_that_is_stopped_early_has_nothing_to_show(monkeypatch, tmp_path):
    figures = [QueryFigures(query="large", target="topic orders.large")]
    monkeypatch.setattr("wherry.spark.pipelines.demo.demo.demo", lambda *_, **__: Story([], figures, Counts(), 1.0))
    for words in ((), ("--json",)):
        done = CliRunner().invoke(app, ["demo", "--picture", str(tmp_path / "p.png"), *words])
        assert (done.exit_code, type(done.exception)) == (1, SystemExit), done.output
        assert "nothing to show" in done.output
    assert not (tmp_path / "p.png").exists()


def test_the_demo_ends_when_all_is_through_and_not_much_later():
    large = QueryFigures(query="large", target="topic orders.large", rows_in=90, rows_out=40, lag=10)
    story = Story([Totals(5, 100, 90, 0, 0, 10)], [large], Counts(published=100, consumed=40), 1.0)
    assert not _is_over(story, 6)
    assert not story.counts.ending
    assert not _is_over(story, 5)
    assert story.counts.ending, "nothing more is published"
    large.rows_in, large.lag = 100, 0
    assert _is_over(story, 5)
    story.counts.consumed = 39
    assert not _is_over(story, 5)
    story.moments.append(Totals(5 + DRAIN_S, 100, 100, 0, 39, 0))
    assert _is_over(story, 5)


def test_rates_and_lines():
    moments = [Totals(second, 100 * second, 50 * second, 0, 0, 0) for second in range(5)]
    assert rates(moments, "published") == [0.0, 100.0, 100.0, 100.0, 100.0]
    assert spark_line([0, 1, 2, 4], 4, 4) == " ▂▄█"
    assert spark_line([4.0] * 100, 10, 4) == "█" * 10
    assert spark_line([], 10, 0) == ""
    assert len(chart(Story(moments, [], Counts(), 1.0))) == 3
