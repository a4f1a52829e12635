"""Statistics of topics, subscriptions and partitions."""

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
    peer: str | None = None
    """The node that read it, if that is a peer of the mesh."""


@dataclass(frozen=True, slots=True)
class SubscriptionStats:
    """One subscription. `lag` counts messages that are not settled; `lag_ms` is the age of the oldest of them."""

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
    """One topic. `messages` and `bytes` are what counts against its bounds."""

    name: str
    order: str
    partitions: int
    messages: int
    bytes: int
    dead: int
    counters: dict[str, int]
    subscriptions: tuple[SubscriptionStats, ...]
    removals: tuple[Removal, ...] = ()
    """The last subscriptions that were cut off."""


@dataclass(frozen=True, slots=True)
class PartitionStats:
    """One partition: first and next offset, messages that are not finished, and the lag of each subscription."""

    partition: int
    first_offset: int
    next_offset: int
    messages: int
    lag: dict[str, int]


class TopicSize(NamedTuple):
    """The size of a topic: the messages and bytes that count against its bounds, and its dead letters."""

    messages: int
    bytes: int
    dead: int


class ConsumerStats(NamedTuple):
    """One consumer of a subscription: its partitions, the buffer that it declared, and what it holds."""

    name: str
    partitions: list[int]
    buffer_messages: int
    buffer_bytes: int
    out_messages: int
    out_bytes: int
    is_internal: bool
    """Whether it belongs to the broker itself, so that no client may remove it."""


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
    """One subscription. `lag` counts messages that are not settled; `delivered` counts since the start of the process.

    `lag_ms` is the age of the oldest message that is not settled, scheduled ones included. `ready_ms` is how long the
    oldest message that may be leased has waited; null if that is not known without a scan of all waiting messages.
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
    """One topic.

    `refused` counts publishes by the code of their error; `removals` lists subscriptions that were cut off.
    """

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
