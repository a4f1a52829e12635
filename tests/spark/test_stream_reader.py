"""The stream reader as Spark calls it, at a real broker but without Spark: so that many micro-batches are cheap."""

import json
import time

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows

from wherry.model.errors import HistoryLost, InvalidInput, NotFound
from wherry.spark.columns.schema import MESSAGES
from wherry.spark.options.parsing import parse
from wherry.spark.read.stream import StreamReader

STREAM = {"keep": "age", "keep_ms": 3_600_000}


class Query:
    """What Spark does: it asks how far, reads, and asks how far from there."""

    def __init__(self, broker, topic, at=None, **options):
        given = {"url": broker.url, "topic": topic, **{name: str(value) for name, value in options.items()}}
        self.reader = StreamReader(parse(given), MESSAGES)
        self.limit = self.reader.getDefaultReadLimit()
        self.at = self.reader.initialOffset() if at is None else json.loads(at)

    @property
    def checkpoint(self):
        return json.dumps(self.at)

    def plan(self):
        return json.loads(json.dumps(self.reader.latestOffset(self.at, self.limit)))

    def read(self, end):
        parts = self.reader.partitions(self.at, end)
        return [row for part in parts for batch in self.reader.read(part) for row in batch.to_pylist()]

    def step(self):
        end = self.plan()
        rows = self.read(end)
        self.at = end
        return rows


def texts(first, count):
    return [f"m{n}".encode() for n in range(first, first + count)]


def payloads(rows):
    return sorted(row["payload"] for row in rows)


@pytest.mark.parametrize("count", [2_000, pytest.param(20_000, marks=pytest.mark.long)])
def test_no_micro_batch_is_above_either_limit(broker, count):
    here = broker.create(partitions=3, **STREAM)
    sizes = [(n * 7919) % 997 if n % 50 else 20_000 for n in range(count)]
    for at in range(0, count, 2_000):
        keys = [f"k{n}" for n in range(at, at + 2_000)]
        broker.publish(here, [bytes(size) for size in sizes[at : at + 2_000]], key=keys)
    query = Query(broker, here, maxRowsPerBatch=20, maxBytesPerBatch=30_000)
    seen, batches = set(), 0
    while rows := query.step():
        batches += 1
        assert len(rows) <= 20
        weight = sum(len(row["payload"]) + len(row["key"]) for row in rows)
        assert weight <= 30_000
        seen |= {(row["partition"], row["offset"]) for row in rows}
    assert batches >= count // 20
    assert len(seen) == count


@pytest.mark.parametrize("keep", [{}, STREAM])
def test_a_query_that_begins_anew_reports_what_its_queue_dropped(broker, keep):
    here = broker.create(**keep)
    broker.publish(here, texts(0, 10))
    query = Query(broker, here, subscription="s", maxRowsPerBatch=6)
    query.read(query.plan())
    assert len(Query(broker, here, subscription="s").step()) == 10, "the first micro-batch is done again"
    query.step()
    query.step()  # now the first is known to be done
    if keep:
        assert len(Query(broker, here, subscription="s").step()) == 10
        return
    with pytest.raises(HistoryLost, match=r"'s' has read 6 messages .* before, and the topic, a queue, let go"):
        Query(broker, here, subscription="s")
    assert len(Query(broker, here, subscription="s", failOnDataLoss="false").step()) == 4
    assert len(Query(broker, here, subscription="other").step()) == 4


@pytest.mark.parametrize("order", ["fifo", "priority", "timeline"])
def test_a_topic_of_any_order_is_read_by_offset(broker, order):
    here = broker.create(order=order)
    broker.publish(here, texts(0, 9), priority=[n % 3 for n in range(9)])
    query = Query(broker, here, maxRowsPerBatch=5)
    assert [row["offset"] for _ in range(2) for row in query.step()] == list(range(9))
    query.plan()
    assert [stats["lag"] for stats in broker.subscriptions(here).values()] == [0]


def test_a_message_above_the_limit_of_bytes_comes_alone(broker):
    here = broker.create(**STREAM)
    broker.publish(here, [bytes(10), bytes(5_000), bytes(10)])
    query = Query(broker, here, maxBytesPerBatch=100)
    assert [len(row["payload"]) for _ in range(3) for row in query.step()] == [10, 5_000, 10]


@pytest.mark.parametrize(
    ("limit", "count"), [(ReadMaxRows(3), 3), (ReadMaxRows(99), 10), (ReadMaxBytes(8), 4), (ReadAllAvailable(), 20)]
)
def test_spark_may_ask_for_less_than_the_options_allow(broker, limit, count):
    here = broker.create(**STREAM)
    broker.publish(here, [b"ab"] * 20)
    query = Query(broker, here, maxRowsPerBatch=10)
    query.limit = limit
    assert len(query.step()) == count


def test_an_idle_query_waits_in_one_call_and_is_woken(broker):
    here = broker.create()
    query = Query(broker, here)
    assert query.step() == []
    began = time.monotonic()
    assert query.plan() == query.at
    assert 0.08 < time.monotonic() - began < 0.6, "it waits a little, and holds up no other source of the query"


def test_offsets_times_and_words_to_start_at(broker):
    here = broker.create(**STREAM)
    broker.publish(here, texts(0, 5))
    time.sleep(0.02)
    moment = int(time.time() * 1_000)
    time.sleep(0.02)
    broker.publish(here, texts(5, 5))
    assert payloads(Query(broker, here).step()) == texts(0, 10)
    assert payloads(Query(broker, here, startingOffsets=json.dumps({here: {"0": 7}})).step()) == texts(7, 3)
    assert payloads(Query(broker, here, startingTime=moment).step()) == texts(5, 5)
    assert payloads(Query(broker, here, startingTime="1 hour ago").step()) == texts(0, 10)
    assert payloads(Query(broker, here, startingOffsets="latest").step()) == []


def test_a_first_micro_batch_that_is_repeated_begins_where_it_began(broker):
    here = broker.create(**STREAM)
    broker.publish(here, texts(0, 5))
    query = Query(broker, here, startingOffsets="latest")
    broker.publish(here, texts(5, 5))
    end = query.plan()
    broker.publish(here, texts(10, 5))
    again = Query(broker, here, startingOffsets="latest")  # Spark asks for the initial offset once more
    assert payloads(again.read(end)) == texts(5, 5)


def test_a_micro_batch_without_data_reads_nothing_again(broker):
    here = broker.create(**STREAM)
    broker.publish(here, texts(0, 5))
    query = Query(broker, here)
    assert len(query.step()) == 5
    assert query.read(query.at) == []


def test_a_run_for_what_is_there_ends_there(broker):
    here = broker.create(partitions=2, **STREAM)
    broker.publish(here, texts(0, 10), key=[str(n) for n in range(10)])
    query = Query(broker, here, maxRowsPerBatch=4)
    query.reader.prepareForTriggerAvailableNow()
    broker.publish(here, texts(10, 10), key=[str(n) for n in range(10)])
    rows = []
    while found := query.step():
        rows += found
    assert payloads(rows) == sorted(texts(0, 10))
    assert query.plan() == query.at


def test_a_topic_that_a_pattern_fits_is_read_as_soon_as_it_is_there(broker):
    first = broker.create(name="grow")
    broker.publish(first, texts(0, 3))
    query = Query(broker, f"{first}*")
    assert payloads(query.step()) == texts(0, 3)
    second = f"{first}-more"
    broker.link.action("create-topic", {"name": second, "partitions": 2})
    broker.publish(second, texts(3, 3))
    again = Query(broker, f"{first}*", at=query.checkpoint)
    assert {(row["topic"], row["payload"]) for row in again.step()} == {(second, text) for text in texts(3, 3)}
    assert list(broker.subscriptions(second)) == list(broker.subscriptions(first))


@pytest.mark.parametrize("keep", [STREAM, {}])
@pytest.mark.parametrize("restarted", [True, False])
def test_a_topic_that_was_given_more_partitions_continues_with_all_of_them(broker, keep, restarted):
    here = broker.create(**keep)
    broker.publish(here, texts(0, 30), key=[str(n) for n in range(30)])
    query = Query(broker, here, maxRowsPerBatch=20, subscription="etl")
    rows = query.step()
    broker.link.action("create-topic", {"name": here, "partitions": 3})
    broker.publish(here, texts(30, 30), key=[str(n) for n in range(30)])
    if restarted:
        query = Query(broker, here, at=query.checkpoint, maxRowsPerBatch=20, subscription="etl")
    while found := query.step():
        rows += found
    assert payloads(rows) == sorted(texts(0, 60))
    assert {row["partition"] for row in rows} == {0, 1, 2}
    assert broker.subscriptions(here)["etl"]["lag"] == 0


def test_a_run_for_what_is_there_reads_the_partitions_that_came_since(broker):
    here = broker.create(**STREAM)
    broker.publish(here, texts(0, 5))
    query = Query(broker, here)
    assert payloads(query.step()) == texts(0, 5)
    broker.link.action("create-topic", {"name": here, "partitions": 4})
    broker.publish(here, texts(5, 20), key=[str(n) for n in range(20)])
    again = Query(broker, here, at=query.checkpoint)
    again.reader.prepareForTriggerAvailableNow()
    assert payloads(again.step()) == sorted(texts(5, 20))
    assert again.plan() == again.at


ANEW = r"was deleted and created again since this query read it"


def test_a_topic_that_was_made_anew(broker):
    here = broker.create(**STREAM)
    broker.publish(here, texts(0, 10))
    careful, easy = Query(broker, here), Query(broker, here, failOnDataLoss="false")
    assert len(careful.step()) == len(easy.step()) == 10
    broker.link.action("delete-topic", {"topic": here})
    with pytest.raises(NotFound):
        careful.step()
    broker.link.action("create-topic", {"name": here, "partitions": 4, **STREAM})
    broker.publish(here, texts(10, 8), key=[f"k{n}" for n in range(8)])
    with pytest.raises(HistoryLost, match=ANEW):
        careful.step()
    assert payloads(easy.step()) == texts(10, 8)
    assert easy.plan() == easy.at


@pytest.mark.parametrize("count", [10, 15])
def test_a_topic_that_was_made_anew_and_has_grown_beyond_the_position(broker, count):
    here = broker.create(**STREAM)
    broker.publish(here, texts(0, 10))
    careful, easy = Query(broker, here), Query(broker, here, failOnDataLoss="false")
    assert len(careful.step()) == len(easy.step()) == 10
    broker.link.action("delete-topic", {"topic": here})
    broker.link.action("create-topic", {"name": here, **STREAM})
    broker.publish(here, texts(10, count))
    with pytest.raises(HistoryLost, match=ANEW):
        careful.step()
    assert payloads(easy.step()) == texts(10, count)
    assert easy.plan() == easy.at
    assert {stats["lag"] for stats in broker.subscriptions(here).values()} == {0}


def test_a_planned_micro_batch_of_a_topic_that_was_made_anew_since(broker):
    here = broker.create(**STREAM)
    broker.publish(here, texts(0, 10))
    careful, easy = Query(broker, here), Query(broker, here, failOnDataLoss="false")
    ends = careful.plan(), easy.plan()
    broker.link.action("delete-topic", {"topic": here})
    broker.link.action("create-topic", {"name": here, **STREAM})
    broker.publish(here, texts(10, 20))
    with pytest.raises(HistoryLost, match=ANEW):
        careful.read(ends[0])
    assert easy.read(ends[1]) == [], "nothing of it is there any more"
    easy.at = ends[1]
    assert payloads(easy.step()) == texts(10, 20)


def test_a_checkpoint_that_does_not_record_which_topic_of_that_name(broker):
    here = broker.create(**STREAM)
    broker.publish(here, texts(0, 5))
    query = Query(broker, here)
    query.step()
    del query.at["incarnations"]
    broker.publish(here, texts(5, 5))
    assert payloads(query.step()) == texts(5, 5)
    assert here in query.at["incarnations"]


@pytest.mark.parametrize("start", [{}, {"startingOffsets": "latest"}])
def test_a_new_topic_of_a_pattern_whose_first_messages_are_consumed_already(broker, start):
    first = broker.create(name="late")
    query = Query(broker, f"{first}*", subscription="etl", **start)
    query.step()
    second = f"{first}-more"
    broker.link.action("create-topic", {"name": second})
    broker.link.action("subscribe", {"topic": second, "name": "workers"})
    broker.publish(second, texts(0, 10))
    broker.link.action("advance", {"topic": second, "subscription": "workers", "offsets": {"0": 4}})
    end = query.plan()
    broker.link.action("advance", {"topic": second, "subscription": "workers", "offsets": {"0": 10}})
    again = Query(broker, f"{first}*", at=query.checkpoint, subscription="etl", **start)
    assert payloads(again.read(end)) == texts(4, 6), "what was there when it was found is kept for it"
    again.at = end
    broker.publish(second, texts(10, 3))
    assert payloads(again.step()) == texts(10, 3)
    again.plan()
    assert broker.subscriptions(second)["etl"]["lag"] == 0


@pytest.mark.parametrize("offsets", [{"7": 0}, {"0": 6}, {"0": -3}])
def test_offsets_that_the_topic_does_not_have_are_no_lost_history(broker, offsets):
    here = broker.create(**STREAM)
    broker.publish(here, texts(0, 5))
    with pytest.raises(InvalidInput, match="startingOffsets"):
        Query(broker, here, startingOffsets=json.dumps({here: offsets}))
    with pytest.raises(InvalidInput, match=f"topics of the load: {here}"):
        Query(broker, here, startingOffsets=json.dumps({f"{here}s": {"0": 1}}))


def test_history_that_is_gone_is_an_error_unless_the_query_may_continue(broker):
    here = broker.create(keep="bytes", keep_bytes=1_000_000)
    broker.publish(here, texts(0, 10))
    query = Query(broker, here)
    query.step()
    for first in range(10, 60, 10):
        broker.publish(here, texts(first, 10))
    broker.link.action("create-topic", {"name": here, "keep_bytes": 100})
    while broker.link.action("extents", {"topic": here})["start"]["0"] <= 10:
        time.sleep(0.1)
    with pytest.raises(HistoryLost, match=r"offset 10 is gone"):
        query.step()
    rows = Query(broker, here, at=query.checkpoint, failOnDataLoss="false").step()
    assert payloads(rows) == broker.payloads(here)
    assert 0 < len(rows) < 50


@pytest.mark.rows("A20")
def test_lag_is_what_the_query_has_still_to_read(broker):
    here = broker.create(partitions=2)
    broker.publish(here, texts(0, 100), key=[str(n) for n in range(100)])
    query = Query(broker, here, subscription="etl", maxRowsPerBatch=30)
    assert broker.subscriptions(here)["etl"]["lag"] == 100
    for left in (70, 40, 10, 0):
        query.step()
        assert broker.subscriptions(here)["etl"]["lag"] == left + (30 if left else 10), "it is not done yet"
        query.plan()
        assert broker.subscriptions(here)["etl"]["lag"] == left
    assert broker.payloads(here) == [], "a queue lets go of what all have read"


def test_a_checkpoint_of_a_later_version_is_refused(broker):
    here = broker.create()
    with pytest.raises(InvalidInput, match="a newer Wherry"):
        Query(broker, here, at='{"version": 3, "positions": {}}').step()


def test_a_topic_that_is_not_there(broker):
    with pytest.raises(NotFound):
        Query(broker, "nowhere")
