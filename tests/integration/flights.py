"""A Flight client in few words, for tests."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable
from typing import Any

import pyarrow as pa
from pyarrow import flight

from tests.integration.served import Served

PATIENCE_S = 10.0


def until(true: Callable[[], bool]) -> None:
    """Wait for something that comes soon."""
    end = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < end, "it does not come"
        time.sleep(0.01)


def calls_of(node: Served) -> int:
    """Calls of Flight that are under way."""
    assert node.node._flight is not None
    return node.node._flight.gate.calls


class Flights:
    """One connection."""

    def __init__(self, url: str, key: str | None = None, **tls: Any) -> None:
        self.client = flight.connect(url, **tls)
        headers = [] if key is None else [(b"authorization", f"Bearer {key}".encode())]
        self.options = flight.FlightCallOptions(timeout=60, headers=headers)

    def act(self, action: str, /, **body: Any) -> dict[str, Any]:
        """Do something; its answer."""
        results = list(self.client.do_action(flight.Action(action, json.dumps(body).encode()), self.options))
        assert len(results) == 1
        answer: dict[str, Any] = json.loads(results[0].body.to_pybytes())
        return answer

    def info(self, **query: Any) -> flight.FlightInfo:
        """Return what there is."""
        return self.client.get_flight_info(flight.FlightDescriptor.for_command(json.dumps(query)), self.options)

    def ticket(self, **ticket: Any) -> pa.Table:
        """Return the rows of a ticket."""
        return self.client.do_get(flight.Ticket(json.dumps(ticket)), self.options).read_all()

    def read(self, **query: Any) -> pa.Table:
        """Return the rows of a query."""
        info = self.info(**query)
        parts = [self.client.do_get(endpoint.ticket, self.options).read_all() for endpoint in info.endpoints]
        return pa.concat_tables([info.schema.empty_table(), *parts])

    def put(self, batches: Iterable[pa.RecordBatch], **command: Any) -> list[dict[str, Any]]:
        """Write a stream; the answers."""
        listed = list(batches)
        descriptor = flight.FlightDescriptor.for_command(json.dumps(command))
        writer, reader = self.client.do_put(descriptor, listed[0].schema, self.options)
        with writer:
            for batch in listed:
                writer.write_batch(batch)
            writer.done_writing()
            answers = []
            while (answer := reader.read()) is not None:
                answers.append(json.loads(answer.to_pybytes()))
        return answers


def payloads(*values: bytes, **columns: list[Any]) -> pa.RecordBatch:
    """Make a batch of messages."""
    return pa.RecordBatch.from_pydict({"payload": pa.array(values, pa.binary()), **columns})


class Pushed:
    """A subscription that is pushed."""

    def __init__(self, flights: Flights, **command: Any) -> None:
        descriptor = flight.FlightDescriptor.for_command(json.dumps(command))
        self._writer, self._reader = flights.client.do_exchange(descriptor, flights.options)
        self._writer.begin(pa.schema([]))

    def send(self, **wish: Any) -> None:
        """Send credit, or how to settle."""
        self._writer.write_metadata(json.dumps(wish).encode())

    def next(self) -> Any:
        """Return the next batch, or the next JSON."""
        chunk = self._reader.read_chunk()
        return json.loads(chunk.app_metadata.to_pybytes()) if chunk.data is None else chunk.data

    def cancel(self) -> None:
        """Hang up without a word."""
        self._reader.cancel()

    def end(self) -> None:
        """Hang up, and wait until the broker noticed."""
        self._writer.done_writing()
        try:
            while True:
                self._reader.read_chunk()
        except StopIteration:
            self._writer.close()
