"""Peers of the mesh that ask for keys and speak TLS, and links to topics that do not take everything: real nodes."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

import wherry
from tests.integration.meshes import connected, flowing, received, until
from tests.integration.worlds import in_process
from tests.ports import free_port
from wherry.model.catalog.key import Right
from wherry.node.config import MeshSection, SecuritySection, ServerSection, TlsSection
from wherry.node.mesh.figures import FlowFigures
from wherry.node.node import Node
from wherry.security.keys import Made, make

CERTIFICATES = Path(__file__).parents[1] / "unit/security/certificates"
TLS = TlsSection(certificate=str(CERTIFICATES / "first.pem"), key=str(CERTIFICATES / "first.key"))
AUTHORITY = str(CERTIFICATES / "authority.pem")


def _node(home: Path, port: int, mesh: MeshSection, **sections: Any) -> Node:
    assert mesh.node is not None
    return in_process(home / mesh.node, server=ServerSection(port=port, drain_s=2.0), mesh=mesh, **sections)


def _made(*rights: Right) -> Made:
    return make("peer", list(rights), now_ms=time.time_ns() // 1_000_000)


async def _link(client: wherry.Client, what: str, found: Callable[[dict[str, Any]], bool]) -> None:
    """Wait until the one link of a node is as expected."""

    seen: list[Any] = []

    async def look() -> bool:
        seen[:] = (await client.mesh())["links"]
        return len(seen) == 1 and found(seen[0])

    try:
        await until(look, what)
    except AssertionError as fault:
        raise AssertionError(f"{fault}; last seen: {seen}") from None


def _flow(link: dict[str, Any], topic: str) -> dict[str, Any]:
    blank = {name: getattr(FlowFigures(topic), name) for name in FlowFigures.__struct_fields__}
    return next((each for each in link["topics"] if each["topic"] == topic), blank)


@pytest.mark.rows("Q18", "Q21")
def test_a_key_that_is_missing_or_lacks_a_right_is_shown_and_the_link_heals_when_it_is_put_right(tmp_path: Path):
    async def main() -> None:
        ports = free_port(), free_port()
        made = _made(Right("consume", "bar"))
        more = _made(Right("consume", "*"), Right("publish", "system.peers")).key
        locked = _node(tmp_path, ports[0], MeshSection(node="a", discover=True), security=SecuritySection(keys="on"))
        mesh = MeshSection(
            node="b", peers=(f"http://127.0.0.1:{ports[0]}",), key=made.token, discover=True, announce_s=0.2
        )
        async with locked, _node(tmp_path, ports[1], mesh) as open_node:
            admin = (tmp_path / "a/admin.key").read_text().strip()
            async with wherry.connect(locked.url, key=admin) as a, wherry.connect(open_node.url) as b:
                for client in (a, b):
                    for topic in ("foo", "bar"):
                        await client.create_topic(topic, mesh="flow")
                await b.subscribe("foo", "readers")
                await a.publish("foo", [b"first"])
                await _link(b, "the key is not known", lambda link: "not known here" in link["why"])
                assert (await b.mesh())["links"][0]["state"] == "connecting"

                await locked.broker.put_key(made.key)

                def lacks_rights(link: dict[str, Any]) -> bool:
                    fault = "lacks the right to consume on topic 'foo'"
                    announced = "not announced there" in link["why"] and "system.peers" in link["why"]
                    return announced and link["state"] == "connected" and fault in _flow(link, "foo")["last_fault"]

                await _link(b, "a topic without the right is shown, the other one flows", lacks_rights)
                await flowing(a, "bar", "b")
                assert not (await a.mesh())["known"].count("b")

                await locked.broker.put_key(_with_rights(made, more.rights))
                await flowing(a, "foo", "b")
                healed = lambda link: not link["why"] and not _flow(link, "foo")["last_fault"]  # noqa: E731
                await _link(b, "all flows", healed)
                assert await received(b, "foo", "readers", {b"first"}) == [b"first"]

                async def is_known() -> bool:
                    return "b" in (await a.mesh())["known"]

                await until(is_known, "b announces itself at a")

                await locked.broker.delete_key(made.key.id)
                await a.publish("foo", [b"second"])
                await _link(b, "the key was revoked", lambda link: link["state"] == "connecting" and link["why"])
                await locked.broker.put_key(_with_rights(made, more.rights))
                assert await received(b, "foo", "readers", {b"second"}) == [b"second"]
                await _link(b, "all flows again", lambda link: link["state"] == "connected" and healed(link))

    asyncio.run(main())


def _with_rights(made: Made, rights: tuple[Right, ...]) -> Any:
    return msgspec.structs.replace(made.key, rights=rights)


@pytest.mark.rows("Q21")
def test_nodes_trust_each_other_by_an_authority_of_their_own(tmp_path: Path):
    """With TLS and keys both, to and fro; a node that does not trust the authority shows why it has no link."""

    async def main() -> None:
        ports = {name: free_port() for name in "abx"}
        made = _made(Right("consume", "*"))

        def node(name: str, *peers: str, ca: str | None = AUTHORITY) -> Node:
            peers = tuple(f"https://127.0.0.1:{ports[peer]}" for peer in peers)
            mesh = MeshSection(node=name, peers=peers, ca=ca, key=made.token)
            return _node(tmp_path, ports[name], mesh, tls=TLS, security=SecuritySection(keys="on"))

        trust = ssl.create_default_context(cafile=AUTHORITY)
        async with node("a", "b") as at_a, node("b", "a") as at_b, node("x", "a", ca=None) as at_x:
            keys = {name: (tmp_path / name / "admin.key").read_text().strip() for name in "abx"}
            for each in (at_a, at_b, at_x):
                await each.broker.put_key(made.key)
            async with (
                wherry.connect(at_a.url, key=keys["a"], tls=trust) as a,
                wherry.connect(at_b.url, key=keys["b"], tls=trust) as b,
                wherry.connect(at_x.url, key=keys["x"], tls=trust) as x,
            ):
                for client in (a, b, x):
                    await client.create_topic("foo", mesh="flow")
                    await client.subscribe("foo", "readers")
                await connected(a, "b")
                await flowing(a, "foo", "b")
                await flowing(b, "foo", "a")
                await a.publish("foo", [b"of a"])
                await b.publish("foo", [b"of b"])
                for client in (a, b):
                    assert sorted(await received(client, "foo", "readers", {b"of a", b"of b"})) == [b"of a", b"of b"]
                await _link(x, "a node that is not trusted is shown", lambda link: "certificate" in link["why"].lower())
                assert len(await x.pull("foo", "readers")) == 0

    asyncio.run(main())


def _urls(ports: dict[str, int], *names: str) -> tuple[str, ...]:
    return tuple(f"http://127.0.0.1:{ports[name]}" for name in names)


@pytest.mark.rows("Q21")
def test_a_link_to_a_full_topic_waits_and_goes_on_in_order_when_there_is_room(tmp_path: Path):
    """Also for deliveries that are larger than the topic: they are stored in parts."""

    async def main() -> None:
        ports = {name: free_port() for name in "ab"}
        sent = [b"%d" % number for number in range(40)]
        sending = _node(tmp_path, ports["a"], MeshSection(node="a"))
        narrow = _node(tmp_path, ports["b"], MeshSection(node="b", peers=_urls(ports, "a")))
        async with sending, narrow, wherry.connect(sending.url) as a, wherry.connect(narrow.url) as b:
            await a.create_topic("foo", mesh="flow")
            await b.create_topic("foo", mesh="flow", messages_max=7, payload_bytes_max=10)
            await b.subscribe("foo", "readers")
            await flowing(a, "foo", "b")
            await a.publish("foo", [*sent[:20], b"too large for b", *sent[20:]])

            def is_full(link: dict[str, Any]) -> bool:
                flow = _flow(link, "foo")
                return flow["stored"] == 7 and "the topic is full" in flow["last_fault"]

            await _link(b, "the topic is full", is_full)
            assert narrow.broker.stats("foo").messages == 7
            waiting = {each["peer"]: each["waiting"] for each in (await a.mesh())["backlogs"]}
            assert waiting == {"b": 41}  # of one delivery, which is not stored yet as a whole
            assert await received(b, "foo", "readers", {sent[-1]}) == sent

            def is_through(link: dict[str, Any]) -> bool:
                flow = _flow(link, "foo")
                return (flow["stored"], flow["repeated"], flow["refused"]) == (40, 0, 1)

            await _link(b, "all is stored once, but for what is too large", is_through)

    asyncio.run(main())


@pytest.mark.rows("Q21")
def test_what_a_hub_has_from_another_hub_is_left_out_by_a_node_that_comes_later(tmp_path: Path):
    """It is older than the subscription of the node, so the hub could not leave it out."""

    async def main() -> None:
        ports = {name: free_port() for name in "abc"}

        def node(name: str) -> Node:
            return _node(tmp_path, ports[name], MeshSection(node=name, peers=_urls(ports, *({*"abc"} - {name}))))

        async with (
            node("a") as at_a,
            node("c") as at_c,
            wherry.connect(at_a.url) as a,
            wherry.connect(at_c.url) as c,
        ):
            for client in (a, c):
                await client.create_topic("foo", mesh="flow")
                await client.subscribe("foo", "readers")
            await flowing(a, "foo", "c")
            await flowing(c, "foo", "a")
            await a.publish("foo", [b"of a"])
            await c.publish("foo", [b"of c"])

            async def both_have_both() -> bool:
                return all(each.broker.stats("foo").messages == 2 for each in (at_a, at_c))

            await until(both_have_both, "a and c have the messages of each other")
            async with node("b") as at_b, wherry.connect(at_b.url) as b:
                await b.create_topic("foo", mesh="flow")
                await b.subscribe("foo", "readers")
                got = await received(b, "foo", "readers", {b"of a", b"of c"})
                assert sorted(got) == [b"of a", b"of c"]

                async def one_of_each_is_left_out() -> bool:
                    flows = [_flow(link, "foo") for link in (await b.mesh())["links"]]
                    return [(each["stored"], each["left_out"]) for each in flows] == [(1, 1), (1, 1)]

                await until(one_of_each_is_left_out, "each hub passed on what it had, and half was left out")
                assert at_b.broker.stats("foo").counters["published"] == 2

    asyncio.run(main())
