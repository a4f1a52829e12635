"""Writing over Flight: in order or not at all, and nothing that a stranger makes up."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import flight

from tests.integration.flights import Flights, Pushed, calls_of, payloads, until
from tests.integration.served import Served, served
from wherry.model.calls.publish import Published
from wherry.model.errors import Closed
from wherry.wire.flight import writing
from wherry.wire.flight.terms import Put


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("node")) as found:
        yield found


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    return str(request.node.name)


@pytest.fixture
def flights(node: Served) -> Flights:
    assert node.node.flight_url is not None
    return Flights(node.node.flight_url)


def stored(flights: Flights, topic: str) -> list[bytes]:
    return flights.read(topic=topic, columns=["payload"])["payload"].to_pylist()


@pytest.mark.rows("A22")
def test_what_follows_a_batch_that_failed_is_not_stored_and_can_be_sent_again(flights: Flights, topic: str):
    flights.act("create-topic", name=topic, messages_max=10)
    flights.act("subscribe", topic=topic, name="s")
    batches = [payloads(*[name] * count) for name, count in ((b"a", 8), (b"b", 5), (b"c", 1), (b"d", 1))]
    with pytest.raises(flight.FlightServerError, match="limit-reached"):
        flights.put(batches, topic=topic, producer="p", sequence=0)
    assert stored(flights, topic) == [b"a"] * 8
    flights.act("advance", topic=topic, subscription="s", offsets={"0": 8})
    answers = flights.put(batches, topic=topic, producer="p", sequence=0)
    assert [answer["repeated"] for answer in answers] == [True, False, False, False]
    assert stored(flights, topic) == [b"b"] * 5 + [b"c", b"d"]


@pytest.mark.rows("Q18")
def test_answers_name_the_guarantee_of_a_topic_that_flows(flights: Flights, topic: str):
    name = f"{topic}-flow"
    flights.act("create-topic", name=name, mesh="flow")
    assert [each["mesh"] for each in flights.put([payloads(b"a"), payloads(b"b")], topic=name)] == ["flow", "flow"]
    assert [each.get("mesh") for each in flights.put([payloads(b"c")], topic=name, stage=name)] == [None]
    committed = {"placed": [[name, 0, 2, 1]], "mesh": {name: "flow"}}
    assert flights.act("commit", key=name) == committed
    assert flights.act("committed", key=name) == committed


def test_a_stage_has_nothing_from_behind_a_batch_that_failed(flights: Flights, topic: str):
    flights.act("create-topic", name=topic, payload_bytes_max=10)
    batches = [payloads(b"a"), payloads(b"too long by far"), payloads(b"c")]
    with pytest.raises(flight.FlightServerError, match="invalid-input: messages"):
        flights.put(batches, topic=topic, stage=topic)
    assert flights.act("commit", key=topic) == {"placed": [[topic, 0, 0, 1]], "mesh": {topic: "safe"}}
    assert stored(flights, topic) == [b"a"]


def test_a_batch_that_was_cancelled_before_it_began_ends_the_stream(node: Served, flights: Flights, topic: str):
    flights.act("create-topic", name=topic)

    async def after_one_that_never_began() -> None:
        stream = writing.PublishStream(node.node.broker, Put(topic=topic))
        stream.publish(payloads(b"1")).close()
        with pytest.raises(Closed, match="before this one"):
            await stream.publish(payloads(b"2"))

    node.run(after_one_that_never_began())
    assert stored(flights, topic) == []


def wild(kind: pa.DataType, name: str) -> pa.RecordBatch:
    """Make a column of two values that point far out of their buffer, as a broken, or evil, client sends it."""
    if kind == pa.binary_view():
        views = np.array([1_000, 0, 0, 1 << 30] * 2, np.uint32)
        column = pa.Array.from_buffers(kind, 2, [None, pa.py_buffer(views), pa.py_buffer(b"abc")])
    else:
        entries = pa.Array.from_buffers(pa.int32(), 2, [None, pa.py_buffer(np.array([0, 1 << 30], np.int32))])
        column = pa.DictionaryArray.from_arrays(entries, pa.array([b"x"], pa.binary()), safe=False)
    others = {} if name == "payload" else {"payload": pa.array([b"1", b"2"], pa.binary())}
    return pa.RecordBatch.from_pydict({**others, name: column})


@pytest.mark.parametrize("name", ["payload", "key"])
@pytest.mark.parametrize("kind", [pa.binary_view(), pa.dictionary(pa.int32(), pa.binary())], ids=str)
def test_only_plain_columns_are_taken(flights: Flights, kind: pa.DataType, name: str):
    flights.act("create-topic", name="plain")
    with pytest.raises(flight.FlightServerError, match=rf"invalid-input: {name}: .*(bytes or )?text"):
        flights.put([wild(kind, name)], topic="plain")
    assert stored(flights, "plain") == []


def test_offsets_out_of_their_buffer_are_refused(flights: Flights, topic: str):
    flights.act("create-topic", name=topic)
    good = payloads(b"abcdefgh", b"ijklmnop")
    _, ends, data = good.column("payload").buffers()
    bad = np.frombuffer(ends, np.int32).copy()
    bad[1] = -5
    column = pa.Array.from_buffers(pa.binary(), 2, [None, pa.py_buffer(bad), data])
    with pytest.raises(flight.FlightServerError, match="invalid-input: stream"):
        flights.put([pa.RecordBatch.from_arrays([column], ["payload"])], topic=topic)
    assert stored(flights, topic) == []


def test_no_client_forges_what_the_broker_fills_in(flights: Flights, topic: str):
    flights.act("create-topic", name=topic)
    for name, value in (("blob", pa.array(["s3://of/others"])), ("mac", pa.array([bytes(32)], pa.binary(32)))):
        with pytest.raises(flight.FlightServerError, match=f"invalid-input: {name}: .*the broker fills this"):
            flights.put([payloads(b"x", **{name: value})], topic=topic)
    assert stored(flights, topic) == []


def test_what_was_pushed_can_be_passed_on_as_it_is(flights: Flights, topic: str):
    flights.act("create-topic", name=topic)
    flights.act("subscribe", topic=topic, name="s")
    flights.put([payloads(b"x", key=["k"])], topic=topic)
    pushed = Pushed(flights, topic=topic, subscription="s")
    pushed.send(credit=1)
    flights.put([pushed.next()], topic=topic)
    pushed.end()
    assert flights.read(topic=topic, columns=["key", "payload"]).to_pylist() == [{"key": "k", "payload": b"x"}] * 2


def test_an_answer_is_short_however_the_rows_were_spread():
    chance = np.random.default_rng(1)
    partition = chance.integers(0, 16, 65_536)
    offset = np.zeros(len(partition), np.int64)
    for number in range(16):
        offset[partition == number] = 1_000 + np.arange((partition == number).sum())
    placed = writing.places(Published(partition, offset))
    assert placed == [(number, 1_000, int((partition == number).sum())) for number in range(16)]


def test_answers_that_the_client_does_not_read_are_bounded_by_their_bytes(
    flights: Flights, topic: str, node: Served, monkeypatch: pytest.MonkeyPatch
):
    flights.act("create-topic", name=topic, partitions=50)
    batch = payloads(*[b"m"] * 500, key=[f"k{n}" for n in range(500)])
    monkeypatch.setattr(writing, "UNREAD_MAX", 200)
    written = writing._Answering._run
    monkeypatch.setattr(writing._Answering, "_run", lambda self: None)  # a client that takes no answer
    waiting: list[writing._Answering] = []
    made = writing._Answering.__init__

    def noted(self: writing._Answering, *args: object) -> None:
        made(self, *args)  # type: ignore[arg-type]
        waiting.append(self)

    monkeypatch.setattr(writing._Answering, "__init__", noted)
    descriptor = flight.FlightDescriptor.for_command(json.dumps({"topic": topic}))
    writer, reader = flights.client.do_put(descriptor, batch.schema, flights.options)
    for _ in range(20):
        writer.write_batch(batch)
    until(lambda: bool(waiting) and waiting[0]._unread >= 200)
    assert flights.act("stats", topic=topic)["messages"] <= 500 * (4 + writing.UNDER_WAY_MAX)
    answering = waiting[0]
    answering._thread = threading.Thread(target=written, args=(answering,))
    answering._thread.start()
    writer.done_writing()
    count = 0
    while reader.read() is not None:
        count += 1
    writer.close()
    assert count == 20 and flights.act("stats", topic=topic)["messages"] == 10_000
    until(lambda: calls_of(node) == 0)
