"""How members of gossip find each other over real sockets: names of seeds, addresses that do not fit, failed starts."""

from __future__ import annotations

import asyncio
import secrets
import socket
from collections import defaultdict
from contextlib import suppress
from typing import Any

import pytest

from tests.integration.hooks import run
from tests.integration.test_gossip import KEY, PERIOD_MS, Cluster, ids, instance, until
from tests.ports import free_port
from wherry.mesh.gossip.codec.seal import STATES, Seal
from wherry.mesh.gossip.core import GossipStep
from wherry.mesh.gossip.links import StateLinks
from wherry.mesh.gossip.registry import GossipRegistry
from wherry.mesh.gossip.values import MemberAddress, Send
from wherry.mesh.opening import open_registry
from wherry.model.errors import Closed, InvalidInput, Unavailable

LOOPBACKS = [f"127.0.0.{number}" for number in (1, 2, 3)]


class Names:
    """Records of a name in place of the resolver of this machine; each look is counted."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.records: list[str] = []
        self.looks: defaultdict[str, int] = defaultdict(int)
        loop = asyncio.get_running_loop()
        real = loop.getaddrinfo

        async def getaddrinfo(host: Any, port: Any, **more: Any) -> Any:
            if host != "peers.test":
                return await real(host, port, **more)
            self.looks[host] += 1
            if not self.records:
                raise socket.gaierror("no such name")
            return [(socket.AF_INET, socket.SOCK_DGRAM, 17, "", (each, 0)) for each in self.records]

        monkeypatch.setattr(loop, "getaddrinfo", getaddrinfo)


@pytest.mark.rows("P9")
@run
async def test_one_name_is_the_seed_of_all_members():
    """Start all at once, each of which finds its own address first."""
    port = free_port()
    async with Cluster() as cluster:
        with pytest.MonkeyPatch.context() as patch:
            names = Names(patch)
            for host in LOOPBACKS:
                names.records = [host, *(each for each in LOOPBACKS if each != host)]
                await cluster.add([("peers.test", port)], host=host, port=port)
            await until(lambda: all(len(each.members) == 3 for each in cluster.members))


@pytest.mark.rows("P9")
@run
async def test_a_name_that_leads_elsewhere_later_is_followed():
    port = free_port()
    async with Cluster() as cluster:
        with pytest.MonkeyPatch.context() as patch:
            names = Names(patch)
            for host in LOOPBACKS:  # each knows of itself alone, as while a service begins
                names.records = [host]
                await cluster.add([("peers.test", port)], host=host, port=port)
            names.records = []
            before = names.looks["peers.test"]
            await until(lambda: names.looks["peers.test"] > before + 3)
            assert all(len(each.members) == 1 for each in cluster.members)
            names.records = LOOPBACKS
            await until(lambda: all(len(each.members) == 3 for each in cluster.members))


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"seeds": [("192.0.2.7", 7073)]}, "host"),
        ({"seeds": [("192.0.2.7", 7073)], "advertise": ("192.0.2.8", 0)}, "host"),
        ({"seeds": [("::1", 7073)]}, "seeds"),
        ({"seeds": [("127.0.0.1", 7073)], "host": "::1"}, "seeds"),
        ({"advertise": ("::1", 0)}, "advertise"),
        ({"seeds": [("a..b", 7073)]}, "seeds"),
        ({"seeds": [("x" * 70, 7073)]}, "seeds"),
        ({"host": "a..b"}, "host"),
    ],
)
@run
async def test_addresses_that_cannot_reach_each_other_are_refused_by_name(given, field):
    with pytest.raises(InvalidInput) as refused:
        await GossipRegistry(**{"key": KEY, **given}).start()
    assert refused.value.field == field


@run
async def test_start_fails_where_packets_do_not_pass(monkeypatch):
    monkeypatch.setattr("wherry.mesh.gossip.joining.JOIN_S", 0.5)
    async with Cluster() as cluster:
        with socket.socket(type=socket.SOCK_DGRAM) as silent:
            silent.bind(("127.0.0.1", 0))
            first = GossipRegistry(key=KEY, advertise=silent.getsockname(), period_ms=PERIOD_MS)
            await first.start()
            cluster.members.append(first)
            assert first._states._server is not None
            port = first._states._server.sockets[0].getsockname()[1]
            with pytest.raises(Unavailable, match="over UDP"):
                await cluster.add([("127.0.0.1", port)])


@run
async def test_packets_that_cannot_be_sent_are_counted_and_logged_once(caplog):
    async with Cluster() as cluster:
        first = await cluster.add()
        first._carry_out(GossipStep([Send(MemberAddress("::1", 7073), b"x")] * 3, [], []))
        assert first.unsent == 3
        assert caplog.text.count("a packet could not be sent") == 1


@run
async def test_too_many_instances_are_refused_before_the_start_as_well():
    registry = GossipRegistry()
    for number in range(64):
        await registry.announce(instance(f"i-{number:02}"))
    with pytest.raises(InvalidInput, match="65 of one member"):
        await registry.announce(instance("i-64"))
    await registry.start()
    assert len(ids(registry)) == 64
    await registry.close()
    with pytest.raises(Closed):
        await registry.announce(instance("i-64"))
    await registry.withdraw("billing", "i-00")
    assert ids(registry) == []


@run
async def test_a_port_in_use_is_named():
    async with Cluster() as cluster:
        first = await cluster.add()
        with pytest.raises(Unavailable, match=rf"host: cannot listen at 127\.0\.0\.1, port {first.address[1]}"):
            await cluster.add([], port=first.address[1])


@pytest.mark.parametrize("turns", range(0, 12, 2))
@run
async def test_a_start_that_is_cancelled_listens_no_more(turns):
    port = free_port()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        registry = open_registry(f"gossip://127.0.0.1:{silent.getsockname()[1]}", port=port)
        starting = asyncio.create_task(registry.start())
        for _ in range(turns):
            await asyncio.sleep(0)
        starting.cancel()
        with suppress(asyncio.CancelledError):
            await starting
        async with Cluster() as cluster:
            await cluster.add([], port=port)


@run
async def test_a_connection_whose_other_side_takes_nothing_is_cut_off(monkeypatch):
    accepted: list[asyncio.StreamWriter] = []
    real = StateLinks._accept

    def accept(self: StateLinks, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        accepted.append(writer)
        real(self, reader, writer)

    monkeypatch.setattr(StateLinks, "_accept", accept)
    monkeypatch.setattr("wherry.mesh.gossip.links.EXCHANGE_S", 0.5)
    async with Cluster() as cluster:
        first = await cluster.add()
        # Far more than the sockets take.
        monkeypatch.setattr(first._states._part, "answer", lambda _offer: bytes(16 << 20))
        reader, writer = await asyncio.open_connection(*first.address, limit=1 << 10)
        own, other = secrets.token_bytes(16), await reader.readexactly(16)
        sealed = Seal(KEY, "wherry", STATES).between(other, own).seal(b"an offer")
        writer.write(own + len(sealed).to_bytes(4, "little") + sealed)
        await until(lambda: first.refused == 1 and not first._states._served)
        assert [each.transport.get_write_buffer_size() for each in accepted] == [0]
        assert accepted[0].transport.is_closing()
        writer.close()
