"""Figures of topics, subscriptions and partitions: how much waits where, and how far behind it is."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Removal:
    """A subscription that was cut off, and why."""

    at_ms: int
    subscription: str
    why: str


@dataclass(frozen=True, slots=True)
class SubscriptionStats:
    """One subscription. `lag` is what it has not settled; `lag_ms` is the age of the oldest of that."""

    topic: str
    name: str
    durable: bool
    consumers: int
    ready: int
    leased: int
    scheduled: int
    dead: int
    lag: int
    lag_ms: int
    counters: dict[str, int]


@dataclass(frozen=True, slots=True)
class TopicStats:
    """One topic. `messages` and `bytes` are what counts against its bounds; `published` is everything ever."""

    name: str
    order: str
    partitions: int
    messages: int
    bytes: int
    dead: int
    counters: dict[str, int]
    subscriptions: tuple[SubscriptionStats, ...]
    removals: tuple[Removal, ...] = ()
    """Subscriptions that were cut off, the last ones."""


@dataclass(frozen=True, slots=True)
class PartitionStats:
    """One partition: where it begins and ends, what is not finished, and what each subscription has not settled."""

    partition: int
    first_offset: int
    next_offset: int
    messages: int
    lag: dict[str, int]
