"""Who gets through to Flight: keys, TLS, and what happens to those who are there when the node stops."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from pyarrow import flight

from tests.integration.flights import Flights, Pushed, payloads
from tests.integration.served import Served, served
from wherry.model.key import Right
from wherry.node.config import FlightSection, SecuritySection, TlsSection
from wherry.security.keys import make

CERTIFICATES = Path(__file__).parents[1] / "unit/security/certificates"


def url_of(node: Served) -> str:
    assert node.node.flight_url is not None
    return node.node.flight_url


@pytest.mark.rows("D27")
def test_keys_open_what_their_rights_say(tmp_path: Path):
    with served(tmp_path / "data", security=SecuritySection(keys="on")) as node:

        def key(*rights: Right) -> str:
            made = make("k", list(rights), now_ms=time.time_ns() // 1_000_000)
            node.run(node.node.broker.put_key(made.key))
            return made.token

        admin = Flights(url_of(node), (tmp_path / "data" / "admin.key").read_text().strip())
        for topic in ("a", "b"):
            admin.act("create-topic", name=topic)
            admin.act("subscribe", topic=topic, name="s")
        admin.put([payloads(b"x")], topic="b")
        writer = Flights(url_of(node), key(Right("publish", "a")))
        reader = Flights(url_of(node), key(Right("consume", "a*")))
        writer.put([payloads(b"1")], topic="a")
        writer.put([payloads(b"2")], topic="a", stage="k")
        assert writer.act("commit", key="k") == {"placed": [["a", 0, 1, 1]]}
        assert reader.read(topic="a").num_rows == 2
        assert [each["name"] for each in reader.act("topics")["topics"]] == ["a"]
        assert reader.ticket(table="topics")["name"].to_pylist() == ["a"]
        assert [info.descriptor.path for info in reader.client.list_flights(options=reader.options)] == [[b"a"]]
        admin.put([payloads(b"3")], topic="b", stage="of b")
        writer.act("abort", key="of b")  # its own, if there were one: others' keys are theirs
        with pytest.raises(flight.FlightServerError, match="not-found"):
            writer.act("commit", key="of b", stages=["of b"])
        assert admin.act("commit", key="of b") == {"placed": [["b", 0, 1, 1]]}
        refused = [
            lambda: writer.read(topic="a"),
            lambda: writer.put([payloads(b"x")], topic="b"),
            lambda: reader.put([payloads(b"x")], topic="a"),
            lambda: reader.read(topic="b"),
            lambda: reader.ticket(table="dead", topic="b"),
            lambda: reader.act("reach", start={"a": {}, "b": {}}),
            lambda: reader.act("create-topic", name="a", partitions=3),
            lambda: reader.act("delete-topic", topic="a"),
            lambda: reader.act("redrive", topic="a"),
            lambda: Pushed(reader, topic="b", subscription="s").next(),
        ]
        for call in refused:
            with pytest.raises(flight.FlightUnauthorizedError, match="forbidden: "):
                call()
        for key_of_nobody in (None, "wk_nobody"):
            for call in calls_of(Flights(url_of(node), key_of_nobody)):
                with pytest.raises(flight.FlightUnauthenticatedError, match="unauthorized: "):
                    call()


def calls_of(flights: Flights) -> list[Callable[[], object]]:
    """One of each kind."""
    return [
        lambda: flights.read(topic="a"),
        lambda: flights.act("topics"),
        lambda: flights.act("commit", key="none"),
        lambda: flights.ticket(table="topics"),
        lambda: flights.put([payloads(b"x")], topic="a"),
        lambda: list(flights.client.list_flights(options=flights.options)),
    ]


@pytest.mark.rows("Q13", "D30")
def test_it_speaks_tls(tmp_path: Path):
    tls = TlsSection(certificate=str(CERTIFICATES / "first.pem"), key=str(CERTIFICATES / "first.key"))
    with served(tmp_path, tls=tls) as node:
        url = url_of(node)
        assert url.startswith("grpc+tls://")
        authority = (CERTIFICATES / "authority.pem").read_bytes()
        assert Flights(url, tls_root_certs=authority, override_hostname="localhost").act("topics") == {"topics": []}
        with pytest.raises(flight.FlightUnavailableError):
            Flights(url).act("topics")
        with pytest.raises(flight.FlightUnavailableError):
            Flights(url.replace("+tls", "")).act("topics")


def test_it_is_not_there_when_it_is_not_wanted(tmp_path: Path):
    with served(tmp_path, flight=FlightSection(enabled=False)) as node:
        assert node.node.flight_url is None


def test_a_stop_ends_every_call_and_says_so(tmp_path: Path):
    faults: list[Exception] = []

    def waits(flights: Flights) -> None:
        try:
            flights.act("reach", start={"t": {}}, wait_ms=60_000)
        except flight.FlightError as fault:
            faults.append(fault)

    with served(tmp_path) as node:
        flights = Flights(url_of(node))
        flights.act("create-topic", name="t")
        flights.act("subscribe", topic="t", name="s")
        pushed = Pushed(flights, topic="t", subscription="s")
        pushed.say(credit=10)
        waiting = threading.Thread(target=waits, args=(flights,))
        waiting.start()
        time.sleep(0.3)
        began = time.monotonic()
    assert time.monotonic() - began < 10
    waiting.join(5)
    assert [type(fault) for fault in faults] == [flight.FlightUnavailableError]
    last = pushed.next()
    assert isinstance(last, dict) and last["fault"]["code"] == "closed"
    with pytest.raises(flight.FlightError):
        pushed.end()
