"""Reading topics, messages and the log; nothing changes. A part of the port, see `port`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Protocol

import msgspec
import pyarrow as pa

from wherry.model.calls.dead import AuditRecord, CopyCall, DeadFilter, DeadKinds, DeadRow
from wherry.model.calls.fate import (
    Fate,
    Fates,
    Outcome,
    Until,
)
from wherry.model.calls.listing import Page, Search
from wherry.model.calls.log import BUDGET_MAX, Extent, Positions
from wherry.model.calls.publish import Published
from wherry.model.calls.stats import (
    BrokerFigures,
    ConsumerStats,
    PartitionStats,
    SubscriptionStats,
    TopicFigures,
    TopicSize,
    TopicStats,
)
from wherry.model.calls.where import Where
from wherry.model.catalog.key import Key, Verb
from wherry.model.catalog.route import Route
from wherry.model.catalog.subscription import Subscription
from wherry.model.catalog.topic import Topic


class CatalogView(Protocol):
    """The names of topics, with their numbers, and the routes, as they are at any time; not to be changed."""

    @property
    def topics(self) -> Mapping[str, int]: ...

    @property
    def routes(self) -> Mapping[str, Route]: ...

    @property
    def changes(self) -> int: ...

    def leading_to(self, topic: str | None) -> list[str]: ...


class InventoryPort(Protocol):
    """Returns topics, subscriptions, routes and keys."""

    @property
    def catalog(self) -> CatalogView: ...

    def topics(self) -> list[Topic]: ...

    def topic(self, name: str) -> Topic: ...

    def find_topic(self, name: str) -> Topic | None: ...

    def has_topic(self, name: str) -> bool: ...

    def topic_number(self, name: str) -> int: ...

    def first_topics(self, count: int) -> list[str]: ...

    def topics_with_dead_letters(self) -> list[str]: ...

    def watch_dead_letters(self, call: Callable[[str], None] | None) -> None: ...

    def forward_expired(self, call: CopyCall | None, *, by: str = "") -> None: ...

    def subscriptions(self, topic: str) -> list[Subscription]: ...

    def subscription(self, topic: str, name: str) -> Subscription: ...

    def has_subscription(self, topic: str, name: str) -> bool: ...

    def numbered_subscription(self, number: int) -> Subscription | None: ...

    def pushed_subscriptions(self) -> list[int]: ...

    def watch_webhooks(self, call: Callable[[int], None] | None) -> None: ...

    def routes(self) -> list[Route]: ...

    def route(self, name: str) -> Route: ...

    def keys(self) -> list[Key]: ...

    def key(self, public_id: str) -> Key | None: ...

    def user(self, name: str) -> Key | None: ...

    def is_committed(self, key: str) -> bool: ...

    def rights_to_end(self, *keys: str) -> list[tuple[Verb, str]]: ...


class FiguresPort(Protocol):
    """Returns numbers: how much waits where, and how far behind each subscription is."""

    def stats(self, topic: str) -> TopicStats: ...

    def subscription_stats(self, topic: str, name: str) -> SubscriptionStats: ...

    def partition_stats(self, topic: str, first: int, count: int) -> list[PartitionStats]: ...

    def topic_size(self, name: str) -> TopicSize | None: ...

    def ready_count(self, topic: str, subscription: str) -> int: ...

    def consumers(self, topic: str, subscription: str) -> list[ConsumerStats]: ...

    def consumer_stats(self, topic: str, subscription: str, name: str) -> ConsumerStats: ...

    def figures(self) -> BrokerFigures: ...

    def topic_figures(self, names: Iterable[str]) -> list[TopicFigures]: ...


class ListingPort(Protocol):
    """Lists messages without taking them."""

    async def get(self, topic: str, message_id: str) -> pa.RecordBatch: ...

    async def browse_page(
        self,
        topic: str,
        partition: int,
        start: int,
        limit: int,
        *,
        after: str | None = None,
        bytes_max: int | None = None,
    ) -> Page: ...

    async def search_page(
        self, topic: str, wanted: Search, *, after: str | None = None, bytes_max: int | None = None
    ) -> Page: ...

    async def scheduled_page(
        self,
        topic: str,
        subscription: str,
        *,
        from_ms: int | None,
        to_ms: int | None,
        limit: int,
        after: str | None = None,
        bytes_max: int | None = None,
    ) -> Page: ...

    async def dead_page(
        self, topic: str, wanted: DeadFilter, *, after: str | None = None, bytes_max: int | None = None
    ) -> Page: ...

    def dead_rows(self, topic: str, wanted: DeadFilter, bytes_max: int) -> list[DeadRow] | None: ...

    async def dead_kinds(self, topic: str, wanted: DeadFilter) -> DeadKinds: ...

    def each_dead(self, topic: str, wanted: DeadFilter | None = None) -> AsyncIterator[pa.RecordBatch]: ...

    def audit(self, topic: str) -> list[AuditRecord]: ...


class OutcomePort(Protocol):
    """Returns fates of messages, and outcomes to report."""

    async def fate(self, topic: str, message_id: str) -> Fate: ...

    async def outcome(
        self, topic: str, published: Published, *, until: Until = "settled", timeout_ms: int = 30_000
    ) -> Fates: ...

    @property
    def on_outcome(self) -> asyncio.Event: ...

    def unreported(self, limit: int = 1_000, *, without: Collection[str] = ()) -> list[Outcome]: ...

    async def reported(self, outcomes: Sequence[Outcome]) -> None: ...

    def delivered_notices(self) -> list[Outcome]: ...


class LogReaderPort(Protocol):
    """Reads a range of a partition: looks windows up on the loop, reads them in any thread."""

    @property
    def is_done(self) -> bool: ...

    async def find_window(self) -> None: ...

    def batches(self) -> Iterator[pa.RecordBatch]: ...


class LogPort(Protocol):
    """Reads topics as logs, by offset and without leases."""

    def extents(self, topic: str) -> list[Extent]: ...

    def next_offset(self, topic: str, partition: int) -> int: ...

    def offsets_at(self, topic: str, at_ms: int) -> dict[int, int]: ...

    def check_positions(self, topic: str, positions: Mapping[int, int]) -> None: ...

    async def check_kept(self, topic: str, partition: int, start: int, stop: int) -> None: ...

    async def reach(
        self,
        start: Positions,
        *,
        stop: Positions | None = None,
        messages_max: int = BUDGET_MAX,
        bytes_max: int = BUDGET_MAX,
        wait_ms: int = 0,
    ) -> dict[str, dict[int, int]]: ...

    async def advance(self, topic: str, subscription: str, positions: Mapping[int, int]) -> None: ...

    async def nearby(
        self, topic: str, partition: int, start: int, stop: int, *, strict: bool = False
    ) -> msgspec.Struct: ...

    def read_log(
        self,
        topic: str,
        partition: int,
        start: int,
        stop: int,
        *,
        columns: Sequence[str] | None = None,
        where: Where | None = None,
        strict: bool = False,
    ) -> LogReaderPort: ...
