"""Where the client is tried out: a broker in process with a virtual clock, and a node over TCP by each wire.

Time passes by `World.later`: at once in the one, by waiting in the other; so times are short here.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Self

import pytest

import wherry
from tests.ports import free_port
from wherry.client.native.transport import Wire
from wherry.node.config import AmqpSection, Config, FlightSection, ServerSection, StompSection, StorageSection
from wherry.node.node import Node as InProcessNode


@dataclass
class World:
    """A client, and the time of its broker."""

    client: wherry.Client
    clock: wherry.VirtualClock | None = None

    @property
    def now_ms(self) -> int:
        return self.clock.now_ms if self.clock is not None else time.time_ns() // 1_000_000

    async def later(self, ms: int) -> None:
        if self.clock is not None:
            self.clock.advance(ms / 1000)
        else:
            await asyncio.sleep(ms / 1000 + 0.02)

    async def jobs(self, **fields: Any) -> None:
        """Make a topic with one subscription, and leases that no busy machine outlasts."""
        own = {name: fields.pop(name) for name in list(fields) if name in ("order", "partitions")}
        await self.client.create_topic("jobs", **own)
        await self.client.subscribe("jobs", "workers", **{"lease_ms": 60_000, **fields})

    async def pull(self, messages: int = 1_000, wait_ms: int = 0) -> wherry.Batch:
        return await self.client.pull("jobs", "workers", messages, wait_ms=wait_ms)


AT_ONCE = wherry.Retry(first_ms=10, cap_ms=10, jitter=0.0)


class Node:
    """A node as people run it; can be killed, and started again on the same port."""

    def __init__(self, data: Path, *flags: str) -> None:
        self._data, self._flags = data, flags
        self._port = free_port()

    async def __aenter__(self) -> Self:
        try:
            await self.start()
        except BaseException:
            await self.kill()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.kill()

    async def start(self) -> None:
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "wherry.node", "--data", str(self._data), "--port", str(self._port)),
            *self._flags,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
        assert self._process.stdout is not None
        printed = b""
        while b"Ctrl-C" not in printed:
            line = await self._process.stdout.readline()
            assert line, "the node did not start"
            printed += line
        self.url = printed.split()[3].decode()

    async def stop(self) -> None:
        """Stop it as an operator does: it drains."""
        self._process.terminate()
        await self._process.wait()

    async def kill(self) -> None:
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()


@asynccontextmanager
async def embedded_world(home: Path) -> AsyncIterator[World]:
    clock = wherry.VirtualClock()
    async with wherry.embedded(home, clock=clock) as client:
        yield World(client, clock)


def in_process(home: Path, **sections: Any) -> InProcessNode:
    """Make a node in this process: it is there at once, and its sockets are real."""
    return InProcessNode(
        Config(
            storage=StorageSection(path=str(home)),
            flight=FlightSection(enabled=False),
            amqp=AmqpSection(enabled=False),
            stomp=StompSection(enabled=False),
            **{"server": ServerSection(port=0, drain_s=2.0), **sections},
        )
    )


@asynccontextmanager
async def node_world(home: Path, wire: Wire) -> AsyncIterator[World]:
    async with in_process(home) as node, wherry.connect(node.url, wire=wire) as client:
        yield World(client)


WORLDS: dict[str, Callable[[Path], Any]] = {
    "embedded": embedded_world,
    "http": partial(node_world, wire="http"),
    "native": partial(node_world, wire="native"),
}


def on_each(test: Callable[[World], Awaitable[None]]) -> Callable[..., None]:
    """Run a behaviour against the embedded broker, and against a node by each wire."""

    @pytest.mark.parametrize("kind", WORLDS)
    def run(kind: str, tmp_path: Path) -> None:
        async def main() -> None:
            async with asyncio.timeout(30), WORLDS[kind](tmp_path / "home") as world:
                await test(world)

        asyncio.run(main())

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    run.__dict__["pytestmark"] += getattr(test, "pytestmark", [])
    return run
