"""Which topics are plain, and what a lone message touches there: the planned way of a publish, a pull and an ack.

A topic is plain if a publish of rows leads to one entry without a choice, and its ack to another: one partition in the
order of arrival, on this node alone, without bounds, whose messages go when they are settled; durable subscriptions
without a buffer and without an order by key. A plan holds the objects of such a topic that a message moves through.

A plan rests on the catalog alone, and on which partitions and readers there are. Whatever changes one of these calls
`TopicState.replan`; nothing else can make a plan wrong. What changes from message to message is checked for each.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from wherry.core.index.waiting import Fifo
    from wherry.core.state.partition import Partition
    from wherry.core.state.state import SubscriptionState, TopicState


SUBSCRIPTIONS_MAX: Final = 16
"""With more subscriptions a topic has no plan: each new reader makes the plan anew, which looks at all of them."""


class Plan(NamedTuple):
    """The one partition of a plain topic, and where its messages wait, for each subscription."""

    topic: TopicState
    partition: Partition
    waiting: tuple[tuple[SubscriptionState, Fifo], ...]


def plan_of(topic: TopicState) -> Plan | None:
    """Return the plan of a topic; None if it is not plain, or has had no message yet."""
    config, partition = topic.config, topic.partitions.get(0)
    if partition is None or config.partitions > 1 or len(topic.subscriptions) > SUBSCRIPTIONS_MAX:
        return None
    if config.order != "fifo" or config.flows or config.is_bounded or topic.is_stream():
        return None
    waiting = []
    for subscription in topic.subscriptions.values():
        terms, reader = subscription.config, subscription.readers.get(0)
        has_buffer = terms.buffer_messages is not None or terms.buffer_bytes is not None
        if reader is None or reader.fifo is None or has_buffer or terms.key_order or not terms.durable:
            return None
        waiting.append((subscription, reader.fifo))
    return Plan(topic, partition, tuple(waiting))
