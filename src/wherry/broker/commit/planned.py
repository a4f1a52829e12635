"""The planned way of a lone publish and a lone ack: one entry of a plain topic, in one step of a few calls.

What is written, changed and answered is the same as by `Shard.decide` and `Shard.commit`. Each function returns None,
with nothing changed, where that is not certain: the topic has no plan, memory or the journal is full, a call waits for
the fate of a message, messages are traced. Then the caller takes the general way, which decides.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from wherry.core.apply import planned
from wherry.core.decide.publishing import planned_publish
from wherry.journal.bodies.partition import OVERHEAD_BYTES, CachedBatch
from wherry.journal.codec import encode
from wherry.model.calls.publish import Published
from wherry.model.calls.rows import ROW_BYTES
from wherry.model.ops import Entry, Settle
from wherry.model.row_batch import ROWS_BYTES_MAX, RowBatch, of_payloads

if TYPE_CHECKING:
    from wherry.broker.commit.shard import Shard
    from wherry.core.state.lease import Lease
    from wherry.core.state.state import TopicState

LONE_BYTES_MAX = ROWS_BYTES_MAX - ROW_BYTES
"""The largest payload that is a row batch: a larger one is published as columns."""


class PlannedWay:
    """The planned way into one shard."""

    def __init__(self, shard: Shard) -> None:
        self._shard = shard

    def publish(self, topic: str, rows: RowBatch) -> tuple[int, Published] | None:
        """Publish persistent rows without times; return the position to wait for and the answer."""
        known = self._plain_topic(topic)
        placed = None if known is None else self._publish(known, rows)
        return None if placed is None else (placed[0], Published.run(0, placed[1], rows.num_rows))

    def publish_lone(self, topic: str, payload: bytes) -> tuple[int, int] | None:
        """Publish one payload, handled as the topic says; return the position to wait for and its offset."""
        known = self._plain_topic(topic)
        if known is None or not known.config.persistent or len(payload) > LONE_BYTES_MAX:
            return None
        return self._publish(known, of_payloads([payload]))

    def _plain_topic(self, topic: str) -> TopicState | None:
        """Return a topic that has a plan."""
        state = self._shard.state
        number = state.catalog.topics.get(topic)
        known = None if number is None else state.topics[number]
        return None if known is None or known.plan is None or self._shard.tracing is not None else known

    def _publish(self, known: TopicState, rows: RowBatch) -> tuple[int, int] | None:
        """Publish persistent rows to a plain topic; return the position to wait for and the first offset."""
        shard = self._shard
        state = shard.state
        now = shard.now()
        shard.upkeep(now, ())
        plan = known.plan
        op = None if plan is None or not self._has_memory(rows.nbytes) else planned_publish(plan, rows)
        if plan is None or op is None:
            return None
        parts, size, _ = encode(Entry(now.wall_us, [op], [rows]))
        if shard.room.left(size, 1, essential=False) is not None:
            return None
        shard.committer.check()
        try:
            planned.publish(state, plan, op, now.wall_us)
        except Exception as fault:
            shard.give_up(fault)
            raise
        position = shard.committer.submit(parts, size)
        shard.store.put(CachedBatch(op.topic, 0, op.base, rows, now.wall_us, position, 0, position, op.count))
        if shard.arrivals:
            shard.arrivals.came(op.topic)
        shard.wake()
        return position, op.base

    def _has_memory(self, size: int) -> bool:
        """Return whether a batch of so many bytes fits into memory, and more may be queued for the journal."""
        store = self._shard.store
        fits = store.cached_bytes + size + OVERHEAD_BYTES <= store.cache_bytes_max
        return fits and not self._shard.committer.is_full()

    def ack_lease(self, lease: Lease, at_us: int) -> int | None:
        """Ack all messages of a lease, for which there is room, and end it; return the position to wait for."""
        if lease.run is None:
            return None
        op = Settle(lease.subscription, lease.partition, np.array(lease.run[:2], np.int64), "acked")
        position = self.ack(op, at_us)
        if position is not None:
            self._shard.state.take_out(lease, None)
        return position

    def ack(self, op: Settle, at_us: int) -> int | None:
        """Settle one run of messages that are on lease, for which there is room; return the position to wait for."""
        shard = self._shard
        subscription = shard.state.subscriptions[op.subscription]
        plan = subscription.topic.plan
        if (
            plan is None
            or shard.tracing is not None
            or len(op.ranges) != 2
            or plan.partition.transient
            or shard.watches
        ):
            return None
        parts, size, _ = encode(Entry(at_us, [op]))
        shard.committer.check()
        try:
            if not planned.ack(shard.state, plan, subscription, *op.ranges.tolist()):
                return None
        except Exception as fault:
            shard.give_up(fault)
            raise
        position = shard.committer.submit(parts, size)
        shard.store.drop(plan.topic.number, 0, plan.partition.droppable())
        return position
