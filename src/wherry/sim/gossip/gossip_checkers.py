"""What must hold of members: judged by what each holds, period by period, and by what really is.

How long something may take is derived from the terms of the protocol, in `gossip_bounds`. How often something may go
wrong is a number here, chosen by hand: small, and more than a thousand seeds needed.
"""

from __future__ import annotations

from collections.abc import Callable

from wherry.mesh.gossip.terms import PACKET_BYTES_MAX
from wherry.sim.gossip.gossip_bounds import bounds_of
from wherry.sim.gossip.gossip_world import GossipWorld, MemberProcess

FALSELY_DEAD, FALSELY_DEAD_LOSSY = 1, 4
"""So often in a run a member is held dead to which nothing happened, where others are slow, stopped or cut off; and
where a tenth of the packets is lost, or more."""

JOIN_PERIODS = 30
"""A member that is younger than this when the network is cut may have joined on one side only."""

SMALL_INSTANCES = 2
"""Such a list fits into packets."""

FALSELY_SUSPECTED = 2
"""So often in a run a member is suspected, where no packet is lost or late, and nobody slow, stopped or cut off."""

CLEAR_MS = 50
"""Of delays, with which also the way through a helper takes less than the rest of a period."""

CALM_PERIODS = 10

SLOW_MS, SLOW_PERIODS = 2_000, 10
"""A member that is so slow for so long takes the fault for its own."""

SLOW_ACCUSES = 2
"""So many members such a one suspects, and one more each second period: its answers come late, so that its own period
soon is two or more."""

QUIET_BYTES = 900
"""What a member sends in a period when everyone agrees, on average."""


class GossipWatch:
    """Looks at all members once a period, and keeps what broke a bound."""

    def __init__(self, world: GossipWorld) -> None:
        self._world = world
        self.bounds = bounds_of(world.plan.members_most)
        self.violations: list[str] = []
        self._since: dict[tuple[str, str, str], int] = {}
        """Since when a member holds another wrongly: by checker, holder and held."""
        self._disturbed: dict[str, int] = {}
        self._cut_at = 0
        self._dropped: dict[MemberProcess, int] = {}
        """Since when a process that ended is held dead by one of the others."""
        self.longest: dict[str, int] = {}
        self._falsely_dead: dict[tuple[str, int], None] = {}
        """Members with their incarnation that were held dead, though nothing had happened to them for a while."""
        self._falsely_suspected: dict[tuple[str, int], None] = {}

    def disturb(self, life: MemberProcess) -> None:
        """Note that a member was cut off, stopped or slow in this period: bounds count from the next one on."""
        self._disturbed[life.name] = self._world.period

    def look_at_slow(self, life: MemberProcess, periods: int) -> None:
        """Count whom a member suspected while it was slow: it must come to take the fault for its own."""
        if life.is_running and life.slow_ms >= SLOW_MS and periods >= SLOW_PERIODS:
            self.longest["slow_accuses"] = max(self.longest.get("slow_accuses", 0), life.accused)
            if life.accused > SLOW_ACCUSES + periods // 2:
                self.violations.append(f"slow_accuses: {life.name} was slow, and suspected {life.accused} members")

    def look(self) -> None:
        """Compare what everyone holds with what is."""
        for life in self._world.running:
            if life.stopped is not None or life.slow_ms or life.side:
                self.disturb(life)
            if life.side:
                self._cut_at = self._world.period
        if self._cut_at == self._world.period:
            for life in self._world.running:
                if self._world.period - life.born_period < JOIN_PERIODS:
                    self.disturb(life)  # it may have joined on one side of the cut only
        for period, _, other in self._world.deaths:
            calm_since = max(self._disturbed.get(other.name, 0), self._cut_at, other.born_period)
            if other.is_running and period - calm_since > CALM_PERIODS:
                self._falsely_dead[other.name, other.core.own.incarnation] = None
                self.longest["falsely_dead"] = len(self._falsely_dead)
                most = FALSELY_DEAD if self._world.plan.loss < 0.1 else FALSELY_DEAD_LOSSY
                if len(self._falsely_dead) == most + 1:
                    self.violations.append(f"falsely_dead: {[name for name, _ in self._falsely_dead]}, at {period}")
        self._world.deaths.clear()
        self._look_at_suspicions()
        self.violations += self._world.faults
        self._world.faults.clear()
        holders = [life for life in self._world.running if life.stopped is None]
        for holder in holders:
            live = holder.core.members.live
            for other in self._world.lives.values():
                if other is not holder:
                    self._judge(holder, other, other.name in live)

    def _look_at_suspicions(self) -> None:
        world = self._world
        calm_since = max([self._cut_at, *self._disturbed.values()]) + CALM_PERIODS
        is_clear = not world.loss and world.plan.delay_ms <= CLEAR_MS
        for period, other in world.suspicions:
            since = max(calm_since, other.born_period + CALM_PERIODS)
            if is_clear and other.is_running and since < period:
                self._falsely_suspected[other.name, other.core.own.incarnation] = None
                self.longest["falsely_suspected"] = len(self._falsely_suspected)
                if len(self._falsely_suspected) == FALSELY_SUSPECTED + 1:
                    names = [name for name, _ in self._falsely_suspected]
                    self.violations.append(f"falsely_suspected: {names}, at {period}")
        world.suspicions.clear()

    def _is_calm(self, life: MemberProcess, since: int) -> bool:
        """Return whether nothing was wrong with a member and the network for a while, up to a period."""
        disturbed = max(self._disturbed.get(life.name, 0), self._cut_at, life.born_period)
        return self._world.loss < 0.1 and disturbed + CALM_PERIODS < since

    def _judge(self, holder: MemberProcess, other: MemberProcess, is_held: bool) -> None:
        if other.is_running:
            self._count("live_held_dead", holder, other, not is_held and holder.core.has_joined, self.bounds.held_dead)
            self._end("gone_held_live", holder, other)
            self._end("left_held_live", holder, other)
            self._end("gone_spread", holder, other)
            if is_held:
                instances = holder.core.members.live[other.name].instances
                stale = instances != self._world.expected[other.name]
                self._count("announced_known", holder, other, stale, self.bounds.known)
                is_small = len(self._world.expected[other.name]) <= SMALL_INSTANCES >= len(instances)
                now = self._world.period
                is_late = stale and is_small and self._is_calm(holder, now) and self._is_calm(other, now)
                self._count("small_known", holder, other, is_late, self.bounds.small_known)
        else:
            self._count("gone_held_live", holder, other, is_held, self.bounds.held_live)
            ended = other.ended_period
            is_late = is_held and other.has_left and self._is_calm(holder, ended) and self._is_calm(other, ended)
            self._count("left_held_live", holder, other, is_late, self.bounds.left)
            calm_since = max(self._disturbed.get(holder.name, 0), self._cut_at, holder.born_period) + CALM_PERIODS
            if not is_held and calm_since < other.ended_period:
                self._dropped.setdefault(other, self._world.period)
            is_late = is_held and calm_since < self._dropped.get(other, 0)
            is_clear = not self._world.loss and not self._world.blocked
            most = self.bounds.gone_spread_clear if is_clear else self.bounds.gone_spread
            self._count("gone_spread", holder, other, is_late, most)
            self._end("live_held_dead", holder, other)
            self._end("announced_known", holder, other)
            self._end("small_known", holder, other)

    def _end(self, checker: str, holder: MemberProcess, other: MemberProcess) -> None:
        self._since.pop((checker, holder.name, other.name), None)

    def _count(self, checker: str, holder: MemberProcess, other: MemberProcess, is_wrong: bool, most: int) -> None:
        key = (checker, holder.name, other.name)
        if not is_wrong:
            self._since.pop(key, None)
            return
        period = self._world.period
        since = self._since.setdefault(key, period)
        disturbed = max(self._disturbed.get(holder.name, 0), self._disturbed.get(other.name, 0), holder.born_period)
        lasts = period - max(since, disturbed, other.born_period)
        self.longest[checker] = max(self.longest.get(checker, 0), lasts)
        if lasts == most + 1:
            self.violations.append(f"{checker}: {holder.name} about {other.name} for {lasts} periods, at {period}")


def agreed(world: GossipWorld) -> list[str]:
    """Everyone that runs knows who else runs, and what each provides; and all fingerprints are equal."""
    running = {life.name for life in world.running}
    found = []
    for life in world.running:
        held = {life.name, *life.core.members.live}
        if held != running:
            found.append(f"agreed: {life.name} lacks {sorted(running - held)}, has too many {sorted(held - running)}")
        found += [
            f"agreed: {life.name} has version {member.held} of the list of {member.name}"
            for member in life.core.members.live.values()
            if member.instances != world.expected[member.name]
        ]
    if not found and len({life.core.fingerprint for life in world.running}) > 1:
        found.append("agreed: fingerprints differ, though everyone knows the same")
    return found


def packets_bounded(world: GossipWorld) -> list[str]:
    """No packet is larger than it may be."""
    if world.largest_packet <= PACKET_BYTES_MAX:
        return []
    return [f"packets_bounded: a packet of {world.largest_packet} bytes"]


NAMES = (
    "accused_at_once",
    "agreed",
    "announced_known",
    "falsely_dead",
    "falsely_suspected",
    "flooded",
    "gone_held_live",
    "gone_spread",
    "left_held_live",
    "live_held_dead",
    "packets_bounded",
    "quiet_bounded",
    "repaired",
    "slow_accuses",
    "small_known",
    "told",
)
"""What violations begin with."""

AT_THE_END: tuple[Callable[[GossipWorld], list[str]], ...] = (agreed, packets_bounded)
