"""Many connections that flood together, and what happens around a stop: nothing is lost, and none is forgotten.

What a chunk costs is made the same on every machine: handling it uses so much processor time more.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from types import SimpleNamespace
from typing import cast

import pytest

from tests.amqp.raw import Raw as Amqp
from tests.amqp.raw import short
from tests.amqp.wires import connection_of, served, url_of
from tests.fair.floods import FLOODS, PATIENCE_S, SEND, Counted, flooding, masked, upgraded
from tests.fair.test_budgets import worked
from tests.fair.test_floods import cycles
from tests.stomp.raw import Raw as Stomp
from tests.stomp.raw import frame
from tests.stomp.serving import LOOPS, done_in, running, until
from tests.stomp.test_stomp_doors import CERTIFICATES, trusting
from wherry.broker.broker import Broker
from wherry.broker.commit.commit import WhenDurable
from wherry.model.errors import Unavailable
from wherry.node.config import TlsSection
from wherry.node.node import Node
from wherry.wire import fairness as module
from wherry.wire.fairness import STRANGERS_S, UNSTORED_BYTES
from wherry.wire.stomp.transports.tcp import Connection as StompConnection

MANY, ROUNDS = 100, 3
DEAR_S = STRANGERS_S / 5
CONNECT = frame("CONNECT", accept_version="1.2", host="/")


@pytest.fixture(scope="module")
def node(tmp_path_factory) -> Iterator[Node]:
    with running(tmp_path_factory.mktemp("many")) as found:
        yield found


@contextmanager
def held_up(node: Node) -> Iterator[None]:
    """Stop the loop of a node, so that it finds all at once what comes meanwhile."""
    stands, resume = threading.Event(), threading.Event()

    def stand() -> None:
        stands.set()
        resume.wait(PATIENCE_S)

    LOOPS[node].call_soon_threadsafe(stand)
    assert stands.wait(PATIENCE_S)
    try:
        yield
    finally:
        resume.set()


def test_many_strangers_that_send_at_the_same_moment_are_not_all_read_in_one_turn_of_the_loop(node, monkeypatch):
    handle = StompConnection.data_received

    def dear(connection: StompConnection, data: bytes) -> None:
        worked(DEAR_S)
        handle(connection, data)

    monkeypatch.setattr(StompConnection, "data_received", dear)
    counted, expected = Counted(node, StompConnection, monkeypatch), 0

    def has_read(count: int) -> bool:
        return counted.all == count

    with ExitStack() as opened:
        strangers = [
            opened.enter_context(socket.create_connection(("127.0.0.1", node.stomp_port or 0), timeout=PATIENCE_S))
            for _ in range(MANY)
        ]
        for data in [b"\n" * 100] * ROUNDS + [CONNECT]:
            expected += MANY * len(data)
            until(lambda: len(node.stomp_sessions.connected) == MANY)
            until(lambda: not any(session.transport.is_stopped for session in list(node.stomp_sessions.connected)))
            with held_up(node):
                for stranger in strangers:
                    stranger.sendall(data)
            cycles(node, 1)
            until(partial(has_read, expected))
        assert all(stranger.recv(4_096).startswith(b"CONNECTED") for stranger in strangers)
        counted.end()
    in_a_lap = Counter(lap for lap, _ in counted.bytes)
    assert max(in_a_lap.values()) < MANY / 4


def test_calls_behind_one_that_takes_time_do_not_pay_for_what_others_do(node, monkeypatch):
    """Let a budget be long enough for all of them, with another client busy while each is waited for."""
    monkeypatch.setattr(module, "BUDGET_S", 0.1)
    monkeypatch.setattr(module, "COMPANY_S", 3_600.0)
    waited: list[object] = []
    wait_in_line = module.FairLoop.wait_in_line

    async def counted(shared: module.FairLoop, **how: bool) -> None:
        waited.append(shared)
        await wait_in_line(shared, **how)

    monkeypatch.setattr(module.FairLoop, "wait_in_line", counted)
    is_over, loop = threading.Event(), LOOPS[node]

    def busy() -> None:
        worked(0.01)
        if not is_over.is_set():
            loop.call_soon(busy)

    with Stomp(node.stomp_port or 0) as stomp, Amqp(url_of(node)).opened() as amqp:
        stomp.connect()
        cycles(node, 1)
        loop.call_soon_threadsafe(busy)
        try:
            for number in range(10):
                stomp.send("SUBSCRIBE", id=str(number), destination=f"/queue/s{number}", receipt=str(number))
            with amqp.together():
                for number in range(10):
                    amqp.call(1, (50, 10), b"\x00\x00" + short(f"a{number}") + b"\x02" + bytes(4))
            for number in range(10):
                stomp.receipt(str(number))
                amqp.expect((50, 11))
        finally:
            is_over.set()
    assert not waited


@pytest.mark.parametrize("name", ["amqp publishes", "stomp sends"])
def test_bytes_that_could_not_be_stored_stop_no_connection_for_ever(tmp_path, name, monkeypatch):
    """Stop a connection for its unstored bytes, which is read again when the journal fails."""
    with running(tmp_path) as node:
        lose_the_journal(node, name, monkeypatch)


def lose_the_journal(node: Node, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert node.stomp_sessions is not None
    flood = FLOODS[name]
    monkeypatch.setattr(module, "COMPANY_S", 3_600.0)
    monkeypatch.setattr(module, "SERVED_S", 0.0)
    begun = flood.begin(node)
    cycles(node, 1)
    fails, when_stored, intake = threading.Event(), Broker.when_stored, node.stomp_sessions.queueing.intake
    late: set[asyncio.Task[None]] = set()

    async def fail(call: WhenDurable) -> None:
        await asyncio.to_thread(fails.wait, PATIENCE_S)
        call(Unavailable("the journal"))

    def failing(broker: Broker, position: int, call: WhenDurable) -> None:
        late.add(asyncio.create_task(fail(call)))

    monkeypatch.setattr(Broker, "when_stored", failing)
    counted = Counted(node, flood.kind, monkeypatch)
    with flooding(begun, flood.again):
        until(lambda: intake.unstored_bytes > UNSTORED_BYTES)
        counted.laps_more(500)
        handled = counted.all
        fails.set()
        until(lambda: counted.all > handled)
        monkeypatch.setattr(Broker, "when_stored", when_stored)
    counted.end()
    until(lambda: intake.unstored_bytes == 0)


def test_a_connection_that_was_stopped_for_long_is_not_late_when_it_continues():
    async def main() -> None:
        async with served() as (server, url):
            raw = await asyncio.to_thread(lambda: Amqp(url).opened(heartbeat_s=1))
            connection, now = connection_of(server, raw), time.monotonic()
            connection.stop("test")
            connection.tick(now + 100)
            connection.go_on("test")
            await connection.fair_loop.wait_in_line()  # behind the calls of this connection
            connection.tick(now + 100.1)
            assert not connection.is_closing
            connection.tick(now + 200)
            assert connection.is_closing
            raw._socket.close()

    asyncio.run(main())


# ------------------------------------------------------------------------------------------------- around a stop


def test_frames_that_came_with_the_request_for_a_websocket_are_read_in_order(node):
    """Send more than a budget of it, and more behind it."""
    sends = [frame("SEND", str(number).encode(), destination="/queue/rest") for number in range(600)]
    first, second = [masked(2, each) for each in sends[:300]], [masked(2, each) for each in sends[300:]]
    asks = frame("SEND", b"last", destination="/queue/rest", receipt="last")
    with upgraded(node.port, masked(2, CONNECT) + b"".join(first)) as plain:
        plain.sendall(b"".join(second) + masked(2, asks))
        received = b""
        while b"receipt-id:last" not in received:
            more = plain.recv(1 << 16)
            assert more, received[-500:]
            received += more
    with Stomp(node.stomp_port or 0) as raw:
        raw.connect()
        raw.send("SUBSCRIBE", id="1", destination="/queue/rest")
        assert raw.bodies(601) == [*(str(number).encode() for number in range(600)), b"last"]


@pytest.fixture(scope="module")
def tls_node(tmp_path_factory) -> Iterator[Node]:
    section = TlsSection(certificate=str(CERTIFICATES / "first.pem"), key=str(CERTIFICATES / "first.key"))
    with running(tmp_path_factory.mktemp("tls"), tls=section) as found:
        yield found


def only_connection(node: Node) -> StompConnection:
    assert node.stomp_sessions is not None
    (found,) = (session.transport for session in node.stomp_sessions.connected)
    assert isinstance(found, StompConnection)
    return found


def stop(node: Node, connection: StompConnection) -> None:
    async def stopped() -> None:
        connection.stop("test")

    done_in(node, stopped())


def go_on(node: Node, connection: StompConnection) -> None:
    async def gone_on() -> None:
        connection.go_on("test")

    done_in(node, gone_on())


def test_over_tls_nothing_is_lost_by_stops(tls_node, monkeypatch):
    """Make budgets as small as can be: reading stops after each chunk."""
    monkeypatch.setattr(module, "BUDGET_S", 1e-6)
    monkeypatch.setattr(module, "ALONE_S", 1e-6)
    bodies = [str(number).encode() * 100 for number in range(2_000)]
    with Stomp(tls_node.stomp_port or 0, tls=trusting()) as raw:
        raw.connect()
        for at in range(0, len(bodies), 100):
            raw.socket.sendall(
                b"".join(frame("SEND", body, destination="/queue/tls") for body in bodies[at : at + 100])
            )
        raw.done("SEND", b"last", destination="/queue/tls")
        raw.send("SUBSCRIBE", id="1", destination="/queue/tls")
        assert raw.bodies(len(bodies) + 1) == [*bodies, b"last"]
    until(lambda: not tls_node.stomp_sessions.connected)


def test_over_tls_little_is_read_from_a_connection_that_is_stopped_and_its_end_is_noticed(tls_node):
    with Stomp(tls_node.stomp_port or 0, tls=trusting()) as raw:
        raw.connect()
        connection = only_connection(tls_node)
        stop(tls_node, connection)
        raw.socket.setblocking(False)
        sent, idle = 0, 0
        while idle < 20:
            try:
                sent += raw.socket.send(SEND * 100)
                idle = 0
            except (BlockingIOError, ssl.SSLWantWriteError):
                idle += 1
                time.sleep(0.01)
        assert sent < 32 << 20  # what the kernels keep, and what TLS does
    go_on(tls_node, connection)
    until(lambda: not tls_node.stomp_sessions.connected)


def test_connections_that_may_continue_together_do_so_one_after_the_other():
    """Let one sync release many publishers: all at once they would hold up the loop for a budget of each."""

    async def main() -> list[int]:
        async with served() as (server, url):
            clients = [await asyncio.to_thread(lambda: Amqp(url).opened()) for _ in range(8)]
            connections, lap, laps = [connection_of(server, raw) for raw in clients], 0, []

            def gone_on(resume: Callable[[], None]) -> None:
                laps.append(lap)
                resume()

            for connection in connections:
                connection.stop("full")
                resume = connection._socket.resume_reading
                watched = SimpleNamespace(
                    resume_reading=partial(gone_on, resume), is_closing=connection._socket.is_closing
                )
                connection._socket = cast(asyncio.Transport, watched)
            for connection in connections:
                connection.go_on("full")
            while any(connection.is_stopped for connection in connections):
                lap += 1
                await asyncio.sleep(0)
            for raw in clients:
                raw._socket.close()
            return laps

    laps = asyncio.run(main())
    assert len(set(laps)) == len(laps) == 8
