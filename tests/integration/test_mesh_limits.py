"""Flow topics whose bounds or settings differ between nodes, and nodes that fell behind: nothing stops for ever."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import wherry
from tests.integration.meshes import connected, flowing, received, until
from tests.integration.worlds import in_process
from tests.ports import free_port
from wherry.mesh.flow import links
from wherry.mesh.flow.records import PeerRecord, encode
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
def test_other_bounds_of_the_backlog_reach_the_peer(tmp_path: Path):
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

                async def publish_on() -> None:
                    while True:
                        await a.publish("t", [b"new"])

                async def is_cut_off() -> bool:
                    return any(flow["cut_offs"] for link in (await b.mesh())["links"] for flow in link["topics"])

                publishing = asyncio.create_task(publish_on())  # from before the node reads, however quick that is
                await b.create_topic("t", mesh="flow")
                await b.subscribe("t", "r")
                await until(is_cut_off, "the node has fallen too far behind")
                publishing.cancel()
                await asyncio.wait([publishing])

                async def has_caught_up() -> bool:
                    await a.publish("t", [b"new"])  # each publish cuts off whoever is too far behind
                    (backlog,) = (await a.mesh())["backlogs"] or [{"waiting": 10_000}]
                    return backlog["waiting"] < 10

                await until(has_caught_up, "the node has caught up")
                await a.publish("t", [b"last"])
                got = await received(b, "t", "r", {b"last"})
                assert [each for each in got if each.startswith(b"old")] == [b"old-%d" % n for n in range(30_000)]
                (flow,) = (await b.mesh())["links"][0]["topics"]
                assert flow["repeated"] < 10_000

    asyncio.run(main())


@pytest.mark.rows("Q21", "Q23")
def test_only_its_own_hub_reads_a_leaf_also_while_that_hub_is_down(tmp_path: Path):
    """Else a message of the leaf comes by a second way, before earlier ones that are still on the first."""

    async def main() -> None:
        a_port, b_port, l_port = (free_port() for _ in range(3))
        at_a = {"peers": (address(b_port), address(l_port))}
        async with (
            running(tmp_path, "b", b_port, peers=(address(a_port), address(l_port))) as b,
            running(tmp_path, "l", l_port, hub=address(a_port)) as leaf,
        ):
            for client in (b, leaf):
                await client.create_topic("t", mesh="flow")
            await b.subscribe("t", "r")
            seen: list[str] = []

            async def is_refused() -> bool:
                links = (await b.mesh())["links"]
                seen[:] = [each["why"] for each in links if each["url"] == address(l_port)]
                return any("hub" in why for why in seen)

            await until(is_refused, "a hub that is not that of the leaf refuses it")
            assert "not reached its hub" in seen[0]
            await leaf.publish("t", [b"1", b"2"])
            async with running(tmp_path, "a", a_port, **at_a) as a:
                await a.create_topic("t", mesh="flow")
                await flowing(leaf, "t", "a")
                assert await received(b, "t", "r", {b"2"}) == [b"1", b"2"]
                await connected(b, "a")
            await leaf.publish("t", [b"3"])  # its hub is down again
            await until(is_refused, "b still refuses it")
            async with running(tmp_path, "a", a_port, **at_a):
                assert await received(b, "t", "r", {b"3"}) == [b"3"]

    asyncio.run(main())


@pytest.mark.rows("Q21", "Q23")
def test_what_a_leaf_sent_by_its_former_hub_still_comes(tmp_path: Path):
    async def main() -> None:
        a_port, b_port, l_port = (free_port() for _ in range(3))
        at_b = {"peers": (address(a_port), address(l_port))}
        async with running(tmp_path, "a", a_port, peers=(address(b_port), address(l_port))) as a:
            await a.create_topic("t", mesh="flow")
            async with running(tmp_path, "b", b_port, **at_b) as b:
                await b.create_topic("t", mesh="flow")
                await b.subscribe("t", "r")
                await flowing(a, "t", "b")
            async with running(tmp_path, "l", l_port, hub=address(a_port)) as leaf:
                await leaf.create_topic("t", mesh="flow")
                await leaf.publish("t", [b"1", b"2"])

                async def is_at_a() -> bool:
                    return any(each["waiting"] == 2 for each in (await a.mesh())["backlogs"] if each["peer"] == "b")

                await until(is_at_a, "the messages wait at the first hub")
        async with (
            running(tmp_path, "l", l_port, hub=address(b_port)) as leaf,
            running(tmp_path, "b", b_port, **at_b) as b,
        ):
            await leaf.publish("t", [b"3"])
            assert await received(b, "t", "r", {b"3"}) == [b"3"]
            async with running(tmp_path, "a", a_port, peers=(address(b_port),)):
                assert await received(b, "t", "r", {b"2"}) == [b"1", b"2"]

    asyncio.run(main())


@pytest.mark.rows("Q22")
def test_a_hub_beyond_the_bound_that_was_there_first_is_dropped_by_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(links, "HUBS_MAX", 2)

    async def main() -> None:
        ports = {name: free_port() for name in "abc"}

        def node(name: str) -> Any:
            return running(
                tmp_path, name, ports[name], peers=tuple(address(ports[each]) for each in "abc" if each != name)
            )

        async with node("a") as a, node("c") as c:
            for client in (a, c):
                await client.create_topic("t", mesh="flow")
            await connected(a, "c")
            async with node("b") as b:
                await b.create_topic("t", mesh="flow")
                await connected(a, "b")
                await connected(b, "a")
                await connected(c)
                assert all("let c be a leaf" in each["why"] for each in (await c.mesh())["links"])

    asyncio.run(main())


def test_a_key_goes_to_trusted_addresses_alone(tmp_path: Path):
    """Whoever may publish to `system.peers` can make a node connect to an address."""

    async def main() -> None:
        received_at: dict[str, list[bytes]] = {"evil": [], "good": []}
        came = asyncio.Event()
        servers, ports = [], {}
        for name, found in received_at.items():

            async def accept(reader: Any, writer: Any, found: list[bytes] = found) -> None:
                found.append(await reader.read(2_000))
                writer.close()
                came.set()

            servers.append(await asyncio.start_server(accept, "127.0.0.1", 0))
            ports[name] = servers[-1].sockets[0].getsockname()[1]
        trusted = (address(ports["good"]),)
        async with running(tmp_path, "a", free_port(), discover=True, key="wk_secret", trusted=trusted) as a:
            for name in ("evil", "good"):
                await a.publish("system.peers", [encode(PeerRecord(node=name, url=address(ports[name]), version=1))])
            async with asyncio.timeout(60):
                await came.wait()
            refused = (await a.mesh())["refused"]
            assert refused == {address(ports["evil"]): "the address is not one of mesh.trusted"}
        assert b"wk_secret" in received_at["good"][0]
        assert not received_at["evil"]
        for server in servers:
            server.close()

    asyncio.run(main())
