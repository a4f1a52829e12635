"""Peers that greet wrongly or not at all, and links that fail by themselves: others go on, and all come back."""

from __future__ import annotations

import asyncio
import logging
import re
import urllib.request
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

import wherry
from tests.integration.meshes import connected, flowing, received, until
from tests.integration.test_mesh_limits import address, running
from tests.ports import free_port
from wherry.client.native import session as client_session
from wherry.client.native import upgrade
from wherry.node.mesh import mesh, topic_flow
from wherry.node.mesh.mesh import NodeMesh
from wherry.wire.native.codec.frames import PROTOCOL, Kind, encode_frame

SWITCHED = f"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: {PROTOCOL}\r\n\r\n".encode()

OTHER_VERSION = msgspec.json.encode({"version": 99, "name": "wherry", "session": "s", "features": []})

GREETINGS = {
    "nothing at all": (b"", "gave no answer within"),
    "no HELLO": (SWITCHED, "sent no HELLO"),
    "half a HELLO": (SWITCHED + encode_frame(Kind.HELLO, 0, b"{}")[:-1], "sent no HELLO"),
    "another version": (SWITCHED + encode_frame(Kind.HELLO, 0, OTHER_VERSION), "version"),
    "another frame": (SWITCHED + encode_frame(Kind.PING, 0, b"12345678"), "broke the protocol"),
    "garbage for frames": (SWITCHED + bytes(range(255, 0, -1)) * 9, "broke the protocol"),
    "garbage for HTTP": (b"\x00\xff" * 5_000, "does not speak the native wire"),
    "an endless head": (b"HTTP/1.1 101 Switching\r\n" + b"x: y\r\n" * 20_000, "does not speak the native wire"),
    "the end": (None, "does not speak the native wire"),
}
"""What a peer sends to each connection, and then holds it; and what the link says. None: it closes."""


@asynccontextmanager
async def greeter(port: int, greeting: bytes | None) -> AsyncIterator[list[asyncio.StreamWriter]]:
    """Accept connections and send each the same; yields a list with an item for each of them."""
    came: list[asyncio.StreamWriter] = []

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        came.append(writer)
        try:
            if greeting is not None:
                await reader.read(1_000)
                writer.write(greeting)
                await reader.read()  # until the other side has enough
        except ConnectionError:
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(accept, "127.0.0.1", port)
    try:
        yield came
    finally:
        server.close()
        for writer in came:
            writer.transport.abort()


async def _link_shows(client: wherry.Client, url: str, text: str) -> dict[str, Any]:
    seen: list[dict[str, Any]] = []

    async def look() -> bool:
        seen[:] = [each for each in (await client.mesh())["links"] if each["url"] == url]
        return any(text in each["why"] for each in seen)

    try:
        await until(look, f"a link that says {text!r}")
    except AssertionError as fault:
        raise AssertionError(f"{fault}; last seen: {seen}") from None
    return seen[0]


@pytest.mark.rows("Q18", "Q19")
@pytest.mark.parametrize("kind", GREETINGS)
def test_a_peer_that_greets_wrongly_holds_up_no_other_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str):
    monkeypatch.setattr(upgrade, "CONNECT_S", 0.5)
    monkeypatch.setattr(client_session, "HELLO_S", 0.5)
    greeting, why = GREETINGS[kind]

    async def main() -> None:
        bad, ports = free_port(), {name: free_port() for name in "ab"}
        peers = (address(bad), address(ports["b"]))
        async with (
            greeter(bad, greeting) as came,
            running(tmp_path, "a", ports["a"], peers=peers) as a,
            running(tmp_path, "b", ports["b"], peers=(address(ports["a"]),)) as b,
        ):
            for client in (a, b):
                await client.create_topic("t", mesh="flow")
                await client.subscribe("t", "r")
            await flowing(a, "t", "b")
            await flowing(b, "t", "a")
            link = await _link_shows(a, address(bad), why)
            assert (link["state"], link["node"]) == ("connecting", None)

            async def tried_again() -> bool:
                return len(came) > 3

            await until(tried_again, "the link tries again")
            for client, name in ((a, b"a"), (b, b"b")):
                await client.publish("t", [name])
            for client in (a, b):
                assert sorted(await received(client, "t", "r", {b"a", b"b"})) == [b"a", b"b"]
            assert await _failures(a) == {}

    asyncio.run(main())


@pytest.mark.rows("Q18")
def test_a_link_whose_peer_greets_right_at_last_is_connected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Without a restart of the node whose link it is."""
    monkeypatch.setattr(client_session, "HELLO_S", 0.5)

    async def main() -> None:
        at_a, at_b = free_port(), free_port()
        async with running(tmp_path, "a", at_a, peers=(address(at_b),)) as a:
            await a.create_topic("t", mesh="flow")
            await a.publish("t", [b"early"])
            async with greeter(at_b, SWITCHED):
                await _link_shows(a, address(at_b), "sent no HELLO")
            async with running(tmp_path, "b", at_b, peers=(address(at_a),)) as b:
                await b.create_topic("t", mesh="flow")
                await b.subscribe("t", "r")
                await connected(a, "b")
                assert await received(b, "t", "r", {b"early"}) == [b"early"]

    asyncio.run(main())


async def _failures(client: wherry.Client) -> dict[str, int]:
    """Return the parts of the mesh of a node that have failed, as its metrics count them."""
    url = (await client.mesh())["url"]
    text = await asyncio.to_thread(lambda: urllib.request.urlopen(f"{url}/metrics", timeout=60).read().decode())
    found = re.findall(r'^wherry_mesh_failures_total\{part="(\w+)"\} (\d+)', text, re.MULTILINE)
    assert len(found) == 5
    return {part: int(count) for part, count in found if count != "0"}


def _fails_once(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, mine: Callable[..., bool]) -> asyncio.Event:
    """Let the next call of a function that is `mine` raise what nobody expects; the event says that it did."""
    function, done = getattr(owner, name), asyncio.Event()

    def once(*args: Any, **more: Any) -> Any:
        if not done.is_set() and mine(*args):
            done.set()
            raise ZeroDivisionError("planted")
        return function(*args, **more)

    monkeypatch.setattr(owner, name, once)
    return done


@pytest.mark.rows("Q18")
@pytest.mark.parametrize("part", ["link", "topic", "announce", "links"])
def test_an_exception_in_one_link_ends_no_other_and_it_comes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, part: str
):
    async def main() -> None:
        ports = {name: free_port() for name in "abc"}

        def node(name: str) -> Any:
            peers = tuple(address(port) for other, port in ports.items() if other != name)
            return running(tmp_path, name, ports[name], peers=peers, discover=True, announce_s=0.2)

        async with node("a") as a, node("b") as b, node("c") as c:
            for client in (a, b, c):
                await client.create_topic("t", mesh="flow")
                await client.subscribe("t", "r")
            for client, others in ((a, "bc"), (b, "ac"), (c, "ab")):
                await flowing(client, "t", *others)
            task_of_c = _tasks(f"wherry mesh {address(ports['c'])}")
            with caplog.at_level(logging.ERROR, "wherry.mesh"), monkeypatch.context() as planting:
                if part == "link":
                    done = _fails_once(
                        planting, mesh, "refusal", lambda me, peer, _: (me.name, peer.name) == ("a", "b")
                    )
                elif part == "topic":
                    done = _fails_once(planting, topic_flow, "take", lambda me, source, _: source.topic == "t")
                elif part == "announce":
                    done = _fails_once(planting, NodeMesh, "_record", lambda node: node.me.name == "a")
                else:
                    done = _fails_once(planting, NodeMesh, "_look", lambda node: node.me.name == "a")
                await b.publish("t", [b"1"])
                async with asyncio.timeout(60):
                    await done.wait()
            await c.publish("t", [b"2"])
            await b.publish("t", [b"3"])
            for client in (a, b, c):
                got = await received(client, "t", "r", {b"1", b"2", b"3"})
                assert sorted(got) == [b"1", b"2", b"3"]
                assert [each for each in got if each != b"2"] == [b"1", b"3"]
            for client, others in ((a, "bc"), (b, "ac"), (c, "ab")):
                await connected(client, *others)
            assert _tasks(f"wherry mesh {address(ports['c'])}") == task_of_c
            counts = [await _failures(client) for client in (a, b, c)]
            assert [each for each in counts if each] == [{part: 1}]
            (record,) = [each for each in caplog.records if each.name == "wherry.mesh"]
            assert (record.part, record.exc_info[0]) == (part, ZeroDivisionError)  # type: ignore[attr-defined, index]

    asyncio.run(main())


def _tasks(name: str) -> set[asyncio.Task[Any]]:
    return {task for task in asyncio.all_tasks() if task.get_name() == name}
