"""The mesh of `flow` topics over real nodes: processes that are killed and paused, and lines that are cut."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import wherry
from tests.integration.meshes import (
    PATIENCE_S,
    Line,
    MeshNodeProcess,
    connected,
    flowing,
    received,
    shown,
    started,
    until,
)


async def _declare(clients: dict[str, wherry.Client], *subscribers: tuple[str, str]) -> None:
    for client in clients.values():
        await client.create_topic("foo", mesh="flow")
    for node, name in subscribers:
        await clients[node].subscribe("foo", name)


def _of(got: list[bytes], origin: str) -> list[bytes]:
    return [each for each in got if each.startswith(origin.encode())]


def _sent(origin: str, count: int) -> list[bytes]:
    return [f"{origin}-{number}".encode() for number in range(count)]


@pytest.mark.rows("Q20", "Q21", "Q24")
def test_a_publish_at_one_node_reaches_each_subscriber_at_every_node_once(tmp_path: Path):
    """The example of the design: clients 1 and 2 at node A, 3 and 4 at B, 5 at C."""

    async def main() -> None:
        nodes = [MeshNodeProcess(tmp_path, name) for name in "abc"]
        for node in nodes:
            node.configure(peers=[other.url for other in nodes if other is not node])
        async with started(nodes) as clients:
            subscribers = [("a", "client-2"), ("b", "client-4"), ("c", "client-5")]
            await _declare(clients, *subscribers)
            for name, client in clients.items():
                await flowing(client, "foo", *({"a", "b", "c"} - {name}))
            for payload in _sent("a", 20):
                assert (await clients["a"].publish("foo", [payload])).mesh == "flow"  # client 1
            await clients["b"].publish("foo", _sent("b", 500))  # client 3
            for at, name in subscribers:
                got = await received(clients[at], "foo", name, {b"a-19", b"b-499"})
                assert (_of(got, "a"), _of(got, "b"), len(got)) == (_sent("a", 20), _sent("b", 500), 520)

            async def all_is_read() -> bool:
                views = [await client.mesh() for client in clients.values()]
                return not any(each["waiting"] for view in views for each in view["backlogs"])

            await until(all_is_read, "no peer waits for anything")
            for at, name in subscribers:
                assert len(await clients[at].pull("foo", name)) == 0
            for name, client in clients.items():
                flows = [flow for link in (await client.mesh())["links"] for flow in link["topics"]]
                assert sum(flow["stored"] for flow in flows) == {"a": 500, "b": 20, "c": 520}[name]
                assert [flow["repeated"] + flow["left_out"] + flow["refused"] for flow in flows] == [0, 0]

    asyncio.run(main())


@pytest.mark.rows("Q18", "Q21")
def test_every_node_takes_publishes_while_it_is_cut_off_and_passes_them_on_later(tmp_path: Path):
    async def main() -> None:
        a, b = (MeshNodeProcess(tmp_path, name) for name in "ab")
        to_a, to_b = Line(a.url), Line(b.url)
        a.configure(peers=[to_b.url])
        b.configure(peers=[to_a.url])
        async with to_a, to_b, started([a, b]) as clients:
            await _declare(clients, ("a", "readers"), ("b", "readers"))
            await flowing(clients["a"], "foo", "b")
            await flowing(clients["b"], "foo", "a")
            for heal in range(3):
                for number in range(10):
                    if number == 3:
                        await to_a.cut()
                        await to_b.cut()
                    for name, client in clients.items():
                        messages = [f"{name}-{heal}-{number}-{row}".encode() for row in range(7)]
                        assert (await client.publish("foo", messages)).mesh == "flow"
                await to_a.mend()
                await to_b.mend()
            every = [f"{heal}-{n}-{row}" for heal in range(3) for n in range(10) for row in range(7)]
            for client in clients.values():
                got = await received(client, "foo", "readers", {b"a-2-9-6", b"b-2-9-6"})
                for origin in "ab":
                    assert _of(got, origin) == [f"{origin}-{each}".encode() for each in every]
                assert len(got) == 2 * len(every)

    asyncio.run(main())


@pytest.mark.rows("Q18", "Q21")
@pytest.mark.parametrize("rounds", [2, pytest.param(12, marks=pytest.mark.long)])
def test_nodes_that_are_killed_and_paused_get_and_pass_on_everything_once(tmp_path: Path, rounds: int):
    async def publish(client: wherry.Client, origin: str, over: asyncio.Event, done: list[bytes]) -> None:
        """Publish until the end, each message again until it is confirmed; the producer makes that harmless."""
        while not over.is_set():
            number = len(done)
            payload = f"{origin}-{number}".encode()
            try:
                await client.publish("foo", [payload], wherry.PublishOptions(producer=origin, sequence=number))
            except wherry.Unavailable:
                await asyncio.sleep(0.05)
                continue
            done.append(payload)
            await asyncio.sleep(0.002)

    async def main() -> None:
        nodes = {name: MeshNodeProcess(tmp_path, name) for name in "abc"}
        for node in nodes.values():
            node.configure(peers=[other.url for other in nodes.values() if other is not node])
        async with started(list(nodes.values())) as clients:
            await _declare(clients, *((name, "readers") for name in nodes))
            for name, client in clients.items():
                await flowing(client, "foo", *({"a", "b", "c"} - {name}))
            over, done = asyncio.Event(), {name: list[bytes]() for name in nodes}
            publishing = [asyncio.create_task(publish(clients[name], name, over, done[name])) for name in nodes]

            async def more(name: str, count: int) -> None:
                least = len(done[name]) + count

                async def look() -> bool:
                    return len(done[name]) >= least

                await until(look, f"{count} more messages from {name}")

            for _ in range(rounds):
                await more("a", 30)
                await nodes["b"].kill()
                await more("c", 30)
                await nodes["b"].start()
                await more("b", 10)
                nodes["c"].pause()
                await more("a", 30)
                nodes["c"].go_on()
                await more("c", 10)
            over.set()
            await asyncio.gather(*publishing)
            for name, client in clients.items():
                got = await received(client, "foo", "readers", {sent[-1] for sent in done.values()})
                for origin, sent in done.items():
                    assert _of(got, origin) == sent, f"{origin} at {name}"

    asyncio.run(main())


@pytest.mark.rows("Q25")
def test_a_node_that_knows_one_other_node_finds_all(tmp_path: Path):
    async def main() -> None:
        a, b, c, leaf = (MeshNodeProcess(tmp_path, name) for name in ("a", "b", "c", "leaf"))
        often = {"discover": True, "announce_s": 0.3}
        a.configure(**often)
        b.configure(peers=[a.url], **often)
        c.configure(peers=[b.url], **often)
        leaf.configure(hub=a.url, **often)
        async with started([a, b, c, leaf]) as clients:
            await connected(clients["a"], "b", "c", "leaf")
            await connected(clients["b"], "a", "c")
            await connected(clients["c"], "a", "b")
            await connected(clients["leaf"], "a")
            await _declare(clients, *((name, "readers") for name in clients))
            for name, peers in {"a": ("b", "c", "leaf"), "b": ("a", "c"), "c": ("a", "b"), "leaf": ("a",)}.items():
                await flowing(clients[name], "foo", *peers)
            await clients["leaf"].publish("foo", [b"leaf-0"])
            await clients["c"].publish("foo", [b"c-0"])
            for client in clients.values():
                assert sorted(await received(client, "foo", "readers", {b"leaf-0", b"c-0"})) == [b"c-0", b"leaf-0"]
            await b.kill()

            async def b_is_forgotten() -> bool:
                return "b" not in (await clients["c"].mesh())["known"]

            await until(b_is_forgotten, "the record of a dead node expires")
            await connected(clients["c"], "a")

    asyncio.run(main())


@pytest.mark.rows("Q19")
def test_a_peer_that_does_not_read_is_cut_off_like_any_client_and_the_others_go_on(tmp_path: Path):
    async def main() -> None:
        nodes = {name: MeshNodeProcess(tmp_path, name) for name in "abc"}
        for node in nodes.values():
            others = [other.url for other in nodes.values() if other is not node]
            node.configure(peers=others, backlog_messages=200)
        async with started(list(nodes.values())) as clients:
            await _declare(clients, ("a", "readers"), ("b", "readers"), ("c", "readers"))
            for name, client in clients.items():
                await flowing(client, "foo", *({"a", "b", "c"} - {name}))
            nodes["c"].pause()
            sent: list[bytes] = []

            async def was_cut_off() -> bool:
                messages = [f"a-{len(sent) + row}".encode() for row in range(50)]
                await clients["a"].publish("foo", messages)
                sent.extend(messages)
                return any(each["subscription"] == "mesh.c" for each in (await clients["a"].mesh())["cut_offs"])

            await until(was_cut_off, "the peer that does not read is cut off")
            for name in ("a", "b"):  # nothing is missing where nodes read
                assert await received(clients[name], "foo", "readers", {sent[-1]}) == sent
            nodes["c"].go_on()
            await connected(clients["c"], "a", "b")

            async def is_counted() -> bool:
                links = (await clients["c"].mesh())["links"]
                return any(flow["cut_offs"] for link in links for flow in link["topics"])

            await until(is_counted, "the node knows that a peer dropped its backlog")
            printed = await asyncio.to_thread(shown, nodes["a"].url)
            assert "mesh.c was cut off from foo: it fell further behind" in printed
            await clients["a"].publish("foo", [b"a-last"])
            got = await received(clients["c"], "foo", "readers", {b"a-last"})
            assert len(got) == len(set(got))
            assert [each for each in [*sent, b"a-last"] if each in set(got)] == got  # in order, with a hole

    asyncio.run(main())


@pytest.mark.rows("Q21")
def test_the_example_prints_what_its_docstring_shows():
    script = Path(__file__).parents[2] / "examples/mesh_of_three.py"
    printed = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=PATIENCE_S, check=True)
    _, _, said = script.read_text(encoding="utf-8").split('"""')[1].partition("mesh_of_three.py\n")
    assert printed.stdout == textwrap.dedent(said)
