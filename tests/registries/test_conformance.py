"""What every registry does alike, whichever URL opened it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

import pytest

from tests.ports import free_port
from tests.registries.waiting import until, until_true, urls
from wherry.mesh.instance import METHODS_MAX, Instance
from wherry.mesh.opening import open_registry
from wherry.mesh.registry import Registry
from wherry.model.errors import Closed, InvalidInput

KNOWN = Instance(service="billing", id="127.0.0.1:7080", url="http://127.0.0.1:7080")
OTHER = Instance(service="billing", id="127.0.0.2:7080", url="http://127.0.0.2:7080")


class World(NamedTuple):
    """A registry to open, and how an instance gets into it: by records, or by an announcement."""

    url: str
    write: Callable[[Instance], None] | None = None
    announces: bool = False


FIXED = ["static", "static with names"]
CHANGING = ["dns", "dns with SRV", "zk", "gossip"]


@pytest.fixture(params=FIXED + CHANGING)
def world(request) -> World:
    kind = request.param
    if kind == "static":
        return World("static://127.0.0.1:7080")
    if kind == "static with names":
        return World("static://billing=127.0.0.1:7080;orders=127.0.0.1:7090")
    if kind.startswith("dns"):
        server = request.getfixturevalue("name_server")
        srv = kind == "dns with SRV"

        def write(instance: Instance) -> None:
            host = instance.id.partition(":")[0]
            server.write(f"peers A {host}", *(["_billing._tcp SRV 0 0 7080 peers"] if srv else []))

        name = "shop.test?services=billing&" if srv else "peers.shop.test:7080?"
        return World(f"dns://{name}nameserver={server.address}&period_ms_min=100&period_ms_max=200", write)
    if kind == "gossip":
        return World(f"gossip://127.0.0.1:{free_port()}?period_ms=100&cluster=test", announces=True)
    zookeeper = request.getfixturevalue("zookeeper")
    root = "".join(each if each.isalnum() else "-" for each in request.node.name)
    return World(f"zk://{zookeeper.address}/{root}", announces=True)


def run(world: World, play) -> None:
    """Run a play with a started registry that knows of one instance."""

    async def whole() -> None:
        if world.write is not None:
            await asyncio.to_thread(world.write, KNOWN)
        # The first of gossip listens where its seed is.
        seed = {"port": int(world.url.partition("?")[0].rpartition(":")[2])} if world.url.startswith("gossip") else {}
        registry, other = open_registry(world.url), open_registry(world.url, **seed)
        try:
            if world.announces:
                await other.start()
                await other.announce(KNOWN)
            await registry.start()
            await until(registry, lambda: urls(registry) == [KNOWN.url])
            await play(registry, other)
        finally:
            await registry.close()
            await other.close()

    asyncio.run(whole())


def test_what_is_known_at_the_start_is_in_the_roster(world):
    async def play(registry: Registry, _: Registry) -> None:
        (found,) = registry.roster.of("billing")
        assert (found.service, found.url) == ("billing", KNOWN.url)
        assert registry.roster.of("billing") is registry.roster.of("billing")
        assert dict(registry.roster.services)["billing"] == (found,)

    run(world, play)


@pytest.mark.parametrize("world", CHANGING, indirect=True)
def test_a_change_is_reported(world):
    async def play(registry: Registry, other: Registry) -> None:
        before = registry.roster.of("billing")
        if world.write is not None:
            await asyncio.to_thread(world.write, OTHER)
            await until(registry, lambda: urls(registry) == [OTHER.url])
        else:
            await other.announce(OTHER)
            await until(registry, lambda: urls(registry) == [KNOWN.url, OTHER.url])
            await other.withdraw(KNOWN.service, KNOWN.id)
            await until(registry, lambda: urls(registry) == [OTHER.url])
        assert registry.roster.of("billing") is not before

    run(world, play)


def test_an_instance_is_announced_or_the_error_names_the_way_out(world):
    async def play(registry: Registry, other: Registry) -> None:
        own = Instance(service="orders", id="own", url="http://127.0.0.3:1", methods=("get",), labels={"zone": "x"})
        if not world.announces:
            with pytest.raises(InvalidInput, match="without a registry"):
                await registry.announce(own)
            assert all(each.url != own.url for each in registry.roster.of("orders"))
            return
        await registry.announce(own)
        await until(other, lambda: other.roster.of("orders") == (own,))
        await until(registry, lambda: registry.roster.of("orders") == (own,))
        with pytest.raises(InvalidInput):
            await registry.announce(Instance(service="", id="a", url=own.url))
        with pytest.raises(InvalidInput):
            await registry.announce(Instance(service="b", id="a", url=own.url, methods=("m",) * (METHODS_MAX + 1)))

    run(world, play)


def test_instances_are_withdrawn_by_the_registry_that_announced_them_and_by_its_end(world):
    async def play(registry: Registry, other: Registry) -> None:
        await registry.withdraw("billing", KNOWN.id)  # announced by the other one, if at all
        await registry.withdraw("none", "none")
        assert urls(registry) == [KNOWN.url]
        await other.close()
        if world.announces:
            await until(registry, lambda: urls(registry) == [])

    run(world, play)


def test_a_registry_is_closed_twice_or_before_its_start(world):
    async def play(registry: Registry, _: Registry) -> None:
        known = registry.roster.of("billing")
        await registry.close()
        await registry.close()
        assert registry.roster.of("billing") == known
        never = open_registry(world.url)
        await never.close()

    run(world, play)


def test_a_registry_that_is_closed_neither_starts_nor_announces(world):
    async def play(registry: Registry, _: Registry) -> None:
        never = open_registry(world.url)
        for each in (registry, never):
            await each.close()
            await each.withdraw("billing", "none")
            for call in (each.announce(OTHER), each.start()):
                with pytest.raises(Closed):
                    await call

    run(world, play)


@pytest.mark.parametrize("turns", [1, 2, 5])
@pytest.mark.parametrize("end", ["close", "cancel"])
def test_a_start_that_is_closed_or_cancelled_leaves_nothing_running(world, turns, end):
    async def play(_known: Registry, _other: Registry) -> None:
        before = asyncio.all_tasks()
        begun = open_registry(world.url)
        starting = asyncio.create_task(begun.start())
        for _ in range(turns):
            await asyncio.sleep(0)
        if end == "close":
            await begun.close()
        else:
            starting.cancel()
        with suppress(Closed, asyncio.CancelledError):
            await starting
        await begun.close()
        await until_true(lambda: asyncio.all_tasks() <= before)

    run(world, play)
