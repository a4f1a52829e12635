"""The members and the network of one run, in virtual time. Runs the core itself; judges nothing.

A crashed member answers nothing, and its name and address may come back in a later life. A stopped one (SIGSTOP) finds
what arrived meanwhile when it goes on, as far as a socket keeps it. A slow one takes everything late. State exchanges
pass the same network: each of the three messages takes time, and none passes a cut. What no member may do at any time
is noted here, where it can be seen.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable
from random import Random

from wherry.mesh.gossip.codec.packets import PacketKind, decode_packet
from wherry.mesh.gossip.codec.seal import SEAL_BYTES
from wherry.mesh.gossip.core import Gossip, GossipStep
from wherry.mesh.gossip.terms import GossipTerms
from wherry.mesh.gossip.values import Claim, MemberAddress, Standing, What
from wherry.mesh.instance import Instance
from wherry.sim.gossip.gossip_plan import PERIOD_MS, GossipPlan

SOCKET_PACKETS = 300
"""What the socket of a stopped process keeps."""

EXCHANGE_BYTES = 200
"""Of a connection itself, for the count: its handshake and its end."""


class MemberProcess:
    """One process: a member from its start to its end."""

    def __init__(self, core: Gossip, born: int) -> None:
        self.core = core
        self.name, self.address = core.own.name, core.own.address
        self.born_period = born
        self.is_running = True
        self.ended_period = 0
        self.has_left = False
        """Whether it announced its end."""
        self.side = 0
        """Members on different sides of a cut do not reach each other."""
        self.slow_ms = 0
        self.accused = 0
        """Members that it suspected itself since it is slow."""
        self.stops = False
        """Whether it is to be stopped as soon as it has sent a PING."""
        self.stopped: list[tuple[bytes, MemberAddress]] | None = None
        """What arrived since the process was stopped."""
        self.stopped_ms = 0.0


class GossipWorld:
    """The world of one run."""

    def __init__(self, plan: GossipPlan, seed: int) -> None:
        self.plan = plan
        self.chance = Random(f"gossip world {seed}")
        self.now_ms = 0.0
        self.loss, self.repeats = plan.loss, plan.repeats
        self.lives: dict[str, MemberProcess] = {}
        """The last life of each name."""
        self.at: dict[MemberAddress, MemberProcess] = {}
        self.sent_bytes: Counter[str] = Counter()
        self.largest_packet = 0
        self.packets = self.exchanges = 0
        self.expected: dict[str, tuple[Instance, ...]] = {}
        """What each name announced last."""
        self.events: Counter[What] = Counter()
        self.deaths: list[tuple[int, MemberProcess, MemberProcess]] = []
        """When a member held another dead, and the last life of that one."""
        self.suspicions: list[tuple[int, MemberProcess]] = []
        """When a member was suspected."""
        self.faults: list[str] = []
        """What no member may do at any time, each after the name of its checker."""
        self.blocked: Counter[tuple[str, str]] = Counter()
        """Links from one member to another that pass nothing, with how many cuts they are in."""
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0
        self._terms = GossipTerms(period_ms=PERIOD_MS, forget_periods=plan.forget_periods)

    @property
    def period(self) -> int:
        """Return the period that the run is in."""
        return int(self.now_ms // PERIOD_MS)

    @property
    def running(self) -> list[MemberProcess]:
        """Return the processes that run, stopped ones among them."""
        return [life for life in self.lives.values() if life.is_running]

    def run_until(self, end_ms: float) -> None:
        """Let everything happen that happens before a time."""
        while self._queue and self._queue[0][0] < end_ms:
            self.now_ms, _, happen = heapq.heappop(self._queue)
            happen()
        self.now_ms = end_ms

    def start(self, name: str, address: MemberAddress, birth: int, seeds: list[MemberAddress]) -> MemberProcess:
        """Start a process; one of the same name ran before, or none."""
        chance = Random(self.chance.getrandbits(64))
        life = MemberProcess(Gossip(name, address, birth, chance, self._terms, seeds), self.period)
        self.lives[name] = self.at[address] = life
        self.expected[name] = ()
        self.later(self.chance.random() * PERIOD_MS, lambda: self._tick(life))
        return life

    def announce(self, life: MemberProcess, instances: tuple[Instance, ...]) -> None:
        """Let a member change what it provides."""
        self.expected[life.name] = instances
        life.core.announce(instances)

    def bury(self, address: MemberAddress, count: int) -> None:
        """Let all members hold names dead that have no process, as many that once ended."""
        for life in self.running:
            for number in range(count):
                alive = Claim(f"ended-{number}", address, 1, Standing.ALIVE, 0)
                life.core.members.merge(alive, self.now_ms)
                life.core.members.merge(alive._replace(standing=Standing.DEAD), self.now_ms)

    def leave(self, life: MemberProcess) -> None:
        """Let a member say that it leaves, and end it."""
        life.has_left = True
        self._carry_out(life, life.core.leave())
        self.end(life)

    def end(self, life: MemberProcess) -> None:
        """End a process, as a crash does."""
        life.is_running = False
        life.ended_period = self.period

    def stop(self, life: MemberProcess) -> None:
        """Stop a process, as SIGSTOP does."""
        life.stopped, life.stopped_ms = [], self.now_ms

    def go_on(self, life: MemberProcess) -> None:
        """Let a stopped process go on: it takes what arrived, at once."""
        arrived, life.stopped = life.stopped or [], None
        if life.is_running:
            step = life.core.tick(self.now_ms)
            self.faults += [
                f"accused_at_once: {life.name} was stopped, and holds {event.name} {event.what} before it read anything"
                for event in step.events
                if event.what in {What.SUSPECTED, What.DEAD} and self.now_ms - life.stopped_ms >= PERIOD_MS
            ]
            self._carry_out(life, step)
            for body, source in arrived:
                self._receive(life, body, source)

    def reaches(self, one: MemberProcess, other: MemberProcess) -> bool:
        """Return whether there is no cut from one process to another."""
        return one.side == other.side and not self.blocked[one.name, other.name]

    def unblock(self, link: tuple[str, str]) -> None:
        """End the cut of a link."""
        del self.blocked[link]

    def later(self, delay_ms: float, happen: Callable[[], None]) -> None:
        """Let something happen after a time."""
        self._count += 1
        heapq.heappush(self._queue, (self.now_ms + delay_ms, self._count, happen))

    def _tick(self, life: MemberProcess) -> None:
        if life.is_running:
            self.later(self._terms.tick_ms, lambda: self._tick(life))
            if life.stopped is None:
                step = life.core.tick(self.now_ms)
                life.accused += sum(event.what is What.SUSPECTED for event in step.events)
                self._carry_out(life, step)

    def _carry_out(self, life: MemberProcess, step: GossipStep) -> None:
        for to, body in step.sends:
            self._count_bytes(life, len(body) + SEAL_BYTES)
            self.largest_packet = max(self.largest_packet, len(body) + SEAL_BYTES)
            self.packets += 1
            self._look_into(life, to, body)
            self._transmit(life, to, body)
            if life.stops and decode_packet(body).kind is PacketKind.PING:
                life.stops = False
                self.stop(life)  # the answer waits in the socket
            if self.repeats and self.chance.random() < self.repeats:
                self._transmit(life, to, body)
        for to in step.exchanges:
            self._exchange(life, to)
        for event in step.events:
            self.events[event.what] += 1
            if event.what is What.DEAD and event.name in self.lives:
                self.deaths.append((self.period, life, self.lives[event.name]))
            elif event.what is What.SUSPECTED and event.name in self.lives:
                self.suspicions.append((self.period, self.lives[event.name]))

    def _look_into(self, life: MemberProcess, to: MemberAddress, body: bytes) -> None:
        """Note a packet to a member that its sender suspects or holds dead, and that does not tell it so."""
        other = self.at.get(to)
        held = None if other is None else life.core.members.find(other.name)
        if held is None or held.address != to or held.standing is Standing.ALIVE:
            return
        if not any(item.name == held.name for item in decode_packet(body).items if isinstance(item, Claim)):
            self.faults.append(f"told: {life.name} holds {held.name} {held.standing.name}, and does not tell it")

    def _count_bytes(self, life: MemberProcess, count: int) -> None:
        self.sent_bytes[life.name] += count

    def _transmit(self, life: MemberProcess, to: MemberAddress, body: bytes) -> None:
        if self.loss and self.chance.random() < self.loss:
            return
        self.later(self._delay_ms(), lambda: self._arrive(life, to, body))

    def _delay_ms(self) -> float:
        return 0.2 + self.chance.random() * self.plan.delay_ms

    def _arrive(self, life: MemberProcess, to: MemberAddress, body: bytes) -> None:
        other = self.at.get(to)
        if other is None or not other.is_running or not self.reaches(life, other):
            return
        source = life.address
        if other.stopped is not None:
            if len(other.stopped) < SOCKET_PACKETS:
                other.stopped.append((body, source))
        elif other.slow_ms:
            self.later(other.slow_ms, lambda: self._receive(other, body, source))
        else:
            self._receive(other, body, source)

    def _receive(self, life: MemberProcess, body: bytes, source: MemberAddress) -> None:
        if life.is_running and life.stopped is None:
            self._carry_out(life, life.core.receive(body, source, self.now_ms))

    def _exchange(self, life: MemberProcess, to: MemberAddress) -> None:
        """Pass the three messages of a state exchange, each if both sides are there then."""
        self.exchanges += 1
        self._count_bytes(life, EXCHANGE_BYTES)
        other = self.at.get(to)
        if other is None or other is life:
            return

        def both_there() -> bool:
            there = life.is_running and other.is_running and life.stopped is other.stopped is None
            return there and self.reaches(life, other) and self.reaches(other, life)

        def offer() -> None:
            if both_there():
                self._count_bytes(life, len(first))
                answer, step = other.core.answer(first, self.now_ms)
                self._count_bytes(other, len(answer))
                self._carry_out(other, step)
                self.later(self._delay_ms() + life.slow_ms, lambda: conclude(answer))

        def conclude(answer: bytes) -> None:
            if both_there():
                rest, step = life.core.conclude(to, answer, self.now_ms)
                self._count_bytes(life, len(rest))
                self._carry_out(life, step)
                self.later(self._delay_ms() + other.slow_ms, lambda: absorb(rest))

        def absorb(rest: bytes) -> None:
            if both_there():
                self._carry_out(other, other.core.absorb(rest, self.now_ms))

        first = life.core.offer()
        self.later(self._delay_ms() + other.slow_ms, offer)
