"""The demo: all of it for two seconds, and its picture."""

import json
import os
import subprocess
import sys

from wherry.spark.pipelines.demo import Counts, Moment, Story
from wherry.spark.pipelines.demo_picture import chart, rates, spark_line

PATIENCE_S = 300


def test_it_runs_and_leaves_a_picture_only(tmp_path):
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
    told = json.loads(done.stdout)
    assert told["published"] > 100
    assert told["piped"] >= 100
    assert told["bad"] >= 1
    assert told["consumed"] > 0
    assert (tmp_path / "wherry-demo.png").stat().st_size > 10_000
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith("wherry")] == ["wherry-demo.png"]


def test_rates_and_lines():
    moments = [Moment(second, 100 * second, 50 * second, 0, 0, 0) for second in range(5)]
    assert rates(moments, "published") == [0.0, 100.0, 100.0, 100.0, 100.0]
    assert spark_line([0, 1, 2, 4], 4, 4) == " ▂▄█"
    assert spark_line([4.0] * 100, 10, 4) == "█" * 10
    assert spark_line([], 10, 0) == ""
    assert len(chart(Story(moments, [], Counts(), 1.0))) == 3
