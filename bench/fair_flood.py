"""`python -m bench.fair_flood KIND PORT`: connections that send as fast as they can, until they are ended.

A connection that is cut off comes back at once, as that of a hostile client would.
"""

from __future__ import annotations

import base64
import os
import selectors
import socket
import struct
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

from bench.fair_raw import AMQP_HEADER, HEARTBEAT, amqp_opened, amqp_publish, native_greeted, stomp_connected
from bench.peers.wherry import SUBSCRIPTION, TOPIC
from wherry.wire.native.codec.calls import CallHead, encode_call
from wherry.wire.native.codec.documents import SubscribeTerms, encode_subscribe
from wherry.wire.native.codec.frames import Kind, encode_frame
from wherry.wire.native.codec.publishes import encode_publish
from wherry.wire.native.codec.settles import Verb, encode_settle

CHUNK_BYTES = 1 << 18
BODY = bytes(256)


class Flood(NamedTuple):
    """How a connection begins, and what it sends again and again."""

    wire: str
    """The wire whose port it connects to."""
    begin: Callable[[socket.socket], None]
    again: bytes
    connections: int = 1
    reads: bool = True
    """Whether it throws away what is answered; else it reads nothing at all."""


def _plain(connection: socket.socket) -> None:
    """Send nothing before."""


def _greet_amqp(connection: socket.socket) -> None:
    connection.sendall(AMQP_HEADER)


def _open_amqp(connection: socket.socket) -> None:
    amqp_opened(connection, "flood")


def _upgrade(connection: socket.socket) -> None:
    key = base64.b64encode(os.urandom(16)).decode()
    lines = ("GET /ws HTTP/1.1", "Host: localhost", "Upgrade: websocket", "Connection: Upgrade")
    words = (*lines, f"Sec-WebSocket-Key: {key}", "Sec-WebSocket-Version: 13", "", "")
    connection.sendall("\r\n".join(words).encode())
    received = b""
    while b"\r\n\r\n" not in received:
        received += connection.recv(4_096)
    assert b" 101 " in received, received


def _upgrade_and_connect(connection: socket.socket) -> None:
    _upgrade(connection)
    connection.sendall(_masked(1, b"CONNECT\naccept-version:1.2\nhost:/\n\n\0"))
    received = b""
    while b"CONNECTED" not in received:
        received += connection.recv(4_096)


def _masked(opcode: int, payload: bytes) -> bytes:
    """Return a frame of a WebSocket; its mask is zero, so the payload stands as it is."""
    size = len(payload)
    length = bytes([0x80 | size]) if size < 126 else b"\xfe" + struct.pack(">H", size)
    return bytes([0x80 | opcode]) + length + bytes(4) + payload


_FLOOD = "native-flood"
_MANY = 10_000


def _greet_native(connection: socket.socket) -> None:
    """Greet, and make a topic for what is published; both may be there."""
    frames = native_greeted(connection)
    for path in (f"/v1/topics/{_FLOOD}", f"/v1/topics/{_FLOOD}/subscriptions/s"):
        connection.sendall(b"".join(map(bytes, encode_call(1, CallHead("PUT", path), [b"{}"]))))
        assert next(frames)[0] == Kind.ANSWER


def _subscribe_native(connection: socket.socket) -> None:
    """Open a stream, so that there is something to settle."""
    _greet_native(connection)
    connection.sendall(_subscribes(range(1, 2)))


def _subscribes(numbers: range) -> bytes:
    return b"".join(encode_subscribe(each, SubscribeTerms(topic=_FLOOD, subscription="s")) for each in numbers)


def _calls(numbers: range) -> bytes:
    """Calls that look something up, under numbers that are not used twice at a time."""
    head = CallHead("GET", f"/v1/topics/{TOPIC}/subscriptions/{SUBSCRIPTION}")
    return b"".join(bytes(chunk) for each in numbers for chunk in encode_call(each, head))


_SEND = b"SEND\ndestination:/queue/flood\npersistent:true\ncontent-length:%d\n\n%b\0" % (len(BODY), BODY)

FLOODS = {
    "stomp.newlines": Flood("stomp", _plain, b"\n"),
    "stomp.newlines_of_100": Flood("stomp", _plain, b"\n", 100),
    "stomp.newlines_in": Flood("stomp", stomp_connected, b"\n"),
    "stomp.sends": Flood("stomp", stomp_connected, _SEND),
    "amqp.heartbeats": Flood("amqp", _greet_amqp, HEARTBEAT),
    "amqp.heartbeats_in": Flood("amqp", _open_amqp, HEARTBEAT),
    "amqp.publishes": Flood("amqp", _open_amqp, amqp_publish("flood", BODY)),
    "amqp.publishes_of_20": Flood("amqp", _open_amqp, amqp_publish("flood", BODY), 20),
    "websocket.pings": Flood("http", _upgrade, _masked(9, b"")),
    "websocket.pings_in": Flood("http", _upgrade_and_connect, _masked(9, b"")),
    "websocket.sends": Flood("http", _upgrade_and_connect, _masked(2, _SEND)),
    "native.pings": Flood("http", _greet_native, encode_frame(Kind.PING, 1)),
    "native.publishes": Flood("http", _greet_native, encode_publish(1, _FLOOD, [BODY], quiet=True)),
    "native.publishes_of_20": Flood("http", _greet_native, encode_publish(1, _FLOOD, [BODY], quiet=True), 20),
    "native.settles": Flood("http", _subscribe_native, encode_settle(1, 1, Verb.ACK, [(77, [(0, 1_000_000)])])),
    "native.streams": Flood("http", _greet_native, _subscribes(range(1, _MANY))),
    "native.calls": Flood("http", _greet_native, _calls(range(2, _MANY))),
    "native.deaf": Flood("http", _greet_native, encode_frame(Kind.PING, 1), 20, reads=False),
}


def run(kind: str, port: int) -> None:
    """Flood, for ever."""
    flood = FLOODS[kind]
    chunk = memoryview(flood.again * max(1, CHUNK_BYTES // len(flood.again)))
    at: dict[socket.socket, int] = {}
    with selectors.DefaultSelector() as ready:
        for count in range(flood.connections):
            _begin(flood, port, ready, at)
            if count == 0:
                print("ready", flush=True)
        while True:
            for key, _ in ready.select():
                connection = key.fileobj
                assert isinstance(connection, socket.socket)
                if not _pour(connection, chunk, at, reads=flood.reads):
                    ready.unregister(connection)
                    connection.close()
                    del at[connection]
                    _begin(flood, port, ready, at)


def _begin(flood: Flood, port: int, ready: selectors.BaseSelector, at: dict[socket.socket, int]) -> None:
    """Open a connection more, which may have to try again."""
    while True:
        with suppress(OSError, AssertionError):
            connection = socket.create_connection(("127.0.0.1", port))
            flood.begin(connection)
            connection.setblocking(False)
            ready.register(connection, selectors.EVENT_WRITE | (selectors.EVENT_READ if flood.reads else 0))
            at[connection] = 0
            return


def _pour(connection: socket.socket, chunk: memoryview, at: dict[socket.socket, int], *, reads: bool) -> bool:
    """Send, and throw away what is answered: a peer that does not read is no test of what is read from it.

    Whether the connection is still there.
    """
    try:
        with suppress(BlockingIOError):
            if reads and not connection.recv(1 << 16):
                return False
        with suppress(BlockingIOError):
            at[connection] = (at[connection] + connection.send(chunk[at[connection] :])) % len(chunk)
    except OSError:
        return False
    return True


if __name__ == "__main__":
    run(sys.argv[1], int(sys.argv[2]))
