"""Rules of the core machine: a topic that grows, and readers of the log, which settle by position."""

from __future__ import annotations

import msgspec
from hypothesis import strategies as st
from hypothesis.stateful import rule

from tests.property.core_machine import PLENTY
from tests.property.rules_change import Changing
from tests.property.rules_consume import names
from wherry.core.decide import span
from wherry.core.decide.span import LogRange, ReadBudget
from wherry.core.state.catalog import check_change
from wherry.model import ops
from wherry.model.errors import NotWaiting
from wherry.model.ops import Entry

PARTITIONS_MAX = 5


class Logging(Changing):
    @rule(more=st.integers(1, 2))
    def grow(self, more):
        """Add partitions: the others stay where they are, and the new ones are shared out among the consumers."""
        known = self.topic.config
        wanted = msgspec.structs.replace(known, partitions=min(known.partitions + more, PARTITIONS_MAX))
        if wanted == known:
            return
        check_change(known, wanted)
        self.shell.commit([Entry(self.now.wall_us, [ops.PutTopic(self.topic.number, wanted)])])
        assert self.topic.config == wanted
        for name in self.naive.subscriptions:
            subscription = self.subscription(name)
            owned = {number for each in subscription.consumers for number in subscription.assignment.of(each)}
            assert owned == set(range(wanted.partitions)), "each partition has a consumer"

    def positions(self, data):
        return {
            number: data.draw(st.integers(0, partition.next_offset))
            for number, partition in self.topic.partitions.items()
        }

    @rule(name=names, data=st.data())
    def advance(self, name, data):
        self.upkeep()
        if name not in self.naive.subscriptions:
            return
        positions = self.positions(data)
        below = [m for at, m in self.naive.messages.items() if at[1] < positions[at[0]]]
        refused = False
        while True:
            try:
                entries = span.advance(self.shell.state, self.subscription(name), positions, self.now.wall_us)
            except NotWaiting:
                refused = True
                break
            if not entries:
                break
            steps = [op for entry in entries for op in entry.ops if isinstance(op, ops.Settle)]
            assert len(steps) == sum(len(entry.ops) for entry in entries)
            settled = [(op.partition, offset) for op in steps for offset in ops.from_ranges(op.ranges).tolist()]
            assert len(settled) <= span.ADVANCE_STEP
            assert set(settled) <= {message.at for message in below}
            self.naive.advance(name, settled)
            self.shell.commit(entries)
        leased = [message for message in below if message.places[name].where == "leased"]
        assert refused == bool(leased)
        if not refused:
            assert all(message.places[name].where in ("settled", "dead") for message in below)

    @rule(data=st.data(), messages=st.sampled_from([1, 2, 5, PLENTY]), size=st.sampled_from([1, 20, 60, PLENTY]))
    def reach(self, data, messages, size):
        """Read as far as the bounds allow, and always at least one message further."""
        self.upkeep()
        start = self.positions(data)
        partitions = self.topic.partitions
        ranges = [LogRange(self.topic, partitions[n], at, partitions[n].next_offset) for n, at in start.items()]
        ends = dict(zip(start, span.reach(self.shell.state.bodies, ranges, ReadBudget(messages, size)), strict=True))
        assert all(start[n] <= end <= partitions[n].next_offset for n, end in ends.items())
        kept = [m for at, m in self.naive.messages.items() if start[at[0]] <= at[1] and not m.gone]
        read = [m for m in kept if m.at[1] < ends[m.at[0]]]
        assert bool(read) == bool(kept), "no reader is stuck"
        assert len(read) <= messages
        assert sum(m.weight() for m in read) <= size or len(read) == 1
        if messages == PLENTY and size == PLENTY:
            assert ends == {n: partition.next_offset for n, partition in partitions.items()}

    @rule(data=st.data(), length=st.integers(0, 9))
    def lost(self, data, length):
        """Check that a reader loses no kept message, and that one too late for dropped messages gets an error."""
        for number, start in self.positions(data).items():
            inside = [self.naive.messages.get((number, at)) for at in range(start, start + length)]
            gone = [m for m in inside if m is not None and m.gone]
            heirs = [m.heir for m in self.naive.messages.values() if m.heir is not None]
            dropped = [m.at[1] for m in gone if m.why == "dropped" and m.heir is None and m not in heirs]
            first = span.first_lost(self.topic.partitions[number], start, start + length)
            assert first is None or first in [m.at[1] for m in gone]
            if dropped:
                assert first is not None
                assert first <= dropped[0]
