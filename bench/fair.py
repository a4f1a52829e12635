"""Connections that flood: what a good client on each wire notices of them.

A good client publishes a message, is given it, and settles it, one cycle after the other; first in calm, then beside
each flood.
"""

from __future__ import annotations

import http.client
import json
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import count
from pathlib import Path

from bench.fair_flood import FLOODS
from bench.fair_raw import (
    amqp_call,
    amqp_opened,
    amqp_publish,
    native_greeted,
    short,
    stomp_connected,
    stomp_frames,
)
from bench.figure import Figure
from bench.measuring import disk, quantile
from bench.peers.peer import free_port
from bench.peers.wherry import SUBSCRIPTION, TOPIC, WherryMessages
from wherry.wire.native.codec.deliveries import decode_deliver
from wherry.wire.native.codec.documents import SubscribeTerms, encode_subscribe
from wherry.wire.native.codec.frames import Kind
from wherry.wire.native.codec.publishes import encode_publish
from wherry.wire.native.codec.settles import Verb, encode_settle

SECONDS = 4.0
PATIENCE_S = 120.0

Cycle = Callable[[], None]


class Node(WherryMessages):
    """A node with all its wires."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.ports = {"http": self.port, "native": self.port, "amqp": free_port(), "stomp": free_port()}

    def run(self, *command: str, **more: object) -> None:
        ports = ("--amqp-port", str(self.ports["amqp"]), "--stomp-port", str(self.ports["stomp"]))
        super().run(*command, *ports, "--flight-port", "0", **more)


def figures(scale: int, wires: tuple[str, ...] = ()) -> list[Figure]:
    """Return the good client's times beside each flood, against those in calm; on all wires, or on some."""
    found: list[Figure] = []
    with tempfile.TemporaryDirectory(dir=disk(), prefix="bench-fair-") as root:
        for wire in wires or GOOD:
            with _served(Path(root)) as node, _good(wire, node) as cycle:
                _times(cycle, 1.0)
                calm = _times(cycle, SECONDS / scale)
                for kind in FLOODS:
                    with _flooded(kind, node):
                        beside = _times(cycle, SECONDS / scale)
                    found += _compared(f"fair.{wire}.{kind}", calm, beside)
                    time.sleep(1 / scale)
    return found


def _compared(name: str, calm: list[float], beside: list[float]) -> list[Figure]:
    return [
        Figure(f"{name}_{word}", quantile(beside, share), "ms a cycle", f"in calm, {word}", quantile(calm, share))
        for word, share in (("p50", 0.5), ("p99", 0.99))
    ]


@contextmanager
def _served(root: Path) -> Iterator[Node]:
    folder = Path(tempfile.mkdtemp(dir=root))
    node = Node(folder)
    try:
        node.start()
        yield node
    finally:
        node.stop()
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _flooded(kind: str, node: Node) -> Iterator[None]:
    """Let another process flood until the end of the `with`."""
    command = [sys.executable, "-m", "bench.fair_flood", kind, str(node.ports[FLOODS[kind].wire])]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as flooder:
        try:
            assert flooder.stdout is not None
            flooder.stdout.readline()
            time.sleep(0.2)
            yield
        finally:
            flooder.kill()


def _times(cycle: Cycle, seconds: float) -> list[float]:
    """Return how long each cycle took, in milliseconds."""
    found: list[float] = []
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        began = time.perf_counter()
        cycle()
        found.append((time.perf_counter() - began) * 1e3)
    return found


# -------------------------------------------------------------------------------------------------------- good clients


@contextmanager
def _good(wire: str, node: Node) -> Iterator[Cycle]:
    with socket.create_connection(("127.0.0.1", node.ports[wire]), timeout=PATIENCE_S) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        yield GOOD[wire](connection)


def _http(connection: socket.socket) -> Cycle:
    client = http.client.HTTPConnection("127.0.0.1", connection.getpeername()[1], timeout=PATIENCE_S)
    client.sock = connection
    place = f"/v1/topics/{TOPIC}/subscriptions/{SUBSCRIPTION}"

    def ask(path: str, body: str = "", kind: str = "application/json") -> bytes:
        client.request("POST", path, body, {"Content-Type": kind})
        answer = client.getresponse()
        assert answer.status in (200, 201, 204), answer.read()
        return answer.read()

    def cycle() -> None:
        ask(f"/v1/topics/{TOPIC}/messages", "x" * 256, "text/plain")
        pulled = json.loads(ask(f"{place}/pull?messages=1&wait_ms=60000"))["messages"]
        ask(f"{place}/ack", json.dumps({"receipts": [pulled[0]["receipt"]]}))

    return cycle


def _amqp(connection: socket.socket) -> Cycle:
    wire = amqp_opened(connection, "good")
    connection.sendall(amqp_call(1, (85, 10), b"\x00"))
    wire.expect((85, 11))
    connection.sendall(amqp_call(1, (60, 20), b"\x00\x00" + short("good") + short("") + b"\x00" + bytes(4)))
    wire.expect((60, 21))
    message = amqp_publish("good", bytes(256))

    def cycle() -> None:
        """Publish, wait until it is confirmed and delivered, in whatever order, and ack until that is carried out."""
        connection.sendall(message)
        confirmed = delivered = False
        while not (confirmed and delivered):
            kind, payload = wire.next()
            if kind == 3:
                delivered = True
            elif payload[:4] == b"\x00\x3c\x00\x50":
                confirmed = True
            elif payload[:4] == b"\x00\x3c\x00\x3c":
                tag = payload[5 + payload[4] :][:8]
        connection.sendall(amqp_call(1, (60, 80), tag + b"\x00"))
        connection.sendall(amqp_call(1, (50, 10), b"\x00\x00" + short("good") + b"\x02" + bytes(4)))
        wire.expect((50, 11))

    return cycle


def _stomp(connection: socket.socket) -> Cycle:
    stomp_connected(connection)
    connection.sendall(b"SUBSCRIBE\nid:1\ndestination:/queue/good\nack:client-individual\n\n\0")
    frames = stomp_frames(connection)
    message = b"SEND\ndestination:/queue/good\npersistent:true\nreceipt:sent\n\n" + b"x" * 256 + b"\0"

    def cycle() -> None:
        connection.sendall(message)
        seen = [next(frames), next(frames)]
        (given,) = (each for each in seen if each.startswith(b"MESSAGE"))
        (ack,) = (each[4:] for each in given.split(b"\n") if each.startswith(b"ack:"))
        connection.sendall(b"ACK\nid:%b\nreceipt:settled\n\n\0" % ack)
        assert next(frames).startswith(b"RECEIPT")

    return cycle


def _native(connection: socket.socket) -> Cycle:
    frames = native_greeted(connection)
    connection.sendall(encode_subscribe(1, SubscribeTerms(topic=TOPIC, subscription=SUBSCRIPTION, credit=1 << 30)))
    numbers = count(1)

    def cycle() -> None:
        """Publish, wait until it is confirmed and delivered, in whatever order, and ack until that is carried out."""
        connection.sendall(encode_publish(next(numbers), TOPIC, [b"x" * 256]))
        seen: dict[int, bytes] = {}
        while not {Kind.CONFIRM, Kind.DELIVER} <= seen.keys():
            kind, _, _, body = next(frames)
            seen[kind] = body
        (row,) = decode_deliver(seen[Kind.DELIVER])
        connection.sendall(encode_settle(next(numbers), 1, Verb.ACK, [(row.token, [(row.offset, 1)])]))
        while next(frames)[0] != Kind.SETTLED:
            pass

    return cycle


GOOD: dict[str, Callable[[socket.socket], Cycle]] = {"http": _http, "native": _native, "amqp": _amqp, "stomp": _stomp}

PARTS = {wire: partial(figures, wires=(wire,)) for wire in GOOD}
"""The same for a good client of one wire."""
