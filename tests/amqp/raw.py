"""AMQP by hand, for what no client library lets one do: wrong frames, odd tables, and every byte as it was sent.

It shares nothing with `wherry.wire.amqp.codec`, so that a mistake there is not made here as well.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import NamedTuple, Self

from tests.amqp.clients.port import Address

HEADER = b"AMQP\x00\x00\x09\x01"
METHOD, CONTENT, BODY, HEARTBEAT = 1, 2, 3, 8
END = b"\xce"

START, START_OK, TUNE, TUNE_OK, OPEN, OPEN_OK = (10, 10), (10, 11), (10, 30), (10, 31), (10, 40), (10, 41)
CLOSE, CLOSE_OK, BLOCKED, UNBLOCKED = (10, 50), (10, 51), (10, 60), (10, 61)
CHANNEL_OPEN, CHANNEL_OPEN_OK, CHANNEL_FLOW, CHANNEL_FLOW_OK = (20, 10), (20, 11), (20, 20), (20, 21)
CHANNEL_CLOSE, CHANNEL_CLOSE_OK = (20, 40), (20, 41)
EXCHANGE_DECLARE, EXCHANGE_DECLARE_OK, EXCHANGE_BIND, EXCHANGE_BIND_OK = (40, 10), (40, 11), (40, 30), (40, 31)
QUEUE_DECLARE, QUEUE_DECLARE_OK, QUEUE_DELETE, QUEUE_DELETE_OK = (50, 10), (50, 11), (50, 40), (50, 41)
QUEUE_BIND, QUEUE_BIND_OK = (50, 20), (50, 21)
QOS, QOS_OK, CONSUME, CONSUME_OK, CANCEL, CANCEL_OK = (60, 10), (60, 11), (60, 20), (60, 21), (60, 30), (60, 31)
PUBLISH, DELIVER, GET, GET_OK, GET_EMPTY = (60, 40), (60, 60), (60, 70), (60, 71), (60, 72)
ACK, NACK, CONFIRM_SELECT, CONFIRM_SELECT_OK = (60, 80), (60, 120), (85, 10), (85, 11)


class Frame(NamedTuple):
    """What a frame carries."""

    kind: int
    channel: int
    payload: bytes

    @property
    def method(self) -> tuple[int, int]:
        return struct.unpack_from(">HH", self.payload) if self.kind == METHOD else (0, 0)

    @property
    def arguments(self) -> bytes:
        return self.payload[4:]

    @property
    def code(self) -> int:
        """Return the reply code of a close."""
        assert self.method in (CLOSE, CHANNEL_CLOSE), self
        return int(struct.unpack_from(">H", self.arguments)[0])


def short(text: str) -> bytes:
    raw = text.encode()
    return bytes([len(raw)]) + raw


def long(raw: bytes) -> bytes:
    return struct.pack(">I", len(raw)) + raw


class Raw:
    """A connection of bytes. `opened` sends what a client has to send at the beginning."""

    def __init__(self, url: str) -> None:
        self.address = Address.of(url)
        self._socket = socket.create_connection((self.address.host, self.address.port), timeout=20)
        self._seen = b""
        self._kept: list[bytes] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, fault: BaseException | None, at: TracebackType | None) -> None:
        self._socket.close()

    @property
    def place(self) -> tuple[str, int]:
        """Return our end of the socket, as the server sees it."""
        host, port = self._socket.getsockname()[:2]
        return str(host), int(port)

    def send(self, raw: bytes) -> None:
        if self._kept is None:
            self._socket.sendall(raw)
        else:
            self._kept.append(raw)

    @contextmanager
    def together(self) -> Iterator[None]:
        """Send all that is sent meanwhile in one write."""
        self._kept = []
        try:
            yield
        finally:
            kept, self._kept = self._kept, None
            self.send(b"".join(kept))

    def frame(self, kind: int, channel: int, payload: bytes) -> None:
        self.send(struct.pack(">BHI", kind, channel, len(payload)) + payload + END)

    def call(self, channel: int, method: tuple[int, int], arguments: bytes = b"") -> None:
        self.frame(METHOD, channel, struct.pack(">HH", *method) + arguments)

    def content(self, channel: int, size: int, properties: bytes = b"\x00\x00") -> None:
        self.frame(CONTENT, channel, struct.pack(">HHQ", 60, 0, size) + properties)

    def take(self, count: int) -> bytes:
        """Return so many bytes from the server; fewer if the server hung up."""
        while len(self._seen) < count:
            more = self._socket.recv(1 << 16)
            if not more:
                break
            self._seen += more
        found, self._seen = self._seen[:count], self._seen[count:]
        return found

    def next(self) -> Frame:
        """Return the next frame that is no heart-beat."""
        while True:
            head = self.take(7)
            assert len(head) == 7, "the server hung up"
            kind, channel, size = struct.unpack(">BHI", head)
            payload = self.take(size)
            assert self.take(1) == END
            if kind != HEARTBEAT:
                return Frame(kind, channel, payload)

    def expect(self, method: tuple[int, int]) -> Frame:
        found = self.next()
        assert found.method == method, found
        return found

    def is_hung_up(self) -> bool:
        """Return whether the server ends the connection, whatever it sends before."""
        try:
            while self.take(1):
                pass
        except ConnectionResetError:
            return True
        except TimeoutError:
            return False
        return True

    # ------------------------------------------------------------------------------------------------ the beginning

    def start_ok(self, mechanism: str, response: bytes, client: bytes = b"") -> None:
        """Log in; `client` is the entries of the table of client properties."""
        self.call(0, START_OK, long(client) + short(mechanism) + long(response) + short("en_US"))

    def plain(self, user: str | None = None, password: str | None = None) -> bytes:
        return f"\0{user or self.address.user}\0{password or self.address.password}".encode()

    def begin(self) -> Frame:
        """Send the protocol header, and return the server's start."""
        self.send(HEADER)
        return self.expect(START)

    def tuned(self, channel_max: int = 0, frame_max: int = 0, heartbeat_s: int = 0, client: bytes = b"") -> None:
        """Log in, and agree on these; zero takes what the server offers."""
        self.begin()
        self.start_ok("PLAIN", self.plain(), client)
        offered = struct.unpack(">HIH", self.expect(TUNE).arguments)
        self.call(0, TUNE_OK, struct.pack(">HIH", channel_max or offered[0], frame_max or offered[1], heartbeat_s))

    def opened(self, channel_max: int = 0, frame_max: int = 0, heartbeat_s: int = 0, client: bytes = b"") -> Self:
        """Open a connection, and channel 1 on it; close the socket if that fails."""
        try:
            self.tuned(channel_max, frame_max, heartbeat_s, client)
            self.call(0, OPEN, short(self.address.vhost) + short("") + b"\x00")
            self.expect(OPEN_OK)
            self.open_channel(1)
        except BaseException:
            self._socket.close()
            raise
        return self

    def open_channel(self, channel: int) -> None:
        self.call(channel, CHANNEL_OPEN, short(""))
        self.expect(CHANNEL_OPEN_OK)

    # -------------------------------------------------------------------------------------------------------- calls

    def queue(self) -> str:
        """Declare a queue that ends with the connection, and return its name."""
        self.call(1, QUEUE_DECLARE, b"\x00\x00" + short("") + b"\x04" + long(b""))
        answer = self.expect(QUEUE_DECLARE_OK).arguments
        return answer[1 : 1 + answer[0]].decode()

    def publish(self, queue: str, body: bytes, properties: bytes = b"\x00\x00", flags: int = 0) -> None:
        self.call(1, PUBLISH, b"\x00\x00" + short("") + short(queue) + bytes([flags]))
        self.content(1, len(body), properties)
        if body:
            self.frame(BODY, 1, body)

    def got(self, queue: str) -> tuple[bytes, bytes]:
        """Return the properties of the first message of a queue, and its body, as they came."""
        while True:
            self.call(1, GET, b"\x00\x00" + short(queue) + b"\x01")
            if self.next().method == GET_OK:
                break
        header = self.next()
        assert header.kind == CONTENT
        size = struct.unpack_from(">Q", header.payload, 4)[0]
        body = b""
        while len(body) < size:
            frame = self.next()
            assert frame.kind == BODY
            body += frame.payload
        return header.payload[12:], body
