"""Members of gossip over real sockets: some as processes that are killed, some in this process."""

from __future__ import annotations

import asyncio
import json
import queue
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.integration.hooks import run
from tests.integration.receiver import until as until_seconds
from tests.ports import free_port
from wherry.mesh.gossip.codec.seal import STATES, Seal
from wherry.mesh.gossip.core import GossipStep
from wherry.mesh.gossip.links import CONNECTIONS_MAX, gossip_tls
from wherry.mesh.gossip.registry import EXCHANGES_MAX, GossipRegistry
from wherry.mesh.gossip.terms import GossipTerms
from wherry.mesh.gossip.values import MemberAddress, Send
from wherry.mesh.instance import Instance
from wherry.model.errors import InvalidInput, Unavailable

ROOT = Path(__file__).parents[2]
CERTIFICATES = ROOT / "tests/unit/security/certificates"
PATIENCE_S = 60.0
KEY = b"a key of the members"
PERIOD_MS = 50


# ------------------------------------------------------------------------------------------------------------ processes


class Process:
    """A member in a process of its own."""

    def __init__(self, name: str, seeds: list[int], port: int = 0, key: bytes = KEY) -> None:
        self.name = name
        words = [name, str(port), key.hex(), *map(str, seeds)]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.integration.gossip_member", *words],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._lines: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()
        self.seen: dict[str, Any] = {}
        self.until(lambda seen: "port" in seen)
        self.port = int(self.seen["port"])

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line)

    def until(self, holds: Callable[[dict[str, Any]], bool]) -> None:
        end = time.monotonic() + PATIENCE_S
        while not holds(self.seen):
            self.seen = json.loads(self._lines.get(timeout=max(end - time.monotonic(), 0.1)))

    def order(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            assert stream is not None
            stream.close()


@pytest.fixture
def start() -> Iterator[Callable[..., Process]]:
    with ExitStack() as stack:

        def begin(*given: Any, **more: Any) -> Process:
            process = Process(*given, **more)
            stack.callback(process.end)
            return process

        yield begin


@pytest.mark.rows("P9", "P10")
def test_five_processes_agree_and_one_that_is_killed_is_found_dead(start):
    first = start("member-0", [])
    others = [start(f"member-{number}", [first.port]) for number in range(1, 5)]
    everyone = [first, *others]
    for number, process in enumerate(everyone):
        process.order(f"announce http://127.0.0.1:{8_000 + number}")
    expected = {f"member-{number}": f"http://127.0.0.1:{8_000 + number}" for number in range(5)}
    for process in everyone:
        process.until(lambda seen: seen["billing"] == expected)

    others[0].order("announce http://127.0.0.1:9000")
    expected["member-1"] = "http://127.0.0.1:9000"
    for process in everyone:
        process.until(lambda seen: seen["billing"] == expected)

    first.process.kill()  # the seed of all: the others know each other
    del expected["member-0"]
    for process in others:
        process.until(lambda seen: seen["billing"] == expected)

    again = start("member-0", [others[3].port], port=first.port)  # the same name and address, another process
    again.order("announce http://127.0.0.1:8100")
    expected["member-0"] = "http://127.0.0.1:8100"
    for process in [again, *others]:
        process.until(lambda seen: seen["billing"] == expected)

    others[1].order("close")
    del expected["member-2"]
    for process in [again, others[0], others[2], others[3]]:
        process.until(lambda seen: seen["billing"] == expected)
    assert others[1].process.wait(PATIENCE_S) == 0


@pytest.mark.rows("P9")
def test_a_process_that_was_stopped_is_held_dead_and_comes_back(start):
    first = start("member-0", [])
    others = [start(f"member-{number}", [first.port]) for number in (1, 2)]
    everyone = [first, *others]
    for process in everyone:
        process.order("announce http://127.0.0.1:8000")
    expected = {process.name: "http://127.0.0.1:8000" for process in everyone}
    for process in everyone:
        process.until(lambda seen: seen["billing"] == expected)
    others[1].process.send_signal(signal.SIGSTOP)
    first.until(lambda seen: sorted(seen["billing"]) == ["member-0", "member-1"])
    others[1].process.send_signal(signal.SIGCONT)
    first.order("announce http://127.0.0.1:8001")
    expected["member-0"] = "http://127.0.0.1:8001"
    for process in everyone:
        process.until(lambda seen: seen["billing"] == expected)


# --------------------------------------------------------------------------------------------------------- this process


def instance(name: str, url: str = "http://127.0.0.1:7080", version: int = 0, **more: Any) -> Instance:
    return Instance(service="billing", id=name, url=url, version=version, **more)


async def until(reached: Callable[[], bool]) -> None:
    await until_seconds(reached, PATIENCE_S)


class Cluster:
    """Members in this process, closed at the end."""

    def __init__(self) -> None:
        self.members: list[GossipRegistry] = []

    async def __aenter__(self) -> Cluster:
        return self

    async def __aexit__(self, *_: object) -> None:
        for member in reversed(self.members):
            await member.close()

    async def add(self, seeds: list[tuple[str, int]] | None = None, **more: Any) -> GossipRegistry:
        chosen = seeds if seeds is not None else [member.address for member in self.members[:1]]
        member = GossipRegistry(chosen, **{"key": KEY, "period_ms": PERIOD_MS, **more})
        await member.start()
        self.members.append(member)
        return member


def ids(registry: GossipRegistry) -> list[str]:
    return [each.id for each in registry.roster.of("billing")]


@pytest.mark.rows("P9")
@run
async def test_what_a_member_provides_changes_and_is_withdrawn_everywhere():
    async with Cluster() as cluster:
        first, second, caller = [await cluster.add() for _ in range(3)]
        await first.announce(instance("a"))
        await second.announce(instance("b"))
        await until(lambda: all(ids(each) == ["a", "b"] for each in cluster.members))
        await first.announce(instance("a", "http://127.0.0.1:7090", 1))
        await until(lambda: caller.roster.of("billing")[0].url == "http://127.0.0.1:7090")
        await first.withdraw("billing", "a")
        await first.withdraw("billing", "none")
        await until(lambda: all(ids(each) == ["b"] for each in cluster.members))
        await second.close()
        await until(lambda: ids(caller) == [] and len(caller.members) == 2)


@run
async def test_what_does_not_fit_into_packets_comes_by_state_exchange():
    async with Cluster() as cluster:
        first, second = await cluster.add(), await cluster.add()
        many = [instance(f"i-{number:02}", labels={"text": "x" * 500}) for number in range(40)]
        for each in many:
            await first.announce(each)
        await until(lambda: len(ids(second)) == len(many))
        assert second.roster.of("billing") == tuple(many)
        with pytest.raises(InvalidInput, match="65 of one member"):
            for number in range(40, 65):
                await first.announce(instance(f"i-{number:02}"))
        assert len(ids(first)) == 64, "and the one too many is not announced"


@run
async def test_a_member_with_another_key_learns_and_changes_nothing(monkeypatch):
    monkeypatch.setattr("wherry.mesh.gossip.joining.JOIN_S", 0.5)
    async with Cluster() as cluster:
        first, second = await cluster.add(), await cluster.add()
        await first.announce(instance("a"))
        await until(lambda: ids(second) == ["a"])
        for key, name in ((b"another key altogether", "wherry"), (b"", "wherry"), (KEY, "another")):
            stranger = GossipRegistry([first.address], key=key, cluster=name, period_ms=PERIOD_MS)
            with pytest.raises(Unavailable, match="no exchange of state with 127"):
                await stranger.start()
            assert stranger.roster.services == {}
        assert first.refused >= 3
        assert len(first.members) == len(second.members) == 2
        assert ids(first) == ids(second) == ["a"]


@run
async def test_junk_on_both_sockets_changes_nothing():
    async with Cluster() as cluster:
        first, second = await cluster.add(), await cluster.add()
        await until(lambda: len(first.members) == 2)
        with socket.socket(type=socket.SOCK_DGRAM) as sender:
            for size in (0, 1, 17, 100, 1_200, 9_000):
                sender.sendto(b"\x01" * size, first.address)
        reader, writer = await asyncio.open_connection(*first.address)
        writer.write(b"x" * 16 + b"\xff\xff\xff\xff")
        assert len(await reader.read()) == 16, "the nonce, and then the end"
        writer.close()
        reader, writer = await asyncio.open_connection(*first.address)
        own, other = b"n" * 16, await reader.readexactly(16)
        sealed = Seal(KEY, "wherry", STATES).between(other, own).seal(b"\x07 no state")
        writer.write(own + len(sealed).to_bytes(4, "little") + sealed)
        assert await reader.read() == b""
        writer.close()
        await until(lambda: first.refused >= 8)
        await first.announce(instance("a"))
        await until(lambda: ids(second) == ["a"])


@run
async def test_connections_that_prove_nothing_make_room():
    async with Cluster() as cluster:
        first = await cluster.add()
        silent = [await asyncio.open_connection(*first.address) for _ in range(CONNECTIONS_MAX + 4)]
        second = await cluster.add()
        assert len(second.members) == 2
        for reader, writer in silent[:4]:
            assert len(await reader.read()) == 16
            writer.close()
        for _, writer in silent[4:]:
            writer.close()


@run
async def test_an_exchange_that_stands_still_ends_on_both_sides(monkeypatch):
    monkeypatch.setattr("wherry.mesh.gossip.links.EXCHANGE_S", 0.2)
    monkeypatch.setattr("wherry.mesh.gossip.joining.JOIN_S", 0.0)
    async with Cluster() as cluster:
        first = await cluster.add()
        reader, writer = await asyncio.open_connection(*first.address)
        assert len(await reader.read()) == 16, "the nonce, and the end"
        writer.close()
        assert first.refused == 1

        with socket.create_server(("127.0.0.1", 0)) as silent, pytest.raises(Unavailable, match="TimeoutError"):
            await cluster.add([silent.getsockname()])


@run
async def test_what_a_member_begins_and_sends_is_bounded(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        at = MemberAddress(*silent.getsockname())
        async with Cluster() as cluster:
            first = await cluster.add()
            first._carry_out(GossipStep([], [at] * 50, []))
            assert len(first._tasks) == EXCHANGES_MAX + 1, "and the one that ticks"
            monkeypatch.setattr("wherry.mesh.gossip.links.UNSENT_BYTES_MAX", -1)
            first._carry_out(GossipStep([Send(at, b"x")] * 7, [], []))
            assert first._packets.dropped >= 7


@run
async def test_a_recorded_exchange_cannot_be_sent_again():
    async with Cluster() as cluster:
        first = await cluster.add()
        recorded = bytearray()

        async def record(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            upstream, downstream = await asyncio.open_connection(*first.address)
            down = asyncio.create_task(_pump(upstream, writer))
            while data := await reader.read(1 << 16):
                recorded.extend(data)
                downstream.write(data)
            downstream.close()
            await down
            writer.close()

        proxy = await asyncio.start_server(record, "127.0.0.1", 0)
        await cluster.add([proxy.sockets[0].getsockname()[:2]])
        proxy.close()
        assert len(recorded) > 16 + 4
        reader, writer = await asyncio.open_connection(*first.address)
        writer.write(bytes(recorded))
        assert len(await reader.read()) == 16, "no answer, but the nonce"
        writer.close()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(1 << 16):
        writer.write(data)


@run
async def test_state_exchanges_over_mutual_tls():
    authority = str(CERTIFICATES / "authority.pem")
    first_pair, second_pair = (
        (str(CERTIFICATES / f"{name}.pem"), str(CERTIFICATES / f"{name}.key")) for name in ("first", "second")
    )
    nameless = ssl.create_default_context(cafile=authority)
    nameless.check_hostname = False
    tls = gossip_tls(*first_pair, authority)
    async with Cluster() as cluster:
        first = await cluster.add(tls=tls)
        await first.announce(instance("a", labels={"text": "x" * 2_000}))
        second = await cluster.add(tls=gossip_tls(*second_pair, authority))
        assert ids(second) == ["a"]
        for other in (None, tls._replace(client=nameless), gossip_tls(*second_pair, second_pair[0])):
            await stranger_is_refused(GossipRegistry([first.address], key=KEY, tls=other))


async def stranger_is_refused(stranger: GossipRegistry) -> None:
    with pytest.MonkeyPatch.context() as patch, pytest.raises(Unavailable):
        patch.setattr("wherry.mesh.gossip.joining.JOIN_S", 0.2)
        patch.setattr("wherry.mesh.gossip.links.EXCHANGE_S", 2.0)
        await stranger.start()
    assert stranger.roster.services == {}


@run
async def test_a_process_that_is_its_own_seed_is_the_first_member():
    port = free_port()
    async with Cluster() as cluster:
        first = await cluster.add([("localhost", port)], port=port)
        assert first.members == (first.name,)
        second = await cluster.add([("127.0.0.1", port)])
        assert set(second.members) == {first.name, second.name}
        await first.close()
        again = await cluster.add([("127.0.0.1", port), second.address], port=port)
        assert second.name in again.members, "it learns from the other seed before start returns"


@run
async def test_without_an_answer_start_fails_and_leaves_nothing_open(monkeypatch):
    monkeypatch.setattr("wherry.mesh.gossip.joining.JOIN_S", 0.3)
    port = free_port()
    registry = GossipRegistry([("127.0.0.1", free_port())], port=port)
    with pytest.raises(Unavailable, match="no exchange of state with 127"):
        await registry.start()
    async with Cluster() as cluster:
        await cluster.add([], port=port)


@run
async def test_two_processes_with_one_name_are_reported(caplog):
    async with Cluster() as cluster:
        await cluster.add(name="same")
        await cluster.add()
        with suppress(Unavailable):
            await cluster.add(name="same")
        await until(lambda: "another process uses the name same as well" in caplog.text)
        assert caplog.text.count("another process uses") <= 2, "once a minute for each"


@run
async def test_a_member_that_does_not_fit_is_ignored_and_logged(caplog):
    async with Cluster() as cluster:
        first = await cluster.add()
        first._terms = first._started().members._terms = GossipTerms(period_ms=PERIOD_MS, members_max=2)
        await cluster.add()
        third = await cluster.add()
        assert len(first.members) == 2
        await until(lambda: f"the member {third.name} is ignored" in caplog.text)


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"host": "0.0.0.0", "key": KEY}, "advertise"),
        ({"host": "0.0.0.0", "advertise": ("127.0.0.1", 0)}, "key"),
        ({"key": b"short"}, "key"),
        ({"key": "text" * 8}, "key"),
        ({"cluster": ""}, "cluster"),
        ({"name": "two words"}, "name"),
        ({"period_ms": 1}, "period_ms"),
        ({"port": 65_536}, "host"),
        ({"seeds": [("127.0.0.1", 0)]}, "seeds"),
        ({"seeds": ["127.0.0.1:7073"]}, "seeds"),
        ({"seeds": [("127.0.0.1", 7073)] * 65}, "seeds"),
    ],
)
@run
async def test_a_bad_setting_is_refused_by_name(given, field):
    with pytest.raises(InvalidInput) as raised:
        await GossipRegistry(**given).start()
    assert raised.value.field == field
