"""Flow topics whose bounds or settings differ between nodes, and nodes that fell behind: nothing stops for ever."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import wherry
from tests.integration.meshes import flowing, received, until
from tests.integration.worlds import in_process
from tests.ports import free_port
from wherry.node.config import MeshSection, ServerSection


def address(port: int) -> str:
    return f"http://127.0.0.1:{port}"


@asynccontextmanager
async def running(home: Path, name: str, port: int, **mesh: Any) -> AsyncIterator[wherry.Client]:
    section = MeshSection(node=name, **mesh)
    node = in_process(home / name, server=ServerSection(port=port, drain_s=0.3), mesh=section)
    async with node, wherry.connect(node.url) as client:
        yield client


@pytest.mark.rows("Q18")
@pytest.mark.parametrize("bound", [{"messages_max": 500}, {"bytes_max": 500}])
def test_a_delivery_that_is_larger_than_the_bound_here_comes_in_parts(tmp_path: Path, bound: dict[str, int]):
    async def main() -> None:
        ports = free_port(), free_port()
        async with running(tmp_path, "a", ports[0]) as a:
            await a.create_topic("t", mesh="flow")
            sent = [b"%d" % number for number in range(3_000)]
            await a.publish("t", sent[:1_500])
            await a.publish("t", [b"x" * 1_000])  # never fits where only so many bytes do
            await a.publish("t", sent[1_500:])
            async with running(tmp_path, "b", ports[1], peers=(address(ports[0]),)) as b:
                await b.create_topic("t", mesh="flow", **bound)
                await b.subscribe("t", "r")
                got = await received(b, "t", "r", {sent[-1]})
                assert [each for each in got if len(each) < 1_000] == sent
                (flow,) = (await b.mesh())["links"][0]["topics"]
                assert flow["refused"] == ("bytes_max" in bound)

    asyncio.run(main())


@pytest.mark.rows("Q19")
def test_other_bounds_of_the_backlog_are_told_to_the_peer(tmp_path: Path):
    async def main() -> None:
        ports = free_port(), free_port()
        peers = (address(ports[0]),)
        async with running(tmp_path, "a", ports[0]) as a:
            await a.create_topic("t", mesh="flow")
            async with running(tmp_path, "b", ports[1], peers=peers) as b:
                await b.create_topic("t", mesh="flow")
                await b.subscribe("t", "r")
                await flowing(a, "t", "b")
            async with running(tmp_path, "b", ports[1], peers=peers, backlog_messages=500_000) as b:
                await a.publish("t", [b"x"])
                assert await received(b, "t", "r", {b"x"}) == [b"x"]
                assert (await a.subscription("t", "mesh.b")).buffer_messages == 500_000
            await a.unsubscribe("t", "mesh.b")
            await a.subscribe("t", "mesh.b", peer="c")  # somebody else's
            async with running(tmp_path, "b", ports[1], peers=peers) as b:

                async def is_shown() -> bool:
                    flows = (await b.mesh())["links"][0]["topics"]
                    return any("peer is 'c', not 'b'" in flow["last_fault"] for flow in flows)

                await until(is_shown, "the subscription of another node is not taken")

    asyncio.run(main())


@pytest.mark.rows("Q19", "Q21")
def test_a_node_that_was_cut_off_goes_on_behind_what_it_has(tmp_path: Path):
    """A topic there holds many times what the backlog may have, and is published to all the time."""

    async def main() -> None:
        ports = free_port(), free_port()
        async with running(tmp_path, "a", ports[0]) as a:
            await a.create_topic("t", mesh="flow")
            await a.subscribe("t", "slow")  # keeps everything
            await a.publish("t", [b"old-%d" % number for number in range(30_000)])
            peers = (address(ports[0]),)
            async with running(tmp_path, "b", ports[1], peers=peers, backlog_messages=10_000) as b:
                await b.create_topic("t", mesh="flow")
                await b.subscribe("t", "r")

                async def has_caught_up() -> bool:
                    await a.publish("t", [b"new"])  # each publish cuts off whoever is too far behind
                    (backlog,) = (await a.mesh())["backlogs"] or [{"waiting": 10_000}]
                    return backlog["waiting"] < 10

                await until(has_caught_up, "the node has caught up")
                await a.publish("t", [b"last"])
                got = await received(b, "t", "r", {b"last"})
                assert [each for each in got if each.startswith(b"old")] == [b"old-%d" % n for n in range(30_000)]
                (flow,) = (await b.mesh())["links"][0]["topics"]
                assert flow["cut_offs"]
                assert flow["repeated"] < 10_000

    asyncio.run(main())
