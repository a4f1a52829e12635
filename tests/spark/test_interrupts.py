"""Ctrl-C during a run of a pipeline breaks no call to Java: it is noted, and the run ends at its next look."""

import os
import signal
import threading

import pytest

from wherry.spark.pipelines.run.address import BrokerAddress
from wherry.spark.pipelines.run.interrupts import noted
from wherry.spark.pipelines.run.run import Pipeline
from wherry.spark.pipelines.run.spec import read


def interrupt():
    os.kill(os.getpid(), signal.SIGINT)


def test_the_first_is_noted_and_the_second_is_raised():
    before = signal.getsignal(signal.SIGINT)
    with noted() as is_interrupted:
        assert not is_interrupted()
        interrupt()
        assert is_interrupted()
        with pytest.raises(KeyboardInterrupt):
            interrupt()
    assert signal.getsignal(signal.SIGINT) is before


def test_a_thread_gets_none():
    found = []

    def look():
        with noted() as is_interrupted:
            found.append(is_interrupted())

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert found == [False]


def test_a_pipeline_ends_at_the_first_one(spark, broker, tmp_path):
    """Interrupt within a report, where Spark's own handler would raise."""
    topic = broker.create(keep="age", keep_ms=3_600_000)
    after: list[str] = []
    sink = f'[sinks.out]\nfrom = "orders"\ntopic = "{topic}.out"\n'
    (tmp_path / "p.toml").write_text(f'name = "p-{topic}"\n[sources.orders]\ntopic = "{topic}"\n{sink}')

    def report(figures):
        if not after:
            interrupt()
            after.append("not broken off")

    ends = Pipeline(spark, read(tmp_path / "p.toml"), BrokerAddress(broker.url)).run(report)
    assert [each.state for each in ends] == ["stopped"] * len(ends)
    assert after == ["not broken off"]
