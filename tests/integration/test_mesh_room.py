"""Bounded `flow` topics whose peers are down: publishes flow, and whoever lost something is told when it is back."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import wherry
from tests.integration.meshes import MeshNodeProcess, flowing, received, shown, started, until
from wherry.core.decide.flow import FULL


def _some(first: int, count: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, first + count)]


async def _noticed(client: wherry.Client) -> dict[str, Any]:
    """Wait until a node knows that its peer dropped the backlog; return its figures of the topic."""
    found: dict[str, Any] = {}

    async def look() -> bool:
        flows = [flow for link in (await client.mesh())["links"] for flow in link["topics"] if flow["cut_offs"]]
        found.update(flows[0] if flows else {})
        return bool(flows)

    await until(look, "the node knows that its peer dropped the backlog")
    return found


@pytest.mark.rows("Q18", "Q19")
def test_a_peer_that_is_down_stops_no_publish_to_a_bounded_topic_and_finds_out(tmp_path: Path):
    """Also if both nodes have started anew since: the one that cut off, and the one that was."""

    async def main() -> None:
        a, b = (MeshNodeProcess(tmp_path, name) for name in "ab")
        a.configure(peers=[b.url])
        b.configure(peers=[a.url])
        async with started([a, b]) as clients:
            for client in clients.values():
                await client.create_topic("foo", mesh="flow", messages_max=100)
                await client.subscribe("foo", "readers")
            await flowing(clients["a"], "foo", "b")
            await clients["a"].publish("foo", _some(0, 10))
            assert await received(clients["b"], "foo", "readers", {b"9"}) == _some(0, 10)
            await b.kill()
            for first in range(10, 1_010, 50):
                assert (await clients["a"].publish("foo", _some(first, 50))).mesh == "flow"
                last = b"%d" % (first + 49)
                await received(clients["a"], "foo", "readers", {last})
            cut_offs = (await clients["a"].mesh())["cut_offs"]
            assert [(each["subscription"], each["why"]) for each in cut_offs] == [("mesh.b", FULL)]
            assert f"mesh.b was cut off from foo: {FULL}" in await asyncio.to_thread(shown, a.url)
            await a.kill()
            await a.start()
            await b.start()
            flow = await _noticed(clients["b"])
            assert flow["cut_offs"] == 1
            assert flow["last_fault"].endswith(FULL)
            await flowing(clients["a"], "foo", "b")
            await clients["a"].publish("foo", [b"later"])
            assert await received(clients["b"], "foo", "readers", {b"later"}) == [b"later"]
            await b.kill()
            await b.start()  # it was told, and has subscribed again: that is no news any more

            async def is_back() -> bool:
                return any(each["node"] == "a" for each in (await clients["b"].mesh())["links"])

            await until(is_back, "the node is back")
            await clients["a"].publish("foo", [b"last"])
            assert await received(clients["b"], "foo", "readers", {b"last"}) == [b"last"]
            assert not any(flow["cut_offs"] for each in (await clients["b"].mesh())["links"] for flow in each["topics"])

    asyncio.run(main())


@pytest.mark.rows("Q19")
def test_a_slow_subscription_of_the_node_itself_still_refuses(tmp_path: Path):
    async def main() -> None:
        a, b = (MeshNodeProcess(tmp_path, name) for name in "ab")
        a.configure(peers=[b.url])
        b.configure(peers=[a.url])
        async with started([a, b]) as clients:
            for client in clients.values():
                await client.create_topic("foo", mesh="flow", messages_max=100)
            await clients["a"].subscribe("foo", "slow")
            await clients["b"].subscribe("foo", "readers")
            await flowing(clients["a"], "foo", "b")
            await clients["a"].publish("foo", _some(0, 100))
            assert await received(clients["b"], "foo", "readers", {b"99"}) == _some(0, 100)
            await b.kill()
            with pytest.raises(wherry.LimitReached):
                await clients["a"].publish("foo", [b"more"])
            view = await clients["a"].mesh()
            assert (view["cut_offs"], [each["peer"] for each in view["backlogs"]]) == ([], ["b"])

    asyncio.run(main())
