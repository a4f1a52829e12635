"""A session without a socket on a broker in memory: its client feeds it, and takes what it writes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import wraps
from typing import Any, TypeVar

import wherry
from tests.behaviour.world import VirtualClock
from tests.native_client import NativeClient
from wherry.broker.opening import start
from wherry.journal.memory import MemoryEngine
from wherry.node.native.application import ClientApplication
from wherry.wire.http.api.service import Guard, open_to_all
from wherry.wire.http.app import App
from wherry.wire.http.protocol.message import Request
from wherry.wire.native.codec.frames import Chunk
from wherry.wire.native.session import Session
from wherry.wire.native.sessions import Bounds, Sessions

T = TypeVar("T")


class MemoryClient(NativeClient):
    """A client and the transport of its session."""

    def __init__(self, world: NativeWorld, **headers: str) -> None:
        super().__init__()
        self.waiting = 0
        """Bytes that the client pretends not to have read."""
        self.is_write_paused = False
        self.is_stopped = False
        self.most_unstored = 8 << 20
        self.looks = 0
        self.step = 0
        """If not 0, so many bytes are fed at a time."""
        application = ClientApplication(world.app, Request("GET", "/v1/wire", "", headers))
        self.session = Session(world.sessions, self, application, peer="10.0.0.1:5")

    def write(self, data: bytes) -> None:
        for at in range(0, len(data), self.step or len(data) or 1):
            self.session.feed(data[at : at + (self.step or len(data))])

    # ---------------------------------------------------------------------------------------------------- the transport

    def write_all(self, chunks: list[Chunk]) -> None:
        if not self.is_closed:
            self.take(b"".join(map(bytes, chunks)))

    def waiting_bytes(self) -> int:
        return self.waiting

    def unstored_max(self) -> int:
        return self.most_unstored

    def look_again(self) -> None:
        self.looks += 1

    def timed(self, work: Awaitable[T]) -> Awaitable[T]:
        return work

    async def wait_for_budget(self) -> None:
        """Return at once: there is no other connection to wait for."""

    def close(self) -> None:
        self.abort()

    def abort(self) -> None:
        if not self.is_closed:
            self.end()
            self.session.lost()

    def read_all(self) -> None:
        """Let the client read what was sent."""
        self.waiting, self.is_write_paused = 0, False
        self.session.drained()


class NativeWorld:
    """A broker in memory, its application, and the sessions."""

    def __init__(self, broker: wherry.Broker, clock: VirtualClock, guard: Guard, bounds: Bounds | None) -> None:
        self.broker, self.clock = broker, clock
        self.app = App(broker, guard=guard)
        self.now = 1_000.0
        self.sessions = Sessions(broker, bounds, clock=lambda: self.now)

    def connect(self, **headers: str) -> MemoryClient:
        """Return a client that has sent nothing yet."""
        return MemoryClient(self, **headers)

    async def client(self, features: tuple[str, ...] = (), **headers: str) -> MemoryClient:
        """Return a client that has greeted."""
        client = self.connect(**headers)
        client.greet(features=features)
        await client.until(lambda: client.hello)
        return client

    def later(self, seconds: float) -> None:
        """Let time pass for sessions, and tick them."""
        self.now += seconds
        for session in list(self.sessions.open):
            session.tick(self.now)

    async def settle_down(self) -> None:
        """Let everything happen that needs no more input."""
        for _ in range(20):
            await asyncio.sleep(0)


def in_memory(
    guard: Guard = open_to_all, bounds: Bounds | None = None
) -> Callable[[Callable[..., Awaitable[None]]], Callable[..., None]]:
    """Run a test with a world; the topic `jobs` and its subscription `workers` are there."""

    def decorated(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
        @wraps(test)
        def run(*args: Any, **more: Any) -> None:
            async def main() -> None:
                clock = VirtualClock()
                broker = await start(MemoryEngine(), None, clock)
                world = NativeWorld(broker, clock, guard, bounds)
                try:
                    await broker.create_topic("jobs")
                    await broker.subscribe("jobs", "workers", lease_ms=10_000)
                    await test(world, *args, **more)
                finally:
                    for session in list(world.sessions.open):
                        session.transport.abort()
                    await world.sessions.finished()
                    await broker.close()

            asyncio.run(main())

        del run.__wrapped__  # pytest would take `world` for a fixture
        return run

    return decorated
