"""Transactions: what a client publishes and acks in one is durable together, or not at all."""

from __future__ import annotations

import asyncio
import shutil
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import wherry
from tests.amqp.raw import ACK, CLOSE, GET, GET_EMPTY, GET_OK, NACK, QUEUE_DELETE, QUEUE_DELETE_OK, Raw, short
from tests.amqp.wires import LASTING, broker_of, counts, declared, durable, number, served, text, until
from tests.integration.worlds import Node
from tests.ports import free_port
from wherry.broker.broker import Broker
from wherry.queueing.flow import transaction as transaction_module

TX_SELECT, TX_SELECT_OK, TX_COMMIT, TX_COMMIT_OK = (90, 10), (90, 11), (90, 20), (90, 21)

KILLS, MESSAGES = 4, 500
LEAST = 10
"""Commits between two kills: on a slow machine, work and not time makes the load."""


def prompt(raw: Raw) -> Raw:
    """Return a client that does not wait for an answer before it sends the next small frame."""
    raw._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return raw


@contextmanager
def transacting(url: str) -> Iterator[Raw]:
    with prompt(Raw(url).opened()) as raw:
        raw.call(1, TX_SELECT)
        raw.expect(TX_SELECT_OK)
        yield raw


def taken(raw: Raw, queue: str) -> tuple[int, bytes] | None:
    """Return delivery tag and body of the next message; None if there is none."""
    raw.call(1, GET, b"\0\0" + short(queue) + b"\0")
    frame = raw.next()
    if frame.method == GET_EMPTY:
        return None
    assert frame.method == GET_OK, frame
    raw.next()
    return struct.unpack_from(">Q", frame.arguments)[0], raw.next().payload


def ack(raw: Raw, tag: int) -> None:
    raw.call(1, ACK, struct.pack(">QB", tag, 0))


def commit(raw: Raw) -> None:
    raw.call(1, TX_COMMIT)
    raw.expect(TX_COMMIT_OK)


def moved(url: str) -> None:
    """Move two messages from one queue to another, in one transaction."""
    with transacting(url) as raw:
        for name in ("in", "out"):
            durable(raw, name)
        for body in (b"one", b"two"):
            raw.publish("in", body, LASTING)
        commit(raw)
        for _ in range(2):
            found = taken(raw, "in")
            assert found is not None
            raw.publish("out", found[1], LASTING)
            ack(raw, found[0])
        commit(raw)


@pytest.mark.rows("A15")
def test_where_the_publishes_are_on_disk_the_acks_are_too(tmp_path, monkeypatch):
    copies: list[Path] = []
    committed = Broker.commit

    async def crashed_after(broker: Broker, *arguments: Any) -> Any:
        """Keep what is on disk when the commit of the broker is durable, and nothing of what would follow."""
        answer = await committed(broker, *arguments)
        copies.append(tmp_path / f"copy-{len(copies)}")
        shutil.copytree(tmp_path / "data", copies[-1])
        return answer

    monkeypatch.setattr(Broker, "commit", crashed_after)

    async def left(path: Path) -> list[int]:
        async with wherry.open(path) as broker:
            return [counts(broker, name)[0] for name in ("in", "out")]

    async def main() -> None:
        async with served(tmp_path / "data") as (_, url):
            await asyncio.to_thread(moved, url)
        assert [await left(copy) for copy in copies] == [[2, 0], [0, 2]]

    asyncio.run(main())


@pytest.mark.rows("A15")
def test_over_kills_each_message_is_in_one_queue_once(tmp_path):
    port = free_port()
    url = f"amqp://guest:guest@127.0.0.1:{port}/"
    commits: list[bytes] = []

    def move_until(ended: threading.Event) -> None:
        """Move one message after the other from queue to queue, through any number of ends of the connection."""
        while not ended.is_set():
            try:
                with transacting(url) as raw:
                    while not ended.is_set():
                        found = taken(raw, "in")
                        assert found is not None
                        raw.publish("out", found[1], LASTING)
                        ack(raw, found[0])
                        commit(raw)
                        commits.append(found[1])
            except (OSError, AssertionError):  # the node was killed
                time.sleep(0.01)

    def filled() -> None:
        with transacting(url) as raw:
            for name in ("in", "out"):
                durable(raw, name)
            for at in range(MESSAGES):
                raw.publish("in", at.to_bytes(4, "big"), LASTING)
            commit(raw)

    def drained(queue: str) -> list[int]:
        with prompt(Raw(url).opened()) as raw:
            found = [raw.got(queue)[1] for _ in range(declared(raw, queue))]
        return [int.from_bytes(each, "big") for each in found]

    async def main() -> None:
        async with Node(tmp_path / "home", "--amqp-port", str(port)) as node:
            await asyncio.to_thread(filled)
            ended = threading.Event()
            moving = asyncio.create_task(asyncio.to_thread(move_until, ended))
            for _ in range(KILLS):
                least = len(commits) + LEAST
                async with asyncio.timeout(30):
                    while len(commits) < least:  # noqa: ASYNC110  another thread counts
                        await asyncio.sleep(0.01)
                await node.kill()
                await node.start()
            ended.set()
            await moving
            gone, left = await asyncio.to_thread(drained, "out"), await asyncio.to_thread(drained, "in")
            assert gone
            assert sorted(gone + left) == list(range(MESSAGES))

    asyncio.run(main())


def test_a_commit_that_is_refused_acks_nothing():
    def client(url: str) -> int:
        with transacting(url) as raw:
            durable(raw, "in")
            declared(raw, "full", number("x-max-length", 1), text("x-overflow", "reject-publish"))
            raw.publish("in", b"one", LASTING)
            commit(raw)
            found = taken(raw, "in")
            assert found is not None
            for _ in range(2):
                raw.publish("full", found[1], LASTING)
            ack(raw, found[0])
            raw.call(1, TX_COMMIT)
            return raw.expect(CLOSE).code

    async def main() -> None:
        async with served() as (server, url):
            broker = broker_of(server)
            assert await asyncio.to_thread(client, url) == 506
            await until(lambda: counts(broker, "in") == (1, 0))
            assert counts(broker, "full") == (0, 0)
            assert not broker.shard.state.stages.open

    asyncio.run(main())


def test_acks_of_what_is_gone_hold_up_no_commit():
    def client(url: str) -> None:
        with transacting(url) as raw, Raw(url).opened() as other:
            for name in ("in", "short", "out"):
                durable(raw, name)
            for name in ("in", "short"):
                raw.publish(name, b"x", LASTING)
            commit(raw)
            for name in ("in", "short"):
                found = taken(raw, name)
                assert found is not None
                ack(raw, found[0])
            raw.publish("out", b"x", LASTING)
            other.call(1, QUEUE_DELETE, b"\0\0" + short("short") + b"\0")
            other.expect(QUEUE_DELETE_OK)
            commit(raw)

    async def main() -> None:
        async with served() as (server, url):
            await asyncio.to_thread(client, url)
            assert [counts(broker_of(server), name) for name in ("in", "out")] == [(0, 0), (1, 0)]

    asyncio.run(main())


def test_a_message_nacked_in_a_transaction_comes_again_with_the_commit():
    def client(url: str) -> list[Any]:
        with transacting(url) as raw:
            durable(raw, "in")
            raw.publish("in", b"x", LASTING)
            commit(raw)
            found = taken(raw, "in")
            assert found is not None
            raw.call(1, NACK, struct.pack(">QB", found[0], 2))
            before = taken(raw, "in")
            commit(raw)
            return [before, taken(raw, "in")]

    async def main() -> None:
        async with served() as (_, url):
            assert await asyncio.to_thread(client, url) == [None, (2, b"x")]

    asyncio.run(main())


def test_a_transaction_acks_what_came_in_a_bounded_number_of_deliveries(monkeypatch):
    monkeypatch.setattr(transaction_module, "LEASES_MAX", 3)

    def client(url: str) -> int:
        with transacting(url) as raw:
            for name in ("in", "out"):
                durable(raw, name)
            for _ in range(8):
                raw.publish("in", b"x", LASTING)
            commit(raw)
            for count in (3, 4):
                for _ in range(count):
                    found = taken(raw, "in")
                    assert found is not None
                    ack(raw, found[0])
                raw.publish("out", b"x", LASTING)
                if count == 3:
                    commit(raw)
            raw.call(1, TX_COMMIT)
            return raw.expect(CLOSE).code

    async def main() -> None:
        async with served() as (server, url):
            assert await asyncio.to_thread(client, url) == 506
            await until(lambda: counts(broker_of(server), "in") == (5, 0))
            assert counts(broker_of(server), "out") == (1, 0)

    asyncio.run(main())
