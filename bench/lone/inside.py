"""A lone message within the node: two connections of the native wire without sockets, on a broker in this process.

A round is a PUBLISH until its CONFIRM and its DELIVER, and a SETTLE until its SETTLED. What it costs has no socket in
it, and on disk one write and one sync for each of its two entries. Other work on the machine only ever adds to a round,
so the figure is the lowest decile of many; how many Python functions a round calls does not depend on the machine.
"""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import tempfile
import time
from collections import deque
from pathlib import Path
from types import FrameType
from typing import Any

import wherry
from bench.figure import Figure
from bench.measuring import disk, quantile
from wherry.broker.metrics.metrics import Metrics
from wherry.node.native.application import ClientApplication
from wherry.wire.http.app import App
from wherry.wire.http.protocol.message import Request
from wherry.wire.native.codec.deliveries import decode_deliver, encode_credit
from wherry.wire.native.codec.documents import ClientHello, SubscribeTerms, encode_hello, encode_subscribe
from wherry.wire.native.codec.frames import HEADER_BYTES, Kind
from wherry.wire.native.codec.publishes import encode_publish
from wherry.wire.native.codec.settles import Verb, encode_settle
from wherry.wire.native.connection import Connection
from wherry.wire.native.sessions import Sessions

TOPIC, SUBSCRIPTION, SIZE = "bench", "workers", 256
ROUNDS, WARM = 5_000, 300
STREAM, CREDIT = 1, 1 << 20


def figures(scale: int) -> list[Figure]:
    """Measure rounds in memory and on disk, and count the calls of a round."""
    with tempfile.TemporaryDirectory(dir=disk(), prefix="bench-inside-") as folder:
        in_memory, calls = asyncio.run(_measured(None, ROUNDS // scale))
        on_disk, _ = asyncio.run(_measured(Path(folder) / "data", ROUNDS // scale))
        synced = _synced_us(Path(folder) / "raw", ROUNDS // scale)
    unit = "us of processor a round"
    return [
        Figure("lone.inside.disk_us", on_disk, unit, "two raw writes with fdatasync", synced),
        Figure("lone.inside.memory_us", in_memory, unit, "the same on disk", on_disk),
        Figure("lone.inside.calls", calls, "Python functions called in a round", "the budget of a round", 200),
    ]


class Socket(asyncio.Transport):
    """What a connection needs of a socket: it keeps what was written, and is read by `feed`."""

    def __init__(self, sessions: Sessions, app: App) -> None:
        super().__init__()
        self.written: deque[bytes] = deque()
        request = Request("GET", "/v1/wire", "", {})
        self._connection = Connection(sessions, ClientApplication(app, request))
        self._connection.begin(self, b"", lambda: None)
        self.written.clear()
        self.feed(encode_hello(ClientHello(name="bench", features=())))

    def feed(self, data: bytes) -> None:
        """Let the connection read bytes, as the loop does."""
        self._connection.get_buffer(-1)[: len(data)] = data
        self._connection.buffer_updated(len(data))

    async def next(self, kind: int) -> bytes:
        """Return the next write, which must begin with a frame of this kind."""
        while not self.written:  # noqa: ASYNC110  an event would cost a part of what is measured
            await asyncio.sleep(0)
        found = self.written.popleft()
        assert found[4] == kind, found
        return found

    def write(self, data: Any) -> None:
        self.written.append(bytes(data))

    def is_closing(self) -> bool:
        return False

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Do nothing: all is read at once."""

    def pause_reading(self) -> None:
        """Do nothing: the rounds wait for the answers."""

    def resume_reading(self) -> None:
        """Do nothing."""


class Rounds:
    """A producer and a consumer, each with a connection of its own."""

    def __init__(self, broker: wherry.Broker) -> None:
        app, sessions = App(broker), Sessions(broker)
        self._producer, self._consumer = Socket(sessions, app), Socket(sessions, app)
        self._number = 0

    async def begin(self) -> None:
        """Greet, and subscribe."""
        for socket in (self._producer, self._consumer):
            await socket.next(Kind.HELLO)
        self._consumer.feed(encode_subscribe(STREAM, SubscribeTerms(topic=TOPIC, subscription=SUBSCRIPTION)))
        self._consumer.feed(encode_credit(STREAM, CREDIT))
        await self._consumer.next(Kind.SUBSCRIBED)
        for _ in range(10):
            await asyncio.sleep(0)

    async def make(self) -> None:
        """Publish a message, get it, and ack it."""
        self._number += 1
        self._producer.feed(encode_publish(self._number, TOPIC, [bytes(SIZE)]))
        delivered = await self._consumer.next(Kind.DELIVER)
        await self._producer.next(Kind.CONFIRM)
        (row,) = decode_deliver(delivered[HEADER_BYTES:])
        self._consumer.feed(encode_settle(self._number, STREAM, Verb.ACK, [(row.token, [(row.offset, 1)])]))
        await self._consumer.next(Kind.SETTLED)


async def _measured(path: Path | None, count: int) -> tuple[float, float]:
    """Return the microseconds of a round, lowest decile, and how many Python functions it calls, the median."""
    async with wherry.open(path) as broker:
        Metrics(broker)
        await broker.create_topic(TOPIC)
        await broker.subscribe(TOPIC, SUBSCRIPTION)
        rounds = Rounds(broker)
        await rounds.begin()
        for _ in range(WARM):
            await rounds.make()
        gc.collect()
        gc.freeze()
        times = []
        for _ in range(count):
            began = time.thread_time_ns()
            await rounds.make()
            times.append((time.thread_time_ns() - began) / 1_000)
        calls = []
        for _ in range(20):
            with counted() as found:
                await rounds.make()
            calls.append(sum(found.values()))
    return quantile(times, 0.1), quantile(calls, 0.5)


class counted:  # noqa: N801  used as a function
    """Count the calls of functions of this package, by file and name, while its block runs."""

    def __enter__(self) -> dict[tuple[str, str], int]:
        found: dict[tuple[str, str], int] = {}

        def note(frame: FrameType, event: str, _: object) -> None:
            code = frame.f_code
            if event == "call" and "wherry" in code.co_filename:
                key = code.co_filename, code.co_qualname
                found[key] = found.get(key, 0) + 1

        sys.setprofile(note)
        return found

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)


def _synced_us(path: Path, count: int) -> float:
    """Return the microseconds of processor that two raw writes of about the same bytes take, each with its sync."""
    fd = os.open(path, os.O_CREAT | os.O_RDWR)
    os.posix_fallocate(fd, 0, 1 << 20)
    os.fsync(fd)
    times = []
    for number in range(count):
        began = time.thread_time_ns()
        for size in (400, 120):
            os.pwrite(fd, bytes(size), (number * 512) % (1 << 19))
            os.fdatasync(fd)
        times.append((time.thread_time_ns() - began) / 1_000)
    os.close(fd)
    return quantile(times, 0.1)
