"""WebSockets by hand: how they end, and what no client may do to the others."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable

import pytest

from tests.integration.served import Served
from tests.stomp.over_http import CONNECT, PATIENCE_S, frame, node, sessions_of, transports_of
from tests.stomp.test_websocket import announced, eventually, rest_of, talk, until, upgraded
from wherry.node.config import StompSection
from wherry.wire.stomp.session import WAITING_MAX
from wherry.wire.stomp.transports import websocket
from wherry.wire.stomp.transports.transport import FEED_BYTES
from wherry.wire.stomp.transports.websocket import WebSocket

BACKLOG, BODY = 150, b"z" * 100_000


def masked(opcode: int, data: bytes) -> bytes:
    """Return a frame of a client, whole."""
    return bytes([0x80 | opcode, 0xFF]) + len(data).to_bytes(8, "big") + bytes(4) + data


def messages(*frames: bytes) -> bytes:
    return masked(2, b"".join(frames))


def control(opcode: int, data: bytes = b"") -> bytes:
    return bytes([0x80 | opcode, 0x80 | len(data)]) + bytes(4) + data


def in_loop(home: Served, call: Callable[[], object]) -> None:
    async def run() -> None:
        call()

    home.run(run())


def only(home: Served) -> WebSocket:
    eventually(lambda: [hasattr(each, "_session") for each in transports_of(home).sockets.open] == [True])
    return next(iter(transports_of(home).sockets.open))


def received(client: socket.socket, wanted: bytes) -> bytes:
    """Return all that comes until something is in it."""
    got = b""
    while wanted not in got:
        part = client.recv(65_536)
        assert part, got
        got += part
    return got


def backlog(home: Served) -> None:
    """Publish messages to a queue, more than a connection takes at once."""
    with talk(home) as client:
        client.send(CONNECT)
        until(client, b"CONNECTED")
        for _ in range(BACKLOG):
            client.send(frame("SEND", BODY, destination="/queue/much", persistent="true", receipt="p"))
            until(client, b"RECEIPT")
    eventually(lambda: not transports_of(home).sockets.open)


def lazy(home: Served) -> socket.socket:
    """Subscribe to the backlog, and get all that the client can take without reading."""
    client = upgraded(home)
    client.sendall(messages(CONNECT, frame("SUBSCRIBE", id="1", destination="/queue/much", ack="auto")))
    eventually(lambda: only(home)._session.was_write_paused)
    return client


def left(home: Served, wanted: int) -> int:
    """Take messages that are still in the backlog, until so many have come; return how many."""
    found = 0
    with talk(home, max_size=None) as client:
        client.send(CONNECT + frame("SUBSCRIBE", id="1", destination="/queue/much", ack="auto"))
        while found < wanted:
            found += until(client, b"\0").count(BODY + b"\0")
    return found


@pytest.mark.rows("Q9")
def test_half_a_close_loses_nothing_of_a_backlog(tmp_path):
    with node(tmp_path / "data") as home:
        backlog(home)
        with lazy(home) as client:
            client.shutdown(socket.SHUT_WR)
            eventually(lambda: not sessions_of(home).connected)
            got = rest_of(client).count(BODY + b"\0")
        assert 0 < got < BACKLOG
        assert got + left(home, BACKLOG - got) == BACKLOG


@pytest.mark.rows("Q9")
def test_a_node_that_stops_loses_nothing_of_a_backlog(tmp_path):
    got: list[bytes] = []
    with node(tmp_path / "data") as home:
        backlog(home)
        client = lazy(home)

        def read() -> None:
            eventually(lambda: home.node.server.closing)
            got.append(rest_of(client))

        reading = threading.Thread(target=read)
        reading.start()
    reading.join(PATIENCE_S)
    client.close()
    seen = got[0].count(BODY + b"\0")
    assert 0 < seen < BACKLOG
    assert b"\x03\xe9the broker is closing" in got[0]  # 1001
    with node(tmp_path / "data") as home:
        assert seen + left(home, BACKLOG - seen) == BACKLOG


@pytest.mark.rows("Q9")
def test_a_transport_that_is_closing_is_given_nothing(tmp_path):
    with node(tmp_path / "data") as home, upgraded(home) as client:
        client.sendall(messages(CONNECT, frame("SUBSCRIBE", id="1", destination="/queue/q", ack="auto")))
        session = only(home)._session
        eventually(lambda: bool(session.subscriptions))
        rooms: list[int] = []

        def cut() -> None:
            (subscription,) = session.subscriptions.values()
            rooms.append(subscription.room())
            only(home).abort()
            rooms.append(subscription.room())

        in_loop(home, cut)
        assert rooms[0] > 0
        assert rooms[1] == 0


@pytest.mark.rows("Q9")
def test_receipts_of_what_is_stored_come_before_the_goodbye(tmp_path):
    with node(tmp_path / "data") as home, upgraded(home) as client:
        client.sendall(messages(CONNECT, frame("SEND", b"x", destination="/queue/q", receipt="first")))
        socket = only(home)
        assert b"receipt-id:first\n" in received(client, b"receipt-id:first\n")
        data = messages(*(frame("SEND", b"x", destination="/queue/q", receipt=str(each)) for each in range(50)))

        def stop() -> None:
            socket.data_received(data)
            socket.finish()

        in_loop(home, stop)
        got = rest_of(client)
        assert got.count(b"RECEIPT\n") == 50
        assert got.index(b"receipt-id:49\n") < got.index(b"\x03\xe9the broker is closing")


@pytest.mark.rows("Q9")
def test_frames_that_come_with_a_close_are_read(tmp_path):
    with node(tmp_path / "data") as home, upgraded(home) as client:
        socket = only(home)
        with talk(home) as other:
            other.send(CONNECT + frame("SUBSCRIBE", id="1", destination="/topic/t", receipt="s"))
            until(other, b"receipt-id:s\n")
            data = messages(CONNECT, frame("SEND", b"bye", destination="/topic/t")) + control(8, b"\x03\xe8")
            in_loop(home, lambda: socket.data_received(data))
            until(other, b"\n\nbye\0")
            rest_of(client)


@pytest.mark.rows("Q9")
def test_a_client_that_half_closes_and_reads_nothing_does_not_stop_the_time(tmp_path, monkeypatch):
    with node(tmp_path / "data") as home:
        backlog(home)
        with lazy(home) as client:
            monkeypatch.setattr(websocket, "PING_S", 0.0)
            client.shutdown(socket.SHUT_WR)
            eventually(lambda: not transports_of(home).sockets.open)
        ticked = Ticked()
        in_loop(home, lambda: home.node.server.ticking.append(ticked))
        eventually(lambda: ticked.count > 0)


class Ticked:
    """Counts its ticks."""

    count = 0

    def tick(self, now: float) -> None:
        self.count += 1


class Broken:
    """A guest whose time does not pass."""

    def tick(self, now: float) -> None:
        raise RuntimeError("broken")

    def finish(self) -> None:
        """Do nothing."""

    def abort(self) -> None:
        """Do nothing."""


@pytest.mark.rows("Q9")
def test_a_tick_that_fails_is_the_matter_of_one_client(tmp_path, monkeypatch):
    with node(tmp_path / "data", stomp=StompSection(frame_s=2.5, login_s=1.5)) as home:
        broken = Broken()
        in_loop(home, lambda: home.node.server.admit(broken))
        with upgraded(home) as first:
            monkeypatch.setattr(only(home)._session, "tick", broken.tick)  # the time of all sessions, too
            with upgraded(home) as second:
                assert b"ERROR\nmessage:no login" in rest_of(second)
            first.sendall(announced(60_000, b"CONNECT\n"))
            rest_of(first)
        assert sessions_of(home).cut_off_counts["websocket"] == 1
        in_loop(home, lambda: home.node.server.discard(broken))


@pytest.mark.rows("Q9")
def test_a_large_message_is_fed_in_pieces_and_what_waits_is_counted(tmp_path):
    small = frame("SEND", destination="/topic/nobody")
    slow = frame("SUBSCRIBE", id="1", destination="/queue/slow")
    with node(tmp_path / "data") as home, upgraded(home) as client:
        client.sendall(messages(CONNECT))
        socket = only(home)
        eventually(lambda: hasattr(socket._session, "host"))
        data = messages(slow, small * 30_000, frame("SEND", destination="/topic/nobody", receipt="end"))
        seen: list[int] = []

        def feed() -> None:
            socket.data_received(data)
            seen.extend(
                (len(socket._session._waiting), socket.unparsed_bytes, transports_of(home).sockets.unparsed_bytes)
            )

        in_loop(home, feed)
        waiting, held, of_all = seen
        assert WAITING_MAX < waiting <= WAITING_MAX + FEED_BYTES // len(small) + 1
        assert held == of_all > len(data) - (WAITING_MAX + 1) * len(small) - 2 * FEED_BYTES
        received(client, b"receipt-id:end\n")
        eventually(lambda: transports_of(home).sockets.unparsed_bytes == 0)


@pytest.mark.rows("Q9")
def test_of_many_pings_the_last_is_answered(tmp_path):
    with node(tmp_path / "data") as home, upgraded(home) as client:
        socket = only(home)
        pings = b"".join(control(9, b"ping%03d" % each) for each in range(200))
        in_loop(home, lambda: socket.data_received(pings + messages(CONNECT)))
        got = received(client, b"CONNECTED")
        assert got.count(b"ping") == 1
        assert got.startswith(b"\x8a\x07ping199")


@pytest.mark.rows("Q9")
def test_pings_of_a_client_that_reads_nothing_are_not_read_for_ever(tmp_path):
    with node(tmp_path / "data") as home:
        backlog(home)
        with lazy(home) as client:
            client.sendall(control(9, b"there?"))
            eventually(lambda: only(home)._is_paused)


@pytest.mark.rows("Q9")
def test_each_part_of_a_fragment_is_a_sign_of_life(tmp_path):
    with node(tmp_path / "data") as home, upgraded(home) as client:
        client.sendall(messages(frame("CONNECT", accept_version="1.2", host="/", heart_beat="500,0")))
        rest = frame("SEND", b"x" * 100, destination="/topic/slow", receipt="end")
        whole = messages(rest)
        until_s = time.monotonic() + 4.0  # several times what is agreed
        client.sendall(whole[:20])
        at = 20
        while time.monotonic() < until_s:
            client.sendall(whole[at : at + 1])
            at += 1
            time.sleep(0.05)
        client.sendall(whole[at:])
        received(client, b"receipt-id:end\n")
        assert not sessions_of(home).cut_off_counts
