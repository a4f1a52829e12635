"""What a member sends, by the number of members: `python -m wherry.sim.gossip.gossip_bytes` prints the table.

Each cluster is measured after it agreed: with nothing to report; with a twentieth of the packets lost, so that members
are suspected and refute that; and while one member in each period changes what it provides.
"""

from __future__ import annotations

from typing import NamedTuple

from wherry.sim.gossip.gossip_checkers import agreed
from wherry.sim.gossip.gossip_plan import PERIOD_MS, GossipPlan
from wherry.sim.gossip.gossip_run import instances_of, start_members
from wherry.sim.gossip.gossip_world import GossipWorld

COUNTS = (10, 25, 50, 100, 200)
BEFORE_PERIODS = 30
MEASURED_PERIODS = 30


class MemberBytes(NamedTuple):
    """Bytes that one member sent in a second, on average, with a period of one second."""

    members: int
    quiet: float
    lossy: float
    changing: float


def bytes_of(members: int, seed: int = 1) -> MemberBytes:
    """Measure a cluster of so many members; raise `AssertionError` if it does not agree before that."""
    world = GossipWorld(GossipPlan(members, 0, 0.0, 0.0, 20, 0, 1_000, None, ()), seed)
    start_members(world, members)
    _pass(world, BEFORE_PERIODS)
    assert not agreed(world), agreed(world)[:3]
    quiet = _measure(world)
    world.loss = 0.05
    lossy = _measure(world)
    world.loss = 0.0
    _pass(world, BEFORE_PERIODS)
    return MemberBytes(members, quiet, lossy, _measure(world, changing=True))


def _measure(world: GossipWorld, *, changing: bool = False) -> float:
    before = world.sent_bytes.total()
    for period in range(MEASURED_PERIODS):
        if changing:
            life = world.running[period * 7 % len(world.running)]
            world.announce(life, instances_of(life, period + 1, 1))
        _pass(world, 1)
    return (world.sent_bytes.total() - before) / MEASURED_PERIODS / len(world.running)


def _pass(world: GossipWorld, periods: int) -> None:
    world.run_until((world.period + periods) * PERIOD_MS)


def main() -> None:
    """Print the table."""
    print("members   bytes sent by each in a second:  quiet   5% lost   one change a second")
    for count in COUNTS:
        found = bytes_of(count)
        print(f"{count:7}   {'':30} {found.quiet:7.0f}   {found.lossy:7.0f}   {found.changing:19.0f}", flush=True)


if __name__ == "__main__":
    main()
