"""STOMP over TCP: how connections end, and that nothing is lost when they do."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import TypeVar, cast

import pytest

from tests.stomp.over_http import frame, node, sessions_of
from tests.stomp.raw import Raw
from tests.stomp.serving import done_in, running, until
from wherry.node.node import Node
from wherry.wire.listener import Connected
from wherry.wire.stomp.session import Session
from wherry.wire.stomp.transports.tcp import Connection

T = TypeVar("T")

BACKLOG, BODY = 150, b"z" * 100_000


def sessions(home: Node) -> Connected[Session]:
    assert home.stomp_sessions is not None
    return home.stomp_sessions.connected


def joined(home: Node) -> Raw:
    assert home.stomp_port is not None
    return Raw(home.stomp_port)


def connection_of(session: Session) -> Connection:
    return cast(Connection, session.transport)


def in_loop(home: Node, call: Callable[[], T]) -> T:
    async def run() -> T:
        return call()

    return done_in(home, run())


def taken(client: Raw, last: bytes | None = None) -> int:
    """Return how many messages of the backlog come, until the end or what is last."""
    got = bytearray(client._seen)
    while part := client.socket.recv(1 << 16):
        got += part
        if last is not None and got.endswith(last):
            break
    return got.count(BODY + b"\0")


@pytest.mark.rows("Q1")
def test_half_a_close_loses_nothing_of_a_backlog(tmp_path):
    with running(tmp_path) as home:
        with joined(home) as client:
            client.connect()
            for _ in range(BACKLOG):
                client.done("SEND", BODY, destination="/queue/much")
        until(lambda: not sessions(home))
        with joined(home) as client:
            client.connect()
            client.send("SUBSCRIBE", id="1", destination="/queue/much", ack="auto")
            until(lambda: any(each.was_write_paused for each in sessions(home)))
            client.socket.shutdown(socket.SHUT_WR)
            until(lambda: not sessions(home))
            seen = taken(client)
        assert 0 < seen < BACKLOG
        with joined(home) as client:
            client.connect()
            client.send("SUBSCRIBE", id="1", destination="/queue/much", ack="auto")
            client.send("SEND", b"last", destination="/queue/much")
            assert taken(client, b"\n\nlast\0") == BACKLOG - seen


@pytest.mark.rows("Q1")
def test_a_transport_that_is_closing_is_given_nothing(tmp_path):
    with running(tmp_path) as home, joined(home) as client:
        client.connect()
        client.done("SUBSCRIBE", id="1", destination="/queue/q", ack="auto")
        (session,) = sessions(home)
        (subscription,) = session.subscriptions.values()

        def cut() -> tuple[int, int]:
            before = subscription.room()
            connection_of(session)._transport.abort()
            return before, subscription.room()

        before, after = in_loop(home, cut)
        assert before > 0
        assert after == 0


@pytest.mark.rows("Q1")
def test_receipts_of_what_is_stored_come_before_the_end(tmp_path):
    with node(tmp_path / "data") as home:
        client = joined(home.node)
        client.connect()
        (session,) = sessions_of(home).connected
        client.done("SEND", b"first", destination="/queue/q")
        sends = [frame("SEND", BODY, destination="/queue/q", receipt=str(each)) for each in range(50)]

        async def stop() -> None:
            connection_of(session).data_received(b"".join(sends))
            home.__dict__["stop"].set()

        home.run(stop())
    for each in range(50):
        client.receipt(str(each))
    assert client.error().headers["message"] == "connection_forced"
    client.socket.close()


@pytest.mark.rows("Q1")
def test_the_system_looks_whether_an_idle_client_is_there(tmp_path):
    with running(tmp_path) as home, joined(home) as client:
        client.connect()
        (session,) = sessions(home)
        there = connection_of(session)._transport.get_extra_info("socket")
        assert there.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) != 0
