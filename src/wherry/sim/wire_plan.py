"""The plan of a run over wires, drawn from its seed: which clients use which wire, and the network."""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random
from typing import Literal

from wherry.model.catalog.subscription import Subscription
from wherry.model.catalog.topic import Topic
from wherry.queueing.names import SUBSCRIPTION
from wherry.sim.plan import DEAD_AMPLE, RunPlan
from wherry.sim.world.network import Weather

Wire = Literal["amqp", "stomp", "native", "http"]
WIRES: tuple[Wire, ...] = ("amqp", "stomp")
"""Those of the run over wires. The native wire and HTTP have a run beside it, so that old seeds keep their meaning."""

JOBS, SOLO, DEAD = "jobs", "solo", "dead"
"""Queues: one for many consumers, one for a single consumer, and one for rejected messages of both."""

QUEUES = (JOBS, SOLO, DEAD)

SOON, SOON_MS = "soon", 400
"""A queue without consumers: its messages expire after a time, and go to `DEAD`."""

LEASE_MS = 1_800_000


@dataclass(frozen=True, slots=True)
class WirePlan:
    """The plan of one run over wires."""

    world: RunPlan
    weather: Weather
    publishers: tuple[Wire, ...]
    publishes: int
    """How often each publisher publishes some messages or runs a transaction."""
    consumers: tuple[tuple[Wire, tuple[str, ...]], ...]
    """The wire and the queues of each."""
    idle: Wire
    """The wire of a client that is connected and sends only heart-beats."""
    cuts: float
    """Connections that are cut a virtual second, on average."""
    native: bool = False
    """Whether HTTP and the native wire are served."""
    soon: int = 0
    """How often a client of AMQP publishes some messages that expire and are forwarded."""


def draw_wires(random: Random) -> WirePlan:
    """Draw a plan."""
    world = RunPlan(
        topics=tuple(Topic(name=queue, dead_messages_max=DEAD_AMPLE) for queue in QUEUES),
        subscriptions=tuple(Subscription(topic=queue, name=SUBSCRIPTION, lease_ms=LEASE_MS) for queue in QUEUES),
        producers=0,
        publishes=0,
        consumers=0,
        seconds=random.uniform(2, 6),
        crashes=random.choice((0.0, 0.0, 0.2, 0.8)),
        disk_faults=random.random() < 0.2,
        clock_jumps=random.random() < 0.2,
        racing=random.random() < 0.5,
        cuts=random.choice((0, 2, 6)),
        pauses=random.random() < 0.2,
    )
    return WirePlan(
        world,
        Weather(delay_s=random.choice((0.001, 0.01, 0.15)), tiny=random.random() < 0.3),
        publishers=tuple(random.choice(WIRES) for _ in range(random.randint(1, 3))),
        publishes=random.randint(3, 8),
        consumers=(
            (random.choice(WIRES), (SOLO,)),
            *((random.choice(WIRES), random.choice(((JOBS,), (JOBS, JOBS), (JOBS, DEAD)))) for _ in range(2)),
        ),
        idle=random.choice(WIRES),
        cuts=random.choice((0.0, 0.3, 1.5)),
    )


def with_soon(plan: WirePlan, random: Random) -> WirePlan:
    """Add a client whose messages expire to some plans; in the others all clients do what they did without it."""
    return replace(plan, soon=8) if random.random() > 0.6 else plan


def draw_native(random: Random) -> WirePlan:
    """Draw a plan in which some clients of the queues use the native wire or HTTP, beside those of the other wires."""
    plan = draw_wires(random)
    solo, *others = plan.consumers
    mixed: tuple[tuple[Wire, tuple[str, ...]], ...] = (("native", random.choice(((JOBS,), (JOBS, DEAD)))), others[0])
    return replace(
        plan,
        native=True,
        publishers=("native", *plan.publishers[1:], *random.choice(((), ("native",), ("http",)))),
        consumers=(("native", solo[1]) if random.random() < 0.6 else solo, *mixed),
    )
