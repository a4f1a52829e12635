"""The planned way of a lone publish and a lone ack: one entry of a plain topic, in one step of a few calls.

What is written, changed and answered is the same as by `Shard.decide` and `Shard.commit`. Each function returns None,
with nothing changed, where that is not certain: the topic has no plan, memory or the journal is full, a call waits for
the fate of a message, messages are traced. Then the caller takes the general way, which decides.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from wherry.core.apply import planned
from wherry.core.decide.publishing import planned_publish
from wherry.journal.bodies.partition import OVERHEAD_BYTES, CachedBatch
from wherry.journal.codec import encode
from wherry.model.calls.publish import Published
from wherry.model.ops import Entry, Settle
from wherry.model.row_batch import RowBatch

if TYPE_CHECKING:
    from wherry.broker.commit.shard import Shard


class PlannedWay:
    """The planned way into one shard."""

    def __init__(self, shard: Shard) -> None:
        self._shard = shard

    def publish(self, topic: str, rows: RowBatch) -> tuple[int, Published] | None:
        """Publish persistent rows; return the position to wait for and the answer."""
        shard = self._shard
        state = shard.state
        number = state.catalog.topics.get(topic)
        known = None if number is None else state.topics[number]
        if known is None or known.plan is None or shard.tracing is not None:
            return None
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
        return position, Published.run(0, op.base, op.count)

    def _has_memory(self, size: int) -> bool:
        """Return whether a batch of so many bytes fits into memory, and more may be queued for the journal."""
        store = self._shard.store
        fits = store.cached_bytes + size + OVERHEAD_BYTES <= store.cache_bytes_max
        return fits and not self._shard.committer.is_full()

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
