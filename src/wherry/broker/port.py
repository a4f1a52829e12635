"""What wires, `queueing`, `node` and the client need of a broker: all of it, as interfaces.

`Broker` implements the port in this process, which the types prove (`tests/unit/broker/test_port.py`); a router to
other processes or nodes can stand behind it as well. So calls take and return values: names, numbers, types of
`model`, Arrow batches. What is not a value, and why:

- a consumer and a delivery, objects that the caller who joined holds;
- `catalog`, since names are looked up in it for each message that is routed: a node without a journal keeps a copy;
- `slices`, `metrics` and `trace`, which are about this process and its loop, wherever the messages are.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Protocol

import msgspec
import pyarrow as pa

from wherry.broker.calls.gathering import Gathering
from wherry.broker.calls.settle import Within
from wherry.broker.metrics.tracing import Tracer
from wherry.broker.waiting.slices import Slices
from wherry.model.calls.amendment import Amended, Amendment
from wherry.model.calls.dead import AuditRecord, DeadFilter, DeadKinds
from wherry.model.calls.fate import (
    Fate,
    Fates,
    Outcome,
    Until,
)
from wherry.model.calls.lease import PULL_BYTES_DEFAULT, LeasePart
from wherry.model.calls.listing import Page, Search
from wherry.model.calls.log import BUDGET_MAX, Extent, Positions
from wherry.model.calls.publish import Published, PublishOptions
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
from wherry.model.catalog.route import Binding, Route
from wherry.model.catalog.subscription import Subscription
from wherry.model.catalog.topic import Topic
from wherry.model.errors import WherryError
from wherry.model.schema import Int64, Publishable

if TYPE_CHECKING:
    from wherry.broker.metrics.metrics import Metrics


# ------------------------------------------------------------------------------------------------------------- publish


class PublishPort(Protocol):
    """Adds messages. The docstrings of `Broker` describe each call; here is only what a call takes and returns."""

    async def publish(self, topic: str, messages: Publishable, options: PublishOptions | None = None) -> Published: ...

    async def publish_route(
        self, route: str, messages: Publishable, *, routing_key: str = "", headers: dict[str, str] | None = None
    ) -> dict[str, Published]: ...

    @property
    def gathering(self) -> Gathering: ...

    async def submit(
        self, topic: str, messages: Publishable, options: PublishOptions
    ) -> tuple[int, Published | WherryError]: ...

    def count_refusal(self, topic: str, fault: WherryError) -> None: ...

    async def reserve(self, topic: str) -> None: ...

    async def stage(self, key: str, topic: str, messages: Publishable, *, partition: int | None = None) -> None: ...

    async def submit_stage(
        self, key: str, topic: str, messages: Publishable, *, partition: int | None = None
    ) -> int: ...

    async def commit(self, key: str, stages: Sequence[str] | None = None) -> list[tuple[str, int, int, int]]: ...

    async def abort(self, key: str) -> None: ...

    def is_stored(self, position: int) -> bool: ...

    async def stored(self, position: int) -> None: ...

    async def stored_so_far(self) -> None: ...


# ----------------------------------------------------------------------------------------------------- consume, settle


class DeliveryPort(Protocol):
    """Messages on lease, with the ways to settle them."""

    present: pa.RecordBatch
    tokens: list[int]

    @property
    def batch(self) -> pa.RecordBatch: ...

    def __len__(self) -> int: ...

    def lease_column(self) -> Int64: ...

    def parts(self, rows: Sequence[int] | Int64 | None = None) -> list[LeasePart]: ...

    def take_back(self) -> None: ...

    async def ack(self, rows: Sequence[int] | Int64 | None = None) -> None: ...

    async def nack(
        self, rows: Sequence[int] | Int64 | None = None, *, delay_ms: int | None = None, error: str = ""
    ) -> None: ...

    async def release(self, rows: Sequence[int] | Int64 | None = None) -> None: ...

    async def renew(self, lease_ms: int | None = None) -> None: ...


class ConsumerPort(AbstractAsyncContextManager["ConsumerPort"], Protocol):
    """One consumer of a subscription."""

    @property
    def id(self) -> str: ...

    @property
    def out_messages(self) -> int: ...

    def is_joined(self) -> bool: ...

    def is_last_of_ephemeral(self) -> bool: ...

    def grant(self, messages: int) -> None: ...

    async def pull(
        self, messages: int = 1_000, *, bytes_max: int = PULL_BYTES_DEFAULT, wait_ms: int | None = 0
    ) -> DeliveryPort: ...

    async def close(self, error: str = "") -> None: ...


class ConsumePort(Protocol):
    """Joins and leaves subscriptions."""

    async def consumer(
        self,
        topic: str,
        subscription: str,
        consumer_id: str | None = None,
        *,
        buffer_messages: int | None = None,
        buffer_bytes: int | None = None,
        seat: str | None = None,
    ) -> ConsumerPort: ...

    def own_consumer(self, number: int, consumer_id: str) -> ConsumerPort: ...

    async def leave(self, topic: str, subscription: str, consumer_id: str) -> None: ...

    async def purge(self, topic: str, subscription: str) -> int: ...


class SettlerPort(Protocol):
    """Ends leases, all parts of a call or none. `within`: a topic and a subscription that they must be of."""

    async def ack(self, parts: Sequence[LeasePart], within: Within = None) -> None: ...

    async def nack(
        self, parts: Sequence[LeasePart], delay_ms: int | None, error: str, within: Within = None
    ) -> None: ...

    async def dead_letter(self, parts: Sequence[LeasePart], reason: str, error: str, within: Within = None) -> None: ...

    async def stage_ack(self, key: str, parts: Sequence[LeasePart], within: Within = None) -> None: ...

    def release(self, parts: Sequence[LeasePart], within: Within = None) -> None: ...

    def renew(self, tokens: Sequence[int], lease_ms: int | None, within: Within = None) -> None: ...

    def still_held(self, parts: Iterable[LeasePart]) -> list[LeasePart]: ...


class SettlePort(Protocol):
    """Settles what was pulled."""

    @property
    def settler(self) -> SettlerPort: ...


# ------------------------------------------------------------------------------------------------------------- inspect


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

    def claims(self, *keys: str) -> list[tuple[Verb, str]]: ...


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

    async def look(self) -> None: ...

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


# ---------------------------------------------------------------------------------------------------------- administer


class AdministerPort(Protocol):
    """Creates, changes and deletes topics, subscriptions, routes, API keys, waiting messages and dead letters."""

    check_url: Callable[[str, str], object]

    async def create_topic(self, topic: Topic | str, /, **fields: object) -> Topic: ...

    async def delete_topic(self, name: str) -> None: ...

    async def subscribe(
        self, subscription: Subscription | str, name: str | None = None, /, **fields: object
    ) -> Subscription: ...

    async def change_subscription(self, subscription: Subscription) -> Subscription: ...

    async def unsubscribe(self, topic: str, name: str) -> None: ...

    async def cut_off(self, number: int, why: str) -> None: ...

    async def put_route(self, route: Route) -> Route: ...

    async def delete_route(self, name: str) -> None: ...

    async def bind(self, route: str, binding: Binding) -> None: ...

    async def unbind(self, route: str, binding: Binding) -> None: ...

    async def put_key(self, key: Key) -> Key: ...

    async def change_key(self, public_id: str, **changes: object) -> Key: ...

    async def alter_key(self, public_id: str, change: Callable[[Key], Key]) -> Key: ...

    async def delete_key(self, public_id: str) -> None: ...

    async def cancel(self, topic: str, *message_ids: str) -> None: ...

    async def amend(
        self,
        topic: str,
        message_id: str,
        change: Amendment | None = None,
        /,
        *,
        version: int | None = None,
        **fields: object,
    ) -> Amended: ...

    async def redrive(
        self, topic: str, wanted: DeadFilter | None = None, *, by: str = "", rate: int | None = None
    ) -> int: ...

    async def forward(
        self, topic: str, wanted: DeadFilter, to: Sequence[tuple[str, Publishable, bool]], *, by: str = ""
    ) -> int: ...

    async def discard(self, topic: str, wanted: DeadFilter, *, by: str = "") -> int: ...


class ConditionPort(Protocol):
    """Returns the condition of the broker itself."""

    def now_ms(self) -> int: ...

    @property
    def failure(self) -> WherryError | None: ...

    @property
    def is_closing(self) -> bool: ...

    def check_alive(self) -> None: ...

    @property
    def entry_bytes_max(self) -> int: ...

    @property
    def cache_bytes_max(self) -> int: ...

    @property
    def slices(self) -> Slices: ...

    @property
    def metrics(self) -> Metrics | None: ...

    def trace(self, tracer: Tracer) -> Callable[[], None]: ...

    def catch_up(self) -> None: ...


class BrokerPort(
    PublishPort,
    ConsumePort,
    SettlePort,
    InventoryPort,
    FiguresPort,
    ListingPort,
    OutcomePort,
    LogPort,
    AdministerPort,
    ConditionPort,
    Protocol,
):
    """All of it together."""
