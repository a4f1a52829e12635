"""What the tests of a connection share: a server that echoes requests, and raw bytes to it and back."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable

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
from wherry.wire.http.protocol.server import Server

SMALL = Bounds(head_bytes=4_096, body_bytes=100_000, bodies_bytes=150_000, connections=4, requests=2)


async def echo(request: Request) -> Answer:
    """Answer with what the request held."""
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


PART_S, WHOLE_S = 0.3, 0.02
"""How long the server is silent before a client stops to read: while answers are missing, and behind them."""


def whole(received: bytes) -> int:
    """Return how many answers with a Content-Length came, up to the first that is not whole or has none."""
    count = 0
    while received:
        head, end, rest = received.partition(b"\r\n\r\n")
        length = re.search(rb"Content-Length: (\d+)", head)
        if not end or length is None or len(rest) < int(length[1]):
            break
        count, received = count + 1, rest[int(length[1]) :]
    return count


class Client:
    """Raw bytes to a server and back."""

    def __init__(self, server: Server, port: int) -> None:
        self.server, self.port = server, port

    async def open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.port)

    async def send(self, data: bytes, *, step: int | None = None, answers: int = 1) -> bytes:
        """Return all that the server sends until it closes, or until it has been silent for a while.

        That while is short once as many whole answers came as were asked for.
        """
        reader, writer = await self.open()
        for at in range(0, len(data), step or len(data) or 1):
            writer.write(data[at : at + (step or len(data))])
            await writer.drain()
            if step is not None:
                await asyncio.sleep(0)
        received = b""
        try:
            while chunk := await asyncio.wait_for(
                reader.read(65_536), WHOLE_S if whole(received) >= answers else PART_S
            ):
                received += chunk
        except (TimeoutError, ConnectionError):
            pass
        writer.close()
        return received


def served(test: Callable[[Client], Awaitable[None]], bounds: Bounds = SMALL) -> None:
    """Run a test against a fresh server."""

    async def main() -> None:
        server = Server(echo, bounds=bounds)
        client = Client(server, await server.listen("127.0.0.1", 0))
        try:
            await test(client)
        finally:
            await server.close(0.1)
        assert server.bodies_bytes == 0
        assert server.requests == 0

    asyncio.run(main())


def post(body: bytes, path: str = "/", *extra: str) -> bytes:
    lines = [f"POST {path} HTTP/1.1", "Host: here", f"Content-Length: {len(body)}", *extra]
    return "\r\n".join([*lines, "", ""]).encode() + body


def body_of(received: bytes) -> bytes:
    return received.partition(b"\r\n\r\n")[2]
