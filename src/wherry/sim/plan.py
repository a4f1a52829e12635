"""What one run does, drawn from its seed: topics, subscriptions, and how lively producers, consumers and faults are."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from wherry.model.subscription import Retry, Subscription
from wherry.model.topic import ORDERS, OVERFLOWS, Topic


@dataclass(frozen=True, slots=True)
class Plan:
    """One run."""

    topics: tuple[Topic, ...]
    subscriptions: tuple[Subscription, ...]
    producers: int
    publishes: int
    consumers: int
    seconds: float
    crashes: float
    """Crashes a virtual second, on the average."""
    disk_faults: bool
    clock_jumps: bool
    racing: bool
    logged: str | None = None
    """The topic that somebody reads as a log, beside its subscriptions."""
    jobs: bool = False
    """Whether producers run jobs: parts staged under keys of their own, with one commit for all."""
    growing: bool = False
    """Whether topics get more partitions on the way."""
    small: bool = False
    """Whether steps inside the broker are so small that everything takes several."""


def draw(random: Random) -> Plan:
    """A plan from a seed."""
    topics = tuple(_topic(random, number) for number in range(random.choice((1, 1, 2))))
    subscriptions = tuple(
        _subscription(random, topic, number) for topic in topics for number in range(random.choice((1, 1, 2)))
    )
    return Plan(
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
    )


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


def _subscription(random: Random, topic: Topic, number: int) -> Subscription:
    acks = random.random() < 0.9
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
