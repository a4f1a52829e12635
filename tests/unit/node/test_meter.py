"""What a node counts beside its broker: which clients were refused, and by which bound."""

import asyncio

from wherry.broker.metrics.metrics import Metrics
from wherry.broker.opening import open as open_broker
from wherry.node.meter import watch_server
from wherry.wire.http.app import App, serve
from wherry.wire.http.protocol.bounds import Bounds
from wherry.wire.http.protocol.server import Server


async def received(port: int, request: bytes) -> bytes:
    """Return all that is answered until the server closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    try:
        return await reader.read()
    finally:
        writer.close()
        await writer.wait_closed()


async def refused(metrics: Metrics) -> dict[str, float]:
    (family,) = [each for each in await metrics.families() if each.name == "wherry_http_refused"]
    return {sample.labels["bound"]: sample.value for sample in family.samples if sample.name.endswith("_total")}


async def hit_every_bound(server: Server) -> None:
    port = await server.listen("127.0.0.1", 0)
    head = b"POST /v1/topics/t/messages HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n"
    assert b" 413 " in await received(port, head + b"Content-Length: 101\r\n\r\n")
    assert b" 503 " in await received(port, head + b"Content-Length: 60\r\n\r\n" + b"x" * 60)
    assert b" 431 " in await received(port, head + b"X: " + b"x" * 2_000 + b"\r\n\r\n")
    assert b" 408 " in await received(port, b"GET / HTTP/1.1\r\n")
    assert b" 408 " in await received(port, head + b"Content-Length: 10\r\n\r\n")
    pull = b"POST /v1/topics/t/subscriptions/s/pull?wait_ms=1 HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"
    assert b" 503 " in await received(port, pull)
    server.requests = 5
    assert b" 503 " in await received(port, b"GET /livez HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
    server.requests = 0
    first = await asyncio.open_connection("127.0.0.1", port)
    second = await asyncio.open_connection("127.0.0.1", port)
    await asyncio.sleep(0.05)
    assert b" 503 " in await received(port, b"")
    for _, writer in (first, second):
        writer.close()
        await writer.wait_closed()


def test_every_bound_that_is_hit_is_counted():
    bounds = Bounds(
        connections=2,
        requests=5,
        waits=0,
        head_bytes=1_000,
        body_bytes=100,
        bodies_bytes=50,
        head_s=0.01,
        body_s=0.01,
        body_pace=1_000_000,
    )

    async def main() -> None:
        async with open_broker() as broker, serve(App(broker, bounds=bounds)) as server:
            await broker.create_topic("t")
            await broker.subscribe("t", "s")
            metrics = Metrics(broker)
            watch_server(metrics, server)
            assert set((await refused(metrics)).values()) == {0.0}
            await hit_every_bound(server)
            counted = await refused(metrics)
        names = ("connections", "requests", "waits", "head_bytes", "body_bytes", "bodies_bytes", "head_s", "body_s")
        assert counted == {**dict.fromkeys(names, 1.0), "write_s": 0.0}

    asyncio.run(asyncio.wait_for(main(), 20))
