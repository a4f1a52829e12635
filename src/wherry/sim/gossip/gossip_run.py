"""One run of gossip: members start, faults come and go, and after the last one everyone must agree in bounded time."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

from wherry.mesh.gossip.exchanging import SEED_PERIODS
from wherry.mesh.gossip.values import MemberAddress
from wherry.mesh.instance import Instance
from wherry.sim.gossip.gossip_after import flooded, repaired
from wherry.sim.gossip.gossip_checkers import AT_THE_END, QUIET_BYTES, GossipWatch, agreed
from wherry.sim.gossip.gossip_plan import PERIOD_MS, Act, GossipPlan, draw_plan
from wherry.sim.gossip.gossip_world import GossipWorld, MemberProcess

SEEDS = 2
"""The first members are the seeds of all others, and of each other."""

QUIET_PERIODS = 15
"""At the end, without any change: what is sent then is counted."""

BURY_PERIOD = 10
"""When all members learn of names that are dead."""

LINK_MEMBERS_MIN = 5
"""Where single links are cut: enough for helpers."""

WALL_MS = 1_700_000_000_000
"""The wall clock at the beginning."""


@dataclass
class GossipResult:
    """What a run found."""

    plan: GossipPlan
    violations: list[str]
    agreed_after: int
    """Periods after the last fault."""
    packets: int
    exchanges: int
    quiet_bytes: float
    """Bytes that a member sent in a period, at the end."""
    longest: dict[str, int] = field(default_factory=dict)


def run_gossip(seed: int, members: int | None = None) -> GossipResult:
    """Run a seed, and check it."""
    return _Run(seed, draw_plan(seed, members)).run()


def address_of(number: int) -> MemberAddress:
    """Return the address of the member with a number."""
    return MemberAddress(f"10.0.{number >> 8}.{number & 255}", 7073)


def start_members(world: GossipWorld, count: int) -> list[MemberProcess]:
    """Start members that all have the same seeds, and provide an instance each, except every third."""
    seeds = [address_of(number) for number in range(min(SEEDS, count))]
    lives = []
    for number in range(count):
        own = address_of(number)
        life = world.start(f"member-{number}", own, WALL_MS, [seed for seed in seeds if seed != own])
        lives.append(life)
        if number % 3:
            world.announce(life, instances_of(life, 0, 1))
    return lives


def instances_of(life: MemberProcess, version: int, count: int) -> tuple[Instance, ...]:
    """Return instances of a member, each of a service of its own; many are too large for packets."""
    host, _ = life.address
    return tuple(
        Instance(service=f"service-{at}", id=life.name, url=f"http://{host}:{7080 + at}", version=version)
        for at in range(count)
    )


class _Run:
    def __init__(self, seed: int, plan: GossipPlan) -> None:
        self._plan = plan
        self._world = GossipWorld(plan, seed)
        self._watch = GossipWatch(self._world)
        self._number = plan.members
        self._version = 0

    def run(self) -> GossipResult:
        """Run the plan."""
        world, plan = self._world, self._plan
        start_members(world, plan.members)
        acts = list(plan.acts)
        for period in range(plan.fault_periods):
            if period == BURY_PERIOD:
                world.bury(address_of((1 << 16) - 1), plan.tombs)
            if period == plan.seeds_end:
                for life in world.running[:SEEDS]:
                    world.end(life)
            while acts and acts[0].period <= period:
                self._act(acts.pop(0))
            self._pass_period()
        self._heal()
        agreed_after = self._settle()
        quiet = self._quiet_bytes() if agreed_after <= self._watch.bounds.agree else 0.0
        violations = self._watch.violations
        if quiet:
            violations += flooded(world, self._announce_small, self._pass_period)
            violations += repaired(world, self._announce_small, self._pass_period)
            self._settle()
        if quiet > QUIET_BYTES:
            violations.append(f"quiet_bounded: {quiet:.0f} bytes of each member in a period, with nothing to report")
        violations += [violation for check in AT_THE_END for violation in check(world)]
        return GossipResult(plan, violations, agreed_after, world.packets, world.exchanges, quiet, self._watch.longest)

    def _announce_small(self, life: MemberProcess) -> None:
        self._version += 1
        self._world.announce(life, instances_of(life, self._version, 1))

    def _pass_period(self) -> None:
        world = self._world
        for life in world.running:
            # The names of hosts are looked up again: seeds that ended before it had joined could tell it nothing.
            if not life.core.has_joined and (world.period - life.born_period) % SEED_PERIODS == SEED_PERIODS - 1:
                life.core.set_seeds([seed for seed in self._seeds() if seed != life.address])
        world.run_until((world.period + 1) * PERIOD_MS)
        self._watch.look()

    def _heal(self) -> None:
        """End all faults."""
        world = self._world
        world.loss = world.repeats = 0.0
        world.blocked.clear()
        for life in world.running:
            self._recover(life)

    def _recover(self, life: MemberProcess) -> None:
        """End what lasts of a member."""
        if life.side or life.slow_ms or life.stopped is not None:
            self._watch.disturb(life)
        life.side = life.slow_ms = 0
        life.stops = False
        if life.stopped is not None:
            self._world.go_on(life)

    def _settle(self) -> int:
        """Return after how many periods everyone agreed; one more than the bound if they did not."""
        for periods in range(self._watch.bounds.agree + 1):
            if not agreed(self._world):
                return periods
            self._pass_period()
        return self._watch.bounds.agree + 1

    def _quiet_bytes(self) -> float:
        world = self._world
        for _ in range(QUIET_PERIODS):  # updates that are still sent come to their end
            self._pass_period()
        before = world.sent_bytes.total()
        for _ in range(QUIET_PERIODS):
            self._pass_period()
        return (world.sent_bytes.total() - before) / QUIET_PERIODS / max(len(world.running), 1)

    def _act(self, act: Act) -> None:
        """Do one act of the plan, if there is a member that it can happen to."""
        world = self._world
        if act.what in {"join", "restart"} and not self._seeds():
            return
        if act.what == "join":
            self._number += 1
            world.start(f"member-{self._number}", address_of(self._number), self._wall_ms(), self._seeds())
            return
        if act.what == "restart":
            gone = [life for life in world.lives.values() if not life.is_running]
            if gone:
                self._restart(gone[act.which % len(gone)], act)
            return
        # Two members stay, or there would be nobody to join by; they may be cut off, slow and stopped.
        lives = world.running[SEEDS:] if act.what in {"crash", "leave"} else world.running
        if lives:
            self._happen(lives[act.which % len(lives)], act)

    def _happen(self, life: MemberProcess, act: Act) -> None:
        world = self._world
        match act.what:
            case "crash":
                world.end(life)
            case "leave":
                if life.stopped is None:
                    world.leave(life)
            case "announce" | "announce large":
                self._version += 1
                world.announce(life, instances_of(life, self._version, 20 if act.what == "announce large" else 2))
            case "withdraw":
                world.announce(life, ())
            case "cut":
                for other in world.running[:: 2 + act.which % 3]:
                    other.side = 1
                    self._until(act, other)
            case "cut one":
                life.side = 2 + act.which
                self._until(act, life)
            case "cut link" | "one way":
                self._cut_link(life, act)
            case "slow":
                life.slow_ms, life.accused = self._plan.slow_ms, 0
                world.later(act.periods * PERIOD_MS - 1, lambda: self._watch.look_at_slow(life, act.periods))
                self._until(act, life)
            case "stop":
                life.stops = True
                self._until(act, life)

    def _cut_link(self, life: MemberProcess, act: Act) -> None:
        """Cut a member off from one other, in one direction or both; helpers reach both."""
        world = self._world
        others = [other for other in world.running if other is not life]
        if len(world.running) < LINK_MEMBERS_MIN:
            return
        other = others[(act.which >> 4) % len(others)]
        links = [(life.name, other.name)] + ([(other.name, life.name)] if act.what == "cut link" else [])
        # One link of a member at a time: more could leave no helper.
        if any(count and {life.name, other.name} & {*link} for link, count in world.blocked.items()):
            return
        for link in links:
            world.blocked[link] += 1
            world.later(act.periods * PERIOD_MS, partial(world.unblock, link))

    def _until(self, act: Act, life: MemberProcess) -> None:
        self._world.later(act.periods * PERIOD_MS, lambda: self._recover(life))

    def _restart(self, life: MemberProcess, act: Act) -> None:
        """Start a process with the name of one that ended; sometimes its clock was set back, or its address is new."""
        address = life.address
        if act.which % 3 == 0:
            self._number += 1
            address = address_of(self._number)
        birth = WALL_MS - 1_000_000 if act.which % 4 == 0 else self._wall_ms()
        started = self._world.start(life.name, address, birth, self._seeds())
        if act.which % 2:
            self._version += 1
            self._world.announce(started, instances_of(started, self._version, 1))

    def _wall_ms(self) -> int:
        return WALL_MS + int(self._world.now_ms)

    def _seeds(self) -> list[MemberAddress]:
        """Return where a new member may join: at the seeds, or at others when these are gone."""
        seeds = [life for life in self._world.running if life.stopped is None and not life.side][:SEEDS]
        return [life.address for life in seeds]
