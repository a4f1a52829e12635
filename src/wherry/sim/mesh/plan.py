"""What a run of the mesh consists of, drawn from the seed: nodes, how they know each other, load and faults."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from wherry.mesh.flow.links import HUBS_MAX
from wherry.sim.world.network import Weather

TOPIC = "foo"

NODES_MAX = 20
BACKLOG = 10_000
"""More than any run publishes."""

BOUND = 40
"""Messages of a bounded topic: more than the largest publish, and less than a node publishes while a peer is away."""

FEW = 4
"""Nodes: so few have much to do in a short time."""


@dataclass(frozen=True, slots=True)
class MeshPlan:
    """A run of the mesh."""

    hubs: tuple[str, ...]
    leaves: dict[str, str]
    """The hub of each leaf."""
    discover: bool
    """Whether nodes find each other by `system.peers`; each knows one other at first."""
    announce_s: float
    partitions: int
    publishes: int
    """Calls of each publisher."""
    seconds: float
    """How long there is load."""
    kills: int
    cuts: int
    """How often a line between two nodes is cut for a while."""
    losses: int
    """How often a single connection is lost."""
    backlog: int
    """Messages that a peer keeps for a node; few in some runs, so that subscriptions are cut off."""
    weather: Weather
    messages_max: int | None = None
    """The bound of the topic at each node, which refuses; only what its own clients have not read may fill it."""

    @property
    def is_calm(self) -> bool:
        """Whether nothing fails, and no peer can be cut off."""
        is_unbounded = self.backlog >= BACKLOG and self.messages_max is None
        return is_unbounded and not (self.kills or self.cuts or self.losses)

    @property
    def nodes(self) -> tuple[str, ...]:
        """The names of all nodes."""
        return (*self.hubs, *self.leaves)


def draw_mesh(random: Random) -> MeshPlan:
    """Draw a plan: most runs are a mesh of a few nodes, some a hierarchy of up to 20."""
    is_mesh = random.random() < 0.7
    few = random.choice((2, 3, 3, 3, 3, 4, HUBS_MAX) if is_mesh else (1, 2, 2, 3, 4))
    hubs = tuple(f"h{number}" for number in range(few))
    behind = 0 if is_mesh else random.choice((1, 1, 2, 2, 3, 3, 4, 6, NODES_MAX - few))
    leaves = {f"l{number}": random.choice(hubs) for number in range(behind)}
    size = few + behind
    is_calm = random.random() < 0.15
    return MeshPlan(
        hubs=hubs,
        leaves=leaves,
        discover=random.random() < 0.3,
        announce_s=0.5 if size <= FEW else 5.0,
        partitions=random.choice((1, 1, 2)),
        publishes=random.choice((4, 20, 80)) if size <= FEW else random.randint(2, 6) if size < 8 else 2,
        seconds=random.uniform(3, 12),
        kills=0 if is_calm else random.choice((0, 1, 2, 3)),
        cuts=0 if is_calm else random.choice((0, 1, 2, 4)),
        losses=0 if is_calm else random.choice((0, 1, 3, 12)),
        backlog=BACKLOG if is_calm else random.choice((BACKLOG, BACKLOG, BACKLOG, 10)),
        weather=Weather(delay_s=random.choice((0.001, 0.02, 0.2)), tiny=random.random() < 0.1),
        messages_max=None if is_calm else random.choice((None, None, BOUND)),
    )
