"""What a node counts beside its broker: who was refused, and by which bound."""

import asyncio
from collections.abc import Callable
from typing import TypeVar

import pytest

from tests.behaviour.world import VirtualClock
from tests.unit.wire.http.memory import QUIET_S, Client
from wherry.broker.metrics.metrics import Metrics
from wherry.broker.opening import start
from wherry.journal.memory import MemoryEngine
from wherry.node.meter import watch_server
from wherry.sim.world import loop
from wherry.wire.http.app import App, serve
from wherry.wire.http.protocol.bounds import Bounds
from wherry.wire.http.protocol.server import Server

T = TypeVar("T")


async def answered(client: Client, request: bytes) -> bytes:
    """Return all that is answered until the server closes."""
    reader, writer = await client.open()
    writer.write(request)
    try:
        return await reader.read()
    finally:
        writer.close()


async def refused(metrics: Metrics) -> dict[str, float]:
    (family,) = [each for each in await metrics.families() if each.name == "wherry_http_refused"]
    return {sample.labels["bound"]: sample.value for sample in family.samples if sample.name.endswith("_total")}


async def hit_every_bound(server: Server) -> None:
    client = Client(server)
    head = b"POST /v1/topics/t/messages HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n"
    assert b" 413 " in await answered(client, head + b"Content-Length: 101\r\n\r\n")
    assert b" 503 " in await answered(client, head + b"Content-Length: 60\r\n\r\n" + b"x" * 60)
    assert b" 431 " in await answered(client, head + b"X: " + b"x" * 2_000 + b"\r\n\r\n")
    assert b" 408 " in await answered(client, b"GET / HTTP/1.1\r\n")
    assert b" 408 " in await answered(client, head + b"Content-Length: 10\r\n\r\n")
    pull = b"POST /v1/topics/t/subscriptions/s/pull?wait_ms=1 HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"
    assert b" 503 " in await answered(client, pull)
    server.requests = 5
    assert b" 503 " in await answered(client, b"GET /livez HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
    server.requests = 0
    held = [await client.open() for _ in range(2)]
    await asyncio.sleep(QUIET_S)
    assert b" 503 " in await answered(client, b"")
    for _, writer in held:
        writer.close()


async def at_once(work: Callable[..., T], *args: object) -> T:
    """Do work for a thread in the loop."""
    return work(*args)


def test_every_bound_that_is_hit_is_counted(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(asyncio, "to_thread", at_once)
    bounds = Bounds(
        connections=2,
        requests=5,
        waits=0,
        head_bytes=1_000,
        body_bytes=100,
        bodies_bytes=50,
        head_s=2,
        body_s=2,
        body_pace=1_000_000,
    )

    async def main() -> None:
        broker = await start(MemoryEngine(), None, VirtualClock())
        app = App(broker, bounds=bounds, clock=asyncio.get_running_loop().time)
        async with serve(app) as server:
            await server.begin_ticks()
            await broker.create_topic("t")
            await broker.subscribe("t", "s")
            metrics = Metrics(broker)
            watch_server(metrics, server)
            assert set((await refused(metrics)).values()) == {0.0}
            await hit_every_bound(server)
            counted = await refused(metrics)
        await broker.close()
        names = ("connections", "requests", "waits", "head_bytes", "body_bytes", "bodies_bytes", "head_s", "body_s")
        assert counted == {**dict.fromkeys(names, 1.0), "write_s": 0.0}

    loop.run(main())
