"""`dueOnly`: each row once, and not before its time, whatever is repeated or restarted in between."""

import random

import pyarrow as pa
import pytest

from tests.spark.test_stream_reader import Query, payloads, texts
from wherry.model.errors import HistoryLost, InvalidInput
from wherry.spark.columns.schema import MESSAGES
from wherry.spark.options.parsing import parse
from wherry.spark.read import batch, due, stream
from wherry.spark.read.batch import BatchReader
from wherry.spark.read.positions import DUE_VERSION, VERSION

FAR_MS = 4_000_000_000_000
TIMELINE = {"order": "timeline"}


@pytest.fixture
def clock(monkeypatch):
    """Give the reader a clock that the test sets."""
    now = [FAR_MS]
    for module in (stream, batch):
        monkeypatch.setattr(module, "now_ms", lambda: now[0])
    return now


def publish(broker, topic, payloads, dues, **columns):
    times = pa.array([None if each is None else FAR_MS + each for each in dues], pa.timestamp("ms", tz="UTC"))
    broker.publish(topic, payloads, due=times, **columns)


def test_what_is_not_due_comes_later_and_once(broker, clock):
    here = broker.create(**TIMELINE)
    publish(broker, here, texts(0, 5), [0, 500, -10, None, 100])
    query = Query(broker, here, dueOnly=True, subscription="s")
    assert payloads(query.step()) == [b"m0", b"m2", b"m3"]
    assert query.at["version"] == DUE_VERSION
    assert query.plan() == query.at, "nothing is due, so there is no micro-batch"
    clock[0] += 100
    end = query.plan()
    assert payloads(query.read(end)) == [b"m4"]
    clock[0] += 1_000
    assert payloads(query.read(end)) == [b"m4"], "a repeated micro-batch has the same rows at any time"
    assert [row["lag"] for row in broker.subscriptions(here).values()] == [4], "the queue keeps what waits"
    query.at = end
    publish(broker, here, texts(5, 1), [0])
    assert payloads(query.step()) == [b"m1", b"m5"]
    assert query.plan() == query.at
    assert broker.subscriptions(here)["s"]["lag"] == 0
    assert broker.payloads(here) == []


def test_without_the_option_a_stream_has_what_is_not_due(broker):
    here = broker.create(**TIMELINE)
    publish(broker, here, texts(0, 2), [0, 500])
    assert payloads(Query(broker, here).step()) == texts(0, 2)


@pytest.mark.parametrize("seed", range(5))
def test_any_times_restarts_and_limits(broker, clock, seed):
    chance = random.Random(seed)
    here = broker.create(partitions=3, **TIMELINE)
    query = Query(broker, here, dueOnly=True, subscription="s", maxRowsPerBatch=7)
    seen: list[bytes] = []
    dues: dict[bytes, int | None] = {}
    sent = 0
    for _ in range(30):
        count = chance.randrange(6)
        times = [
            chance.choice([None, chance.randrange(clock[0] - FAR_MS - 5, clock[0] - FAR_MS + 60)]) for _ in range(count)
        ]
        dues |= {f"m{sent + n}".encode(): time for n, time in enumerate(times)}
        if count:
            publish(broker, here, texts(sent, count), times, key=[f"k{chance.random()}" for _ in range(count)])
        sent += count
        end = query.plan()
        if chance.random() < 0.3:
            query = Query(broker, here, query.checkpoint, dueOnly=True, subscription="s", maxRowsPerBatch=7)
        rows = query.read(end)
        assert all((dues[row["payload"]] or 0) <= clock[0] - FAR_MS for row in rows if dues[row["payload"]] is not None)
        seen += payloads(rows)
        query.at = end
        clock[0] += chance.randrange(20)
    clock[0] += 1_000
    while rows := query.step():
        seen += payloads(rows)
    assert sorted(seen) == sorted(dues)


def test_a_query_may_turn_the_option_on_and_off(broker, clock):
    here = broker.create(keep="age", keep_ms=3_600_000, **TIMELINE)
    publish(broker, here, texts(0, 2), [0, 500])
    query = Query(broker, here)
    assert len(query.step()) == 2
    publish(broker, here, texts(2, 2), [0, 500])
    query = Query(broker, here, query.checkpoint, dueOnly=True)
    assert payloads(query.step()) == [b"m2"]
    query = Query(broker, here, query.checkpoint)
    assert payloads(query.step()) == [b"m3"]
    assert query.at["version"] == VERSION
    assert query.plan() == query.at


def test_a_run_that_ends_leaves_what_is_due_later_to_the_next_one(broker, clock):
    here = broker.create(**TIMELINE)
    publish(broker, here, texts(0, 2), [0, 500])
    query = Query(broker, here, dueOnly=True)
    query.reader.prepareForTriggerAvailableNow()
    clock[0] += 1_000
    assert payloads(query.step()) == [b"m0"]
    assert query.plan() == query.at
    again = Query(broker, here, query.checkpoint, dueOnly=True)
    again.reader.prepareForTriggerAvailableNow()
    assert payloads(again.step()) == [b"m1"]


def test_filters_hold_for_what_waits(broker, clock):
    here = broker.create(**TIMELINE)
    publish(broker, here, texts(0, 3), [9, 5, 0], key=["a", "b", "b"])
    query = Query(broker, here, dueOnly=True, keys="b", subscription="s")
    assert payloads(query.step()) == [b"m2"]
    assert query.at["waiting"] == {here: {"0": 1}}
    clock[0] += 9
    assert payloads(query.step()) == [b"m1"]


def test_a_topic_that_was_made_anew_has_nothing_that_waits(broker, clock):
    here = broker.create(**TIMELINE)
    publish(broker, here, texts(0, 2), [500, 500])
    careful, easy = Query(broker, here, dueOnly=True), Query(broker, here, dueOnly=True, failOnDataLoss=False)
    assert careful.step() == easy.step() == []
    broker.link.action("delete-topic", {"topic": here})
    broker.link.action("create-topic", {"name": here, **TIMELINE})
    publish(broker, here, texts(9, 1), [0])
    with pytest.raises(HistoryLost):
        careful.step()
    clock[0] += 1_000
    assert payloads(easy.step()) == [b"m9"]
    assert easy.plan() == easy.at


def test_too_many_that_wait_are_an_error(broker, clock, monkeypatch):
    monkeypatch.setattr(due, "WAITING_MAX", 3)
    here = broker.create(**TIMELINE)
    publish(broker, here, texts(0, 4), [500] * 4)
    query = Query(broker, here, dueOnly=True)
    assert query.step() == []
    with pytest.raises(Exception, match="messages that wait in a query with dueOnly"):
        query.plan()


def test_a_batch_has_what_is_due_when_it_is_planned(broker, clock):
    here = broker.create(partitions=2, **TIMELINE)
    publish(broker, here, texts(0, 3), [0, 500, None], key=["a", "b", "c"])

    def read(schema=MESSAGES, **options):
        reader = BatchReader(parse({"url": broker.url, "topic": here, **options}), schema)
        return [row for part in reader.partitions() for found in reader.read(part) for row in found.to_pylist()]

    assert payloads(read()) == texts(0, 3)
    assert payloads(read(dueOnly="true")) == [b"m0", b"m2"]
    some = read(type(MESSAGES)([MESSAGES["payload"]]), dueOnly="true")
    assert sorted(map(str, some)) == ["{'payload': b'm0'}", "{'payload': b'm2'}"], "due need not be a column"
    clock[0] += 500
    assert payloads(read(dueOnly="true")) == texts(0, 3)


def test_a_write_has_no_such_option():
    with pytest.raises(InvalidInput, match="dueOnly"):
        parse({"topic": "t", "dueOnly": "true"}).made_for("write")
