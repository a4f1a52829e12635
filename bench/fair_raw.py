"""AMQP, STOMP and the native wire by hand, as little as a measurement needs: what is measured is the broker."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator

from wherry.wire.native.codec.documents import ClientHello, encode_hello
from wherry.wire.native.codec.frames import PATH, PROTOCOL
from wherry.wire.native.codec.reader import Frame, FrameReader

AMQP_HEADER = b"AMQP\x00\x00\x09\x01"
HEARTBEAT = b"\x08\x00\x00\x00\x00\x00\x00\xce"
LASTING = b"\x10\x00\x02"
"""Properties of a message that is to be stored."""


def amqp_frame(kind: int, channel: int, payload: bytes) -> bytes:
    """Return one frame."""
    return struct.pack(">BHI", kind, channel, len(payload)) + payload + b"\xce"


def amqp_call(channel: int, method: tuple[int, int], arguments: bytes = b"") -> bytes:
    """Return a method."""
    return amqp_frame(1, channel, struct.pack(">HH", *method) + arguments)


def short(text: str) -> bytes:
    """Return a text of the protocol."""
    return bytes([len(text)]) + text.encode()


def amqp_publish(queue: str, body: bytes) -> bytes:
    """Return a message to a queue, to be stored."""
    method = amqp_call(1, (60, 40), b"\x00\x00" + short("") + short(queue) + b"\x00")
    header = amqp_frame(2, 1, struct.pack(">HHQ", 60, 0, len(body)) + LASTING)
    return method + header + amqp_frame(3, 1, body)


class Amqp:
    """A connection, frame by frame."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self._seen = b""

    def take(self, count: int) -> bytes:
        """Return so many bytes."""
        while len(self._seen) < count:
            more = self.socket.recv(1 << 16)
            assert more, "the broker hung up"
            self._seen += more
        found, self._seen = self._seen[:count], self._seen[count:]
        return found

    def next(self) -> tuple[int, bytes]:
        """Return kind and payload of the next frame that is no heart-beat."""
        while True:
            kind, _, size = struct.unpack(">BHI", self.take(7))
            payload = self.take(size + 1)[:-1]
            if kind != 8:
                return kind, payload

    def expect(self, method: tuple[int, int]) -> bytes:
        """Return the arguments of the next frame, which is this method."""
        kind, payload = self.next()
        assert kind == 1, payload
        assert struct.unpack_from(">HH", payload) == method, payload
        return payload[4:]


def amqp_opened(connection: socket.socket, queue: str) -> Amqp:
    """Log in, open channel 1, declare a queue that lasts."""
    wire = Amqp(connection)
    connection.sendall(AMQP_HEADER)
    wire.expect((10, 10))
    response = b"\0guest\0guest"
    start_ok = struct.pack(">I", 0) + short("PLAIN") + struct.pack(">I", len(response)) + response + short("en_US")
    connection.sendall(amqp_call(0, (10, 11), start_ok))
    connection.sendall(amqp_call(0, (10, 31), wire.expect((10, 30))[:6] + b"\x00\x00"))
    connection.sendall(amqp_call(0, (10, 40), short("/") + short("") + b"\x00"))
    wire.expect((10, 41))
    connection.sendall(amqp_call(1, (20, 10), short("")))
    wire.expect((20, 11))
    connection.sendall(amqp_call(1, (50, 10), b"\x00\x00" + short(queue) + b"\x02" + bytes(4)))
    wire.expect((50, 11))
    return wire


def stomp_connected(connection: socket.socket) -> None:
    """Log in."""
    connection.sendall(b"CONNECT\naccept-version:1.2\nhost:/\n\n\0")
    assert connection.recv(4_096).startswith(b"CONNECTED")


def stomp_frames(connection: socket.socket) -> Iterator[bytes]:
    """Yield frames without a NUL in their bodies, as they come."""
    rest = b""
    while more := connection.recv(1 << 16):
        *frames, rest = (rest + more).split(b"\0")
        yield from (frame.lstrip(b"\n") for frame in frames)


def native_greeted(connection: socket.socket) -> Iterator[Frame]:
    """Upgrade and greet; return the frames behind the HELLO of the node, as they come."""
    lines = (f"GET {PATH} HTTP/1.1", "Host: localhost", "Connection: Upgrade", f"Upgrade: {PROTOCOL}", "", "")
    connection.sendall("\r\n".join(lines).encode() + encode_hello(ClientHello()))
    frames = _native_frames(connection)
    next(frames)
    return frames


def _native_frames(connection: socket.socket) -> Iterator[Frame]:
    reader, head = FrameReader("server"), b""
    while b"\r\n\r\n" not in head:
        more = connection.recv(1 << 16)
        assert more, "the broker hung up"
        head += more
    head, _, more = head.partition(b"\r\n\r\n")
    assert b" 101 " in head, head
    while True:
        yield from reader.feed(more)
        more = connection.recv(1 << 16)
        assert more, "the broker hung up"
