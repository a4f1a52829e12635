"""Bytes that are nothing: every way into Flight refuses them as input; to none of them is it a fault of the broker."""

from __future__ import annotations

import json
import logging
import random
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import flight

from tests.integration.flights import Flights, payloads
from tests.integration.served import served
from wherry.model.errors import InvalidInput
from wherry.wire.flight.actions import ACTIONS, body_of
from wherry.wire.flight.terms import Push, Put, Query, Ticket, Wish, decoded

QUERY = {"topic": "a", "columns": ["key"], "where": {"keys": ["x"]}, "start": {"offsets": {"0": 0}}, "stop": "latest"}
TICKET = {"topic": "a", "columns": ["offset"], "where": {"headers": {"h": "v"}}, "partition": 0, "start": 0, "stop": 2}
PUT = {"topic": "a", "producer": "p", "sequence": 0, "partition": 0}
STAGED = {"topic": "a", "stage": "k"}
PUSH = {"topic": "a", "subscription": "s", "consumer": "c", "messages": 5, "bytes": 100}
WISH = {"ack": ["0-1-2"], "id": "y", "error": "e"}
BODIES: dict[str, dict[str, Any]] = {
    "topics": {},
    "create-topic": {"name": "b", "order": "fifo", "partitions": 1, "keep": "age"},
    "delete-topic": {"topic": "b"},
    "subscribe": {"topic": "a", "name": "s", "start": "earliest", "retry": {"attempts": 3}},
    "unsubscribe": {"topic": "a", "name": "other"},
    "stats": {"topic": "a"},
    "extents": {"topic": "a"},
    "offsets-at": {"topic": "a", "time_ms": 17},
    "reach": {"start": {"a": {"0": 0}}, "stop": {"a": {"0": 1}}, "messages_max": 5},
    "nearby": {"topic": "a", "stop": 2, "start": 0},
    "advance": {"topic": "a", "subscription": "s", "offsets": {"0": 0}},
    "commit": {"key": "k", "stages": ["x"]},
    "committed": {"key": "k"},
    "abort": {"key": "k"},
    "redrive": {"topic": "a", "subscription": "s", "reason": "x", "offsets": [1, 2], "by": "me"},
}
VALUES = [
    None,
    True,
    -1,
    1.5,
    2**32,
    2**63 - 1,
    2**63,
    2**70,
    "",
    "\0",
    "x" * 3_000,
    [],
    {},
    ["a"],
    {"0": 2**63},
    [2**64],
]
BROKEN = [b"\xff", b"\xc3", b"\xed\xa0\x80", b"\0", b"\\ud800", b"9" * 30, b"1e400", b"[", b"{", b'"', b"[" * 5_000]


class Spoiler:
    """Makes nonsense out of what is right, from a seed."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)

    def spoil(self, body: dict[str, Any]) -> bytes:
        """Make random bytes, a body with a value that does not fit, or one with bytes that do not belong there."""
        chance, raw = self._chance, bytearray(json.dumps(body).encode())
        kind = chance.randrange(3)
        if kind == 0:
            return chance.randbytes(chance.randrange(1, 40))
        if kind == 1 and body:
            return json.dumps({**body, chance.choice(list(body)): chance.choice(VALUES)}).encode()
        at = chance.randrange(len(raw) + 1)
        raw[at : at + chance.randrange(3)] = chance.choice([*BROKEN, chance.randbytes(1)])
        return bytes(raw)


def _texts_broken(body: dict[str, Any]) -> Iterator[bytes]:
    """Yield the body with bytes that are no UTF-8 behind each of its quotation marks: in every name and every text."""
    raw = json.dumps(body).encode()
    yield from (raw[: at + 1] + b"\xff" + raw[at + 1 :] for at in range(len(raw)) if raw[at : at + 1] == b'"')


def test_every_body_of_every_action_is_known_here():
    assert set(BODIES) == set(ACTIONS)


@pytest.mark.parametrize("nested", [b"\xff", b"[" * 100_000])
def test_bytes_that_are_no_json_are_refused_as_input(nested: bytes):
    for name in BODIES:
        with pytest.raises(InvalidInput):
            body_of(name, b'{"topic": ' + nested)


def test_parsers_read_or_refuse_whatever_comes():
    spoiler = Spoiler(1)
    parsers: list[tuple[Callable[[bytes], object], dict[str, Any]]] = [
        (partial(_decoded, Query), QUERY),
        (partial(_decoded, Ticket), TICKET),
        (partial(_decoded, Put), PUT),
        (partial(_decoded, Put), STAGED),
        (partial(_decoded, Push), PUSH),
        (partial(_decoded, Wish), WISH),
        *((partial(body_of, name), body) for name, body in BODIES.items()),
    ]
    for parse, body in parsers:
        for raw in [*_texts_broken(body), *(spoiler.spoil(body) for _ in range(500))]:
            try:
                parse(raw)
            except InvalidInput as fault:
                str(fault).encode()


def _decoded(kind: type[object], raw: bytes) -> object:
    return decoded(kind, raw, "term")


def test_no_nonsense_over_the_wire_is_a_fault_of_the_broker(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    spoiler, refused = Spoiler(2), 0
    with served(tmp_path) as node, caplog.at_level(logging.ERROR, "wherry.flight"):
        calls = _Calls(Flights(str(node.node.flight_url)))
        for _ in range(20):
            calls.prepare()
            for entry, body in calls.entries:
                raw = spoiler.spoil(body)
                try:
                    entry(raw)
                except (flight.FlightError, pa.ArrowException, OSError) as fault:
                    refused += 1
                    assert "internal: " not in str(fault), raw
        calls.prepare()
        assert calls.flights.read(topic="a").num_rows >= 2  # the node serves as before
    assert refused > 300
    assert not caplog.records


def test_a_stream_whose_columns_have_no_names_is_refused_as_input(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    good = payloads(b"x").column(0)
    fields = [pa.field("payload", pa.binary()), pa.field(b"\xff", pa.binary())]
    with served(tmp_path) as node:
        flights = Flights(str(node.node.flight_url))
        flights.act("create-topic", name="a")
        with pytest.raises(flight.FlightServerError, match="invalid-input: schema"):
            flights.put([pa.RecordBatch.from_arrays([good, good], schema=pa.schema(fields))], topic="a")
    assert not caplog.records


class _Calls:
    """Every way in, with a body that it takes."""

    def __init__(self, flights: Flights) -> None:
        self.flights = flights
        self.entries: list[tuple[Callable[[bytes], object], dict[str, Any]]] = [
            (self._info, QUERY),
            (self._schema, QUERY),
            (self._get, TICKET),
            (self._put, PUT),
            (self._put, STAGED),
            (self._push, PUSH),
            (self._wish, WISH),
            *((self._acting(name), body) for name, body in BODIES.items()),
        ]

    def prepare(self) -> None:
        """Have what the calls are about: some of what is made of them is right."""
        self.flights.act("create-topic", name="a")
        self.flights.act("subscribe", topic="a", name="s")
        self.flights.put([payloads(b"1", b"2")], topic="a")

    def _info(self, raw: bytes) -> object:
        return self.flights.client.get_flight_info(flight.FlightDescriptor.for_command(raw), self.flights.options)

    def _schema(self, raw: bytes) -> object:
        return self.flights.client.get_schema(flight.FlightDescriptor.for_command(raw), self.flights.options)

    def _get(self, raw: bytes) -> object:
        return self.flights.client.do_get(flight.Ticket(raw), self.flights.options).read_all()

    def _acting(self, name: str) -> Callable[[bytes], object]:
        return lambda raw: list(self.flights.client.do_action(flight.Action(name, raw), self.flights.options))

    def _put(self, raw: bytes) -> None:
        descriptor = flight.FlightDescriptor.for_command(raw)
        writer, answers = self.flights.client.do_put(descriptor, payloads(b"x").schema, self.flights.options)
        with writer:
            writer.write_with_metadata(payloads(b"x"), raw)
            writer.done_writing()
            while answers.read() is not None:
                pass

    def _push(self, raw: bytes) -> None:
        self._exchange(raw, b'{"credit": 1}')

    def _wish(self, raw: bytes) -> None:
        self._exchange(json.dumps(PUSH).encode(), raw)

    def _exchange(self, command: bytes, wish: bytes) -> None:
        descriptor = flight.FlightDescriptor.for_command(command)
        writer, reader = self.flights.client.do_exchange(descriptor, self.flights.options)
        with writer:
            writer.begin(pa.schema([]))
            writer.write_metadata(wish)
            writer.done_writing()
            for _ in reader:
                pass
