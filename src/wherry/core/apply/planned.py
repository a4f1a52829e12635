"""Apply the entries of plain topics: what a lone publish and a lone ack change, and nothing else.

Each function changes the state exactly as `apply` does for an entry with this one operation, but without a step,
without effects, and without a look for what a plain topic cannot have (`core/state/plan`). Recovery replays the same
entries by `apply`, so both must stay the same: the state machine of the property tests takes either way.
"""

from __future__ import annotations

import numpy as np

from wherry.core.index.waiting import NO_RANKS
from wherry.core.state.plan import Plan
from wherry.core.state.state import State, SubscriptionState
from wherry.model.ops import Publish


def publish(state: State, plan: Plan, op: Publish, at_us: int) -> None:
    """Add rows behind the last message of a plain topic, and let them wait for each subscription."""
    topic, partition, waiting = plan
    partition.append(op.base, op.count, op.bytes, at_us)
    topic.oldest.note(0, at_us)
    for subscription, fifo in waiting:
        state.mark_nonempty(subscription, 0)
        fifo.admit(op.base, op.count, NO_RANKS)
    topic.messages += op.count
    topic.bytes += op.bytes
    topic.count("published", op.count)


def ack(state: State, plan: Plan, subscription: SubscriptionState, first: int, stop: int) -> bool:
    """End consecutive messages that are on lease; return False, with nothing changed, if `apply` has to find out more.

    It has to where a producer is told of outcomes, or where a message may have another state.
    """
    topic, partition, _ = plan
    if len(topic.outbox.watched) or not subscription.readers[0].settle_run(first, stop):
        return False
    subscription.count("acked", stop - first)
    freed = partition.settled_run(first, stop)
    topic.give_back(partition.settled(np.arange(first, stop, dtype=np.int64)) if freed is None else freed)
    state.end_hold(topic, 0)
    return True
