"""HTTP without a socket: requests to the application of a broker in memory, answers as they would be written."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import wraps
from typing import Any

import msgspec

import wherry
from tests.behaviour.world import VirtualClock
from wherry.broker.opening import start
from wherry.journal.memory import MemoryEngine
from wherry.wire.http.api.service import Guard, open_to_all
from wherry.wire.http.app import App
from wherry.wire.http.protocol.bounds import Bounds
from wherry.wire.http.protocol.message import (
    JSON,
    Request,
    Response,
    Stream,
)


@dataclass
class Reply:
    """An answer, whole."""

    status: int
    kind: str
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return msgspec.json.decode(self.body)


class Web:
    """A broker behind HTTP."""

    def __init__(self, broker: wherry.Broker, guard: Guard = open_to_all, bounds: Bounds | None = None) -> None:
        self.broker = broker
        self.app = App(broker, guard=guard, bounds=bounds)
        self.server, self.service = self.app.server, self.app.service

    connection = 0
    """The number of the connection that requests seem to come over."""

    async def ask(self, line: str, body: Any = None, **headers: str) -> Reply:
        """Ask `GET /v1/topics`, with a value as JSON or bytes as they are; `_` in the name of a header is `-`."""
        answer = await self.answer(line, body, **headers)
        assert isinstance(answer, Response)
        return Reply(
            int(answer.status),
            answer.content_type,
            {name.lower(): value for name, value in answer.headers},
            b"".join(bytes(memoryview(part)) for part in answer.body),
        )

    async def answer(self, line: str, body: Any = None, **headers: str) -> Response | Stream:
        method, _, target = line.partition(" ")
        path, _, query = target.partition("?")
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        if body is not None and not isinstance(body, bytes):
            body, named = msgspec.json.encode(body), {"content-type": JSON, **named}
        request = Request(method, path, query, named, body or b"", connection=self.connection)
        found = await self.server.answer(request)
        assert isinstance(found, Response | Stream)
        return found

    async def good(self, line: str, body: Any = None, **headers: str) -> Any:
        """Return the answer to a call that must succeed."""
        reply = await self.ask(line, body, **headers)
        assert reply.status < 300, (line, reply.status, reply.body)
        return reply.json() if reply.kind == JSON else reply.body

    async def jobs(self) -> None:
        """Make a topic of two partitions with a subscription, and publish three messages."""
        await self.good("PUT /v1/topics/jobs", {"partitions": 2})
        await self.good("PUT /v1/topics/jobs/subscriptions/workers", {"lease_ms": 60_000})
        messages = [{"payload": f"m{number}", "id": f"m{number}", "key": "k"} for number in range(3)]
        await self.good("POST /v1/topics/jobs/messages?partition=0", messages)

    async def receipts(self, count: int = 1_000, **query: str) -> list[str]:
        """Pull, and return the receipts."""
        more = "".join(f"&{name}={value}" for name, value in query.items())
        pulled = await self.good(f"POST /v1/topics/jobs/subscriptions/workers/pull?messages={count}{more}")
        return [message["receipt"] for message in pulled["messages"]]


@asynccontextmanager
async def web(clock: VirtualClock | None = None, **more: Any) -> AsyncIterator[Web]:
    """Serve HTTP over a broker in memory."""
    broker = await start(MemoryEngine(), None, clock or VirtualClock())
    found = Web(broker, **more)
    try:
        yield found
    finally:
        await found.service.consumers.close()
        await broker.close()
        assert (found.server.requests, found.server.waits) == (0, 0)


def with_jobs(test: Callable[[Web], Awaitable[None]]) -> Callable[[], None]:
    """Run a test on a broker with the topic `jobs`."""

    @wraps(test)
    def run() -> None:
        async def main() -> None:
            async with asyncio.timeout(30), web() as found:
                await found.jobs()
                await test(found)

        asyncio.run(main())

    del run.__wrapped__  # pytest would take the argument of the test for a fixture
    return run
