"""Checkpoints that a driver left which was killed before its first micro-batch."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException

from wherry.spark import clear_unbegun


def run(spark, folder: Path) -> int:
    """Run a query over one line of text to its end; return the rows that it read."""
    (folder / "in").mkdir(exist_ok=True)
    (folder / "in" / "a.txt").write_text("a\n")
    writer = spark.readStream.text(str(folder / "in")).writeStream.format("noop")
    query = writer.option("checkpointLocation", str(folder / "checkpoint")).trigger(availableNow=True).start()
    query.awaitTermination()
    return sum(each["numInputRows"] for each in query.recentProgress)


def test_a_query_whose_driver_was_killed_while_it_wrote_its_first_offsets_starts_again(spark, tmp_path):
    left = tmp_path / "checkpoint" / "offsets" / ".0.0f5ddcd4-f2f2-46bb-8ee5-1ba5ccac2e1e.tmp"
    left.parent.mkdir(parents=True)
    left.write_text("v1\n")
    with pytest.raises(StreamingQueryException, match="should be empty on batch 0"):
        run(spark, tmp_path)
    assert left in clear_unbegun(str(tmp_path / "checkpoint"))
    assert run(spark, tmp_path) == 1


def test_a_checkpoint_with_offsets_is_left_as_it_is(spark, tmp_path):
    assert run(spark, tmp_path) == 1
    before = sorted((tmp_path / "checkpoint").rglob("*"))
    for location in (tmp_path / "checkpoint", (tmp_path / "checkpoint").as_uri()):
        assert clear_unbegun(str(location)) == []
    assert sorted((tmp_path / "checkpoint").rglob("*")) == before
    assert clear_unbegun("s3://bucket/checkpoint") == []
