"""What the tests of a connection share: a server that echoes, and clients of it over a simulated network."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from contextvars import Context
from random import Random
from typing import Any

from wherry.sim.world import loop
from wherry.sim.world.network import Network, SimTransport, Weather
from wherry.wire.http.api.problem import HttpError
from wherry.wire.http.protocol.bounds import Bounds
from wherry.wire.http.protocol.message import (
    OCTETS,
    Answer,
    Request,
    Response,
    Stream,
    json_response,
)
from wherry.wire.http.protocol.server import App, Server

SMALL = Bounds(head_bytes=4_096, body_bytes=100_000, bodies_bytes=150_000, connections=4, requests=2)


async def echo(request: Request) -> Answer:
    """Return the body of the request."""
    if request.path == "/boom":
        raise RuntimeError("on purpose")
    if request.path == "/refused":
        raise HttpError("busy", "come back later")
    if request.path == "/stream":
        return Stream(_three(), "text/plain")
    if request.path == "/info":
        return json_response({"method": request.method, "segments": request.segments(), "query": request.arguments()})
    return Response(200, [request.body], OCTETS, [("X-Length", str(len(request.body)))])


async def _three() -> AsyncIterator[bytes]:
    for word in (b"one", b"", b"two", b"three"):
        yield word


SILENT_S = 2.0
"""A server that has sent nothing for so long, in virtual time, waits for the client."""

QUIET_S = 0.5
"""Long enough for what is under way to arrive; less than the time between two ticks."""


class ClientStream(asyncio.StreamReaderProtocol):
    """The end of a client, with the streams of asyncio."""

    def __init__(self) -> None:
        self.reader = asyncio.StreamReader()
        super().__init__(self.reader)
        self.made: asyncio.Future[SimTransport] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        assert isinstance(transport, SimTransport)
        self.made.set_result(transport)


class Client:
    """Raw bytes to a server and back, over a simulated network, which delays them and cuts them in pieces."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self._network = Network(Random(1), Weather(delay_s=0.001, tiny=False))

    async def open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect."""
        stream = ClientStream()
        self._network.connect(stream, self.server.connection, Context())
        return stream.reader, asyncio.StreamWriter(await stream.made, stream, stream.reader, asyncio.get_running_loop())

    async def send(self, data: bytes, *, step: int | None = None) -> bytes:
        """Return all that the server sends until it closes, or is silent."""
        reader, writer = await self.open()
        for at in range(0, len(data), step or len(data) or 1):
            writer.write(data[at : at + (step or len(data))])
            await writer.drain()
            if step is not None:
                await asyncio.sleep(0)
        received = b""
        try:
            while chunk := await asyncio.wait_for(reader.read(65_536), SILENT_S):
                received += chunk
        except (TimeoutError, ConnectionError):
            pass
        writer.close()
        return received


@asynccontextmanager
async def serving(app: App, **options: Any) -> AsyncIterator[Client]:
    """Serve an application in memory, with the clock of the loop; yield a client of it."""
    server = Server(app, clock=asyncio.get_running_loop().time, wall_clock=lambda: 0.0, **options)
    await server.begin_ticks()
    try:
        yield Client(server)
    finally:
        await server.close(0.1)


def served(test: Callable[[Client], Awaitable[None]], app: App = echo, bounds: Bounds = SMALL) -> None:
    """Run a test against a fresh server, in virtual time."""

    async def main() -> None:
        async with serving(app, bounds=bounds) as client:
            await test(client)
        assert client.server.bodies_bytes == 0
        assert client.server.requests == 0

    loop.run(main())


def post(body: bytes, path: str = "/", *extra: str) -> bytes:
    lines = [f"POST {path} HTTP/1.1", "Host: here", f"Content-Length: {len(body)}", *extra]
    return "\r\n".join([*lines, "", ""]).encode() + body


def body_of(said: bytes) -> bytes:
    return said.partition(b"\r\n\r\n")[2]
