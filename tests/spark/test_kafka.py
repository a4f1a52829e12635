"""What a team that comes from Kafka writes: its options, its columns, many topics in one commit, and framed Avro."""

import io
import json

import fastavro
import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as f
from pyspark.sql.types import BinaryType, IntegerType, LongType, StringType, StructField, StructType

from tests.spark.test_stream_reader import Query
from wherry.model.errors import InvalidInput, NotFound
from wherry.spark.columns import kafka_columns
from wherry.spark.options.kafka_options import HINTS
from wherry.spark.options.options import LogPoint
from wherry.spark.options.parsing import parse
from wherry.spark.read.topics import topics_of
from wherry.spark.write.sink import BatchWriter

STREAM = {"keep": "age", "keep_ms": 3_600_000}


def row(*names, **kinds):
    known = {"topic": StringType(), "partition": IntegerType(), "offset": LongType(), "key": StringType()}
    return StructType([StructField(name, kinds.get(name) or known.get(name, BinaryType())) for name in names])


def test_options_that_mean_the_same():
    options = parse(
        {"subscribe": "a, b", "maxOffsetsPerTrigger": "7", "maxRecordsPerPartition": "5", "startingTimestamp": "17"}
    )
    assert (options.topics, options.rows_per_batch, options.rows_per_task) == (("a", "b"), 7, 5)
    assert options.start == LogPoint(time_ms=17)
    assert options.like_kafka
    assert options.made_for("readStream") is options
    assert not parse({"topic": "a", "maxOffsetsPerTrigger": "7"}).like_kafka


@pytest.mark.parametrize("name", [*HINTS, "kafka.ssl.truststore.location", "kafka.sasl.jaas.config", "kafka.max.poll"])
def test_options_without_an_equal_name_what_does_the_work_here(name):
    written = "kafka.x" if name == "kafka." else name
    with pytest.raises(InvalidInput) as caught:
        parse({"subscribe": "a", written: "x"})
    assert written in str(caught.value)
    assert any(hint in str(caught.value) for hint in HINTS.values())


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"subscribe": "a", "topic": "b"}, "which mean the same"),
        ({"subscribe": "a", "subscribePattern": "b"}, "one of subscribePattern, subscribe and topic"),
        ({"subscribePattern": "("}, "a regular expression"),
        ({"subscribe": "a", "payload": "text"}, "topic, for decoded payloads"),
        ({"topic": "a", "includeHeaders": "true"}, "have the column headers anyway"),
        ({"topic": "a", "startingOffsets": '{"a": {"0": -3}}'}, "-1 for latest or -2 for earliest"),
        ({"topic": "a", "endingOffsets": '{"a": {"0": -2}}'}, "-1 for latest"),
    ],
)
def test_options_that_contradict_each_other(given, said):
    with pytest.raises(InvalidInput, match=said):
        parse(given)


def test_subscribe_is_for_a_read():
    with pytest.raises(InvalidInput, match="topic: subscribe is for a read"):
        parse({"subscribe": "a"}, is_write=True).made_for("write")


def test_a_pattern_is_a_regular_expression_and_finds_later_topics(broker):
    first, other = broker.create(name="pat.1", **STREAM), broker.create(name="other", **STREAM)
    broker.publish(first, [b"a"])
    options = parse({"url": broker.url, "subscribePattern": r"pat\.\d-\w+"})
    assert topics_of(broker.link, options) == [first]
    assert other not in topics_of(broker.link, options)
    second = broker.create(name="pat.2", **STREAM)
    assert sorted(topics_of(broker.link, options)) == sorted([first, second])


def test_the_numbers_for_earliest_and_latest(queries, broker):
    here = broker.create(partitions=2, **STREAM)
    for number in (0, 1):
        body = pa.record_batch({"payload": pa.array([b"a", b"b", b"c"], pa.binary())})
        broker.link.put({"topic": here, "partition": number}, body.schema, iter([body]))
    start = json.dumps({here: {"0": -1, "1": -2}})
    stop = json.dumps({here: {"0": -1, "1": 2}})
    rows = queries.load(here, startingOffsets=start, endingOffsets=stop).select("partition", "offset").collect()
    assert sorted(map(tuple, rows)) == [(1, 0), (1, 1)]
    query = Query(broker, here, startingOffsets=start)
    assert query.at["positions"] == {here: {"0": 3, "1": 0}}


def test_the_columns_of_a_load_with_subscribe(queries, broker):
    here, there = broker.create(name="a", **STREAM), broker.create(name="b", **STREAM)
    headers = pa.array([[("h", "1"), ("i", "2")], None, [("h", "3")]], pa.map_(pa.string(), pa.string()))
    broker.publish(here, [b"x", b"y", b"z"], key=["k", None, "é"], headers=headers)
    broker.publish(there, [b"w"])
    rows = queries.load(subscribe=f"{here},{there}", includeHeaders="true")
    assert rows.schema == kafka_columns.columns(headers=True)
    found = {bytes(each.value): each for each in rows.collect()}
    assert [(found[value].topic, found[value].key) for value in (b"x", b"y", b"z", b"w")] == [
        (here, b"k"),
        (here, None),
        (here, "é".encode()),
        (there, None),
    ]
    assert [tuple(pair) for pair in found[b"x"].headers] == [("h", b"1"), ("i", b"2")]
    assert found[b"y"].headers is None
    assert found[b"z"].timestampType == 1
    assert found[b"z"].timestamp is not None
    some = queries.load(subscribe=here, columns="value binary, timestamp timestamp, offset long").orderBy("offset")
    assert [bytes(each.value) for each in some.collect()] == [b"x", b"y", b"z"]
    broker.publish(there, [b'{"id": 5}'])
    variants = queries.load(subscribe=there).selectExpr("try_parse_json(CAST(value AS STRING)) AS v")
    assert [each.id for each in variants.selectExpr("v:id::int AS id").dropna().collect()] == [5]
    with pytest.raises(PySparkException, match="payload"):
        queries.load(subscribe=here, columns="payload binary").collect()


def test_rows_name_their_topics_and_are_visible_in_all_of_them_together(queries, broker):
    one, two = broker.create(partitions=3), broker.create()
    rows = queries.spark.range(0, 1_000, numPartitions=3).select(
        f.when(f.col("id") % 2 == 0, one).otherwise(two).alias("topic"),
        f.col("id").cast("string").cast("binary").alias("key"),
        f.col("id").cast("string").alias("value"),
        f.array(f.struct(f.lit("n").alias("key"), f.lit(b"1").alias("value"))).alias("headers"),
    )
    rows.write.format("wherry").options(url=broker.url, commitKey=f"many {one}").mode("append").save()
    rows.write.format("wherry").options(url=broker.url, commitKey=f"many {one}").mode("append").save()
    for topic, first in ((one, 0), (two, 1)):
        found = broker.rows(topic)
        assert sorted(int(each["payload"]) for each in found) == list(range(first, 1_000, 2))
        assert all(each["key"].encode() == each["payload"] for each in found)
        assert found[0]["headers"] == [("n", "1")]


def write(broker, schema, batch, **options):
    sink = BatchWriter(parse({"url": broker.url, **options}, is_write=True), schema)
    message = sink._stage(sink._key, "0/0", iter([batch]))
    sink.commit([message])
    return message


def test_a_partition_is_honoured_in_order_and_null_is_left_to_the_key(broker):
    here = broker.create(partitions=4)
    numbers = [n % 4 for n in range(100)]
    batch = pa.record_batch(
        {"value": [b"%d" % n for n in range(100)], "partition": pa.array([*numbers[:99], None], pa.int32())}
    )
    assert write(broker, row("value", "partition"), batch, topic=here).rows == 100
    rows = [each for each in broker.rows(here) if each["payload"] != b"99"]
    for number in range(4):
        ticket = {"topic": here, "partition": number, "start": 0, "stop": 24, "columns": ["offset", "payload"]}
        found = [each["payload"] for part in broker.link.once(ticket) for each in part.to_pylist()]
        assert found == [b"%d" % n for n in range(number, 96, 4)]
    assert len(rows) == 99


def test_a_partition_of_rows_as_they_were_read_is_not_honoured(broker):
    here = broker.create()
    batch = pa.record_batch(
        {"value": [b"a"], "partition": pa.array([7], pa.int32()), "offset": pa.array([3], pa.int64())}
    )
    write(broker, row("value", "partition", "offset"), batch, topic=here)
    assert broker.payloads(here) == [b"a"]


def test_what_cannot_go_anywhere_is_an_error_and_nothing_is_written(broker):
    here = broker.create(partitions=2)
    with pytest.raises(InvalidInput, match="the option topic, or a column topic"):
        write(broker, row("value"), None)
    for topic, partition, fault in ((None, 0, InvalidInput), (here, 9, InvalidInput), (here, -1, InvalidInput)):
        batch = pa.record_batch(
            {
                "topic": pa.array([here, topic], pa.string()),
                "partition": pa.array([0, partition], pa.int32()),
                "value": [b"a", b"b"],
            }
        )
        with pytest.raises(fault):
            write(broker, row("topic", "partition", "value"), batch)
    batch = pa.record_batch({"topic": [here, "nowhere"], "value": [b"a", b"b"]})
    with pytest.raises(NotFound):
        write(broker, row("topic", "value"), batch)
    assert broker.payloads(here) == []


def test_keys_and_headers_that_are_not_text_are_an_error(broker):
    here = broker.create()
    batch = pa.record_batch({"key": [b"\xff"], "value": [b"a"]})
    with pytest.raises(InvalidInput, match="keys that are UTF-8 text"):
        write(broker, row("key", "value", key=BinaryType()), batch, topic=here)
    with pytest.raises(InvalidInput, match="values that are UTF-8 text"):
        kafka_columns.mapped(pa.array([[{"key": "h", "value": b"\xff"}]]))


@pytest.mark.parametrize("cut", [slice(None), slice(1, 3), slice(3, 3)])
def test_headers_there_and_back(cut):
    headers = pa.array([[("a", "1")], None, [], [("b", "2"), ("b", "3")]], pa.map_(pa.string(), pa.string()))
    given = headers[cut]
    assert kafka_columns.mapped(kafka_columns.listed(given)).to_pylist() == given.to_pylist()


OLD = {"type": "record", "name": "order", "fields": [{"name": "id", "type": "long"}]}
NEW = {**OLD, "fields": [*OLD["fields"], {"name": "city", "type": "string", "default": "?"}]}


def framed(number, schema, value):
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), value)
    return b"\0" + number.to_bytes(4, "big") + out.getvalue()


def test_avro_in_the_frame_of_a_registry(queries, broker):
    here = broker.create(**STREAM)
    old, new = framed(3, OLD, {"id": 1}), framed(700, NEW, {"id": 2, "city": "Oslo"})
    broker.publish(here, [old, new, framed(9, OLD, {"id": 3}), b"plain", new + b"more"])
    schemas = {"payloadSchema": json.dumps(NEW), "writerSchemas": json.dumps({"3": OLD, "700": NEW})}
    rows = queries.load(here, payload="confluent", **schemas).orderBy("offset").select("value", "error").collect()
    assert [None if each.value is None else tuple(each.value) for each in rows] == [(1, "?"), (2, "Oslo"), *[None] * 3]
    said = ["schema id 9 is not in writerSchemas, which has [3, 700]", "no frame", "4 bytes are left over"]
    assert [words in each.error for words, each in zip(said, rows[2:], strict=True)] == [True] * 3
    rows = queries.load(here, payload="avro", payloadSchema=json.dumps(OLD)).orderBy("offset").select("error").collect()
    assert "begins like one of schema id 700 of a registry: payload=confluent" in rows[1].error


def test_framed_avro_needs_the_schemas_of_its_writers():
    with pytest.raises(InvalidInput, match="writerSchemas"):
        parse({"topic": "t", "payload": "confluent", "payloadSchema": json.dumps(NEW)})
    with pytest.raises(InvalidInput, match="writerSchemas"):
        parse({"topic": "t", "payload": "avro", "payloadSchema": json.dumps(NEW), "writerSchemas": "{}"})
