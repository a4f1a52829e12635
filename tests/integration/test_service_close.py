"""The close of a peer takes 10 s at most, whatever goes on: a method, a caller, a registry that never ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

from tests.integration.service_wire import by_hand
from tests.integration.services import PATIENCE_S, Listed, host_of, until
from wherry.service import parts as parts_module
from wherry.service.peer import Peer, peer
from wherry.service.providing.connection import WRITE_HIGH_BYTES
from wherry.service.service import Service
from wherry.sim.patch import patched
from wherry.wire.native.codec.invokes import encode_invoke

BOUND_S = 3.0
"""In place of 10 s, so that the test is short."""

FAR_BEYOND_S = 40.0
"""A busy machine takes longer than the bound; what hangs takes for ever."""


class Silent(Listed):
    """A registry that never answers once it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0
        self.is_silent = False

    async def withdraw(self, service: str, instance_id: str) -> None:
        self.asked += 1
        if self.is_silent:
            await asyncio.Event().wait()
        await super().withdraw(service, instance_id)


class Failing(Listed):
    """A registry that is broken."""

    async def withdraw(self, service: str, instance_id: str) -> None:
        raise RuntimeError("the registry is broken")


def stubborn(ended: asyncio.Event) -> Service:
    """Return a service with a method that does not end, and one with a large result."""
    service = Service("shop")

    @service.method
    async def hangs(body: bytes) -> bytes:
        while not ended.is_set():
            try:
                await ended.wait()
            except asyncio.CancelledError:
                continue
        return body

    @service.method
    async def large(body: bytes) -> bytes:
        return bytes(WRITE_HIGH_BYTES)

    return service


@asynccontextmanager
async def hanging_method(provider: Peer) -> AsyncIterator[None]:
    async with by_hand(provider) as hand:
        hand.writer.write(encode_invoke(1, b"shop.hangs", b"x", timeout_ms=1))
        await until(lambda: host_of(provider).runner.calls)
        yield


@asynccontextmanager
async def caller_that_never_reads(provider: Peer) -> AsyncIterator[None]:
    async with by_hand(provider) as hand:
        for number in range(1, 9):
            hand.writer.write(encode_invoke(number, b"shop.large", b"x"))
        await until(lambda: any(each.is_stopped for each in host_of(provider).connections))
        yield


@asynccontextmanager
async def silent_registry(provider: Peer) -> AsyncIterator[None]:
    registry = provider._parts.terms.registry
    assert isinstance(registry, Silent)
    registry.is_silent = True
    yield


REASONS = [hanging_method, caller_that_never_reads, silent_registry]


async def close_within(bound_s: float, reasons: Sequence[Callable[[Peer], Any]]) -> None:
    ended, registry = asyncio.Event(), Silent()
    provider = await peer(registry=registry, provides=[stubborn(ended)], instance_id="a").__aenter__()
    try:
        async with AsyncExitStack() as stack:
            for reason in reasons:
                await stack.enter_async_context(reason(provider))
            async with asyncio.timeout(bound_s + FAR_BEYOND_S):
                await provider.close()
        assert registry.asked == 1, "a registry that does not answer was asked again"
        assert not host_of(provider).connections
    finally:
        ended.set()


@pytest.mark.rows("P14")
@pytest.mark.parametrize("reason", REASONS, ids=lambda each: each.__name__)
def test_a_close_ends_although_something_never_does(reason):
    with patched(parts_module, "DRAIN_S", lambda real: BOUND_S):
        asyncio.run(close_within(BOUND_S, [reason]))


@pytest.mark.more
def test_a_close_ends_within_its_bound_although_nothing_ever_does():
    asyncio.run(close_within(parts_module.DRAIN_S, REASONS))


def test_a_broken_registry_keeps_no_peer_from_closing():
    async def main():
        provider = await peer(registry=Failing(), provides=[stubborn(asyncio.Event())]).__aenter__()
        async with asyncio.timeout(PATIENCE_S):
            await provider.close()
        assert host_of(provider).is_draining

    asyncio.run(main())


def test_a_registry_that_is_opened_by_its_url_and_does_not_close_gets_the_rest_of_the_time(monkeypatch):
    class Hanging(Silent):
        async def close(self) -> None:
            self.asked += 1
            await asyncio.Event().wait()

    async def main():
        registry = Hanging()
        monkeypatch.setattr(parts_module, "open_registry", lambda url: registry)
        monkeypatch.setattr(parts_module, "DRAIN_S", 0.5)
        caller = await peer(registry="static://127.0.0.1:1").__aenter__()
        async with asyncio.timeout(FAR_BEYOND_S):
            await caller.close()
        assert registry.asked == 1

    asyncio.run(main())


def test_an_instance_is_withdrawn_before_calls_are_refused():
    """A caller that reads the registry sees it gone before a call could come and be refused."""
    draining: list[bool] = []
    providers: list[Peer] = []

    class Asked(Listed):
        async def withdraw(self, service: str, instance_id: str) -> None:
            draining.append(host_of(providers[0]).is_draining)
            await super().withdraw(service, instance_id)

    async def main():
        providers.append(await peer(registry=Asked(), provides=[stubborn(asyncio.Event())]).__aenter__())
        await providers[0].close()

    asyncio.run(main())
    assert draining == [False]
