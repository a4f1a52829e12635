"""A subscriber that stops reading while a million messages flow: where it is cut off, and what the others notice.

Raw sockets on this side, so that what is measured is the broker and no client.
"""

from __future__ import annotations

import json
import socket
import threading
import time
from contextlib import suppress
from typing import Protocol
from urllib.request import urlopen

from bench.figure import Figure
from bench.measuring import quantile

COUNT, BEFORE = 1_000_000, 100_000
GROUP = 50
"""Messages sent at once; the next ones go when these have arrived."""

BUFFER_BYTES = 1_000_000
"""The buffer that the stalled client declares."""

DESTINATION = b"/topic/stalled"
STAMP = 20
"""Bytes at the end of each message: when it was sent."""

PATIENCE_S = 120.0


class Node(Protocol):
    """What is asked of a node that runs."""

    port: int
    stomp_port: int

    def resident_bytes(self) -> int:
        """Return the bytes of its memory."""


def figures(node: Node, scale: int) -> list[Figure]:
    """Return what a good subscriber sees before and during, the node's memory, and what the other one was sent."""
    port = node.stomp_port
    good = Good(port)
    good.flow(BEFORE // scale)
    before, memory = good.flow(BEFORE // scale), node.resident_bytes()
    stalled = _connected(port, receive_bytes=4_096)
    _ask(stalled, b"SUBSCRIBE\nid:1\ndestination:%b\nwherry-buffer-bytes:%d" % (DESTINATION, BUFFER_BYTES))
    during = good.flow(COUNT // scale)
    after = node.resident_bytes()
    sent = _drained(stalled)
    cut_off = _cut_off(node.port)
    # A quick node fills the backlog of the stalled client before its time to read is over.
    assert cut_off in (["buffer overrun"], ["backlog overrun"]), cut_off
    good.close()
    return [
        Figure(
            "stomp.stalled_p99", quantile(during, 0.99), "ms beside one that stalls", "before", quantile(before, 0.99)
        ),
        Figure("stomp.stalled_memory", after / 1e6, "MB, node, then", "before", memory / 1e6),
        Figure("stomp.stalled_bytes", sent, "bytes until it was cut off", "what it declared", BUFFER_BYTES),
    ]


class Good:
    """A subscriber that reads, and a sender."""

    def __init__(self, port: int) -> None:
        self._subscriber, self._sender = _connected(port), _connected(port)
        _ask(self._subscriber, b"SUBSCRIBE\nid:1\ndestination:%b" % DESTINATION)
        self._ages: list[float] = []
        self._got = threading.Semaphore(0)
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def flow(self, count: int) -> list[float]:
        """Return ages of so many messages, in milliseconds."""
        self._ages = []
        head = b"SEND\ndestination:%b\n\n" % DESTINATION + b"x" * (256 - STAMP)
        for _ in range(count // GROUP):
            self._sender.sendall(b"".join(head + b"%020d\0" % time.monotonic_ns() for _ in range(GROUP)))
            for _ in range(GROUP):
                assert self._got.acquire(timeout=PATIENCE_S), "a message did not come"
        return self._ages

    def _read(self) -> None:
        rest = b""
        while data := self._subscriber.recv(1 << 18):
            now = time.monotonic_ns()
            *frames, rest = (rest + data).split(b"\0")
            for frame in frames:
                if frame.lstrip().startswith(b"MESSAGE"):
                    self._ages.append((now - int(frame[-STAMP:])) / 1e6)
                    self._got.release()

    def close(self) -> None:
        """Close both connections."""
        self._subscriber.shutdown(socket.SHUT_RDWR)
        self._thread.join(PATIENCE_S)
        self._subscriber.close()
        self._sender.close()


def _cut_off(port: int) -> list[str]:
    """Return why clients were cut off."""
    with urlopen(f"http://127.0.0.1:{port}/v1/stomp/sessions", timeout=PATIENCE_S) as answer:
        return [each["why"] for each in json.load(answer)["cut_offs"]]


def _connected(port: int, receive_bytes: int | None = None) -> socket.socket:
    made = socket.socket()
    if receive_bytes is not None:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    made.connect(("127.0.0.1", port))
    made.settimeout(PATIENCE_S)
    made.sendall(b"CONNECT\naccept-version:1.2\nhost:/\n\n\0")
    assert made.recv(4_096).startswith(b"CONNECTED")
    return made


def _ask(connection: socket.socket, head: bytes) -> None:
    connection.sendall(head + b"\nreceipt:asked\n\n\0")
    received = b""
    while b"receipt-id:asked" not in received:
        received += connection.recv(200)
    connection.settimeout(None)


def _drained(connection: socket.socket) -> int:
    """Return the bytes that reached a connection before its end; the ERROR behind them waits a bounded time."""
    connection.settimeout(PATIENCE_S)
    data = bytearray()
    with suppress(ConnectionResetError):
        while more := connection.recv(1 << 18):
            data += more
    at = data.rfind(b"ERROR\n")
    return at if at >= 0 else len(data)
