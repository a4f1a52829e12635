"""Figures: how much waits where, how far behind each subscription is, who consumes, what the broker holds."""

from __future__ import annotations

from collections.abc import Iterable

from wherry.broker.calls.calls import BrokerCalls
from wherry.core.inspect import stats
from wherry.core.state.state import SubscriptionState, TopicState
from wherry.model.calls.stats import (
    BrokerFigures,
    ConsumerStats,
    PartitionStats,
    SubscriptionFigures,
    SubscriptionStats,
    TopicFigures,
    TopicSize,
    TopicStats,
)
from wherry.model.errors import NotFound


class FiguresCalls(BrokerCalls):
    """The calls that return figures. None of them touches a message."""

    def stats(self, topic: str) -> TopicStats:
        """Return how much waits where in a topic, and how far behind each subscription is."""
        now = self.shard.now()
        self.shard.upkeep(now, (topic,))
        return stats.of_topic(self.shard.state, self.shard.state.topic(topic), now.wall_ms)

    def subscription_stats(self, topic: str, name: str) -> SubscriptionStats:
        """Return how much waits for a subscription, and how far behind it is."""
        now = self.shard.now()
        self.shard.upkeep(now, (topic,))
        return stats.of_subscription(self.shard.state.subscription(topic, name), now.wall_ms)

    def partition_stats(self, topic: str, first: int, count: int) -> list[PartitionStats]:
        """Return where so many partitions of a topic, from one on, begin and end, and what is not settled in them."""
        return stats.of_partitions(self.shard.state.topic(topic), first, count)

    def topic_size(self, name: str) -> TopicSize | None:
        """Return what is in a topic; None where there is none of this name."""
        state = self.shard.state
        number = state.catalog.topics.get(name)
        if number is None:
            return None
        topic = state.topics[number]
        return TopicSize(topic.messages, topic.bytes, topic.dead)

    def ready_count(self, topic: str, subscription: str) -> int:
        """Return how many messages wait to be handed to a subscription; none where there is no such subscription."""
        now = self.shard.now()
        self.shard.upkeep(now, (topic,))
        try:
            readers = self.shard.state.subscription(topic, subscription).readers
        except NotFound:
            return 0
        return sum(reader.counts(now.wall_ms, 0).ready for reader in readers.values())

    def consumers(self, topic: str, subscription: str) -> list[ConsumerStats]:
        """Return who shares a subscription, and what each holds."""
        state = self.shard.state.subscription(topic, subscription)
        return [_consumer(state, name) for name in state.consumers]

    def consumer_stats(self, topic: str, subscription: str, name: str) -> ConsumerStats:
        """Return what one consumer holds, or raise `NotFound`."""
        return _consumer(self.shard.state.subscription(topic, subscription), name)

    def figures(self) -> BrokerFigures:
        """Return what the broker as a whole holds."""
        shard = self.shard
        return BrokerFigures(
            topics=len(shard.state.topics),
            leases=len(shard.state.leases),
            journal_bytes=shard.writer.stored_bytes(),
            pending_bytes=shard.committer.pending_bytes,
            entries=shard.committer.durable,
            cache_bytes=shard.store.cached_bytes + shard.store.transient_bytes,
            cache_bytes_max=shard.store.cache_bytes_max,
            checkpoints=0 if shard.metrics is None else shard.metrics.checkpoints,
            trouble=shard.trouble is not None,
            failed=shard.committer.failure is not None,
        )

    def topic_figures(self, names: Iterable[str]) -> list[TopicFigures]:
        """Return all counts of some topics; one that is gone is left out."""
        shard, refused = self.shard, self._refusals()
        numbers = (shard.state.catalog.topics.get(name) for name in names)
        found = [shard.state.topics[number] for number in numbers if number is not None]
        return [self._topic_figures(topic, refused.get(topic.number, {})) for topic in found]

    def _refusals(self) -> dict[int, dict[str, int]]:
        """Return how many publishes were refused, by the number of the topic and the code of the error."""
        metrics = self.shard.metrics
        found: dict[int, dict[str, int]] = {}
        for (number, code), count in ({} if metrics is None else metrics.refusals).items():
            found.setdefault(number, {})[code] = count
        return found

    def _topic_figures(self, topic: TopicState, refused: dict[str, int]) -> TopicFigures:
        subscriptions = sorted(topic.subscriptions.values(), key=lambda each: each.config.name)
        return TopicFigures(
            topic.config.name,
            topic.config.order,
            topic.config.partitions,
            topic.messages,
            topic.bytes,
            topic.dead,
            dict(topic.counters),
            refused,
            [self._subscription_figures(each) for each in subscriptions],
            list(topic.removals),
        )

    def _subscription_figures(self, state: SubscriptionState) -> SubscriptionFigures:
        metrics, now_ms = self.shard.metrics, self.shard.now().wall_ms
        found = stats.of_subscription(state, now_ms)
        return SubscriptionFigures(
            found.name,
            found.durable,
            found.consumers,
            found.ready,
            found.leased,
            found.scheduled,
            found.dead,
            found.lag,
            found.lag_ms,
            stats.ready_ms(state, found, now_ms),
            0 if metrics is None else metrics.deliveries[state.number],
            found.counters,
        )


def _consumer(subscription: SubscriptionState, name: str) -> ConsumerStats:
    known = subscription.consumers.get(name)
    if known is None:
        raise NotFound("consumer", name)
    return ConsumerStats(
        known.id,
        list(subscription.assignment.of(known.seat)),
        known.buffer_messages,
        known.buffer_bytes,
        known.unsettled_messages,
        known.unsettled_bytes,
        known.is_internal,
    )
