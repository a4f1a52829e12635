"""Random bytes over real sockets, before and after a login: a good client continues meanwhile."""

from __future__ import annotations

import logging
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from random import Random

import pytest

from tests.amqp.raw import ACK, CONFIRM_SELECT, CONFIRM_SELECT_OK, GET, GET_OK, HEADER, short
from tests.amqp.raw import Raw as Amqp
from tests.amqp.wires import url_of
from tests.stomp.raw import Raw as Stomp
from tests.stomp.serving import running, until
from wherry.node.node import Node

CONNECTIONS = 50
BYTES_MAX = 8_192


@pytest.fixture(scope="module")
def node(tmp_path_factory) -> Iterator[Node]:
    with running(tmp_path_factory.mktemp("junk")) as found:
        yield found


@contextmanager
def good_stomp(node: Node) -> Iterator[Callable[[bytes], bytes]]:
    """Publish a message, receive it and ack it; each step is answered."""
    with Stomp(node.stomp_port or 0) as sender, Stomp(node.stomp_port or 0) as receiver:
        sender.connect()
        receiver.connect()
        receiver.done("SUBSCRIBE", id="1", destination="/queue/good", ack="client-individual")

        def cycle(body: bytes) -> bytes:
            sender.done("SEND", body, destination="/queue/good")
            got = receiver.expect("MESSAGE")
            receiver.done("ACK", id=got.headers["ack"])
            return got.body

        yield cycle


def junk_stomp(node: Node, number: int) -> socket.socket:
    """Open a connection that sends nothing, the beginning of a frame, or its login before the junk."""
    raw = Stomp(node.stomp_port or 0)
    if number % 3 == 1:
        raw.socket.sendall(b"CONNECT\n")
    elif number % 3 == 2:
        raw.connect()
    return raw.socket


@contextmanager
def good_amqp(node: Node) -> Iterator[Callable[[bytes], bytes]]:
    with Amqp(url_of(node)).opened() as raw:
        queue = raw.queue()
        raw.call(1, CONFIRM_SELECT, b"\0")
        raw.expect(CONFIRM_SELECT_OK)

        def cycle(body: bytes) -> bytes:
            raw.publish(queue, body)
            raw.expect(ACK)
            raw.call(1, GET, b"\0\0" + short(queue) + b"\0")
            tag = struct.unpack_from(">Q", raw.expect(GET_OK).arguments)[0]
            raw.next()
            found = raw.next().payload
            raw.call(1, ACK, struct.pack(">QB", tag, 0))
            return found

        yield cycle


def junk_amqp(node: Node, number: int) -> socket.socket:
    raw = Amqp(url_of(node))
    if number % 3 == 1:
        raw.send(HEADER)
    elif number % 3 == 2:
        raw.opened()
    return raw._socket


@pytest.mark.rows("Q2")
@pytest.mark.parametrize(("good", "junk"), [(good_stomp, junk_stomp), (good_amqp, junk_amqp)], ids=["stomp", "amqp"])
def test_random_bytes_disturb_no_other_client(node, good, junk, caplog):
    random = Random(f"junk for {good.__name__}")
    with good(node) as cycle, ExitStack() as stack:
        for number in range(CONNECTIONS):
            line = stack.enter_context(junk(node, number))
            with suppress(OSError):  # the broker hangs up
                line.sendall(random.randbytes(random.randint(1, BYTES_MAX)))
            body = f"message {number}".encode()
            assert cycle(body) == body
    until(lambda: not node.stomp_sessions.queueing.clients)
    assert [each.getMessage() for each in caplog.records if each.levelno >= logging.ERROR] == []
