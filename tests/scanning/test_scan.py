"""What a user gives to a scan and gets from it: options, columns and types, payloads as values, errors that help."""

import random
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import duckdb
import polars as pl
import pyarrow as pa
import pytest

import wherry
from tests.scanning.worlds import KEYS, World
from tests.spark.brokers import broker as started
from wherry.model.errors import InvalidInput, NotFound, Unauthorized, Unavailable
from wherry.scanning import extras

PATIENCE_S = 60


@pytest.fixture
def world(broker, tmp_path):
    return World(broker, tmp_path)


def test_columns_and_types(world):
    world.publish(40, random.Random(1))
    scan = world.scan()
    assert scan.schema.names == pl.read_ipc_stream(_stream(scan)).columns
    rows = scan.polars().collect()
    assert rows.schema == scan.polars().collect_schema()
    expected = {"partition": pl.Int32, "priority": pl.Int32, "offset": pl.Int64, "payload": pl.Binary}
    assert {name: rows.schema[name] for name in expected} == expected
    for name in ("due", "expires", "published"):
        assert rows.schema[name] == pl.Datetime("us", "UTC")
    assert rows["topic"].unique().to_list() == [world.topic]
    relation = scan.duckdb(duckdb.connect())
    assert relation.columns == scan.schema.names
    kinds = dict(zip(relation.columns, map(str, relation.types), strict=True))
    assert kinds["headers"] == "MAP(VARCHAR, VARCHAR)"
    assert kinds["published"] == "TIMESTAMP WITH TIME ZONE"
    assert relation.filter("headers['kind'] = 'order'").count("*").fetchall() != [(0,)]
    assert str(scan) == f"Scan({world.topic!r}, stop={scan.stop})"


def _stream(scan):
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, scan.schema) as writer:
        for batch in scan.arrow():
            writer.write_batch(batch)
    return sink.getvalue().to_pybytes()


def test_an_empty_topic_has_columns_and_no_rows(world):
    scan = world.scan()
    assert scan.polars().collect().shape == (0, 11)
    assert scan.polars().select(pl.len()).collect().item() == 0
    assert scan.duckdb(duckdb.connect()).fetchall() == []
    assert scan.arrow().read_all().num_rows == 0
    assert scan.polars().head(0).collect().height == 0


def test_no_columns_are_rows_all_the_same(world):
    world.publish(7, random.Random(1))
    world.archive()
    world.publish(5, random.Random(1))
    for scan in (world.scan(archive=world.to), world.scan(archive=world.to, start="1 hour ago"), world.scan()):
        assert sum(batch.num_rows for batch in scan.arrow([])) == 12
        assert scan.polars().select(pl.lit(1)).collect().height == 1, "as Polars does with any frame"
        assert scan.polars().select(pl.len()).collect().item() == 12


def test_a_relation_of_the_default_connection(world):
    world.publish(7, random.Random(1))
    relation = world.scan().duckdb()
    assert relation.aggregate("count(*)").fetchall() == [(7,)]


PAYLOADS = [b'{"n": 1, "at": "2027-01-31T12:00:00Z"}', b'{"n": "x"}', b"{", b'{"n": null}', b"{}", b"\xff"]
TYPES = pa.schema([("n", pa.int16()), ("at", pa.timestamp("us", tz="UTC")), ("more", pa.list_(pa.string()))])


def test_json_as_values(world):
    world.broker.publish(world.topic, PAYLOADS, key=["k"] * len(PAYLOADS))
    scan = world.scan(payload="json", payload_schema=TYPES)
    rows = scan.polars().sort("offset").collect()
    values = rows["value"].to_list()
    at = datetime(2027, 1, 31, 12, tzinfo=UTC)
    empty = {"n": None, "at": None, "more": None}
    assert values == [{**empty, "n": 1, "at": at}, None, None, empty, empty, None]
    errors = rows["error"].to_list()
    assert [error is None for error in errors] == [True, False, False, True, True, False]
    assert "Expected `int | null`" in errors[1]
    found = scan.duckdb(duckdb.connect()).filter("value.n = 1").project('"offset", value.at').fetchall()
    assert [row[0] for row in found] == [0]
    one = world.scan(payload="json", payload_schema=pa.schema([pa.field("n", pa.int64(), nullable=False)]))
    assert one.polars().select(pl.col("error").is_null().sum()).collect().item() == 1
    numbers = world.scan(payload="json", payload_schema=pa.map_(pa.string(), pa.float64()))
    assert numbers.polars().select(pl.col("error").is_null().sum()).collect().item() == 2


def test_text_as_values(world):
    world.broker.publish(world.topic, PAYLOADS, key=["k"] * len(PAYLOADS))
    rows = world.scan(payload="text").polars().sort("offset").select("value", "error").collect()
    assert rows["value"].to_list() == [*(payload.decode() for payload in PAYLOADS[:-1]), None]
    assert "utf-8" in rows["error"][-1]


def test_starts_and_ends(world):
    chance = random.Random(1)
    world.publish(30, chance)
    rows = world.scan().polars().collect()
    middle = rows["published"].max() + timedelta(microseconds=1)
    while (world.scan().polars().select("published").max().collect().item()) < middle + timedelta(milliseconds=2):
        world.publish(1, chance)
    total = world.published
    before, after = world.scan(end=middle), world.scan(start=middle)
    assert before.polars().collect().height == 30
    assert after.polars().select("key").collect().height == total - 30
    assert after.polars().filter(pl.col("published") < middle).collect().height == 0
    assert after.duckdb(duckdb.connect()).aggregate("count(*)").fetchall() == [(total - 30,)]
    assert world.scan(start="1 hour ago").polars().collect().height == total
    assert world.scan(end="1 hour ago").polars().collect().height == 0
    world.archive()
    assert world.scan(start=middle, archive=world.to).polars().select("id").collect().height == total - 30
    some = world.scan(start={0: 3}, end={1: 2}).polars().collect()
    assert some.filter(partition=0)["offset"].min() == 3
    assert some.filter(partition=1)["offset"].to_list() == [0, 1]


@pytest.mark.parametrize(
    ("options", "field", "allowed"),
    [
        ({"url": "http://127.0.0.1:7070"}, "url", "an address of Arrow Flight"),
        ({"start": 17}, "start", "offsets by partition, a datetime with a time zone"),
        ({"end": datetime(2027, 1, 1)}, "end", "a datetime with a time zone"),  # noqa: DTZ001 - what is refused
        ({"start": "yesterday"}, "start", "an ISO time"),
        ({"start": {9: 1}}, "start", "partitions of the topic: 0, 1, 2"),
        ({"start": {"0": 1}}, "start", "numbers of partitions of the topic: 0, 1, 2"),
        ({"end": {True: 1}}, "end", "numbers of partitions of the topic: 0, 1, 2"),
        ({"end": {0: -1}}, "end", "an offset, from 0 on"),
        ({"start": {0: 1.5}}, "start", "an offset, from 0 on"),
        ({"payload": "avro"}, "payload", "one of bytes, text, json"),
        ({"payload": "json"}, "payload_schema", "a pyarrow.schema"),
        ({"payload_schema": pa.schema([])}, "payload_schema", "nothing, unless payload is 'json'"),
        ({"payload": "json", "payload_schema": pa.duration("s")}, "payload_schema", "types that JSON can have"),
        ({"archive": "nowhere"}, "archive", "wherry pipeline archive makes one"),
    ],
)
def test_a_wrong_option_is_refused(world, tmp_path, monkeypatch, options, field, allowed):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidInput) as caught:
        wherry.scan(world.topic, **{"url": world.broker.url, **options})
    assert caught.value.field == field
    assert allowed in str(caught.value)


def test_a_wrong_column_and_a_wrong_topic(world):
    with pytest.raises(InvalidInput, match="some of topic, partition"):
        world.scan().arrow(["color"])
    with pytest.raises(NotFound):
        wherry.scan("no-such-topic", url=world.broker.url)
    with pytest.raises(InvalidInput):
        wherry.scan("", url=world.broker.url)


def test_address_and_key_of_the_environment(world, monkeypatch):
    world.publish(3, random.Random(1))
    monkeypatch.setenv("WHERRY_FLIGHT_URL", world.broker.url)
    assert wherry.scan(world.topic).polars().collect().height == 3
    assert "wk_" not in repr(wherry.scan(world.topic, key="wk_a_b")._link)


@pytest.mark.parametrize("key", ["wk_a_secret\n", "wk_\x00secret", "wk_secret\u00fc", b"wk_a_secret"])
def test_a_key_that_cannot_be_sent_is_refused_at_once_and_not_shown(world, key):
    with pytest.raises(InvalidInput) as caught:
        world.scan(key=key)
    assert caught.value.field == "key"
    assert "secret" not in str(caught.value) + repr(caught.value)


def test_a_key_is_needed_where_keys_are_on(tmp_path):
    with started(tmp_path, "--keys", "on") as made, pytest.raises(Unauthorized):
        wherry.scan("orders", url=made.url)


@pytest.mark.parametrize(("name", "use"), [("polars", "polars"), ("duckdb", "duckdb")])
def test_a_missing_library_is_named_with_the_line_that_installs_it(world, monkeypatch, name, use):
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(InvalidInput, match=rf"pip install 'wherry\[{name}\]'"):
        getattr(world.scan(), use)()


def test_a_library_that_is_broken_shows_why(monkeypatch):
    monkeypatch.setitem(sys.modules, "tomllib", None)
    with pytest.raises(InvalidInput):
        extras.needed("tomllib")
    with pytest.raises(ModuleNotFoundError, match="nothing_at_all"):
        extras.needed("nothing_at_all.inside")


WITHOUT_SPARK = """
import sys
sys.modules["pyspark"] = None
import wherry
scan = wherry.scan(sys.argv[1], url=sys.argv[2], archive=sys.argv[3], payload="text")
assert "polars" not in sys.modules and "duckdb" not in sys.modules
print(scan.polars().collect().height, len(scan.duckdb().fetchall()), scan.arrow().read_all().num_rows)
"""


def test_it_needs_no_spark(world):
    world.publish(20, random.Random(1))
    world.archive()
    world.publish(5, random.Random(2))
    command = [sys.executable, "-c", WITHOUT_SPARK, world.topic, world.broker.url, world.to]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE_S)
    assert done.stdout == "25 25 25\n", done.stderr


def test_an_end_in_the_middle_of_a_read_frees_the_stream(world):
    world.publish(30, random.Random(1))
    for _ in range(300):  # a node serves 256 calls at a time
        next(world.scan(local_files=False).arrow())
    assert world.scan().polars().collect().height == 30


def test_one_scan_in_several_threads(world):
    for seed in range(2):
        world.publish(5_000, random.Random(seed))
    scan, con = world.scan(payload="text"), duckdb.connect()
    full = scan.polars().collect()

    def ask(number):
        key, chosen = KEYS[number % 3], number % 2
        if chosen:
            return scan.polars().filter(key=key).collect().height == full.filter(key=key).height
        found = scan.duckdb(con.cursor()).filter(f"key = '{key}'").aggregate("count(*)").fetchall()
        return found == [(full.filter(key=key).height,)]

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(ask, range(48)))


def test_a_broker_that_is_away(monkeypatch, world):
    monkeypatch.setattr("wherry.scanning.scan.RETRY_S", 0.0)
    with pytest.raises(Unavailable):
        wherry.scan(world.topic, url="grpc://127.0.0.1:1")
