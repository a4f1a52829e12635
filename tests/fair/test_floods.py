"""One connection that floods gets a bounded part of every turn of the loop, and others are served meanwhile.

Nothing here is measured in seconds: what is counted are bytes that were handled in one turn of the loop.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.amqp.raw import CLOSE
from tests.amqp.raw import Raw as Amqp
from tests.amqp.wires import url_of
from tests.fair.floods import DECLARE, FLOODS, HEARTBEAT, PATIENCE_S, Counted, flooding, masked, upgraded
from tests.stomp.raw import Raw as Stomp
from tests.stomp.serving import done_in, running, until
from wherry.broker.broker import Broker
from wherry.broker.commit.commit import WhenDurable
from wherry.node.node import Node
from wherry.queueing.hosts.queue import Queue
from wherry.queueing.hosts.virtual_host import VirtualHost
from wherry.wire import fairness
from wherry.wire.fairness import CHUNK_BYTES, STRANGER_BYTES_MAX, UNSTORED_BYTES
from wherry.wire.stomp.sessions import STRANGE

CYCLES = 10
RESOURCE_ERROR = 506
READS = 32
"""How often the loop reads from one socket in a turn, at most."""

DEAR_BYTES = 256 << 10
"""In one turn, where handling is what bytes cost: some times what a fast machine does in that time."""


@pytest.fixture(scope="module")
def node(tmp_path_factory) -> Iterator[Node]:
    with running(tmp_path_factory.mktemp("fair")) as found:
        yield found


def asked(client: http.client.HTTPConnection, method: str, path: str, body: str = "") -> bytes:
    client.request(method, path, body, {"Content-Type": "application/json" if body.startswith("{") else "text/plain"})
    answer = client.getresponse()
    content = answer.read()
    assert answer.status in (200, 201, 204), content
    return content


def cycles(node: Node, count: int) -> int:
    """Publish, pull, ack, over HTTP, so many times."""
    client = http.client.HTTPConnection("127.0.0.1", node.port, timeout=PATIENCE_S)
    place = "/v1/topics/good/subscriptions/s"
    asked(client, "PUT", "/v1/topics/good")
    asked(client, "PUT", place)
    for _ in range(count):
        asked(client, "POST", "/v1/topics/good/messages", "x")
        (message,) = json.loads(asked(client, "POST", f"{place}/pull?messages=1&wait_ms=60000"))["messages"]
        asked(client, "POST", f"{place}/ack", json.dumps({"receipts": [message["receipt"]]}))
    client.close()
    return count


def no_flood_is_left(node: Node) -> None:
    """Wait until what an earlier flood published is stored, since it would count here."""
    assert node.stomp_sessions is not None
    queueing, native = node.stomp_sessions.queueing, node.native_sessions
    until(lambda: not queueing.clients and not native.open)
    until(lambda: queueing.intake.unstored_bytes == native.intake.unstored_bytes == 0)


def in_company(node: Node) -> None:
    """Let another client send, so that the flood is not alone."""
    client = http.client.HTTPConnection("127.0.0.1", node.port, timeout=PATIENCE_S)
    asked(client, "GET", "/healthz")
    client.close()


@pytest.mark.parametrize("name", FLOODS)
def test_a_flood_has_a_bounded_part_of_each_turn_of_the_loop(node, name, monkeypatch):
    flood = FLOODS[name]
    monkeypatch.setattr(fairness, "COMPANY_S", 3_600.0)
    begun = flood.begin(node)
    cycles(node, 1)
    counted = Counted(node, flood.kind, monkeypatch)
    with flooding(begun, flood.again):
        assert cycles(node, CYCLES) == CYCLES
        until(lambda: len(counted.bytes) > 1)
        counted.end()
    is_cheap = len(flood.again) <= 2
    assert 0 < counted.most <= (READS * CHUNK_BYTES if is_cheap else DEAR_BYTES)


@contextmanager
def disk_that_takes_nothing(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Hold the disk until the event that it yields is set."""
    when_stored, resume = Broker.when_stored, threading.Event()
    late: set[asyncio.Task[None]] = set()

    async def hold(broker: Broker, position: int, call: WhenDurable) -> None:
        await asyncio.to_thread(resume.wait, PATIENCE_S)
        when_stored(broker, position, call)

    def held(broker: Broker, position: int, call: WhenDurable) -> None:
        late.add(asyncio.create_task(hold(broker, position, call)))

    monkeypatch.setattr(Broker, "when_stored", held)
    try:
        yield resume
    finally:
        resume.set()


@pytest.mark.parametrize("name", ["amqp publishes", "stomp sends", "websocket sends", "native publishes"])
def test_what_a_connection_has_published_and_is_not_stored_is_bounded(node, name, monkeypatch):
    """Hold the disk: no more is read than the bound; everything continues when it writes again."""
    shared = node.native_sessions if name.startswith("native") else node.stomp_sessions.queueing
    flood, intake = FLOODS[name], shared.intake
    monkeypatch.setattr(fairness, "COMPANY_S", 3_600.0)
    monkeypatch.setattr(fairness, "SERVED_S", 0.0)
    no_flood_is_left(node)
    begun = flood.begin(node)
    in_company(node)
    counted = Counted(node, flood.kind, monkeypatch)
    with disk_that_takes_nothing(monkeypatch) as resume, flooding(begun, flood.again):
        until(lambda: intake.unstored_bytes > UNSTORED_BYTES)
        counted.laps_more(500)
        handled = counted.all
        counted.laps_more(500)
        assert counted.all == handled
        assert intake.unstored_bytes <= UNSTORED_BYTES + 2 * CHUNK_BYTES
        resume.set()
        until(lambda: counted.all > handled)
    counted.end()
    until(lambda: intake.unstored_bytes == 0)


@pytest.mark.parametrize("name", ["amqp publishes", "stomp sends", "websocket sends"])
def test_what_a_connection_publishes_while_a_call_before_is_carried_out_is_bounded(node, name, monkeypatch):
    flood, intake = FLOODS[name], node.stomp_sessions.queueing.intake
    monkeypatch.setattr(fairness, "COMPANY_S", 3_600.0)
    monkeypatch.setattr(fairness, "SERVED_S", 0.0)
    declare, is_declared = VirtualHost.declare_queue, threading.Event()

    async def slow(host: VirtualHost, queue: str, *arguments: Any) -> Queue:
        await asyncio.to_thread(is_declared.wait, PATIENCE_S)
        return host.queue(queue) if host.has_queue(queue) else await declare(host, queue, *arguments)

    no_flood_is_left(node)
    begun = flood.begin(node)
    in_company(node)
    monkeypatch.setattr(VirtualHost, "declare_queue", slow)
    begun.sendall(DECLARE if name == "amqp publishes" else flood.again.replace(b"/flood", b"/slow" + name[:1].encode()))
    counted = Counted(node, flood.kind, monkeypatch)
    with disk_that_takes_nothing(monkeypatch) as resume, flooding(begun, flood.again):
        until(lambda: counted.all > 2 * UNSTORED_BYTES)
        assert intake.unstored_bytes == 0
        is_declared.set()
        until(lambda: intake.unstored_bytes > UNSTORED_BYTES)
        counted.laps_more(500)
        assert intake.unstored_bytes <= UNSTORED_BYTES + 2 * CHUNK_BYTES
        resume.set()
        handled = counted.all
        until(lambda: counted.all > handled + UNSTORED_BYTES)
    counted.end()
    until(lambda: intake.unstored_bytes == 0)


# ------------------------------------------------------------------------------------------------------- before a login


def cut_off(node: Node) -> int:
    assert node.stomp_sessions is not None
    return node.stomp_sessions.cut_off_counts[STRANGE]


def test_newlines_without_a_connect_end_with_an_error(node):
    before = cut_off(node)
    with Stomp(node.stomp_port or 0) as raw:
        raw.socket.sendall(b"\n" * (STRANGER_BYTES_MAX + 1))
        received = raw.error()
    assert received.headers["message"] == STRANGE
    assert str(STRANGER_BYTES_MAX) in received.body.decode()
    assert cut_off(node) == before + 1


def test_a_client_that_sends_connect_behind_many_newlines_is_let_in(node):
    with Stomp(node.stomp_port or 0) as raw:
        raw.socket.sendall(b"\n" * (STRANGER_BYTES_MAX // 2))
        raw.connect()
        raw.socket.sendall(b"\n" * (2 * STRANGER_BYTES_MAX))
        raw.done("SEND", b"x", destination="/queue/in")


def test_heartbeats_without_a_login_end_with_a_close(node, caplog):
    with Amqp(url_of(node)) as raw:
        raw.begin()
        raw.send(HEARTBEAT * (STRANGER_BYTES_MAX // len(HEARTBEAT) + 1))
        assert raw.expect(CLOSE).code == RESOURCE_ERROR
        assert raw.is_hung_up()
    assert [each.name for each in caplog.records if each.message == "cut off"] == ["wherry.amqp"]


def test_pings_without_a_connect_end_with_an_error(node):
    before = cut_off(node)
    ping = masked(9, b"")
    with upgraded(node.port) as plain:
        plain.sendall(ping * (STRANGER_BYTES_MAX // len(ping) + 1))
        received = b""
        while STRANGE.encode() not in received:
            more = plain.recv(1 << 16)
            assert more, received[-500:]
            received += more
    assert cut_off(node) == before + 1


def test_newlines_over_polling_without_a_connect_end_the_session(node):
    before = cut_off(node)
    transports = node.stomp_over_http
    assert transports is not None

    async def received() -> bool:
        session = transports.open(peer="test", secure=False)
        return (await transports.send(session.id, 0, b"\n" * (2 * STRANGER_BYTES_MAX))).is_over

    assert done_in(node, received())
    assert cut_off(node) == before + 1
