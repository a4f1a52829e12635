"""The plan of one run of gossip, drawn from its seed: members, faults of the network, and what happens when."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import NamedTuple

PERIOD_MS = 1_000
CALM_PERIODS = 12
"""At the beginning, so that the members find each other before the first fault."""

ACTS = {
    "crash": 4,
    "restart": 4,
    "leave": 2,
    "join": 2,
    "announce": 3,
    "announce large": 2,
    "cut": 1,
    "cut one": 2,
    "slow": 2,
    "stop": 2,
}
"""What may happen, and how often it does beside the others."""

LINK_ACTS = ("cut link", "one way", "cut link", "one way", "announce", "leave", "join")
"""What may happen in a run in which single links are cut: the members have to reach each other through helpers."""


class Act(NamedTuple):
    """Something that happens to a member or to the network at the beginning of a period."""

    period: int
    what: str
    which: int
    """The member, counted among those that it can happen to."""
    periods: int
    """How long it lasts, where it lasts."""


@dataclass(frozen=True, slots=True)
class GossipPlan:
    """The plan of one run."""

    members: int
    fault_periods: int
    """How long there are faults; after that the network is whole, and everybody runs at full speed."""
    loss: float
    repeats: float
    delay_ms: int
    """Longest delay of a packet: those that are sent later may come earlier."""
    slow_ms: int
    """How late a slow member takes what arrived."""
    forget_periods: int
    seeds_end: int | None
    """The period in which all seeds crash, for good."""
    acts: tuple[Act, ...]
    tombs: int = 0
    """Names that all members hold dead from the beginning on, and that have no process."""

    @property
    def members_most(self) -> int:
        """Return how many members there may be at a time."""
        return self.members + sum(act.what == "join" for act in self.acts)

    def __str__(self) -> str:
        faults = f"loss {self.loss:.0%}, repeats {self.repeats:.0%}, delays to {self.delay_ms} ms"
        acts = ", ".join(f"{act.what} {act.which} at {act.period}" for act in self.acts)
        return f"{self.members} members, {self.fault_periods} periods of faults, {faults}: {acts}"


def draw_plan(seed: int, members: int | None = None) -> GossipPlan:
    """Return the plan of a seed; with a number of members of its own for a larger run."""
    chance = Random(f"gossip {seed}")
    drawn = chance.choice((3, 5, 8, 12, 16))
    count = drawn if members is None else members
    fault_periods = chance.randint(30, 70)
    is_calm = chance.random() < 0.2
    seeds_end = chance.randint(CALM_PERIODS, 30) if count > 5 and chance.random() < 0.3 else None
    names, weights = list(ACTS), list(ACTS.values())
    acts = [
        Act(
            chance.randint(CALM_PERIODS, fault_periods),
            chance.choices(names, weights)[0],
            chance.randrange(1 << 16),
            chance.randint(2, 25),
        )
        for _ in range(chance.randint(3, 8 + count // 2))
    ]
    if seeds_end is not None:
        # What only the members themselves can heal.
        begin = chance.randint(seeds_end, (seeds_end + fault_periods) // 2)
        acts.append(Act(begin, chance.choice(("cut", "cut one")), chance.randrange(1 << 16), chance.randint(20, 40)))
    # Of chance of its own, so that a seed keeps the rest of its plan.
    more = Random(f"gossip links {seed}")
    tombs = more.choice((0, 0, 0, 40, 400))
    has_links = more.random() < 0.2
    if has_links:
        acts = [
            Act(more.randint(CALM_PERIODS, 30), more.choice(LINK_ACTS), more.randrange(1 << 16), 40)
            for _ in range(4 + count)
        ]
        seeds_end, is_calm, fault_periods = None, True, 70
    if more.random() < 0.5:
        acts += [
            Act(more.randint(CALM_PERIODS, fault_periods), "withdraw", more.randrange(1 << 16), 1)
            for _ in range(1 + count // 4)
        ]
    delays = (5, 50) if has_links else (5, 50, 300)  # the way through a helper has four of them
    return GossipPlan(
        members=count,
        fault_periods=fault_periods,
        loss=0.0 if is_calm else chance.choice((0.0, 0.02, 0.1, 0.2)),
        repeats=0.0 if is_calm else chance.choice((0.0, 0.05, 0.3)),
        delay_ms=chance.choice(delays),
        slow_ms=chance.choice((300, 2_000, 7_000)),
        forget_periods=1_000 if seeds_end else chance.choice((60, 1_000)),
        seeds_end=seeds_end,
        acts=tuple(sorted(acts)),
        tombs=tombs,
    )
