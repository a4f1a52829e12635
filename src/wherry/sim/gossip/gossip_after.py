"""Two trials of a whole cluster after everyone agreed: updates reach most at once, and who missed one asks for it.

In a run with faults chance decides who misses what; here it is known, so that a bound can be short.
"""

from __future__ import annotations

from collections.abc import Callable

from wherry.mesh.gossip.exchanging import SETTLE_PERIODS
from wherry.sim.gossip.gossip_bounds import REPAIR_PERIODS
from wherry.sim.gossip.gossip_checkers import CLEAR_MS
from wherry.sim.gossip.gossip_world import GossipWorld, MemberProcess

MEMBERS_MIN = 8
"""With fewer, probes alone reach all."""

FLOODED_MIN = 10
ANNOUNCERS = 4
FLOOD_PERIODS = 2
"""Of packets to three members a tick, each of which tells three others: four rounds of a tick and a short delay."""

FLOODED_SHARE = 0.75

AWAY_PERIODS = 2
"""Long enough for all packets with the update to be sent, too short for a member to be held dead."""

Pass = Callable[[], None]
Announce = Callable[[MemberProcess], None]


def flooded(world: GossipWorld, announce: Announce, pass_period: Pass) -> list[str]:
    """Let some members announce at once; most know all of that after two periods."""
    lives = world.running
    if len(lives) < FLOODED_MIN or world.plan.delay_ms > CLEAR_MS:
        return []
    told = lives[:ANNOUNCERS]
    for life in told:
        announce(life)
    for _ in range(FLOOD_PERIODS):
        pass_period()
    shares = [sum(_knows(world, holder, life) for holder in lives) / len(lives) for life in told]
    return [f"flooded: {min(shares):.0%} know it after {FLOOD_PERIODS} periods"] if min(shares) < FLOODED_SHARE else []


def repaired(world: GossipWorld, announce: Announce, pass_period: Pass) -> list[str]:
    """Let one member be away while another announces; it learns that of the others by their fingerprints."""
    lives = world.running
    if len(lives) < MEMBERS_MIN:
        return []
    teller, away = lives[0], lives[-1]
    world.blocked[teller.name, away.name] += 1  # else its next packet would tell
    away.side = 1
    announce(teller)
    for _ in range(AWAY_PERIODS):
        pass_period()
    away.side = 0
    for _ in range(AWAY_PERIODS + SETTLE_PERIODS + REPAIR_PERIODS):
        if _knows(world, away, teller):
            break
        pass_period()
    world.unblock((teller.name, away.name))
    return [] if _knows(world, away, teller) else [f"repaired: {away.name} does not know what {teller.name} provides"]


def _knows(world: GossipWorld, holder: MemberProcess, life: MemberProcess) -> bool:
    if holder is life:
        return True
    member = holder.core.members.live.get(life.name)
    return member is not None and member.instances == world.expected[life.name]
