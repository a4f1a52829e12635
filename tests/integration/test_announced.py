"""Clients that announce much and send little, on every wire of a real node: memory follows what came.

And what did come is given back to the system when its clients are gone.
"""

from __future__ import annotations

import base64
import socket
import struct
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.amqp.raw import PUBLISH, short
from tests.amqp.raw import Raw as Amqp
from tests.integration.test_node import PATIENCE_S, Running

CLIENTS = 300
MIB = 1 << 20
SLACK_BYTES = 40 * MIB
"""What a node may take for that many connections; each announces more than a tenth of it."""


def resident(node: Running) -> int:
    status = Path(f"/proc/{node.process.pid}/status").read_text()
    (line,) = [line for line in status.splitlines() if line.startswith("VmRSS")]
    return int(line.split()[1]) << 10


def until(holds: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < end, what
        time.sleep(0.05)


class Opened(ExitStack):
    """A node and its clients."""

    def __init__(self, node: Running) -> None:
        super().__init__()
        self.node, self.sockets = node, list[socket.socket]()

    def http(self, data: bytes) -> socket.socket:
        place = urlsplit(self.node.url)
        assert place.hostname is not None
        found = self.enter_context(socket.create_connection((place.hostname, place.port or 0), PATIENCE_S))
        found.sendall(data)
        self.sockets.append(found)
        return found

    def at(self, scheme: str) -> int:
        """Return the port of a wire from the banner."""
        (word,) = [word for word in self.node.printed.split() if word.startswith(f"{scheme}://")]
        port = urlsplit(word.rstrip(";.,")).port
        assert port is not None
        return port


def publish(size: str) -> bytes:
    return f"POST /v1/topics/jobs/messages HTTP/1.1\r\nHost: localhost\r\n{size}\r\n\r\n".encode()


def by_length(clients: Opened) -> None:
    clients.http(publish(f"Content-Length: {60 * MIB}") + b"abc")


def by_chunk(clients: Opened) -> None:
    clients.http(publish("Transfer-Encoding: chunked") + b"%x\r\nabc" % (60 * MIB))


def by_stomp(clients: Opened) -> None:
    raw = clients.enter_context(socket.create_connection(("127.0.0.1", clients.at("stomp")), PATIENCE_S))
    raw.sendall(b"CONNECT\nlogin:guest\npasscode:guest\nhost:/\n\n\0")
    raw.sendall(b"SEND\ndestination:/queue/a\ncontent-length:%d\n\nabc" % (16 * MIB))


def by_websocket(clients: Opened) -> None:
    key = base64.b64encode(bytes(16)).decode()
    raw = clients.http(
        b"GET /stomp HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
        + f"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {key}\r\n\r\n".encode()
    )
    assert raw.recv(4_096).startswith(b"HTTP/1.1 101 ")
    raw.sendall(struct.pack(">BBQ", 0x82, 0x80 | 127, 16 * MIB) + bytes(4) + b"abc")


def by_amqp(clients: Opened) -> None:
    raw = clients.enter_context(Amqp(f"amqp://guest:guest@127.0.0.1:{clients.at('amqp')}/%2f"))
    raw.opened()
    raw.call(1, PUBLISH, b"\0\0" + short("") + short("q") + b"\0")
    raw.content(1, 16 * MIB)


@pytest.mark.rows("Q2", "Q3")
@pytest.mark.parametrize("announce", [by_length, by_chunk, by_stomp, by_websocket, by_amqp])
def test_bytes_that_are_only_announced_take_no_memory(announce: Callable[[Opened], None], tmp_path: Path):
    with Running(tmp_path / "data") as node, Opened(node) as clients:
        assert node.ask("PUT", "/v1/topics/jobs")[0] == 201
        before = resident(node)
        for _ in range(CLIENTS):
            announce(clients)
        assert node.ask("GET", "/v1/topics/jobs")[0] == 200  # the call is answered behind all of them
        assert resident(node) < before + SLACK_BYTES


@pytest.mark.rows("Q2")
def test_memory_of_bodies_is_returned_to_the_system(tmp_path: Path):
    with Running(tmp_path / "data") as node, Opened(node) as clients:
        assert node.ask("PUT", "/v1/topics/jobs")[0] == 201
        before = resident(node)
        for _ in range(60):
            clients.http(publish(f"Content-Length: {32 * MIB}") + bytes(3 * MIB))
        until(lambda: resident(node) > before + 150 * MIB, "nothing came")
        clients.close()
        until(lambda: resident(node) < before + SLACK_BYTES, f"from {before}, and at the end {resident(node)}")
