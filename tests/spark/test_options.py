"""Options of a load: values out of text, and errors that name the option."""

import pytest

from wherry.core.state.stages import STAGE_BYTES_MAX
from wherry.model.calls.where import Where
from wherry.model.errors import InvalidInput
from wherry.spark.link import link
from wherry.spark.options.options import BYTES_PER_BATCH, ROWS_PER_BATCH, ROWS_PER_TASK, URL, LogPoint
from wherry.spark.options.parsing import parse

NOW_MS = 1_700_000_000_000


@pytest.fixture(autouse=True)
def bare(monkeypatch):
    for name in ("WHERRY_FLIGHT_URL", "WHERRY_KEY", "WHERRY_CA"):
        monkeypatch.delenv(name, raising=False)


def test_a_topic_is_enough():
    options = parse({"topic": "orders"})
    assert (options.url, options.key, options.topics, options.table) == (URL, None, ("orders",), "messages")
    assert (options.start, options.stop, options.where) == (LogPoint("earliest"), LogPoint("latest"), Where())
    limits = (options.rows_per_task, options.rows_per_batch, options.bytes_per_batch)
    assert limits == (ROWS_PER_TASK, ROWS_PER_BATCH, BYTES_PER_BATCH)
    assert (options.payload, options.subscription, options.fail_on_data_loss) == ("bytes", None, True)


def test_names_are_known_in_any_case_and_a_path_is_a_topic():
    assert parse({"TOPIC": "a, b ,a", "RowsPerTask": "7"}).topics == ("a", "b")
    assert parse({"path": "orders"}).topics == ("orders",)
    assert parse({"path": "/warehouse/x", "topic": "orders"}).topics == ("orders",)


def test_the_environment_fills_in(monkeypatch):
    monkeypatch.setenv("WHERRY_FLIGHT_URL", "grpc+tls://far:7072")
    monkeypatch.setenv("WHERRY_KEY", "wk_1")
    options = parse({"topic": "t"})
    assert (options.url, options.key) == ("grpc+tls://far:7072", "wk_1")
    near = parse({"topic": "t", "url": "grpc://near:1", "apiKey": "wk_2"})
    assert near.key == link(near).key == "wk_2"
    assert "wk_2" not in f"{near!r} {link(near)!r}"


def test_filters():
    where = parse({"topic": "t", "keys": "a, b", "headers": '{"kind": "x"}', "priorityMin": "1", "priorityMax": "9"})
    assert where.where == Where(keys=["a", "b"], headers={"kind": "x"}, priority_min=1, priority_max=9)
    assert parse({"topic": "t", "keys": '["a,b"]'}).where.keys == ["a,b"]


@pytest.mark.parametrize(
    ("text", "time_ms"),
    [
        ("1699999999999", 1_699_999_999_999),
        ("now", NOW_MS),
        ("10 minutes ago", NOW_MS - 600_000),
        ("1 Hour ago", NOW_MS - 3_600_000),
        ("2d ago", NOW_MS - 172_800_000),
        ("2023-11-14", 1_699_920_000_000),
        ("2023-11-14T22:13:20Z", NOW_MS),
        ("2023-11-14 23:13:20.5+01:00", NOW_MS + 500),
    ],
)
def test_times(text, time_ms):
    options = parse({"topic": "t", "startingTime": text, "endingTime": text}, NOW_MS)
    assert options.start == options.stop == LogPoint(time_ms=time_ms)


def test_places_as_flight_writes_them():
    offsets = parse({"topic": "a,b", "startingOffsets": '{"a": {"0": 17, "2": 3}}', "endingOffsets": "LATEST"})
    assert offsets.start.of("a") == {"offsets": {"0": 17, "2": 3}}
    assert offsets.start.of("b") == {"offsets": {}}
    assert offsets.stop.of("a") == "latest"
    assert LogPoint(time_ms=5).of("a") == {"time_ms": 5}


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({}, "topic"),
        ({"topic": " , "}, "topic"),
        ({"topic": "t", "topics": "t"}, "option topics"),
        ({"topic": "t", "url": "http://127.0.0.1:7070"}, "url"),
        ({"topic": "t", "table": "letters"}, "table"),
        ({"topic": "t", "startingOffsets": "first"}, "startingOffsets"),
        ({"topic": "t", "startingOffsets": '{"t": 5}'}, "startingOffsets"),
        ({"topic": "t", "startingTime": "10 moons ago"}, "startingTime"),
        ({"topic": "t", "endingTime": "-5"}, "endingTime"),
        ({"topic": "t", "startingTime": "now", "startingOffsets": "latest"}, "startingOffsets, startingTime"),
        ({"topic": "t", "rowsPerTask": "0"}, "rowsPerTask"),
        ({"topic": "t", "maxRowsPerBatch": "many"}, "maxRowsPerBatch"),
        ({"topic": "t", "maxBytesPerBatch": "1.5"}, "maxBytesPerBatch"),
        ({"topic": "t", "headers": '["a"]'}, "headers"),
        ({"topic": "t", "priorityMax": "65536"}, "priorityMax"),
        ({"topic": "t", "payload": "xml"}, "payload"),
        ({"topic": "t", "payload": "avro"}, "payloadSchema"),
        ({"topic": "t", "payloadSchema": "a INT"}, "payloadSchema"),
        ({"topic": "t", "table": "dead", "payload": "json"}, "payload"),
        ({"topic": "t", "failOnDataLoss": "maybe"}, "failOnDataLoss"),
        ({"topic": "t", "retrySeconds": "soon"}, "retrySeconds"),
        ({"topic": "t", "subscription": "a\nb"}, "subscription"),
        ({"topic": "t", "apiKey": "x" * 7_000}, "option apiKey"),
    ],
)
def test_a_wrong_option_is_named(options, field):
    with pytest.raises(InvalidInput) as caught:
        parse(options, NOW_MS)
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("use", "table", "option"),
    [
        ("readStream", "messages", {"endingOffsets": "latest"}),
        ("readStream", "messages", {"endingTime": "now"}),
        ("write", "messages", {"failOnDataLoss": "true"}),
        ("read", "messages", {"maxRowsPerBatch": "5"}),
        ("read", "messages", {"subscription": "s"}),
        ("read", "dead", {"keys": "a"}),
        ("read", "dead", {"startingTime": "now"}),
        ("read", "topics", {"rowsPerTask": "5"}),
        ("write", "messages", {"by": "alice"}),
        ("write", "messages", {"startingOffsets": "latest"}),
        ("write", "dead", {"commitKey": "k"}),
        ("writeStream", "messages", {"commitKey": "k"}),
    ],
)
def test_an_option_that_would_not_be_looked_at_is_refused(use, table, option):
    options = parse({"topic": "t", "table": table, "retrySeconds": "1", "path": "t", **option}, NOW_MS)
    with pytest.raises(InvalidInput, match=f"option {next(iter(option))}: got '{use}'"):
        options.made_for(use)


def test_options_are_taken_where_they_belong():
    load = {"topic": "t", "startingOffsets": "latest", "keys": "a", "payload": "text", "rowsPerTask": "1"}
    assert parse({**load, "endingTime": "now"}).made_for("read").where.keys == ["a"]
    assert parse({**load, "FAILONDATALOSS": "false", "subscription": ""}).made_for("readStream").subscription == ""
    assert parse({"topic": "t", "commitKey": "k"}).made_for("write").commit_key == "k"
    assert parse({"topic": "t", "table": "dead", "by": "b"}).made_for("write").by == "b"
    assert parse({"topic": "t", "checkpointLocation": "c"}).made_for("writeStream").topics == ("t",)


def test_a_micro_batch_leaves_room_for_those_of_other_queries_to_be_staged():
    assert BYTES_PER_BATCH * 8 <= STAGE_BYTES_MAX


def test_one_topic_is_required_where_only_one_makes_sense():
    assert parse({"topic": "t"}).one_topic() == "t"
    for given in ("a,b", "a*"):
        with pytest.raises(InvalidInput, match="one topic"):
            parse({"topic": given}).one_topic()
