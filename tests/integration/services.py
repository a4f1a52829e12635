"""Services for the tests of calls: a peer that provides them, and one that calls it over a real socket."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from wherry.mesh.instance import Instance
from wherry.mesh.registry import Roster
from wherry.service.peer import Peer, peer
from wherry.service.providing.host import Host
from wherry.service.service import Service

PATIENCE_S = 60.0
"""How long a test waits for what must come."""


class Order(msgspec.Struct):
    """What `shop.total` takes."""

    items: list[int]


class Total(msgspec.Struct):
    """What `shop.total` returns."""

    amount: int


class Listed:
    """A registry in memory, shared by the peers of one test."""

    def __init__(self) -> None:
        self.roster = Roster()

    async def start(self) -> None:
        """Return."""

    async def announce(self, instance: Instance) -> None:
        """Add an instance, or change it."""
        others = [each for each in self.roster.of(instance.service) if each.id != instance.id]
        self.roster.replace(instance.service, [*others, instance])

    async def withdraw(self, service: str, instance_id: str) -> None:
        """Remove an instance."""
        self.roster.replace(service, [each for each in self.roster.of(service) if each.id != instance_id])

    async def close(self) -> None:
        """Return."""


class Gate:
    """Methods that wait until a test lets them go, and are counted meanwhile."""

    def __init__(self) -> None:
        self.opened = asyncio.Event()
        self.running = self.most = self.begun = self.cancelled = 0
        self._changed = asyncio.Condition()

    async def passing(self) -> None:
        """Wait in the gate."""
        self.begun += 1
        self.running += 1
        self.most = max(self.most, self.running)
        await self._notify()
        try:
            await self.opened.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.running -= 1
            await self._notify()

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    async def until(self, is_so: Callable[[Gate], bool]) -> None:
        """Wait until the counts are as a test wants them."""
        async with asyncio.timeout(PATIENCE_S), self._changed:
            await self._changed.wait_for(lambda: is_so(self))


def shop(
    gate: Gate | None = None, *, instance: int = 1_000, max_concurrent: int = 1_000, max_waiting: int = 0
) -> Service:
    """Return a service with methods of each sort."""
    service = Service("shop", max_concurrent=instance)

    @service.method
    async def total(order: Order) -> Total:
        """Add up an order."""
        return Total(sum(order.items))

    @service.method
    async def echo(body: bytes) -> bytes:
        return body

    @service.method
    def plain(order: Order) -> int:
        return len(order.items)

    @service.method
    async def broken(order: Order) -> Total:
        raise KeyError(f"no price for {order.items[0]}")

    @service.method
    async def wrong() -> bytes:
        return "text"  # type: ignore[return-value]  # that is the fault

    @service.method(max_concurrent=max_concurrent, max_waiting=max_waiting)
    async def slow(body: bytes) -> bytes:
        if gate is not None:
            await gate.passing()
        return body

    return service


@asynccontextmanager
async def calling(service: Service, **more: Any) -> AsyncIterator[tuple[Peer, Peer]]:
    """Run a peer that provides a service, and a peer that calls it; the caller is the first."""
    registry = Listed()
    async with (
        peer(registry=registry, provides=[service], instance_id="a", **more.pop("provider", {})) as provider,
        peer(registry=registry, **more) as caller,
    ):
        yield caller, provider


def host_of(provider: Peer) -> Host:
    """Return what runs the methods of a peer."""
    assert provider.provider is not None
    return provider.provider.host


def counts(provider: Peer, method: str = "slow") -> dict[str, int]:
    """Return how many calls of a method of `shop` ended in which way."""
    return host_of(provider).services["shop"].methods[method].statistics.counts()


async def until(is_so: Callable[[], object]) -> None:
    """Wait until something is so that nothing reports."""
    while not is_so():  # noqa: ASYNC110  nothing sets an event
        await asyncio.sleep(0.001)


def run(work: Coroutine[Any, Any, None]) -> None:
    """Run a test with a bound on its time."""
    asyncio.run(asyncio.wait_for(work, PATIENCE_S))
