"""Errors of Flight back into those of the broker; calls that are tried again."""

import signal
import time

import pyarrow as pa
import pytest
from pyarrow import flight

from tests.ports import free_port
from tests.spark.brokers import broker as started
from wherry.model.errors import HistoryLost, InvalidInput, NotFound, Unavailable, WherryError
from wherry.spark.faults import error_of, passes
from wherry.spark.link import FlightLink


def test_a_code_and_its_fields():
    fault = flight.FlightServerError(
        "history-lost: gone. gRPC client debug context: UNKNOWN:Error. Client context: OK",
        b'{"code": "history-lost", "topic": "t", "partition": 1, "offset": 5, "first": 9}',
    )
    found = error_of(fault)
    assert isinstance(found, HistoryLost)
    assert (str(found), found.topic, found.partition, found.offset, found.first) == ("gone", "t", 1, 5, 9)


def test_a_code_in_the_text_alone():
    fault = error_of(pa.ArrowInvalid("invalid-input: key: got 5; allowed: text"))
    assert isinstance(fault, InvalidInput)
    assert str(fault) == "key: got 5; allowed: text"


def test_an_error_that_is_not_of_the_broker():
    assert isinstance(error_of(flight.FlightUnavailableError("failed to connect")), Unavailable)
    assert isinstance(error_of(flight.FlightTimedOutError("Deadline Exceeded")), Unavailable)
    assert isinstance(error_of(flight.FlightInternalError("Received RST_STREAM with error code 2")), Unavailable)
    assert type(error_of(flight.FlightInternalError("internal: KeyError"))) is WherryError
    fault = error_of(flight.FlightServerError("something: else", b"not json"))
    assert type(fault) is WherryError
    assert not passes(fault)


def test_errors_of_a_real_broker(broker):
    with pytest.raises(NotFound, match="no topic named 'nowhere'"):
        broker.link.action("extents", {"topic": "nowhere"})
    with pytest.raises(InvalidInput, match="unknown field `colour`"):
        broker.link.parts({"topic": "nowhere", "colour": 1})
    with pytest.raises(NotFound):
        list(broker.link.read({"topic": "nowhere", "stop": 5}))
    batch = pa.record_batch({"payload": [b"x"]})
    with pytest.raises(NotFound):
        broker.link.put({"topic": "nowhere"}, batch.schema, iter([batch] * 20))


def test_a_broker_that_is_not_there():
    link = FlightLink(f"grpc://127.0.0.1:{free_port()}", retry_s=0.5)
    began = time.monotonic()
    with pytest.raises(Unavailable):
        link.action("topics", {})
    assert time.monotonic() - began < 20
    with pytest.raises(Unavailable):
        list(link.read({"topic": "t", "stop": 1}))


def test_a_reader_that_stops_early(broker):
    topic = broker.create()
    broker.publish(topic, [bytes(1_000)] * 5_000)
    assert next(broker.link.read({"topic": topic, "stop": 5_000})).num_rows > 0


def test_a_read_continues_where_it_was_when_the_broker_is_killed(tmp_path):
    with started(tmp_path) as own:
        topic = own.create(keep="age", keep_ms=3_600_000)
        for _ in range(10):
            own.publish(topic, [bytes(1_000)] * 8_000)
        reading = own.link.read({"topic": topic, "stop": 80_000, "columns": ["offset", "payload"]})
        offsets = next(reading).column("offset").to_pylist()
        own.end(signal.SIGKILL)
        own.start()
        for batch in reading:
            offsets += batch.column("offset").to_pylist()
        assert offsets == list(range(80_000))
