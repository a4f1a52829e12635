"""Statistics of topics, subscriptions and partitions."""

from __future__ import annotations

from wherry.core.state.reader import Reader
from wherry.core.state.state import State, SubscriptionState, TopicState
from wherry.model.calls.stats import PartitionStats, SubscriptionStats, TopicStats


def of_partitions(topic: TopicState, first: int, limit: int) -> list[PartitionStats]:
    """Return the statistics of up to `limit` partitions of a topic, from `first` on."""
    return [_partition(topic, number) for number in range(first, min(first + limit, topic.config.partitions))]


def _partition(topic: TopicState, number: int) -> PartitionStats:
    known = topic.partitions.get(number)
    if known is None:
        return PartitionStats(number, 0, 0, 0, {})
    end = known.next_offset
    readers = [(each.config.name, each.readers.get(number)) for each in topic.subscriptions.values()]
    lag = {name: end - len(reader.settled) - len(reader.dead) for name, reader in readers if reader is not None}
    return PartitionStats(number, known.released.floor, end, end - len(known.finished), lag)


def of_topic(state: State, topic: TopicState, now_ms: int) -> TopicStats:
    """Return the statistics of a topic and its subscriptions, sorted by name."""
    subscriptions = sorted(topic.subscriptions.values(), key=lambda each: each.config.name)
    return TopicStats(
        topic.config.name,
        topic.config.order,
        topic.config.partitions,
        topic.messages,
        topic.bytes,
        topic.dead,
        dict(topic.counters),
        tuple(of_subscription(each, now_ms) for each in subscriptions),
        tuple(topic.removals),
    )


def of_subscription(subscription: SubscriptionState, now_ms: int) -> SubscriptionStats:
    """Return the statistics of one subscription."""
    ready = leased = scheduled = dead = lag = 0
    oldest_us: int | None = None
    for number, reader in subscription.readers.items():
        partition = subscription.topic.partitions[number]
        counts = reader.counts(now_ms, partition.next_offset)
        ready, leased, dead = ready + counts.ready, leased + counts.leased, dead + counts.dead
        scheduled += counts.scheduled
        behind = partition.next_offset - len(reader.settled) - counts.dead
        lag += behind
        if behind:
            published = partition.directory.published_at_us(_oldest(reader, partition.next_offset))
            if published is not None and (oldest_us is None or published < oldest_us):
                oldest_us = published
    config = subscription.config
    return SubscriptionStats(
        config.topic,
        config.name,
        config.durable,
        len(subscription.consumers),
        ready,
        leased,
        scheduled,
        dead,
        lag,
        0 if oldest_us is None else max(0, now_ms - oldest_us // 1000),
        dict(subscription.counters),
    )


def _oldest(reader: Reader, end: int) -> int:
    """Return the first offset that is neither settled nor dead.

    A dead letter at the floor must not make a subscription look late.
    """
    if not len(reader.dead):
        return reader.settled.floor
    count = 64
    while True:
        missing = reader.settled.first_missing(count, end)
        alive = missing[~reader.dead.has(missing)]
        if len(alive) or len(missing) < count:
            return int(alive[0]) if len(alive) else end
        count *= 8


def ready_ms(state: SubscriptionState, found: SubscriptionStats, now_ms: int) -> int | None:
    """Return how long the oldest message that may be leased has waited; None if that takes a full scan.

    In a fifo and a timeline the oldest message is at the front. Elsewhere it is known only if nothing is scheduled.
    """
    if not found.ready:
        return 0
    order = state.topic.config.order
    if order == "priority" or state.config.key_order:
        return None if found.scheduled else found.lag_ms
    since_ms = now_ms
    for number, reader in state.readers.items():
        first = reader.waiting.peek(1, now_ms)
        if not len(first.offset):
            continue
        published_ms = int(state.topic.partitions[number].directory.published_of(first.offset)[0]) // 1000
        since_ms = min(since_ms, max(int(first.rank[0]), published_ms) if order == "timeline" else published_ms)
    return max(0, now_ms - since_ms)
