"""The HTTP interface over real sockets: many at once, a wait that ends with its client, a stream that is left."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import msgspec
import pytest

from tests.integration.served import Served, served

SUB = "/v1/topics/jobs/subscriptions/workers"


class Caller:
    """One connection that is kept."""

    def __init__(self, port: int) -> None:
        self._port = port

    async def __aenter__(self) -> Caller:
        self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self._port)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.writer.close()

    def send(self, line: str, body: bytes = b"") -> None:
        lines = [
            f"{line} HTTP/1.1",
            "Host: localhost",
            "Content-Type: application/json",
            f"Content-Length: {len(body)}",
        ]
        self.writer.write("\r\n".join([*lines, "", ""]).encode() + body)

    async def ask(self, line: str, value: object = None) -> object:
        """Return the answer of the node; the status must be one of success."""
        self.send(line, b"" if value is None else msgspec.json.encode(value))
        head = await self.reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 2"), head
        if b"Content-Length: " not in head:
            return None
        length = int(head.partition(b"Content-Length: ")[2].split(b"\r\n")[0])
        return msgspec.json.decode(await self.reader.readexactly(length))


async def prepare(node: Served) -> None:
    await node.node.broker.create_topic("jobs", partitions=8)
    await node.node.broker.subscribe("jobs", "workers")


async def counts(node: Served) -> tuple[int, int, int]:
    server = node.node.server
    for _ in range(100):
        if not server.connections:
            break
        await asyncio.sleep(0.05)
    return server.connections, server.requests, server.waits


@pytest.mark.rows("D20")
def test_many_producers_and_consumers_share_a_topic(tmp_path: Path):
    got: Counter[str] = Counter()

    async def produce(port: int, number: int) -> None:
        async with Caller(port) as caller:
            for count in range(20):
                await caller.ask("POST /v1/topics/jobs/messages", {"payload": f"{number}-{count}"})

    async def consume(port: int, number: int) -> None:
        async with Caller(port) as caller:
            while got.total() < 50 * 20:
                pulled = await caller.ask(f"POST {SUB}/pull?messages=7&wait_ms=200&consumer=c{number}")
                assert isinstance(pulled, dict)
                if pulled["messages"]:
                    got.update(message["payload"] for message in pulled["messages"])
                    receipts = [message["receipt"] for message in pulled["messages"]]
                    await caller.ask(f"POST {SUB}/ack", {"receipts": receipts})

    async def main(port: int) -> None:
        producers = [produce(port, number) for number in range(50)]
        await asyncio.gather(*producers, *(consume(port, number) for number in range(50)))

    with served(tmp_path / "node") as node:
        node.run(prepare(node))
        asyncio.run(main(node.node.port))
        assert node.run(counts(node)) == (0, 0, 0)
        (stats,) = node.node.broker.stats("jobs").subscriptions
        assert (stats.lag, stats.leased) == (0, 0)
    assert got == Counter({f"{number}-{count}": 1 for number in range(50) for count in range(20)})


@pytest.mark.parametrize("line", [f"POST {SUB}/pull?wait_ms=60000", f"GET {SUB}/events"])
def test_a_wait_ends_with_its_client(line: str, tmp_path: Path):
    async def main(port: int) -> None:
        async with Caller(port) as caller:
            caller.send(line)
            await asyncio.sleep(0.2)
            async with Caller(port) as other:
                info = await other.ask("GET /v1")
                assert isinstance(info, dict)
                assert info["requests"] == 2

    with served(tmp_path / "node") as node:
        node.run(prepare(node))
        asyncio.run(main(node.node.port))
        assert node.run(counts(node)) == (0, 0, 0)
        if line.startswith("GET"):
            assert node.node.broker.shard.state.subscription("jobs", "workers").consumers == {}


def test_events_come_over_the_wire_and_the_node_can_close_under_them(tmp_path: Path):
    async def main(port: int, node: Served) -> None:
        async with Caller(port) as caller, Caller(port) as other:
            caller.send(f"GET {SUB}/events")
            assert b"text/event-stream" in await caller.reader.readuntil(b"\r\n\r\n")
            await caller.reader.readuntil(b": wherry\n\n")
            await other.ask("POST /v1/topics/jobs/messages", {"payload": "hello"})
            event = await caller.reader.readuntil(b"\n\n")
            assert b'"payload":"hello"' in event
            closing = asyncio.wrap_future(asyncio.run_coroutine_threadsafe(node.node.server.close(2.0), node.loop))
            async with asyncio.timeout(10):
                last = await caller.reader.read()
                await closing
            assert b'event: problem\ndata: {"type":"urn:wherry:closed"' in last
            assert last.endswith(b"\r\n0\r\n\r\n"), "the last chunk marks the end"

    with served(tmp_path / "node") as node:
        node.run(prepare(node))
        asyncio.run(main(node.node.port, node))
        assert node.run(counts(node)) == (0, 0, 0)
