"""`transformWithState`: what it needs is said before a query starts, and with that a query runs."""

from collections.abc import Iterator

import pandas as pd
import pytest
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from wherry.model.errors import InvalidInput
from wherry.spark import STATEFUL, check_stateful
from wherry.spark.pipelines.run.address import BrokerAddress
from wherry.spark.pipelines.run.plan import Loads
from wherry.spark.pipelines.run.run import Pipeline
from wherry.spark.pipelines.run.spec import read
from wherry.spark.sessions import state

STEPS = """
from tests.spark import test_state

def counted(orders):
    return test_state.counted(orders)
"""
PIPELINE = """
name = "{topic}"
[sources.orders]
topic = "{topic}"
[steps.counts]
python = "steps.py:counted"
[sinks.counts]
from = "counts"
topic = "{topic}.counts"
"""


class Count(StatefulProcessor):
    """Counts the rows of a key over all micro-batches."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._seen = handle.getValueState("seen", "n long")

    def handleInputRows(  # noqa: N802 - the name that Spark calls
        self,
        key: tuple[str],
        rows: Iterator[pd.DataFrame],
        timerValues: object,  # noqa: N803
    ) -> Iterator[pd.DataFrame]:
        before = self._seen.get()
        now = (before[0] if before else 0) + sum(map(len, rows))
        self._seen.update((now,))
        yield pd.DataFrame({"key": [key[0]], "value": [str(now)]})

    def close(self) -> None:
        pass


def counted(orders):
    rows = orders.select("key").groupBy("key")
    return rows.transformWithStateInPandas(Count(), "key string, value string", "append", "none")


@pytest.fixture
def stateful(spark):
    for name, value in STATEFUL.items():
        spark.conf.set(name, value)
    yield spark
    for name in STATEFUL:
        spark.conf.unset(name)


def test_a_query_with_state_runs_with_the_setting(stateful, queries, broker):
    check_stateful(stateful)
    here, there = broker.create(), broker.create()
    for _ in range(2):
        broker.publish(here, [b"", b"", b""], key=["a", "b", "a"])
        rows = counted(queries.follow(here, subscription="s"))
        assert Loads(rows).is_stateful
        writer = rows.writeStream.format("wherry").options(url=broker.url, topic=there)
        writer = writer.option("checkpointLocation", str(queries.checkpoint())).trigger(availableNow=True)
        query = writer.start()
        assert query.awaitTermination(120)
    assert sorted((row["key"], row["payload"]) for row in broker.rows(there)) == [
        ("a", b"2"),
        ("a", b"4"),
        ("b", b"1"),
        ("b", b"2"),
    ]


def test_a_pipeline_without_the_setting_fails_before_it_starts(spark, broker, tmp_path):
    topic = broker.create(keep="age", keep_ms=3_600_000)
    (tmp_path / "p.toml").write_text(PIPELINE.format(topic=topic))
    (tmp_path / "steps.py").write_text(STEPS)
    pipeline = Pipeline(spark, read(tmp_path / "p.toml"), BrokerAddress(broker.url), once=True)
    with pytest.raises(InvalidInput, match=r"RocksDBStateStoreProvider, for transformWithState"):
        pipeline.run(lambda _: None)
    assert broker.subscriptions(topic) == {}, "nothing has begun"


def test_without_protobuf_the_command_that_brings_it_is_named(spark, monkeypatch):
    monkeypatch.setattr(state, "_has_protobuf", lambda: False)
    with pytest.raises(InvalidInput, match="pip install protobuf"):
        check_stateful(spark)
