"""The state of a shard. Its durable parts change only in `apply`; consumers and leases change with each pull."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from wherry.core.index.hashing import hash_strings
from wherry.core.index.ids import IdIndex
from wherry.core.index.nonempty import NonEmpty
from wherry.core.index.table import OffsetTable
from wherry.core.index.times import ExpiryTimes, Times
from wherry.core.state import assignment
from wherry.core.state.bodies import Bodies
from wherry.core.state.catalog import Catalog
from wherry.core.state.lease import Lease, Leases, Rows
from wherry.core.state.outbox import Outbox
from wherry.core.state.partition import Freed, Partition
from wherry.core.state.plan import Plan, plan_of
from wherry.core.state.producers import Producers
from wherry.core.state.reader import Reader
from wherry.core.state.stages import Stages
from wherry.core.state.texts import Texts
from wherry.model.calls.dead import AuditRecord
from wherry.model.calls.stats import Removal
from wherry.model.catalog.subscription import Subscription
from wherry.model.catalog.topic import Topic
from wherry.model.errors import NotFound

Int64: TypeAlias = npt.NDArray[np.int64]

AUDIT_RECORDS_MAX = 1_000
"""Redrives and discards of dead letters remembered for each topic."""

REMOVALS_MAX = 100
"""Subscriptions that were cut off, remembered for each topic: more than a node has peers."""


@dataclass(slots=True)
class ConsumerState:
    """A consumer of a subscription: the buffer it declared, and how much it holds."""

    id: str
    buffer_messages: int
    buffer_bytes: int
    credit: int = 1 << 62
    unsettled_messages: int = 0
    unsettled_bytes: int = 0
    first_partition: int = 0
    """The partition at or after which its next pull begins, modulo the number of partitions."""
    is_internal: bool = False
    """Whether it belongs to the broker itself, so that no client may remove it."""
    seat: str = ""
    """Whose partitions it pulls from: its own, or those of a seat that several consumers share."""

    def __post_init__(self) -> None:
        self.seat = self.seat or self.id

    def has_room(self) -> bool:
        """Return whether its buffer and its credit allow one more message."""
        return (
            self.unsettled_messages < self.buffer_messages
            and self.unsettled_bytes < self.buffer_bytes
            and self.credit > 0
        )


class SubscriptionState:
    """A subscription: its readers by partition, its consumers, and how they share the partitions."""

    __slots__ = (
        "assignment",
        "backlog_bytes",
        "config",
        "consumers",
        "counters",
        "events",
        "nonempty",
        "number",
        "readers",
        "rotation",
        "seats",
        "starts",
        "topic",
        "wakeups",
    )

    def __init__(self, number: int, config: Subscription, topic: TopicState, starts: Int64) -> None:
        self.number = number
        self.config = config
        self.topic = topic
        self.starts = starts
        self.readers: dict[int, Reader] = {}
        self.nonempty = NonEmpty()
        self.wakeups: dict[int | str, int] = {}
        """Partitions that became non-empty and consumers that got room since pulls were last woken, by event."""
        self.events = 0
        self.consumers: dict[str, ConsumerState] = {}
        self.seats: dict[str, int] = {}
        """Seats that consumers share, and how many consumers share each."""
        self.assignment = assignment.make(config.assignment, topic.config.partitions)
        self.rotation = 0
        """Counts joins: each new consumer begins its pulls one partition further."""
        self.backlog_bytes = 0
        """Content bytes not settled, kept only if the subscription declared a buffer of bytes."""
        self.counters: dict[str, int] = {}

    def share_out(self) -> None:
        """Divide the partitions anew after some were added: all consumers join again in their order."""
        self.assignment = assignment.make(self.config.assignment, self.topic.config.partitions)
        for seat in dict.fromkeys(consumer.seat for consumer in self.consumers.values()):
            self.assignment.join(seat)

    def seat(self, consumer: ConsumerState) -> None:
        """Add a new consumer to the assignment."""
        if consumer.seat != consumer.id:
            self.seats[consumer.seat] = self.seats.get(consumer.seat, 0) + 1
            if self.seats[consumer.seat] > 1:
                return
        self.assignment.join(consumer.seat)

    def unseat(self, consumer: ConsumerState) -> None:
        """Remove a consumer from the assignment. A seat that other consumers share stays."""
        if consumer.seat != consumer.id:
            self.seats[consumer.seat] -= 1
            if self.seats[consumer.seat]:
                return
            del self.seats[consumer.seat]
        self.assignment.leave(consumer.seat)

    def start_of(self, partition: int) -> int:
        """Return the offset at which this subscription starts in a partition."""
        return int(self.starts[partition if len(self.starts) > 1 else 0])

    def by_partition(self) -> Iterator[tuple[Partition, Reader]]:
        """Yield each partition that the subscription reads, with its reader."""
        for number, reader in self.readers.items():
            yield self.topic.partitions[number], reader

    def behind(self) -> int:
        """Return the number of messages that are neither settled nor dead letters."""
        return sum(
            self.topic.partitions[number].next_offset - len(reader.settled) - len(reader.dead)
            for number, reader in self.readers.items()
        )

    def count(self, what: str, by: int) -> None:
        """Add to a counter that is shown in statistics (settled, failed, dead, redriven, …)."""
        self.counters[what] = self.counters.get(what, 0) + by


class TopicState:
    """A topic: its partitions (made when first used), its subscriptions, and what counts against its bounds."""

    __slots__ = (
        "audit_records",
        "bytes",
        "config",
        "counters",
        "dead",
        "ids",
        "messages",
        "number",
        "oldest",
        "outbox",
        "partitions",
        "plan",
        "producers",
        "removals",
        "rotation",
        "subscriptions",
    )

    def __init__(self, number: int, config: Topic) -> None:
        self.number = number
        self.plan: Plan | None = None
        """The objects that a lone message touches here, if the topic is plain."""
        self.config = config
        self.partitions: dict[int, Partition] = {}
        self.subscriptions: dict[int, SubscriptionState] = {}
        self.oldest: Times[int] = Times()
        """By partition: a time (microseconds) no later than that of its oldest batch."""
        self.producers = Producers()
        self.ids = IdIndex()
        self.outbox = Outbox()
        self.messages = 0
        self.bytes = 0
        self.dead = 0
        self.audit_records: deque[AuditRecord] = deque(maxlen=AUDIT_RECORDS_MAX)
        self.removals: deque[Removal] = deque(maxlen=REMOVALS_MAX)
        self.rotation = 0
        """Counts publishes: the rows without a key of each are added one partition further."""
        self.counters: dict[str, int] = {}

    def partition(self, number: int) -> Partition:
        """Return a partition; make it when it is first used."""
        partition = self.partitions.get(number)
        if partition is None:
            partition = self.partitions[number] = Partition(number)
            self.replan()
        return partition

    def replan(self) -> None:
        """Make the plan anew: to be called after a change of the catalog here, or of partitions and readers."""
        self.plan = plan_of(self)

    def next_offset(self, number: int) -> int:
        """Return the next offset of a partition without making the partition: decisions change nothing."""
        partition = self.partitions.get(number)
        return 0 if partition is None else partition.next_offset

    def give_back(self, freed: Freed) -> None:
        """Subtract messages, bytes and dead letters from what counts against the bounds."""
        self.messages -= freed.messages
        self.bytes -= freed.bytes
        self.dead -= freed.dead

    def take(self, taken: Freed) -> None:
        """Add messages and bytes again to what counts against the bounds."""
        self.messages += taken.messages
        self.bytes += taken.bytes

    def count(self, what: str, by: int) -> None:
        """Add to a counter that is shown in statistics (published, cancelled, expired, …)."""
        self.counters[what] = self.counters.get(what, 0) + by

    def text_tables(self) -> list[OffsetTable]:
        """Return the tables that refer to texts, without empty ones."""
        own = [partition.dead for partition in self.partitions.values()]
        readers = (reader for each in self.subscriptions.values() for reader in each.readers.values())
        return [table for table in (*own, *(t for r in readers for t in (r.attempts_table, r.dead))) if len(table)]

    def is_stream(self) -> bool:
        """Return whether messages stay after they are settled."""
        return self.config.keep != "settled"


@dataclass(slots=True)
class State:
    """The state of one shard."""

    bodies: Bodies
    epoch: int = 0
    catalog: Catalog = field(default_factory=Catalog)
    topics: dict[int, TopicState] = field(default_factory=dict)
    subscriptions: dict[int, SubscriptionState] = field(default_factory=dict)
    stages: Stages = field(default_factory=Stages)
    texts: Texts = field(default_factory=Texts)
    leases: Leases = field(default_factory=lambda: Leases(0))
    expiry_times: ExpiryTimes = field(default_factory=ExpiryTimes)
    """When messages may next expire, and where that time has come."""
    with_outcomes: dict[int, None] = field(default_factory=dict)
    """Topics that may have outcomes to report."""
    to_wake: dict[int, None] = field(default_factory=dict)
    """Subscriptions that have wakeups for waiting pulls, or were deleted."""
    last_ephemeral: int = 0
    """Ephemeral subscriptions have falling negative numbers: no operation in the journal names them."""

    def topic(self, name: str) -> TopicState:
        """Return a topic by name, or raise `NotFound`."""
        number = self.catalog.topics.get(name) if isinstance(name, str) else None
        if number is None:
            raise NotFound("topic", name)
        return self.topics[number]

    def subscription(self, topic: str, name: str) -> SubscriptionState:
        """Return a subscription by names, durable or ephemeral, or raise `NotFound`."""
        for subscription in self.topic(topic).subscriptions.values():
            if subscription.config.name == name:
                return subscription
        raise NotFound("subscription", f"{topic}/{name}")

    def text_numbers(self, *texts: str) -> list[int]:
        """Return numbers for texts that a table is about to refer to. Sweeps a full table of texts first."""
        if not self.texts.has_room():
            self.texts.sweep([topic.text_tables() for topic in self.topics.values()])
        return [self.texts.number(text) for text in texts]

    def mark_nonempty(self, subscription: SubscriptionState, number: int) -> None:
        """Note that a partition may have a message to lease: one arrived or came back, or its key is free."""
        subscription.nonempty.add(number)
        subscription.events = event = subscription.events + 1
        subscription.wakeups[number] = event
        self.to_wake[subscription.number] = None
        self.end_hold(subscription.topic, number)

    def mark_room(self, subscription: SubscriptionState, consumer: str) -> None:
        """Note that a consumer has more room than before, or was removed."""
        subscription.events = event = subscription.events + 1
        subscription.wakeups[consumer] = event
        self.to_wake[subscription.number] = None

    def take_out(self, lease: Lease, rows: Rows | None) -> None:
        """Take rows (None: all) out of a lease and out of the buffer of its consumer."""
        subscription = self.subscriptions.get(lease.subscription)
        consumer = subscription.consumers.get(lease.consumer) if subscription is not None else None
        had_room = consumer is not None and consumer.has_room()
        if consumer is not None:
            consumer.unsettled_messages -= len(lease) if rows is None else len(rows)
            consumer.unsettled_bytes -= lease.bytes if rows is None else lease.bytes_of(rows)
        if subscription is not None:
            if not had_room or len(subscription.nonempty):  # else no pull waits for room, and no message either
                self.mark_room(subscription, lease.consumer)
            self.end_hold(subscription.topic, lease.partition)
        if rows is None or len(rows) == len(lease):
            self.leases.end(lease)
        else:
            lease.let_go(rows)

    def end_hold(self, topic: TopicState, number: int) -> None:
        """Schedule the removal of messages that expired while they were leased."""
        if len(topic.partitions[number].overdue):
            self.expiry_times.note(topic.number, number, 0)

    def reader(self, subscription: SubscriptionState, number: int, start: int) -> Reader:
        """Return the reader of a subscription in a partition that is about to get messages. Make it if missing."""
        reader = subscription.readers.get(number)
        if reader is None:
            return self.new_reader(subscription, number, start)
        self.mark_nonempty(subscription, number)
        return reader

    def new_reader(self, subscription: SubscriptionState, number: int, start: int) -> Reader:
        """Make a reader that begins at `start`."""
        topic = subscription.topic
        hashes_of = KeyHasher(self.bodies, topic.number, number) if subscription.config.key_order else None
        reader = Reader(topic.config.order, start, hashes_of)
        subscription.readers[number] = reader
        partition = topic.partition(number)
        (partition.readers if subscription.config.durable else partition.ephemeral)[subscription.number] = reader
        topic.replan()
        self.mark_nonempty(subscription, number)
        return reader


class KeyHasher:
    """Returns key hashes of messages of one partition, read from their bodies."""

    __slots__ = ("_bodies", "_partition", "_topic")

    def __init__(self, bodies: Bodies, topic: int, partition: int) -> None:
        self._bodies, self._topic, self._partition = bodies, topic, partition

    def __call__(self, offsets: Int64) -> Int64:
        batch = self._bodies.take(self._topic, self._partition, offsets, ("key",))
        return key_hashes(batch.column("key"))


def key_hashes(keys: pa.Array) -> Int64:
    """Return the hashes of keys as int64, 0 for a message without a key."""
    hashes = hash_strings(keys).view(np.int64)
    hashes = np.where(hashes == 0, 1, hashes)  # an empty key hashes to 0, but is a key
    if keys.null_count:
        hashes = np.where(keys.is_null().to_numpy(zero_copy_only=False), 0, hashes)
    return hashes
