"""The registry by gossip: a member with a clock, sockets and a roster. Decides nothing about members: the core does."""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
import time
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from typing import Any

from wherry.mesh.gossip.addresses import SeedAddresses, check_reach, checked_address, resolved
from wherry.mesh.gossip.codec.packets import check_name, encode_listing
from wherry.mesh.gossip.codec.seal import PACKETS, STATES, Seal, check_cluster, check_key
from wherry.mesh.gossip.core import Gossip, GossipStep
from wherry.mesh.gossip.joining import Joining
from wherry.mesh.gossip.links import GossipTls, PacketLink, StateLinks, StatePart, open_links
from wherry.mesh.gossip.services import ProvidedServices
from wherry.mesh.gossip.terms import GossipTerms
from wherry.mesh.gossip.values import Listing, MemberAddress, MemberEvent, What
from wherry.mesh.instance import Instance
from wherry.mesh.registry import Roster
from wherry.mesh.starting import Starting
from wherry.model import check
from wherry.model.errors import InvalidInput, Unavailable

SEEDS_MAX = 64
EXCHANGES_MAX = 4
"""State exchanges that this process has begun."""

WARN_S = 60.0
"""Between two warnings of one kind."""

DISPUTES = 3
"""Claims of another process under one's own name; fewer may come from an earlier life."""

_SHOWN = {What.JOINED, What.DEAD, What.LEFT}
_WARNINGS = {
    What.DISPUTED: "another process uses the name %s as well: give each its own",
    What.REFUSED: "the member %s is ignored, since there are as many as there may be",
}

_log = logging.getLogger("wherry.gossip")


class GossipRegistry:
    """A member of a cluster of gossip; a process that provides nothing is one as well.

    Parameters
    ----------
    seeds
        Addresses or host names of other members; all addresses of a name count, and are looked up again now and then.
        One that answers is enough. A process whose own address is among them is the first member if no other answers.
    host, port
        Where to listen, for UDP and TCP; the system chooses a port for 0.
    advertise
        Where others reach this member, if that is not where it listens; port 0 stands for the port above.
    name
        The name among the members, drawn if none is given. A restart with the same name takes the place of the old one.
    key
        At least 16 bytes that all members have; needed where other machines reach `host`.
    cluster
        Members of another cluster are strangers, even with the same key.
    period_ms
        The time between two probes; all members should have the same.
    tls
        Contexts for state exchanges, from `gossip_tls`.
    """

    def __init__(  # noqa: PLR0913  each is a choice of its own, and most programs make one or two of them
        self,
        seeds: Sequence[tuple[str, int]] = (),
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        advertise: tuple[str, int] | None = None,
        name: str | None = None,
        key: bytes = b"",
        cluster: str = "wherry",
        period_ms: int = 1_000,
        tls: GossipTls | None = None,
    ) -> None:
        if len(seeds) > SEEDS_MAX:
            raise InvalidInput("seeds", f"{len(seeds)} of them", f"at most {SEEDS_MAX}")
        self._seeds = [checked_address("seeds", seed, least_port=1) for seed in seeds]
        self._listen = checked_address("host", (host, port), least_port=0)
        self._advertise = None if advertise is None else checked_address("advertise", advertise, least_port=0)
        self.name = check_name(secrets.token_hex(8) if name is None else name)
        self._key, self._cluster = check_key(key), check_cluster(cluster)
        self._terms = GossipTerms(period_ms=check.integer("period_ms", period_ms, 20, 60_000))
        self._tls = tls
        self._roster = Roster()
        self._services = ProvidedServices(self._roster)
        self._own: dict[tuple[str, str], Instance] = {}
        self._starting = Starting()
        self._core: Gossip | None = None
        self._joining: Joining | None = None
        self._packets: PacketLink
        self._states: StateLinks
        self._tasks: set[asyncio.Task[None]] = set()
        self._exchanging = 0
        self._warned_at: dict[What, float] = {}
        self._disputes = 0

    @property
    def roster(self) -> Roster:
        """Return the instances that are known now, those of this process among them."""
        return self._roster

    @property
    def address(self) -> tuple[str, int]:
        """Return where others reach this member, once it has started."""
        host, port = self._started().own.address
        return host, port

    @property
    def members(self) -> tuple[str, ...]:
        """Return the names of the members that are alive or suspected, this one first."""
        return (self.name, *self._started().members.names)

    @property
    def refused(self) -> int:
        """Return how many packets and exchanges were not genuine: another key, another cluster, or broken."""
        self._started()
        return self._packets.refused + self._states.refused

    @property
    def unsent(self) -> int:
        """Return how many packets the system refused to send, as to an address that cannot be reached from `host`."""
        self._started()
        return self._packets.unsent

    async def start(self) -> None:
        """Begin to learn and to announce; return once a seed answered, or raise `Unavailable`.

        A start that fails or is cancelled closes the registry.
        """
        if self._starting.begun and not self._starting.closed:
            raise InvalidInput("start", "a registry that was started", "one that was not: make another one")
        await self._starting.run(self._begin, self._stop)

    async def _begin(self) -> None:
        host = (await resolved(self._listen.host))[0]
        advertise = self._listen if self._advertise is None else self._advertise
        shown = (await resolved(advertise.host))[0]
        check_reach(host, shown, self._key)
        self._packets, self._states, port = await open_links(host, self._listen.port, self._links)
        own = MemberAddress(shown, advertise.port or port)
        birth = time.time_ns() // 1_000_000
        core = self._core = Gossip(self.name, own, birth, random.SystemRandom(), self._terms)
        self._reannounce()
        self._keep(self._tick_for_ever())
        seeds = SeedAddresses(self._seeds, host, own)
        self._joining = Joining(core, seeds, self._states.exchange, self._carry_out)
        await self._joining.join()
        if seeds.has_names:
            self._keep(self._joining.follow())

    async def announce(self, instance: Instance) -> None:
        """Announce an instance of this process, or what changed of it; raise `InvalidInput` if there are too many."""
        self._starting.check_open()
        key = (instance.service, instance.id)
        before = self._own.get(key)
        self._own[key] = instance.checked()
        try:
            self._reannounce()
        except InvalidInput:
            self._restore(key, before)
            raise

    async def withdraw(self, service: str, instance_id: str) -> None:
        """Withdraw an instance of this process; without effect if there is none."""
        if self._own.pop((service, instance_id), None) is not None and not self._starting.closed:
            self._reannounce()

    async def close(self) -> None:
        """Leave, so that others need not find out; stop."""
        await self._starting.end()
        await self._stop()

    async def _stop(self) -> None:
        if self._core is None:
            return
        self._carry_out(self._core.leave())
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        await self._states.close()
        self._packets.close()
        self._services.provide(self.name, ())
        self._services.publish()

    # ----------------------------------------------------------------------------------------------------- what happens

    def _links(self) -> tuple[PacketLink, StateLinks]:
        packets = PacketLink(Seal(self._key, self._cluster, PACKETS), self._received)
        part = StatePart(self._offer, self._answer, self._conclude, self._absorb)
        return packets, StateLinks(Seal(self._key, self._cluster, STATES), part, self._tls)

    async def _tick_for_ever(self) -> None:
        core = self._started()
        while True:
            self._carry_out(core.tick(_now_ms()))
            await asyncio.sleep(self._terms.tick_ms / 1_000)

    def _received(self, body: bytes, source: MemberAddress) -> None:
        if self._core is not None:
            self._carry_out(self._core.receive(body, source, _now_ms()))
            if self._joining is not None:
                self._joining.received()

    def _offer(self) -> bytes:
        return self._started().offer()

    def _answer(self, offer: bytes) -> bytes:
        answer, step = self._started().answer(offer, _now_ms())
        self._carry_out(step)
        return answer

    def _conclude(self, at: MemberAddress, answer: bytes) -> bytes:
        rest, step = self._started().conclude(at, answer, _now_ms())
        self._carry_out(step)
        return rest

    def _absorb(self, rest: bytes) -> None:
        self._carry_out(self._started().absorb(rest, _now_ms()))

    def _carry_out(self, step: GossipStep) -> None:
        """Send packets, begin exchanges, and update the roster."""
        for to, body in step.sends:
            self._packets.send(body, to)
        for at in step.exchanges:
            if self._exchanging < EXCHANGES_MAX:
                self._exchanging += 1
                self._keep(self._exchange(at))
        for event in step.events:
            self._happened(event)
        self._services.publish()

    def _happened(self, event: MemberEvent) -> None:
        if event.what in _SHOWN:
            _log.info("member %s: %s", event.name, event.what)
        if event.what in _WARNINGS:
            self._warn(event)
            return
        member = self._started().members.live.get(event.name)
        self._services.provide(event.name, () if member is None else member.instances)

    def _warn(self, event: MemberEvent) -> None:
        self._disputes += event.what is What.DISPUTED
        if event.what is What.DISPUTED and self._disputes < DISPUTES:
            return
        now = time.monotonic()
        if now - self._warned_at.get(event.what, -WARN_S) >= WARN_S:
            self._warned_at[event.what] = now
            _log.warning(_WARNINGS[event.what], event.name)

    async def _exchange(self, at: MemberAddress) -> None:
        try:
            with suppress(Unavailable):  # the core wishes it again
                await self._states.exchange(at)
        finally:
            self._exchanging -= 1

    def _reannounce(self) -> None:
        instances = tuple(self._own.values())
        if self._core is None:
            encode_listing(Listing(self.name, 0, instances))  # refuses too many
            return  # `start` announces
        if instances != self._core.instances:
            self._core.announce(instances)
        self._services.provide(self.name, instances)
        self._services.publish()

    def _restore(self, key: tuple[str, str], before: Instance | None) -> None:
        if before is None:
            del self._own[key]
        else:
            self._own[key] = before

    def _keep(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _started(self) -> Gossip:
        if self._core is None:
            raise InvalidInput("registry", "not started", "one that was started")
        return self._core


def _now_ms() -> float:
    return asyncio.get_running_loop().time() * 1_000
