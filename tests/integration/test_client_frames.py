"""Frames of pandas and polars go in as they are."""

from __future__ import annotations

from datetime import UTC, datetime

import pandas as pd
import polars as pl
import pytest

FRAME = {
    "payload": [b"%d" % number for number in range(300)],
    "key": [None if number % 3 else f"user-{number}" for number in range(300)],
    "priority": [number % 5 for number in range(300)],
    "due": [datetime(2026, 1, 1, tzinfo=UTC)] * 300,
}


@pytest.mark.parametrize("frame", [pd.DataFrame, pl.DataFrame], ids=["pandas", "polars"])
@pytest.mark.rows("A22")
def test_a_frame_is_published_and_consumed_as_it_was(wherry_broker, frame):
    wherry_broker.create_topic("jobs")
    wherry_broker.subscribe("jobs", "workers")
    wherry_broker.publish_batch("jobs", frame(FRAME), batch_messages=100)
    came = wherry_broker.pull("jobs", "workers").data.select(list(FRAME))
    assert came.to_pydict() == FRAME
    wherry_broker.publish("jobs", frame({"payload": ["text"]}))
    assert wherry_broker.pull("jobs", "workers").payloads() == [b"text"]
    back = pl.from_arrow(came) if frame is pl.DataFrame else came.to_pandas()
    wherry_broker.publish_batch("jobs", back)
    assert wherry_broker.pull("jobs", "workers").payloads() == FRAME["payload"]
