"""Writes: stages and commits as tasks and driver make them, and a job of Spark."""

from itertools import islice

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql.types import BinaryType, DoubleType, LongType, MapType, StringType, StructField, StructType

from tests.spark import faulty
from wherry.model.errors import AlreadyExists, InvalidInput, LimitReached, WherryError
from wherry.spark.options.parsing import parse
from wherry.spark.write.sink import BatchWriter, columns, publishable

PAYLOAD = StructType([StructField("payload", BinaryType())])


def batches(*payloads, **more):
    yield pa.record_batch({"payload": pa.array(payloads, pa.binary()), **more})


@pytest.fixture
def writer(broker):
    def make(topic, **options):
        return BatchWriter(parse({"url": broker.url, "topic": topic, **options}), PAYLOAD)

    return make


def stage(writer, key, attempt, *payloads):
    return writer._stage(key, attempt, batches(*payloads))


def test_only_the_attempts_that_the_driver_names_become_visible(broker, writer):
    topic = broker.create()
    sink = writer(topic)
    stage(sink, topic, "0/lost", b"a", b"b")
    messages = [stage(sink, topic, "0/1", b"a", b"b"), stage(sink, topic, "1/0", b"c"), stage(sink, topic, "2/0")]
    assert messages[2].stage is None, "a task without rows stages nothing"
    assert broker.payloads(topic) == []
    sink.commit([*messages, None])
    assert sorted(broker.payloads(topic)) == [b"a", b"b", b"c"]


def test_a_commit_again_and_an_abort_behind_it_do_nothing(broker, writer):
    topic = broker.create()
    sink = writer(topic)
    first = stage(sink, topic, "0/0", b"a")
    again = stage(sink, topic, "0/1", b"a")
    for messages in ([first], [first], [again]):
        sink.commit(messages)
        sink.abort(messages)
    assert broker.payloads(topic) == [b"a"]
    late = stage(sink, topic, "0/2", b"a")
    assert late.stage is None, "what is committed is not even staged"


def test_rows_of_an_aborted_batch_are_never_seen(broker, writer):
    topic = broker.create()
    sink = writer(topic)
    messages = [stage(sink, topic, "0/0", b"a"), None]
    sink.abort(messages)
    with pytest.raises(WherryError):
        sink.commit(messages)
    assert broker.payloads(topic) == []


def test_an_error_of_the_broker_is_raised_and_the_stage_is_gone(broker, writer):
    topic = broker.create(payload_bytes_max=10)
    with pytest.raises(InvalidInput, match="payload"):
        stage(writer(topic), topic, "0/0", b"small", bytes(11))
    full = broker.create(messages_max=1)
    sink = writer(full)
    message = stage(sink, full, "0/0", b"a", b"b")
    with pytest.raises(LimitReached):
        sink.commit([message])
    sink.abort([message])
    assert broker.payloads(full) == []


class Full:
    """A broker that has no room for some puts, each of which takes its batches until then."""

    def __init__(self, refusals, taken=1, bound="bytes of open stages"):
        self.refusals, self.taken, self.bound, self.stages, self.aborted = refusals, taken, bound, {}, []

    def _replace(self, **_):
        return self

    def action(self, name, body):
        if name == "abort":
            self.aborted.append(body["key"])
        return {"placed": None}

    def put(self, command, schema, batches):
        self.refusals -= 1
        if self.refusals >= 0:
            list(islice(batches, self.taken))
            raise LimitReached(self.bound, 1, 2)
        self.stages[command["stage"]] = [row["payload"] for batch in batches for row in batch.to_pylist()]
        return len(self.stages[command["stage"]])


@pytest.fixture
def full(monkeypatch, writer):
    def stage(there, *rows, **options):
        monkeypatch.setattr("wherry.spark.write.sink.link", lambda _: there)
        return writer("t", **options)._stage("k", "0", (batch for row in rows for batch in batches(row)))

    return stage


@pytest.mark.parametrize("taken", [0, 1, 2, 3])
def test_stages_of_others_are_waited_for_and_nothing_is_staged_twice(full, taken):
    there = Full(2, taken)
    staged = full(there, b"a", b"b", b"c")
    assert there.stages == {staged.stage: [b"a", b"b", b"c"]}
    assert staged.rows == 3
    assert len(set(there.aborted)) == 2, "what was refused has a stage of its own"
    assert staged.stage not in there.aborted


def test_other_limits_too_many_rows_and_too_long_are_reported(full, monkeypatch):
    for there, options in ((Full(1, bound="the topic"), {}), (Full(99), {"retrySeconds": "0.3"})):
        with pytest.raises(LimitReached):
            full(there, b"a", **options)
    monkeypatch.setattr("wherry.spark.write.sink.KEPT_BYTES_MAX", 10)
    with pytest.raises(LimitReached):
        full(Full(1, taken=2), b"a", bytes(100))


def test_columns_that_a_message_has():
    text, binary = StructField("value", StringType()), StructField("payload", BinaryType())
    key, offset = StructField("key", StringType()), StructField("offset", LongType())
    headers = StructField("headers", MapType(StringType(), StringType()))
    assert columns(StructType([offset, key, headers, binary])) == ["key", "headers", "payload"]
    assert columns(StructType([text])) == ["value"]
    for bad in (
        [text, binary],
        [key],
        [binary, StructField("extra", LongType())],
        [StructField("payload", LongType())],
    ):
        with pytest.raises(InvalidInput, match="column"):
            columns(StructType(bad))
    with pytest.raises(InvalidInput, match="priority double"):
        columns(StructType([binary, StructField("priority", DoubleType())]))


def test_text_is_a_payload():
    batch = pa.record_batch({"value": ["é", "b"], "key": ["k", None], "offset": [1, 2]})
    made = publishable(batch, ["value", "key"])
    assert made.to_pydict() == {"payload": ["é".encode(), b"b"], "key": ["k", None]}


@pytest.mark.rows("A22")
def test_a_job_with_all_columns(queries, broker):
    topic = broker.create(partitions=3)
    rows = queries.spark.range(0, 1_000, numPartitions=4).selectExpr(
        "concat('id', id) AS id",
        "concat('k', id % 7) AS key",
        "cast(id % 100 AS int) AS priority",
        "timestamp_millis(4000000000000 + id) AS due",
        "timestamp_millis(5000000000000 + id) AS expires",
        "map('n', cast(id AS string)) AS headers",
        "concat('value ', id) AS value",
    )
    queries.save(rows, topic)
    found = sorted(broker.rows(topic), key=lambda row: int(row["id"][2:]))
    assert len(found) == 1_000
    for n in (0, 123, 999):
        row = found[n]
        assert (row["id"], row["key"], row["priority"]) == (f"id{n}", f"k{n % 7}", n % 100)
        assert (row["headers"], row["payload"]) == ([("n", str(n))], f"value {n}".encode())
        assert (row["due"].timestamp() * 1_000, row["expires"].timestamp() * 1_000) == (4e12 + n, 5e12 + n)


def test_a_job_that_fails_leaves_nothing_and_one_with_a_key_writes_once(queries, broker):
    topic = broker.create()
    rows = queries.spark.range(0, 100, numPartitions=2).selectExpr("cast(id AS string) AS value")
    for point in ("write-middle", "commit-before"):
        faulty.plan(point)
        with pytest.raises(PySparkException, match="planned"):
            queries.save(rows, topic, format="faulty", commitKey=f"nightly {topic}")
        assert broker.payloads(topic) == []
    for _ in range(2):
        queries.save(rows, topic, commitKey=f"nightly {topic}")
        assert len(broker.payloads(topic)) == 100
    queries.save(rows, topic)
    assert len(broker.payloads(topic)) == 200


def numbers(queries, count):
    return queries.spark.range(0, count, numPartitions=2).selectExpr("cast(id AS string) AS value")


def test_a_commit_key_of_another_job_is_an_error_that_names_what_was_written(queries, broker):
    topic = broker.create()
    queries.save(numbers(queries, 100), topic, commitKey="nightly")
    said = rf"commit key 'nightly'.* 100 rows .* to '{topic}' partition 0 from offset 0 at 20\d\d-.* this job has 70"
    with pytest.raises(PySparkException, match=said):
        queries.save(numbers(queries, 70), topic, commitKey="nightly")
    assert len(broker.payloads(topic)) == 100
    queries.save(numbers(queries, 0), topic, commitKey="nightly")


def test_the_same_job_again_is_a_warning_and_writes_nothing(broker, writer, caplog):
    topic = broker.create()
    sink = writer(topic, commitKey="nightly")
    sink.commit([sink._stage(sink._key, "0/0", batches(b"a", b"b"), counted=True)])
    assert caplog.text == ""
    again = writer(topic, commitKey="nightly")
    again.commit(
        [again._stage(again._key, f"0/{n}", batches(each), counted=True) for n, each in enumerate((b"b", b"a"))]
    )
    assert "commit key 'nightly' was used before: 2 rows were written" in caplog.text
    assert broker.payloads(topic) == [b"a", b"b"]


@pytest.mark.parametrize(("columns", "other"), [({}, (b"a", b"c")), ({"key": pa.array(["k", "l"])}, (b"a", b"b"))])
def test_a_job_with_as_many_other_rows_is_an_error(broker, writer, columns, other):
    topic = broker.create()
    sink = writer(topic, commitKey="nightly")
    sink.commit([sink._stage(sink._key, "0/0", batches(b"a", b"b"), counted=True)])
    again = writer(topic, commitKey="nightly")
    again._columns += list(columns)
    with pytest.raises(AlreadyExists, match="this job has 2 other rows, and wrote none of them"):
        again.commit([again._stage(again._key, "0/1", batches(*other, **columns), counted=True)])
    assert broker.payloads(topic) == [b"a", b"b"]


def test_rows_that_cannot_be_compared_are_a_warning(broker, writer, caplog, monkeypatch):
    topic = broker.create()
    broker.link.action("subscribe", {"topic": topic, "name": "s"})
    sink = writer(topic, commitKey="k")
    sink.commit([sink._stage(sink._key, "0/0", batches(b"a", b"b"), counted=True)])
    late = sink._stage(sink._key, "0/1", batches(b"c", b"d"), counted=True)
    with monkeypatch.context() as fewer:
        fewer.setattr("wherry.spark.write.reuse.COMPARED_BYTES_MAX", 1)
        sink.commit([late])
    with monkeypatch.context() as fewer:
        fewer.setattr("wherry.spark.write.reuse.COMPARED_ROWS_MAX", 1)
        sink.commit([late])
    broker.link.action("advance", {"topic": topic, "subscription": "s", "offsets": {"0": 1}})
    sink.commit([late])
    assert caplog.text.count("commit key 'k' was used before: 2 rows") == 3


def test_of_two_jobs_at_once_with_one_key_the_slower_one_fails(broker, writer):
    topic = broker.create()
    first, second = writer(topic, commitKey="k"), writer(topic, commitKey="k")
    staged = [
        each._stage(each._key, "0/0", rows, counted=True)
        for each, rows in ((first, batches(b"a")), (second, batches(b"b", b"c")))
    ]
    first.commit(staged[:1])
    with pytest.raises(AlreadyExists, match=r"1 rows were written under it.* this job has 2 rows"):
        second.commit(staged[1:])
    assert broker.payloads(topic) == [b"a"]


def test_a_commit_whose_messages_were_settled_has_no_time(broker, writer):
    topic = broker.create()
    broker.link.action("subscribe", {"topic": topic, "name": "s"})
    sink = writer(topic, commitKey="k")
    sink.commit([sink._stage(sink._key, "0/0", batches(b"a"), counted=True)])
    broker.link.action("advance", {"topic": topic, "subscription": "s", "offsets": {"0": 1}})
    with pytest.raises(AlreadyExists, match=r"1 rows were written under it to '[^']*' partition 0 from offset 0; this"):
        sink.commit([sink._stage(sink._key, "0/1", batches(b"a", b"b"), counted=True)])


def test_a_micro_batch_again_is_silent_and_a_key_without_its_number_is_not(queries, broker):
    """Run `foreachBatch` with the last commit of the checkpoint forgotten, as after a driver that died."""
    here, there = broker.create(), broker.create()

    def write(key):
        def each(rows, number):
            queries.save(rows.select("payload"), there, commitKey=key.format(number=number))

        writer = queries.follow(here, subscription="").writeStream.foreachBatch(each)
        writer = writer.option("checkpointLocation", str(queries.checkpoint(key))).trigger(availableNow=True)
        query = writer.start()
        assert query.awaitTermination(120)

    broker.publish(here, [b"a", b"b"])
    write("batch {number}")
    queries.forget_commit("batch {number}")
    write("batch {number}")
    assert broker.payloads(there) == [b"a", b"b"]
    write("same")
    assert len(broker.payloads(there)) == 4
    broker.publish(here, [b"c"])
    with pytest.raises(StreamingQueryException, match=r"commit key 'same'.*2 rows"):
        write("same")


def test_a_log_is_only_added_to(queries, broker):
    topic = broker.create()
    rows = queries.spark.range(1).selectExpr("cast(id AS string) AS value")
    with pytest.raises(PySparkException, match="a log is only added to"):
        rows.write.format("wherry").options(url=broker.url, topic=topic).mode("overwrite").save()
    with pytest.raises(PySparkException, match="read only"):
        rows.write.format("wherry").options(url=broker.url, table="topics").mode("append").save()
