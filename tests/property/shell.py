"""What the broker's shard does around the core, without an event loop: encode, apply, keep bodies, recover."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from wherry.core.apply import planned
from wherry.core.apply.apply import apply
from wherry.core.apply.step import Effects
from wherry.core.decide.leasing import Now
from wherry.core.decide.publishing import planned_publish
from wherry.core.state import snapshot
from wherry.core.state.state import State, SubscriptionState
from wherry.journal import checkpoint, codec
from wherry.journal.bodies.partition import CachedBatch
from wherry.journal.bodies.store import BodyStore
from wherry.journal.checkpoint import Checkpoint
from wherry.model import ops
from wherry.model.limits import PRIORITY_DEFAULT
from wherry.model.ops import Entry, to_ranges
from wherry.model.row_batch import RowBatch
from wherry.model.schema import integers

BLOCK = 3
"""Messages that one step of a backfill admits."""


class Shell:
    """A state, its bodies, and every lasting entry as the bytes that a journal would have.

    With `planned`, entries that have a planned way take it; what is replayed never does.
    """

    def __init__(self, *, planned: bool = False) -> None:
        self.planned = planned
        self.store = BodyStore(None)
        self.state = State(self.store)
        self.journal: list[bytes] = []
        self.staged: dict[tuple[str, int], tuple[int, int]] = {}

    def commit(self, entries: list[Entry]) -> None:
        for entry in entries:
            if entry.volatile:
                self._carry_out(apply(self.state, entry), 0)
            else:
                parts, size, own = codec.encode(entry)
                self.journal.append(b"".join(parts))
                assert size == len(self.journal[-1])
                if not (self.planned and self._takes_planned_way(own, len(self.journal))):
                    self._carry_out(apply(self.state, own), len(self.journal))

    def _takes_planned_way(self, entry: Entry, position: int) -> bool:
        """Apply an entry as `broker/commit/planned.py` does, if it can."""
        op = entry.ops[0]
        if len(entry.ops) > 1 or not isinstance(op, ops.Publish | ops.Settle):
            return False
        if isinstance(op, ops.Publish):
            plan, (rows,) = self.state.topics[op.topic].plan, entry.batches
            if plan is None or not isinstance(rows, RowBatch) or rows.has_times:
                return False
            assert planned_publish(plan, rows) == op, "it decides as the general way"
            planned.publish(self.state, plan, op, entry.at_us)
            self.store.put(CachedBatch(op.topic, 0, op.base, rows, entry.at_us, position, 0, position))
            return True
        subscription = self.state.subscriptions[op.subscription]
        plan = subscription.topic.plan
        if plan is None or len(op.ranges) != 2 or op.outcome != "acked" or plan.partition.transient:
            return False
        if not planned.ack(self.state, plan, subscription, *op.ranges.tolist()):
            return False
        self.store.drop(subscription.topic.number, 0, plan.partition.droppable())
        return True

    def _carry_out(self, effects: Effects, position: int) -> None:
        for key, part, index in effects.staged:
            self.staged[key, part] = (position, index)
        for new in effects.stored:
            at, index = (position, new.batch_index) if new.staged is None else self.staged.pop(new.staged)
            where = (new.topic, new.partition, new.base)
            self.store.put(CachedBatch(*where, new.batch, new.published_us, at, index, position))
        for key in effects.ended:
            self.staged = {place: at for place, at in self.staged.items() if place[0] != key}
        for (topic, number), partition in effects.touched.items():
            self.store.drop(topic, number, partition.droppable())
        for topic in effects.dropped_topics:
            self.store.drop_topic(topic)

    def digest(self) -> str:
        return snapshot.digest(self.state)

    def replayed(self) -> Shell:
        """Return another shell that read the whole journal."""
        other = Shell(planned=self.planned)
        other.journal = list(self.journal)
        for position, body in enumerate(self.journal, 1):
            other._carry_out(apply(other.state, codec.decode(pa.py_buffer(body))), position)
        return other

    def reloaded(self) -> Shell:
        """Return another shell that opened a checkpoint, and took from the journal the bodies that it names."""
        staged = [(key, part, *at) for (key, part), at in self.staged.items()]
        point = Checkpoint(len(self.journal), 1, snapshot.dump(self.state), self.store.snapshot().image(), staged)
        point = checkpoint.decode("test", b"".join(checkpoint.encode(point)))
        other = Shell(planned=self.planned)
        other.journal = list(self.journal)
        snapshot.load(other.state, point.state)
        other.store.load_segments(point.store)
        wanted = {(row.position, row.batch_index): row for row in point.store.cached_rows()}
        stages = {(position, index): (key, part) for key, part, position, index in point.staged}
        for position, body in enumerate(self.journal, 1):
            for index, batch in enumerate(codec.decode(pa.py_buffer(body)).batches):
                if (position, index) in wanted:
                    topic, partition, base, published_us, _, _, gate = wanted.pop((position, index))
                    other.store.put(CachedBatch(topic, partition, base, batch, published_us, position, index, gate))
                if (position, index) in stages:
                    key, part = stages.pop((position, index))
                    parts = other.state.stages.open[key].parts
                    parts[part] = parts[part]._replace(batch=batch)
                    other.staged[key, part] = (position, index)
        assert not wanted
        assert not stages
        return other

    def opened(self, now: Now) -> None:
        self.commit([Entry(now.wall_us, [ops.Opened(self.state.epoch + 1, "test")])])

    def backfill(self, subscription: SubscriptionState, number: int, now: Now) -> tuple[int, list[int]]:
        """Admit a block of older messages, as `broker/upkeep/backfill.py` does: its end, the offsets."""
        reader, topic = subscription.readers[number], subscription.topic
        if reader.backlog is None:
            return 0, []
        start, end = reader.backlog
        stop = min(start + BLOCK, end)
        offset = reader.settled.missing(start, stop)
        offset = offset[~topic.partitions[number].released.contains(offset)]
        offset = offset[~topic.partitions[number].dead.has(offset)]
        batch = self.store.messages(topic.number, number, offset)
        due = integers(batch, "due", -1)
        rank = offset
        if topic.config.order == "priority":
            rank = integers(batch, "priority", PRIORITY_DEFAULT)
        elif topic.config.order == "timeline":
            rank = np.where(due >= 0, due, integers(batch, "published", 0) // 1000)
        op = ops.Admit(subscription.number, number, stop, to_ranges(offset), rank, due)
        self.commit([Entry(now.wall_us, [op], volatile=not subscription.config.durable)])
        return stop, offset.tolist()
