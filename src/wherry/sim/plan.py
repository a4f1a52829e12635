"""The plan of one run, drawn from its seed: topics, subscriptions, numbers of clients, rates of faults."""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random

import msgspec

from wherry.model.catalog.route import (
    KINDS,
    Binding,
    Kind,
    Route,
)
from wherry.model.catalog.subscription import Retry, Subscription
from wherry.model.catalog.topic import ORDERS, OVERFLOWS, Overflow, Topic

FORWARDED_TO = "grave"
"""The topic to which dead letters are forwarded."""


@dataclass(frozen=True, slots=True)
class RoutePlan:
    """Routes and bindings that change, the topics that they lead to, and the topic for forwarded dead letters."""

    topics: tuple[Topic, ...]
    subscriptions: tuple[Subscription, ...]
    routes: tuple[Route, ...]
    """As they are at the beginning."""
    bindings: tuple[tuple[str, Binding], ...]
    """All bindings that ever exist, each with its route; clients name them by their index."""
    producers: int
    publishes: int
    operators: int
    consumers: tuple[int, ...]
    """Of each subscription; without consumers, messages wait until the end."""


@dataclass(frozen=True, slots=True)
class RunPlan:
    """The plan of one run."""

    topics: tuple[Topic, ...]
    subscriptions: tuple[Subscription, ...]
    producers: int
    publishes: int
    consumers: int
    seconds: float
    crashes: float
    """Crashes a virtual second, on average."""
    disk_faults: bool
    clock_jumps: bool
    racing: bool
    logged: str | None = None
    """The topic that a client also reads as a log."""
    jobs: bool = False
    """Whether producers run jobs: parts staged under keys of their own, with one commit for all."""
    growing: bool = False
    """Whether topics get more partitions during the run."""
    small: bool = False
    """Whether bounds inside the broker are so small that each operation takes several steps."""
    route_plan: RoutePlan | None = None
    """Routes with their clients, on topics of their own."""
    cuts: int = 0
    """How often the power may be cut in the instant in which an answer has left the broker."""
    pauses: bool = False
    """Whether the broker is paused now and then, and late afterwards."""


def draw(random: Random) -> RunPlan:
    """Draw a plan."""
    topics = tuple(_topic(random, number) for number in range(random.choice((1, 1, 2))))
    subscriptions = tuple(
        _subscription(random, topic, number) for topic in topics for number in range(random.choice((1, 1, 2)))
    )
    plan = RunPlan(
        topics,
        subscriptions,
        producers=random.randint(1, 3),
        publishes=random.randint(4, 25),
        consumers=random.randint(1, 3),
        seconds=random.uniform(3, 20),
        crashes=random.choice((0.0, 0.1, 0.5, 1.5)),
        disk_faults=random.random() < 0.3,
        clock_jumps=random.random() < 0.2,
        racing=random.random() < 0.5,
        logged=random.choice(topics).name if random.random() < 0.6 else None,
        jobs=random.random() < 0.5,
        growing=random.random() < 0.3,
        small=random.random() < 0.6,
        route_plan=_route_plan(random) if random.random() < 0.5 else None,
        cuts=random.choice((0, 5, 15)),
        pauses=random.random() < 0.4,
    )
    return replace(plan, topics=tuple(_perhaps_flowing(random, topic) for topic in topics))


DEAD_AMPLE = 1_000
"""Room for more dead letters than a run has messages."""


def _topic(random: Random, number: int) -> Topic:
    bounded = random.random() < 0.3
    return Topic(
        name=f"topic-{number}",
        order=random.choice(ORDERS),
        partitions=random.choice((1, 1, 2, 3)),
        messages_max=random.randint(5, 60) if bounded else None,
        overflow=random.choice(OVERFLOWS),
        dead_messages_max=random.choice((3, DEAD_AMPLE, DEAD_AMPLE)),
        expired=random.choice(("drop", "dead-letter")),
    )


_ROOM: dict[Overflow, Overflow] = {"dead-letter": "refuse", "dead-letter-oldest": "drop-oldest"}
"""What a `flow` topic has in place of an overflow that it does not take."""


def _perhaps_flowing(random: Random, topic: Topic) -> Topic:
    """Let some topics flow: with no other node in sight, all checks hold as for the others."""
    if topic.order != "fifo" or random.random() < 0.6:
        return topic
    overflow = _ROOM.get(topic.overflow, topic.overflow)
    return msgspec.structs.replace(topic, mesh="flow", overflow=overflow, expired="drop")


def _subscription(random: Random, topic: Topic, number: int) -> Subscription:
    acks = random.random() < 0.8
    return Subscription(
        topic=topic.name,
        name=f"sub-{number}",
        acks=acks,
        key_order=acks and random.random() < 0.4,
        lease_ms=random.choice((150, 1_000, 5_000)),
        retry=Retry(
            attempts=random.choice((None, 1, 3, 16)),
            first_ms=random.choice((0, 20, 300)),
            cap_ms=2_000,
            jitter=random.choice((0.0, 0.3)),
        ),
        assignment=random.choice(("balanced", "balanced", "ordered", "shared", "exclusive")),
    )


ROUTING_KEYS = ("", "a", "b", "a.b", "a.c.b")
HEADERS: tuple[dict[str, str], ...] = ({}, {"h": "1"}, {"h": "1", "g": "2"}, {"g": "2"})

_MATCHES: dict[Kind, tuple[str, ...]] = {
    "direct": ROUTING_KEYS,
    "pattern": ("#", "*", "a.*", "*.b", "a.#.b", "a.#"),
    "fanout": ("",),
    "headers": ("",),
}


def _route_plan(random: Random) -> RoutePlan:
    topics = [_way(random, number) for number in range(random.choice((1, 1, 2)))]
    subscriptions = [_queue(random, topic, number) for topic in topics for number in range(random.choice((1, 1, 2)))]
    forwarded_to = Topic(name=FORWARDED_TO, messages_max=random.choice((None, None, 8)))
    subscriptions.append(Subscription(topic=FORWARDED_TO, name="queue-0", lease_ms=1_000, retry=Retry(attempts=None)))
    names = [f"route-{number}" for number in range(random.randint(1, 3))]
    kinds = {name: random.choice(KINDS) for name in names}
    bindings: list[tuple[str, Binding]] = []
    for name in names:
        for _ in range(random.randint(1, 5)):
            binding = _binding(random, kinds[name], [topic.name for topic in topics], names)
            if (name, binding) not in bindings:
                bindings.append((name, binding))
    begin = [each for each in bindings if random.random() < 0.7]
    routes = [
        Route(
            name=name,
            kind=kinds[name],
            bindings=tuple(binding for route, binding in begin if route == name),
            otherwise=random.choice((None, *names)),
            labels=random.choice(({}, {"of": "sim"})),
        )
        for name in names
    ]
    return RoutePlan(
        (*topics, forwarded_to),
        tuple(subscriptions),
        tuple(routes),
        tuple(bindings),
        producers=random.randint(1, 2),
        publishes=random.randint(6, 25),
        operators=random.randint(1, 3),
        consumers=tuple(random.randint(0, 2) for _ in subscriptions),
    )


def _way(random: Random, number: int) -> Topic:
    return Topic(
        name=f"way-{number}",
        order=random.choice(ORDERS),
        partitions=random.choice((1, 1, 2)),
        messages_max=random.randint(5, 30) if random.random() < 0.5 else None,
        overflow=random.choice((*OVERFLOWS, "dead-letter-oldest")),
        dead_messages_max=random.choice((3, DEAD_AMPLE, DEAD_AMPLE)),
    )


def _queue(random: Random, topic: Topic, number: int) -> Subscription:
    return Subscription(
        topic=topic.name,
        name=f"queue-{number}",
        key_order=random.random() < 0.3,
        lease_ms=random.choice((150, 1_000)),
        retry=Retry(attempts=random.choice((1, 1, 3)), first_ms=random.choice((0, 100)), cap_ms=500),
    )


def _binding(random: Random, kind: Kind, topics: list[str], routes: list[str]) -> Binding:
    onward = random.random() < 0.3
    headers = random.choice(HEADERS) if kind == "headers" else {}
    return Binding(
        topic=None if onward else random.choice(topics),
        route=random.choice(routes) if onward else None,
        match=random.choice(_MATCHES[kind]),
        headers=headers,
        any_header=bool(headers) and random.random() < 0.5,
        labels=random.choice(({}, {}, {"by": "sim"})),
    )
