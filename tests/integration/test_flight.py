"""Arrow Flight, by its own client, against a node."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyarrow import flight

import wherry
from tests.integration.flights import Flights, Pushed, calls_of, payloads, until
from tests.integration.served import Served, served
from wherry.wire.flight import gate, reading, writing

pytestmark = pytest.mark.rows("D25")


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("node")) as found:
        yield found


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    return str(request.node.name)


@pytest.fixture
def flights(node: Served, topic: str) -> Flights:
    assert node.node.flight_url is not None
    client = Flights(node.node.flight_url)
    client.act("create-topic", name=topic, partitions=2)
    return client


def numbered(start: int, stop: int) -> pa.RecordBatch:
    return payloads(*(b"%d" % n for n in range(start, stop)))


@pytest.mark.rows("A22", "D2")
def test_a_topic_is_written_and_read_in_columns(flights: Flights, topic: str):
    answers = flights.put([numbered(0, 1_000), numbered(1_000, 1_500)], topic=topic, partition=1)
    assert answers == [
        {"rows": 1_000, "placed": [[1, 0, 1_000]], "repeated": False, "mesh": "safe"},
        {"rows": 500, "placed": [[1, 1_000, 500]], "repeated": False, "mesh": "safe"},
    ]
    info = flights.client.get_flight_info(flight.FlightDescriptor.for_path(topic))
    assert (info.total_records, len(info.endpoints)) == (1_500, 1)
    table = flights.read(topic=topic)
    assert table["payload"].to_pylist() == [b"%d" % n for n in range(1_500)]
    assert table["offset"].to_pylist() == list(range(1_500))
    assert table["partition"].unique().to_pylist() == [1]
    assert info.schema == table.schema


def test_a_range_is_cut_into_parts_that_are_read_side_by_side(flights: Flights, topic: str):
    for partition in range(2):
        flights.put([numbered(0, 1_000)], topic=topic, partition=partition)
    bounds = {"start": {"offsets": {"0": 100}}, "stop": {"offsets": {"0": 600, "1": 250}}}
    info = flights.info(topic=topic, rows_per_endpoint=200, columns=["partition", "offset"], **bounds)
    assert len(info.endpoints) == 3 + 2
    assert info.total_records == 500 + 250
    rows = flights.read(topic=topic, rows_per_endpoint=200, columns=["partition", "offset"], **bounds)
    pairs = sorted(zip(rows["partition"].to_pylist(), rows["offset"].to_pylist(), strict=True))
    assert pairs == [(0, n) for n in range(100, 600)] + [(1, n) for n in range(250)]


@pytest.mark.rows("A14")
def test_conditions_and_columns_are_pushed_down(flights: Flights, topic: str):
    keys = [f"k{n % 5}" for n in range(100)]
    headers = pa.array([[("even", str(n % 2 == 0))] for n in range(100)], pa.map_(pa.string(), pa.string()))
    batch = payloads(*(b"%d" % n for n in range(100)), key=keys, priority=list(range(100)), headers=headers)
    flights.put([batch], topic=topic, partition=0)

    def found(**where: object) -> list[int]:
        return [
            int(each) for each in flights.read(topic=topic, columns=["payload"], where=where)["payload"].to_pylist()
        ]

    assert found(keys=["k3"]) == list(range(3, 100, 5))
    assert found(keys=["k3"], headers={"even": "True"}) == list(range(8, 100, 10))
    assert found(priority_min=98) == [98, 99]
    now_ms = time.time_ns() // 1_000_000
    assert found(from_ms=now_ms + 60_000) == []
    assert len(found(from_ms=now_ms - 60_000, to_ms=now_ms + 60_000)) == 100
    assert flights.read(topic=topic, start={"time_ms": now_ms + 60_000}).num_rows == 0
    assert flights.read(topic=topic, start="latest").num_rows == 0


def test_others_read_the_stream_as_it_comes(flights: Flights, topic: str):
    flights.put([payloads(b"1", b"22", b"333", key=["a", "b", "a"])], topic=topic, partition=0)
    (part,) = flights.info(topic=topic, columns=["key", "payload", "offset"]).endpoints

    def stream() -> pa.RecordBatchReader:
        return flights.client.do_get(part.ticket, flights.options).to_reader()

    assert pl.DataFrame(stream()).group_by("key").len().sort("key").rows() == [("a", 2), ("b", 1)]
    messages = stream()  # noqa: F841 - DuckDB finds it by its name, and reads it as it comes
    found = (
        duckdb.connect()
        .execute("select key, sum(octet_length(payload)) from messages group by key order by key")
        .fetchall()
    )
    assert found == [("a", 4), ("b", 2)]


def test_an_idempotent_producer_writes_once(flights: Flights, topic: str):
    batches = [numbered(0, 10), numbered(10, 30)]
    first = flights.put(batches, topic=topic, producer="p", sequence=0, partition=0)
    again = flights.put([*batches, numbered(30, 31)], topic=topic, producer="p", sequence=0, partition=0)
    assert [each["repeated"] for each in again] == [True, True, False]
    assert [each["placed"] for each in again[:2]] == [each["placed"] for each in first]
    assert flights.read(topic=topic).num_rows == 31


def test_a_stage_is_seen_with_its_commit_and_once(flights: Flights, topic: str):
    for part in ("a", "b"):
        answers = flights.put([numbered(0, 5)], topic=topic, stage=f"{topic}/1/{part}", partition=0)
        assert answers == [{"rows": 5, "placed": [], "repeated": False}]
    assert flights.read(topic=topic).num_rows == 0
    assert flights.act("committed", key=f"{topic}/1") == {"placed": None}
    stages = [f"{topic}/1/a", f"{topic}/1/b"]
    answer = flights.act("commit", key=f"{topic}/1", stages=stages)
    assert answer == {"placed": [[topic, 0, 0, 5], [topic, 0, 5, 5]], "mesh": {topic: "safe"}}
    assert (
        flights.act("commit", key=f"{topic}/1", stages=stages) == answer == flights.act("committed", key=f"{topic}/1")
    )
    flights.put([numbered(0, 5)], topic=topic, stage=f"{topic}/2/a")
    flights.act("abort", key=f"{topic}/2/a")
    with pytest.raises(flight.FlightServerError, match="not-found: no stage"):
        flights.act("commit", key=f"{topic}/2", stages=[f"{topic}/2/a"])
    assert flights.read(topic=topic).num_rows == 10


def test_a_batch_above_what_fits_one_publish_is_several(flights: Flights, topic: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(writing, "BATCH_BYTES", 10_000)
    monkeypatch.setattr(writing, "BATCH_ROWS", 100)
    sizes = [1, 9_000, 9_000, *([10] * 300)]
    answers = flights.put([payloads(*(bytes(size) for size in sizes))], topic=topic, partition=0)
    assert [(each["rows"], sum(count for _, _, count in each["placed"])) for each in answers] == [(303, 303)]
    assert pc.binary_length(flights.read(topic=topic)["payload"]).to_pylist() == sizes


def test_a_client_that_reads_no_answer_before_it_has_written_all_is_served(flights: Flights, topic: str):
    batch = numbered(0, 10)
    answers = flights.put([batch] * 3_000, topic=topic, partition=0)
    assert len(answers) == 3_000
    assert sum(answer["rows"] for answer in answers) == 30_000


def test_a_client_that_waits_for_each_answer_is_answered(flights: Flights, topic: str):
    for place, answers in ((topic, [{"rows": 1}, {"rows": 1}]), ("nowhere", [{"fault": None}])):
        descriptor = flight.FlightDescriptor.for_path(place)
        writer, reader = flights.client.do_put(descriptor, numbered(0, 1).schema, flights.options)
        for expected in answers:
            writer.write_batch(numbered(0, 1))
            assert json.loads(reader.read().to_pybytes()).keys() >= expected.keys()
        if place == topic:
            writer.close()
        else:
            with pytest.raises(flight.FlightServerError, match="not-found"):
                writer.close()


@pytest.mark.rows("D26")
def test_messages_are_pushed_by_credit_and_settled_on_the_way_back(flights: Flights, topic: str):
    flights.act("subscribe", topic=topic, name="s")
    pushed = Pushed(flights, topic=topic, subscription="s", consumer="me", messages=4)
    pushed.send(credit=6)
    flights.put([numbered(0, 10)], topic=topic, partition=0)
    batches = [pushed.next(), pushed.next()]
    assert [batch.num_rows for batch in batches] == [4, 2]
    lease, other = (batch.column("lease")[0].as_py() for batch in batches)
    assert batches[0].column("attempt").to_pylist() == [1, 1, 1, 1]
    pushed.send(ack=[f"{lease}:0-2"], id=1)
    pushed.send(nack=[f"{lease}:3"], delay_ms=0, error="not now", id="two")
    pushed.send(dead_letter=[str(other)], reason="bad", id=3)
    assert [pushed.next() for _ in range(3)] == [{"done": 1}, {"done": "two"}, {"done": 3}]
    pushed.send(ack=[str(lease)], id=4)
    fault = pushed.next()
    assert fault["fault"]["code"] == "stale-lease" and fault["id"] == 4
    pushed.send(credit=1)
    again = pushed.next()
    assert (again.column("payload").to_pylist(), again.column("attempt").to_pylist()) == ([b"3"], [2])
    pushed.end()
    (stats,) = flights.act("stats", topic=topic)["subscriptions"]
    assert (stats["consumers"], stats["leased"], stats["ready"], stats["dead"]) == (0, 0, 5, 2)
    dead = flights.ticket(table="dead", topic=topic)
    assert dead["reason"].to_pylist() == ["bad", "bad"]
    assert flights.act("redrive", topic=topic, subscription="s", partition=0, offsets=[4]) == {"redriven": 1}
    assert flights.act("redrive", topic=topic, subscription="s", partition=0, offsets=[4]) == {"redriven": 0}


def test_a_stream_ends_with_its_subscription_and_reports_why(flights: Flights, topic: str):
    flights.act("subscribe", topic=topic, name="s")
    pushed = Pushed(flights, topic=topic, subscription="s")
    pushed.send(credit=1)
    time.sleep(0.1)
    flights.act("unsubscribe", topic=topic, name="s")
    fault = pushed.next()
    assert fault["fault"]["code"] == "cut-off"
    with pytest.raises(flight.FlightServerError, match="cut-off"):
        pushed.send(credit=1)
        pushed.next()


@pytest.mark.rows("A20")
def test_a_reader_asks_how_far_to_read_and_reports_how_far_it_is(flights: Flights, topic: str):
    flights.act("subscribe", topic=topic, name="job")
    for partition in range(2):
        flights.put([numbered(0, 100)], topic=topic, partition=partition)
    reached = flights.act("reach", start={topic: {"0": 10}}, messages_max=50)["stop"][topic]
    assert (reached["0"] - 10) + reached["1"] == 50
    flights.act("advance", topic=topic, subscription="job", offsets=reached)
    row = next(row for row in flights.ticket(table="subscriptions").to_pylist() if row["topic"] == topic)
    assert (row["name"], row["lag"]) == ("job", 200 - 10 - 50)
    extents = flights.act("extents", topic=topic)
    assert (extents["start"], extents["stop"]) == (reached, {"0": 100, "1": 100})
    end = {topic: {"0": 100, "1": 100}}
    answers: list[object] = []
    waiting = threading.Thread(target=lambda: answers.append(flights.act("reach", start=end, wait_ms=30_000)))
    waiting.start()
    time.sleep(0.2)
    assert not answers
    flights.put([numbered(0, 1)], topic=topic, partition=1)
    waiting.join(10)
    assert answers == [{"stop": {topic: {"0": 100, "1": 101}}}]
    with pytest.raises(flight.FlightServerError, match=r"history-lost: .*offset 0 is gone") as caught:
        flights.act("reach", start={topic: {"0": 0}})
    assert b'"code":"history-lost"' in caught.value.extra_info
    assert flights.ticket(topic=topic, partition=0, start=0, stop=100).num_rows == 100 - reached["0"]
    with pytest.raises(flight.FlightServerError, match="history-lost"):
        flights.ticket(topic=topic, partition=0, start=0, stop=100, strict=True)


def test_topics_are_listed_in_each_way(flights: Flights, topic: str):
    flights.put([numbered(0, 3)], topic=topic)
    assert topic in [each["name"] for each in flights.act("topics")["topics"]]
    rows = {row["name"]: row for row in flights.ticket(table="topics").to_pylist()}
    assert (rows[topic]["partitions"], rows[topic]["messages"]) == (2, 3)
    listed = {info.descriptor.path[0].decode(): info.total_records for info in flights.client.list_flights()}
    assert listed[topic] == 3
    schema = flights.client.get_schema(flight.FlightDescriptor.for_path(topic)).schema
    assert schema == flights.info(topic=topic).schema
    assert {action.type for action in flights.client.list_actions()} >= {"topics", "commit", "reach"}
    flights.act("delete-topic", topic=topic)
    with pytest.raises(flight.FlightServerError, match="not-found"):
        flights.info(topic=topic)


BAD = [
    ("info", {"topic": "nowhere"}, "not-found: no topic named 'nowhere'"),
    ("info", {"topc": "t"}, "invalid-input: .*topc"),
    ("info", {}, "invalid-input: topic"),
    ("info", {"topic": "t", "columns": ["nothing"]}, "invalid-input: columns"),
    ("info", {"topic": "t", "where": {"priority_min": 70_000}}, "invalid-input: priority_min"),
    ("info", {"topic": "t", "start": {"offsets": {"9": 1}}}, "invalid-input: partition"),
    ("info", {"topic": "t", "start": {"offsets": {"0": 1}, "time_ms": 5}}, "invalid-input: start, stop"),
    ("info", {"topic": "t", "rows_per_endpoint": 0}, "invalid-input"),
    ("ticket", {"topic": "t", "partition": 0, "start": 5, "stop": 1, "columns": "payload"}, "invalid-input: ticket"),
    ("info", {"topic": "t", "columns": []}, "invalid-input: columns"),
    ("info", {"topic": "t", "z" * 20_000: 1}, "invalid-input: command: .*zzz"),
    ("info", {"table": "topics", "columns": ["name"]}, "invalid-input: columns: .*beside a table"),
    ("ticket", {"table": "topics", "stop": 5}, "invalid-input: stop: .*beside a table"),
    ("ticket", {"topic": "t"}, "invalid-input: stop"),
    ("ticket", {"topic": "t", "start": 5, "stop": 1}, "invalid-input: stop"),
    ("ticket", {"topic": "t", "partition": 99, "stop": 5}, "invalid-input: partition"),
    ("ticket", {"topic": "nowhere", "stop": 0}, "not-found: no topic named 'nowhere'"),
    ("ticket", {"table": "dead"}, "invalid-input: topic"),
    ("ticket", {"table": "secrets"}, "invalid-input: ticket"),
    ("put", {"topic": "nowhere"}, "not-found"),
    ("put", {"topic": "t", "stage": "s", "producer": "p"}, "invalid-input: producer, sequence"),
    ("put", {"topic": "t", "partition": 99}, "invalid-input: partition"),
    ("act", {"action": "x" * 20_000}, "invalid-input: action.*create-topic"),
    ("act", {"action": "no-such"}, "invalid-input: action.*create-topic"),
    ("act", {"action": "create-topic", "name": "t", "partitions": 0}, "invalid-input: partitions"),
    ("act", {"action": "create-topic", "nam": "t"}, "invalid-input: nam"),
    ("act", {"action": "subscribe", "topic": "t", "name": "s", "lease": 1}, "invalid-input: lease"),
    ("act", {"action": "reach", "start": {"t": {"0": -1}}}, "invalid-input"),
    ("act", {"action": "advance", "topic": "t", "subscription": "none", "offsets": {}}, "not-found"),
    ("act", {"action": "commit", "key": ""}, "invalid-input: key"),
]


@pytest.mark.parametrize(("call", "body", "message"), BAD, ids=[f"{call} {body}"[:60] for call, body, _ in BAD])
def test_a_wrong_request_is_refused(node: Served, call: str, body: dict[str, object], message: str):
    assert node.node.flight_url is not None
    flights = Flights(node.node.flight_url)
    flights.act("create-topic", name="t")
    with pytest.raises(flight.FlightServerError, match=message):
        if call == "put":
            flights.put([numbered(0, 1)], **body)
        elif call == "act":
            name = str(body["action"])
            flights.act(name, **{key: value for key, value in body.items() if key != "action"})
        else:
            getattr(flights, call)(**body)
    assert flights.act("topics")["topics"]


def test_a_bad_stream_is_refused_and_stores_nothing(flights: Flights, topic: str):
    wrong = pa.RecordBatch.from_pydict({"body": [b"x"]})
    with pytest.raises(flight.FlightServerError, match="invalid-input: column"):
        flights.put([wrong], topic=topic)
    with pytest.raises(flight.FlightServerError, match="invalid-input: priority"):
        flights.put([payloads(b"x", priority=[70_000])], topic=topic)
    with pytest.raises(flight.FlightServerError, match=r"invalid-input: (command|path)"):
        flights.client.get_flight_info(flight.FlightDescriptor.for_command(b"\xff\xfe"))
    with pytest.raises(flight.FlightServerError, match="invalid-input: path"):
        flights.client.get_flight_info(flight.FlightDescriptor.for_path("a", "b"))
    assert flights.read(topic=topic).num_rows == 0


def test_calls_at_a_time_are_bounded(flights: Flights, topic: str, monkeypatch: pytest.MonkeyPatch):
    flights.act("subscribe", topic=topic, name="s")
    pushed = Pushed(flights, topic=topic, subscription="s")
    pushed.send(credit=2)
    flights.put([numbered(0, 1)], topic=topic)
    assert pushed.next().num_rows == 1
    monkeypatch.setattr(gate, "CALLS_MAX", 1)
    with pytest.raises(flight.FlightServerError, match=r"limit-reached: .*calls at a time"):
        flights.act("topics")
    monkeypatch.undo()
    pushed.end()
    assert flights.act("stats", topic=topic)


def test_a_reader_that_leaves_takes_nothing_along(flights: Flights, topic: str, node: Served):
    flights.put([payloads(*([bytes(10_000)] * 1_000)) for _ in range(20)], topic=topic, partition=0)
    readers = []
    for _ in range(3):
        readers.append(flights.client.do_get(flights.info(topic=topic).endpoints[0].ticket))
        readers[-1].read_chunk()
    until(lambda: calls_of(node) == 3)
    for reader in readers:
        reader.cancel()
    until(lambda: calls_of(node) == 0)
    assert node.node._flight is not None and not node.node._flight._bridge._pending
    assert flights.read(topic=topic, columns=["offset"]).num_rows == 20_000


def test_the_parts_of_an_answer_are_bounded_in_number_and_bytes(
    flights: Flights, topic: str, monkeypatch: pytest.MonkeyPatch
):
    flights.put([numbered(0, 1_000)], topic=topic, partition=0)
    monkeypatch.setattr(reading, "ENDPOINTS_MAX", 100)
    assert len(flights.info(topic=topic, rows_per_endpoint=10).endpoints) == 100
    with pytest.raises(flight.FlightServerError, match=r"invalid-input: rows_per_endpoint: .*100 endpoints"):
        flights.info(topic=topic, rows_per_endpoint=1)
    where = {"keys": ["k" * 20 + str(n) for n in range(500)]}
    monkeypatch.setattr(reading, "TICKETS_BYTES_MAX", 100_000)
    with pytest.raises(flight.FlightServerError, match=r"invalid-input: where, rows_per_endpoint: .*100 tickets"):
        flights.info(topic=topic, rows_per_endpoint=10, where=where)
    monkeypatch.setattr(reading, "ROWS_PER_ENDPOINT", 1)
    assert len(flights.info(topic=topic).endpoints) == 100, "as many as there may be, where nothing was asked for"
    assert len(flights.info(topic=topic, where=where).endpoints) == 5


def test_the_loop_only_looks_where_messages_are(flights: Flights, topic: str, node: Served):
    flights.put([numbered(0, 60_000)], topic=topic, partition=0)
    where = {"keys": ["k" * 20 + str(n) for n in range(50)]}
    threads: set[str] = set()

    def counted(selection: reading.Selection, descriptor: flight.FlightDescriptor) -> flight.FlightInfo:
        threads.add(threading.current_thread().name)
        return info(selection, descriptor)

    info = reading.info
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reading, "info", counted)
        assert len(flights.info(topic=topic, rows_per_endpoint=10, where=where).endpoints) == 6_000
    assert threads and "node" not in threads


def test_an_answer_has_the_offset_where_it_ends_and_no_later_one(flights: Flights, topic: str):
    flights.put([numbered(0, 10)], topic=topic, partition=0)

    def reach(**query: object) -> tuple[dict[str, int], dict[str, int]]:
        extent = json.loads(flights.info(topic=topic, **query).app_metadata)
        return extent["start"], extent["stop"]

    assert reach(stop={"offsets": {"0": 1_000_000}}) == ({"0": 0, "1": 0}, {"0": 10, "1": 0})
    assert reach(start={"offsets": {"0": 50}}) == ({"0": 10, "1": 0}, {"0": 10, "1": 0})
    assert reach(start={"offsets": {"0": 3}}, stop={"offsets": {"0": 7}}) == ({"0": 3, "1": 0}, {"0": 7, "1": 0})
    assert reach(start="latest", stop="earliest") == ({"0": 10, "1": 0}, {"0": 10, "1": 0})


def test_tables_leave_out_topics_that_are_deleted_meanwhile(flights: Flights, topic: str, node: Served):
    broker = node.node.broker
    real = broker.topics
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(broker, "topics", lambda: [*real(), wherry.Topic(name="gone")])
        for table in ("topics", "subscriptions"):
            flights.ticket(table=table)
        assert topic in flights.ticket(table="topics")["name"].to_pylist()
        names = [info.descriptor.path[0].decode() for info in flights.client.list_flights()]
    assert topic in names and "gone" not in names


def test_what_is_listed_is_durable(flights: Flights, node: Served, monkeypatch: pytest.MonkeyPatch):
    committer, waited = node.node.broker.shard.committer, list[int]()
    wait = committer.wait

    async def noted(position: int) -> None:
        waited.append(position)
        await wait(position)

    monkeypatch.setattr(committer, "wait", noted)
    assert list(flights.client.list_flights())
    assert waited == [committer.submitted]


def test_the_schema_is_that_of_a_topic_that_is_there(flights: Flights):
    with pytest.raises(pa.ArrowException, match="not-found: no topic named 'nowhere'"):
        flights.client.get_schema(flight.FlightDescriptor.for_path("nowhere"))
