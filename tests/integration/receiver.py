"""A client of webhooks: a tiny HTTP server that keeps its calls, and answers as the test sets it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Self

import msgspec

import wherry


@dataclass
class Call:
    """A call that came in."""

    path: str
    headers: dict[str, str]
    body: bytes
    connection: int

    @property
    def messages(self) -> list[dict[str, Any]]:
        return msgspec.json.decode(self.body)["messages"]

    @property
    def payloads(self) -> list[str]:
        return [message["payload"] for message in self.messages]

    def is_signed(self, secret: str) -> bool:
        return wherry.verify_webhook(secret, self.headers.get("wherry-signature"), self.body)


@dataclass
class Receiver:
    """`answer` gives the status of a call, or whole bytes to send."""

    answer: Callable[[Call], int | bytes | Awaitable[int | bytes]] = lambda call: 200
    port: int = 0
    calls: list[Call] = field(default_factory=list)
    connections: int = 0

    async def __aenter__(self) -> Self:
        self._writers: set[asyncio.StreamWriter] = set()
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for writer in list(self._writers):
            writer.transport.abort()
        await asyncio.sleep(0)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hook?who=me"

    @property
    def payloads(self) -> list[str]:
        return [payload for call in self.calls for payload in call.payloads]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        number = self.connections
        self._writers.add(writer)
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
                headers = {n.lower(): v for n, _, v in (line.partition(": ") for line in head[1:] if line)}
                body = await reader.readexactly(int(headers["content-length"]))
                call = Call(head[0].split()[1], headers, body, number)
                self.calls.append(call)
                status = self.answer(call)
                if isinstance(status, Awaitable):
                    status = await status
                is_whole = isinstance(status, bytes)
                writer.write(
                    status if isinstance(status, bytes) else b"HTTP/1.1 %d X\r\nContent-Length: 4\r\n\r\nwell" % status
                )
                await writer.drain()
                if is_whole:
                    return
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self._writers.discard(writer)
            writer.transport.abort()


async def until(reached: Callable[[], Any], seconds: float = 10.0) -> Any:
    """Wait for something, or for the answer to a call, to become true."""
    async with asyncio.timeout(seconds):
        while True:
            found = reached()
            found = await found if isinstance(found, Awaitable) else found
            if found:
                return found
            await asyncio.sleep(0.005)
