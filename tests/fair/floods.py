"""Connections that send as fast as they can, and what is counted of them in the loop of a node."""

from __future__ import annotations

import base64
import socket
import struct
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

from tests.amqp.raw import QUEUE_DECLARE, long, short
from tests.amqp.raw import Raw as Amqp
from tests.amqp.wires import LASTING, durable, url_of
from tests.stomp.raw import Raw as Stomp
from tests.stomp.raw import frame
from tests.stomp.serving import LOOPS, until
from wherry.node.node import Node
from wherry.wire.amqp.server import Connection as AmqpConnection
from wherry.wire.native.codec.calls import CallHead, encode_call
from wherry.wire.native.codec.documents import ClientHello, encode_hello
from wherry.wire.native.codec.frames import PATH, PROTOCOL, Kind, encode_frame
from wherry.wire.native.codec.publishes import encode_publish
from wherry.wire.native.connection import Connection as NativeConnection
from wherry.wire.stomp.transports.tcp import Connection as StompConnection
from wherry.wire.stomp.transports.websocket import WebSocket

BODY = b"x" * 256
HEARTBEAT = b"\x08\x00\x00\x00\x00\x00\x00\xce"
SEND = frame("SEND", BODY, destination="/queue/flood", persistent="true", content_length=str(len(BODY)))
PATIENCE_S = 60.0

AT_ONCE = struct.pack("ii", 1, 0)
"""How a flood ends: by a reset. Megabytes that the kernel still holds would go on as a flood of the next test."""


def masked(opcode: int, payload: bytes) -> bytes:
    """Return a frame of a WebSocket; its mask is zero, so the payload stands as it is."""
    size = len(payload)
    length = bytes([0x80 | size]) if size < 126 else b"\xfe" + struct.pack(">H", size)
    return bytes([0x80 | opcode]) + length + bytes(4) + payload


def upgraded(port: int, rest: bytes = b"") -> socket.socket:
    """Open a WebSocket; `rest` is sent together with the request for it."""
    plain = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)
    key = base64.b64encode(bytes(16)).decode()
    lines = ("GET /ws HTTP/1.1", "Host: localhost", "Upgrade: websocket", "Connection: Upgrade")
    words = (*lines, f"Sec-WebSocket-Key: {key}", "Sec-WebSocket-Version: 13", "", "")
    plain.sendall("\r\n".join(words).encode() + rest)
    received = b""
    while b"\r\n\r\n" not in received:
        received += plain.recv(4_096)
    assert b" 101 " in received
    return plain


def stomp_socket(node: Node) -> socket.socket:
    """Log in over TCP."""
    raw = Stomp(node.stomp_port or 0)
    raw.connect()
    return raw.socket


def websocket(node: Node) -> socket.socket:
    """Log in over a WebSocket."""
    plain = upgraded(node.port)
    plain.sendall(masked(1, frame("CONNECT", accept_version="1.2", host="/")))
    received = b""
    while b"CONNECTED" not in received:
        received += plain.recv(4_096)
    return plain


def amqp_socket(node: Node) -> socket.socket:
    """Log in, and declare a queue."""
    raw = Amqp(url_of(node)).opened()
    durable(raw, "flood")
    return raw._socket


def native_socket(node: Node) -> socket.socket:
    """Connect over the native wire, and create a topic."""
    plain = socket.create_connection(("127.0.0.1", node.port), timeout=PATIENCE_S)
    lines = (f"GET {PATH} HTTP/1.1", "Host: localhost", f"Upgrade: {PROTOCOL}", "Connection: Upgrade", "", "")
    plain.sendall("\r\n".join(lines).encode() + encode_hello(ClientHello()))
    plain.sendall(b"".join(map(bytes, encode_call(1, CallHead("PUT", "/v1/topics/native-flood"), [b"{}"]))))
    received = b""
    while b'"status":20' not in received:
        received += plain.recv(4_096)
    return plain


class SentBytes(Amqp):
    """The bytes that a client would send, without a socket."""

    def __init__(self, call: Callable[[Amqp], None]) -> None:
        self._kept: list[bytes] | None = []
        call(self)
        self.all = b"".join(self._kept)


PUBLISH = SentBytes(lambda raw: raw.publish("flood", BODY, LASTING)).all
DECLARE = SentBytes(lambda raw: raw.call(1, QUEUE_DECLARE, b"\0\0" + short("flood") + b"\x02" + long(b""))).all


class Flood(NamedTuple):
    """How a connection begins, what it sends again and again, and whose bytes are counted."""

    begin: Callable[[Node], socket.socket]
    again: bytes
    kind: type[Any]


FLOODS = {
    "stomp newlines": Flood(stomp_socket, b"\n", StompConnection),
    "stomp line ends": Flood(stomp_socket, b"\r\n", StompConnection),
    "stomp sends": Flood(stomp_socket, SEND, StompConnection),
    "amqp heartbeats": Flood(amqp_socket, HEARTBEAT, AmqpConnection),
    "amqp publishes": Flood(amqp_socket, PUBLISH, AmqpConnection),
    "native pings": Flood(native_socket, encode_frame(Kind.PING, 1), NativeConnection),
    "native publishes": Flood(native_socket, encode_publish(1, "native-flood", [BODY], quiet=True), NativeConnection),
    "websocket pings": Flood(websocket, masked(9, b""), WebSocket),
    "websocket sends": Flood(websocket, masked(2, SEND), WebSocket),
}


@contextmanager
def flooding(begun: socket.socket, again: bytes) -> Iterator[None]:
    """Send without end in a thread, and read what is answered in another."""
    chunk = again * max(1, (64 << 10) // len(again))
    is_over = threading.Event()

    def send() -> None:
        with suppress(OSError):
            while not is_over.is_set():
                begun.sendall(chunk)

    def read() -> None:
        with suppress(OSError):
            while begun.recv(1 << 16):
                pass

    threads = [threading.Thread(target=work, daemon=True) for work in (send, read)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        is_over.set()
        begun.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, AT_ONCE)
        with suppress(OSError):
            begun.shutdown(socket.SHUT_RDWR)
        for thread in threads:
            thread.join(PATIENCE_S)
        begun.close()


class Counted:
    """Bytes that one connection had handled in each turn of the loop of a node."""

    def __init__(self, node: Node, kind: type[Any], monkeypatch: Any) -> None:
        self._loop, self._lap, self._is_over = LOOPS[node], 0, False
        self.bytes: Counter[tuple[int, int]] = Counter()
        handle = kind.data_received

        def data_received(connection: Any, data: bytes) -> None:
            if not self._is_over:  # turns after the count ended are not counted either
                self.bytes[self._lap, id(connection)] += len(data)
            handle(connection, data)

        monkeypatch.setattr(kind, "data_received", data_received)
        self._loop.call_soon_threadsafe(self._next)

    def _next(self) -> None:
        self._lap += 1
        if not self._is_over:
            self._loop.call_soon(self._next)

    def end(self) -> None:
        """Count no more."""
        self._is_over = True

    def laps_more(self, count: int) -> None:
        """Wait until the loop has made so many turns more."""
        end = self._lap + count
        until(lambda: self._lap >= end)

    @property
    def all(self) -> int:
        """Return the bytes that were handled since the start."""
        return sum(list(self.bytes.values()))

    @property
    def most(self) -> int:
        """Return the most bytes that were handled in one turn of the loop."""
        return max(self.bytes.values())
