"""Each row once, whatever fails where: in a task, between tasks and commit, behind the commit, at the broker."""

import signal
import threading
import time

import pytest
from pyspark.errors import StreamingQueryException

from tests.spark import faulty
from tests.spark.brokers import broker as started
from tests.spark.queries import Queries

PASS_ON = "key string, priority int, headers map<string,string>, payload binary"
SOME_POINTS = ("write-killed", "commit-before", "commit-after")
"""One of a task, and those around the commit, which differ the most."""


def texts(first, count):
    return [f"m{n:05}".encode() for n in range(first, first + count)]


@pytest.mark.rows("A22")
@pytest.mark.parametrize("points", [SOME_POINTS, pytest.param(faulty.POINTS, marks=pytest.mark.long)])
def test_topic_to_topic_with_a_failure_at_every_point(queries, broker, points):
    here, there = broker.create(partitions=2), broker.create(partitions=2)
    rows = queries.follow(here, columns=PASS_ON)
    sent = 0
    for point in points:
        keys = [f"k{n}" for n in range(40)]
        broker.publish(here, texts(sent, 40), key=keys)
        sent += 40
        faulty.plan(point)
        with pytest.raises(StreamingQueryException):
            queries.run(rows, there, format="faulty")
        assert not faulty.planned(point)
        visible = sent if point == "commit-after" else sent - 40
        assert len(broker.payloads(there)) == visible, f"{point}: all of a micro-batch, or nothing"
        queries.run(rows, there, format="faulty")
        assert sorted(broker.payloads(there)) == texts(0, sent), point
    found = broker.rows(there)
    assert {row["key"] for row in found} == {f"k{n}" for n in range(40)}


def test_a_checkpoint_that_lost_its_last_commit_writes_nothing_twice(queries, broker):
    here, there = broker.create(keep="age", keep_ms=3_600_000), broker.create()
    rows = queries.follow(here, columns=PASS_ON, maxRowsPerBatch=20)
    broker.publish(here, texts(0, 60))
    queries.run(rows, there)
    assert queries.forget_commit() == 2
    queries.run(rows, there)
    assert sorted(broker.payloads(there)) == texts(0, 60)


def test_topic_to_parquet_with_restarts_and_a_repeated_micro_batch(queries, broker):
    here, out = broker.create(partitions=2), queries.folder / "out"
    rows = queries.follow(here, maxRowsPerBatch=40)
    for first in range(0, 120, 60):
        broker.publish(here, texts(first, 60), key=[f"k{n}" for n in range(60)])
        query = (
            rows.writeStream.format("parquet")
            .options(checkpointLocation=str(queries.checkpoint()), path=str(out))
            .trigger(availableNow=True)
        )
        assert query.start().awaitTermination(120)
        queries.forget_commit()
    assert query.start().awaitTermination(120)
    found = queries.spark.read.parquet(str(out)).select("payload").collect()
    assert sorted(bytes(row["payload"]) for row in found) == texts(0, 120)


@pytest.mark.parametrize("kills", [1, pytest.param(4, marks=pytest.mark.long)])
def test_a_broker_that_is_killed_and_comes_back(spark, tmp_path, kills):
    count = 800 * (kills + 1)
    with started(tmp_path) as own:
        queries = Queries(spark, own.url, tmp_path)
        here, there = own.create(partitions=2), own.create()
        own.publish(here, texts(0, count))
        rows = queries.follow(here, columns=PASS_ON, maxRowsPerBatch=200)
        query = queries.start(rows, there, now=False)
        for deaths in range(kills):
            wait_for(lambda least=400 * (deaths + 1): len(own.payloads(there)) >= least)
            own.end(signal.SIGKILL)
            own.start()
        wait_for(lambda: not query.isActive or len(own.payloads(there)) >= count)
        if query.isActive:
            query.stop()
        else:  # the query died in a put, which is not tried again: a restart continues
            queries.run(rows, there)
        assert sorted(own.payloads(there)) == texts(0, count)


def wait_for(holds, seconds=90):
    until = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < until
        threading.Event().wait(0.05)
