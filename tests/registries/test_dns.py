"""DNS as a registry, with a real name server whose records change, that dies and comes back."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import dns.message
import dns.rcode
import dns.rdatatype
import dns.rrset
import pytest

from tests.registries.name_server import NameServer
from tests.registries.waiting import until, until_true, urls
from wherry.mesh.dns.registry import DnsRegistry
from wherry.mesh.opening import open_registry
from wherry.model.errors import InvalidInput, Unavailable

PEERS = ("peers A 127.0.0.1", "peers A 127.0.0.2", "six AAAA ::1")
SRV = ("_billing._tcp SRV 10 5 7080 peers", "_billing._tcp SRV 20 0 7081 six", "_orders._tcp SRV 0 0 7082 six")


@pytest.fixture
def server(tmp_path) -> Iterator[NameServer]:
    started = NameServer(tmp_path)
    started.write(*PEERS, *SRV)
    started.start()
    yield started
    started.kill()


def opened(server: NameServer, rest: str) -> DnsRegistry:
    """Open a registry that looks ten times a second."""
    mark = "&" if "?" in rest else "?"
    registry = open_registry(
        f"dns://{rest}{mark}nameserver={server.address}&period_ms_min=100&period_ms_max=200&timeout_ms=2000"
    )
    assert isinstance(registry, DnsRegistry)
    return registry


def run(server: NameServer, rest: str, play) -> None:
    async def whole() -> None:
        registry = opened(server, rest)
        await registry.start()
        try:
            await play(registry)
        finally:
            await registry.close()

    asyncio.run(whole())


def test_hosts_of_a_name_provide_every_service_and_changes_are_seen(server):
    async def play(registry):
        assert urls(registry) == urls(registry, "orders") == ["http://127.0.0.1:7080", "http://127.0.0.2:7080"]
        server.write("peers A 127.0.0.3")
        await until(registry, lambda: urls(registry) == urls(registry, "orders") == ["http://127.0.0.3:7080"])
        assert [each.service for each in registry.roster.of("orders")] == ["orders"]

    run(server, "peers.shop.test:7080", play)


def test_hosts_of_a_name_provide_the_services_that_are_named(server):
    async def play(registry):
        assert urls(registry) == ["https://[::1]:7080"]
        assert urls(registry, "orders") == []

    run(server, "six.shop.test:7080?services=billing&scheme=https", play)


def test_srv_records_name_instances_with_their_preference(server):
    async def play(registry):
        found = {each.url: dict(each.labels) for each in registry.roster.of("billing")}
        assert found == {
            "http://127.0.0.1:7080": {"host": "peers.shop.test", "priority": "10", "weight": "5"},
            "http://127.0.0.2:7080": {"host": "peers.shop.test", "priority": "10", "weight": "5"},
            "http://[::1]:7081": {"host": "six.shop.test", "priority": "20", "weight": "0"},
        }
        assert urls(registry, "orders") == ["http://[::1]:7082"]
        server.write(*PEERS, "_billing._tcp SRV 10 5 7090 six")
        await until(registry, lambda: urls(registry) == ["http://[::1]:7090"] and not urls(registry, "orders"))

    run(server, "shop.test?services=billing,orders", play)


def test_one_srv_name_is_one_service(server):
    async def play(registry):
        assert urls(registry) == []
        assert urls(registry, "orders") == ["http://[::1]:7082"]

    run(server, "_orders._tcp.shop.test", play)


def test_an_address_behind_a_target_changes(server):
    async def play(registry):
        server.write("peers A 127.0.0.9", "six AAAA ::1", *SRV)
        await until(registry, lambda: urls(registry) == ["http://127.0.0.9:7080", "http://[::1]:7081"])

    run(server, "shop.test?services=billing", play)


def test_what_was_known_last_stays_while_dns_is_down(server):
    async def play(registry):
        known = urls(registry)
        assert len(known) == 3
        changes: list[str] = []
        registry.roster.watch(changes.append)
        server.kill()
        await until_true(lambda: registry.failures > 1)
        assert not registry.reachable
        assert (urls(registry), changes) == (known, [])
        server.write(*PEERS, "_billing._tcp SRV 10 5 7099 six")
        server.start()
        await until(registry, lambda: urls(registry) == ["http://[::1]:7099"])
        await until_true(lambda: registry.reachable)

    run(server, "shop.test?services=billing", play)


def test_a_target_without_an_answer_keeps_its_addresses(server):
    async def play(registry):
        # The second target is of a zone that this name server refuses to answer for.
        server.write(*PEERS, SRV[0], "_billing._tcp SRV 20 0 7081 host.elsewhere.test.")
        await until(registry, lambda: urls(registry) == ["http://127.0.0.1:7080", "http://127.0.0.2:7080"])

    run(server, "shop.test?services=billing", play)


def test_a_name_that_is_gone_has_no_instances(server):
    async def play(registry):
        server.write(*SRV)
        await until(registry, lambda: urls(registry) == [])
        assert registry.reachable

    run(server, "peers.shop.test:7080", play)


def test_a_service_that_is_decidedly_not_there_has_no_instances(server):
    async def play(registry):
        server.write("_billing._tcp SRV 0 0 0 .")
        await until(registry, lambda: urls(registry) == [])

    run(server, "shop.test?services=billing", play)


def test_many_records_come_over_tcp(server):
    """Ask for more than fits in a datagram: the name server says so, and is asked again over TCP."""
    server.write(*(f"many A 127.1.{each // 250}.{each % 250 + 1}" for each in range(900)))

    async def play(registry):
        await until(registry, lambda: len(urls(registry)) == 900)

    run(server, "many.shop.test:7080", play)


def test_start_fails_while_dns_has_no_answer(server):
    server.kill()

    async def play() -> None:
        registry = opened(server, "peers.shop.test:7080")
        with pytest.raises(Unavailable, match=r"peers\.shop\.test"):
            await registry.start()
        await registry.close()

    asyncio.run(play())


@pytest.mark.parametrize(
    ("url", "field"),
    [
        ("dns://peers.shop.test", "name"),
        ("dns://peers..test:7080", "name"),
        ("dns://[::1]:7080", "name"),
        ("dns://peers.shop.test:0", "registry"),
        ("dns://peers.shop.test:7080/path", "registry"),
        ("dns://shop.test?services=a.b", "services"),
        ("dns://shop.test?services=", "services"),
        ("dns://shop.test:1?nameserver=a:b:c", "nameserver"),
        ("dns://shop.test:1?period_ms_min=9000&period_ms_max=8000", "period_ms_min"),
        ("dns://shop.test:1?scheme=ftp", "scheme"),
        ("dns://shop.test:1?period=9", "option"),
    ],
)
def test_a_url_that_makes_no_sense_names_the_field(url, field):
    with pytest.raises(InvalidInput) as refused:
        open_registry(url)
    assert refused.value.field == field


class FamilyServer(asyncio.DatagramProtocol):
    """A name server that may fail for one family of addresses: NSD answers for both or for none."""

    def __init__(self) -> None:
        self.fails = False
        self.questions = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self.port = transport.get_extra_info("sockname")[1]

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        asked = dns.message.from_wire(data)
        answer = dns.message.make_response(asked)
        (question,) = asked.question
        kind = dns.rdatatype.to_text(question.rdtype)
        content = {"A": ["10.0.0.1", "10.0.0.2"], "AAAA": ["fd00::1"], "SRV": ["0 0 80 peers.test."]}[kind]
        if kind == "A" and self.fails:
            self.questions += 1
            answer.set_rcode(dns.rcode.SERVFAIL)
        else:
            answer.answer.append(dns.rrset.from_text(question.name, 0, "IN", kind, *content))
        self.transport.sendto(answer.to_wire(), addr)  # type: ignore[attr-defined]


@pytest.mark.parametrize("url", ["dns://peers.test:80", "dns://test"])
def test_a_name_server_that_fails_for_one_family_changes_nothing_of_it(url):
    async def play() -> None:
        loop = asyncio.get_running_loop()
        transport, server = await loop.create_datagram_endpoint(FamilyServer, local_addr=("127.0.0.1", 0))
        registry = open_registry(
            f"{url}?services=billing&nameserver=127.0.0.1:{server.port}&period_ms_min=100&period_ms_max=100"
        )
        assert isinstance(registry, DnsRegistry)
        await registry.start()
        known = urls(registry)
        assert known == ["http://10.0.0.1:80", "http://10.0.0.2:80", "http://[fd00::1]:80"]
        changes: list[str] = []
        registry.roster.watch(changes.append)
        server.fails = True
        await until_true(lambda: registry.kept >= 3 or bool(changes))
        assert (urls(registry), changes) == (known, [])
        server.fails = False
        await registry.close()
        transport.close()

    asyncio.run(play())


@pytest.mark.parametrize("given", [("127.0.0.1",), ("ns.test", 53), 7, ("127.0.0.1", 0)])
def test_a_nameserver_that_is_no_address_is_refused_by_name(given):
    with pytest.raises(InvalidInput) as refused:
        open_registry("dns://shop.test:1", nameserver=given)
    assert refused.value.field == "nameserver"


def test_a_nameserver_may_be_a_host_and_a_port():
    assert open_registry("dns://shop.test:1", nameserver=("127.0.0.1", 5_353)).roster.services == {}
