"""Figures of topics, subscriptions and partitions: how much waits where, and how far behind it is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import msgspec


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


class TopicSize(NamedTuple):
    """What is in a topic: the messages and bytes that count against its bounds, and its dead letters."""

    messages: int
    bytes: int
    dead: int


class ConsumerStats(NamedTuple):
    """One of those who share a subscription, with the partitions and the buffer that it has and what it holds."""

    name: str
    partitions: list[int]
    buffer_messages: int
    buffer_bytes: int
    out_messages: int
    out_bytes: int
    is_internal: bool
    """Whether it is the broker's own, and nobody else's to send away."""


class BrokerFigures(NamedTuple):
    """Figures of the broker as a whole."""

    topics: int
    leases: int
    journal_bytes: int
    pending_bytes: int
    entries: int
    cache_bytes: int
    cache_bytes_max: int
    checkpoints: int
    trouble: bool
    failed: bool


class SubscriptionFigures(msgspec.Struct):
    """One subscription. `lag` is what it has not settled; `delivered` counts from the start of the process.

    `lag_ms` is the age of the oldest that is not settled, scheduled ones too; `ready_ms` how long the oldest waits that
    may be handed out, null where that is not known without a look at all that wait.
    """

    name: str
    durable: bool
    consumers: int
    ready: int
    leased: int
    scheduled: int
    dead: int
    lag: int
    lag_ms: int
    ready_ms: int | None
    delivered: int
    counters: dict[str, int]


class TopicFigures(msgspec.Struct):
    """One topic. `refused` counts publishes by the code of their error, `removals` tells who was cut off and why."""

    name: str
    order: str
    partitions: int
    messages: int
    bytes: int
    dead: int
    counters: dict[str, int]
    refused: dict[str, int]
    subscriptions: list[SubscriptionFigures]
    removals: list[Removal]
