"""Which clients Flight admits: keys, TLS, and what happens to calls that run when the node stops."""

from __future__ import annotations

import json
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyarrow import flight

from tests.integration.flights import Flights, Pushed, calls_of, payloads, until
from tests.integration.served import Served, served
from wherry.model.catalog.key import Right
from wherry.node.config import FlightSection, SecuritySection, TlsSection
from wherry.security.access import own_key
from wherry.security.keys import Made, make
from wherry.wire.flight import gate

CERTIFICATES = Path(__file__).parents[1] / "unit/security/certificates"
TRUSTING: dict[str, Any] = {
    "tls_root_certs": (CERTIFICATES / "authority.pem").read_bytes(),
    "override_hostname": "localhost",
}


def url_of(node: Served) -> str:
    assert node.node.flight_url is not None
    return node.node.flight_url


@pytest.mark.rows("D27")
def test_keys_open_what_their_rights_allow(tmp_path: Path):
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
        assert writer.act("commit", key="k") == {"placed": [["a", 0, 1, 1]], "mesh": {"a": "safe"}}
        assert reader.read(topic="a").num_rows == 2
        assert [each["name"] for each in reader.act("topics")["topics"]] == ["a"]
        assert reader.ticket(table="topics")["name"].to_pylist() == ["a"]
        assert [info.descriptor.path for info in reader.client.list_flights(options=reader.options)] == [[b"a"]]
        admin.put([payloads(b"3")], topic="b", stage="of b")
        writer.act("abort", key="of b")  # an abort is for stages of this key: those of others stay
        with pytest.raises(flight.FlightServerError, match="not-found"):
            writer.act("commit", key="of b", stages=["of b"])
        assert admin.act("commit", key="of b") == {"placed": [["b", 0, 1, 1]], "mesh": {"b": "safe"}}
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
        for bad_key in (None, "wk_nobody"):
            for call in one_of_each(Flights(url_of(node), bad_key)):
                with pytest.raises(flight.FlightUnauthenticatedError, match="unauthorized: "):
                    call()


def one_of_each(flights: Flights) -> list[Callable[[], object]]:
    """Return one call of each kind."""
    return [
        lambda: flights.read(topic="a"),
        lambda: flights.act("topics"),
        lambda: flights.act("commit", key="none"),
        lambda: flights.ticket(table="topics"),
        lambda: flights.put([payloads(b"x")], topic="a"),
        lambda: list(flights.client.list_flights(options=flights.options)),
        lambda: list(flights.client.list_actions(options=flights.options)),
    ]


class Locked:
    """A node that asks for keys, and makes some."""

    def __init__(self, node: Served, home: Path) -> None:
        self.node, self.broker = node, node.node.broker
        self.admin = Flights(url_of(node), (home / "admin.key").read_text().strip())

    def key(self, name: str, *rights: Right) -> Made:
        made = make(name, list(rights), now_ms=time.time_ns() // 1_000_000)
        self.node.run(self.broker.put_key(made.key))
        return made

    def flights(self, made: Made) -> Flights:
        return Flights(url_of(self.node), made.token)

    def calls(self) -> int:
        return calls_of(self.node)


@pytest.fixture
def locked(tmp_path: Path) -> Iterator[Locked]:
    with served(tmp_path / "data", security=SecuritySection(keys="on")) as node:
        yield Locked(node, tmp_path / "data")


class Silent:
    """Streams that are opened and send nothing, as no proper client does: bare frames of HTTP/2."""

    def __init__(self, node: Served, key: str | None = None) -> None:
        self._socket = socket.create_connection(("127.0.0.1", node.node.flight_port or 0), timeout=10)
        self._socket.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + self._frame(4, 0, 0) + self._frame(4, 1, 0))
        self._key, self._opened, self._read = key, 0, b""

    def __enter__(self) -> Silent:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    @staticmethod
    def _frame(kind: int, flags: int, stream: int, body: bytes = b"") -> bytes:
        return struct.pack(">I", len(body))[1:] + struct.pack(">BBI", kind, flags, stream) + body

    def open(self) -> int:
        """Open one stream more, and return its number."""
        fields = {":method": "POST", ":scheme": "http", ":authority": "x", "te": "trailers"}
        fields |= {":path": "/arrow.flight.protocol.FlightService/DoPut", "content-type": "application/grpc"}
        if self._key is not None:
            fields["authorization"] = f"Bearer {self._key}"
        texts = [text.encode() for field in fields.items() for text in field]
        pairs = zip(texts[::2], texts[1::2], strict=True)
        body = b"".join(b"\0" + bytes([len(name)]) + name + bytes([len(value)]) + value for name, value in pairs)
        self._opened += 1
        self._socket.sendall(self._frame(1, 4, 2 * self._opened - 1, body))
        return 2 * self._opened - 1

    def wait_for_end(self, stream: int) -> None:
        """Wait until the server has ended a stream."""
        while True:
            while len(self._read) < 9 or len(self._read) < 9 + int.from_bytes(self._read[:3], "big"):
                more = self._socket.recv(65_536)
                assert more, "the server hung up"
                self._read += more
            kind, flags, number = struct.unpack(">BBI", self._read[3:9])
            self._read = self._read[9 + int.from_bytes(self._read[:3], "big") :]
            if kind == 1 and flags & 1 and number == stream:
                return


@pytest.mark.rows("D27")
def test_a_stream_without_a_key_is_refused_before_it_sends_anything(locked: Locked):
    with Silent(locked.node) as stranger:
        for _ in range(10):
            stranger.wait_for_end(stranger.open())
        assert locked.calls() == 0


def test_streams_that_send_nothing_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(gate, "CALLS_MAX", 3)
    with served(tmp_path) as node:
        flights = Flights(url_of(node))
        with Silent(node) as quiet:
            for _ in range(3):
                quiet.open()
            until(lambda: calls_of(node) == 3)
            quiet.wait_for_end(quiet.open())
            with pytest.raises(flight.FlightServerError, match=r"limit-reached: calls at a time .*limit is 3"):
                flights.act("topics")
        until(lambda: calls_of(node) == 0)
        assert flights.act("topics") == {"topics": []}


def test_no_key_keeps_all_others_out(locked: Locked, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(gate, "CALLS_OF_ONE_MAX", 3)
    made = locked.key("greedy", Right("publish", "*"))
    greedy = locked.flights(made)
    with Silent(locked.node, made.token) as quiet:
        for _ in range(3):
            quiet.open()
        until(lambda: locked.calls() == 3)
        with pytest.raises(flight.FlightServerError, match=r"limit-reached: calls at a time of one key .*limit is 3"):
            greedy.act("topics")
        assert locked.admin.act("topics") == {"topics": []}
    until(lambda: locked.calls() == 0)
    assert greedy.act("topics") == {"topics": []}


@pytest.mark.rows("D27")
def test_a_deleted_key_ends_the_streams_that_it_opened(locked: Locked):
    admin = locked.admin
    for topic in ("read", "pushed", "written"):
        admin.act("create-topic", name=topic, keep="age", keep_ms=10**9)
    admin.act("subscribe", topic="pushed", name="s")
    admin.put([payloads(*[bytes(10_000)] * 500) for _ in range(40)], topic="read")
    made = locked.key("k", Right("publish", "*"), Right("consume", "*"))
    flights = locked.flights(made)
    stop = admin.act("extents", topic="read")["stop"]["0"]
    reader = flights.client.do_get(flight.Ticket(json.dumps({"topic": "read", "stop": stop})), flights.options)
    reader.read_chunk()
    pushed = Pushed(flights, topic="pushed", subscription="s")
    pushed.send(credit=10)
    written, answers = flights.client.do_put(
        flight.FlightDescriptor.for_path("written"), payloads(b"x").schema, flights.options
    )
    written.write_batch(payloads(b"before"))
    assert json.loads(answers.read().to_pybytes())["rows"] == 1
    locked.node.run(locked.broker.delete_key(made.key.id))
    admin.put([payloads(b"after")], topic="pushed")
    assert pushed.next()["fault"]["code"] == "unauthorized"
    (stats,) = admin.act("stats", topic="pushed")["subscriptions"]
    assert (stats["consumers"], stats["ready"]) == (0, 1), "others have it, though the client does not hang up"
    with pytest.raises(flight.FlightUnauthenticatedError, match="unauthorized"):
        reader.read_all()
    with pytest.raises(flight.FlightUnauthenticatedError, match="unauthorized"):
        written.write_batch(payloads(b"after"))
        written.close()
    assert admin.read(topic="written")["payload"].to_pylist() == [b"before"]
    pushed.cancel()


def test_the_audit_names_the_key_whatever_the_caller_sends(locked: Locked):
    admin = locked.admin
    admin.act("create-topic", name="t")
    admin.act("subscribe", topic="t", name="s")
    admin.put([payloads(b"1")], topic="t")
    pushed = Pushed(admin, topic="t", subscription="s")
    pushed.send(credit=1)
    pushed.send(dead_letter=[str(pushed.next().column("lease")[0].as_py())], id=1)
    assert pushed.next() == {"done": 1}
    pushed.end()
    clerk = locked.flights(locked.key("clerk", Right("admin", "t")))
    assert clerk.act("redrive", topic="t", by="the boss") == {"redriven": 1}
    assert [action.by for action in locked.broker.audit("t")] == ["clerk (by: the boss)"]


def test_a_commit_asks_for_the_rights_on_what_it_acks(locked: Locked):
    admin, broker = locked.admin, locked.broker
    admin.act("create-topic", name="t")
    admin.act("subscribe", topic="t", name="s")
    admin.put([payloads(b"1")], topic="t")
    made = locked.key("k", Right("publish", "*"), Right("consume", "*"))

    async def stage_an_ack() -> None:
        consumer = await broker.consumer("t", "s")
        await (await consumer.pull(1)).stage_ack(own_key("k", "tx"))
        await broker.put_key(msgspec.structs.replace(made.key, rights=(Right("publish", "*"),)))

    locked.node.run(stage_an_ack())
    for action in ("commit", "abort"):
        with pytest.raises(flight.FlightUnauthorizedError, match=r"forbidden: .*consume on topic 't'"):
            locked.flights(made).act(action, key="tx")


@pytest.mark.rows("Q13", "D30")
def test_it_speaks_tls(tmp_path: Path):
    tls = TlsSection(certificate=str(CERTIFICATES / "first.pem"), key=str(CERTIFICATES / "first.key"))
    with served(tmp_path, tls=tls) as node:
        url = url_of(node)
        assert url.startswith("grpc+tls://")
        assert Flights(url, **TRUSTING).act("topics") == {"topics": []}
        with pytest.raises(flight.FlightUnavailableError):
            Flights(url).act("topics")
        with pytest.raises(flight.FlightUnavailableError):
            Flights(url.replace("+tls", "")).act("topics")


@pytest.mark.rows("Q13", "D30")
def test_clients_show_a_certificate_where_they_must(tmp_path: Path):
    chain, key, authority = (str(CERTIFICATES / name) for name in ("first.pem", "first.key", "authority.pem"))
    tls = TlsSection(certificate=chain, key=key, client_ca=authority)
    with served(tmp_path, tls=tls) as node:
        known: dict[str, Any] = {"cert_chain": (CERTIFICATES / "second.pem").read_bytes()}
        known |= {"private_key": (CERTIFICATES / "second.key").read_bytes()}
        assert Flights(url_of(node), **TRUSTING, **known).act("topics") == {"topics": []}
        with pytest.raises(flight.FlightUnavailableError):
            Flights(url_of(node), **TRUSTING).act("topics")


def test_flight_is_off_when_it_is_disabled(tmp_path: Path):
    with served(tmp_path, flight=FlightSection(enabled=False)) as node:
        assert node.node.flight_url is None


def test_a_stop_ends_every_call_with_an_error(tmp_path: Path):
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
        pushed.send(credit=10)
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
