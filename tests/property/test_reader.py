"""A reader: every message is in exactly one place, and the counts add up, whatever happens to it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.examples import scaled
from wherry.core.index import keys, runs, table
from wherry.core.index.offsets import bitmap_of
from wherry.core.inspect.audit import _audit_reader
from wherry.core.state.reader import Reader


@pytest.fixture(autouse=True)
def small(monkeypatch):
    for name, value in {"TAIL_MAX": 4, "RUN_MAX": 16, "BLOCK": 2, "MERGE_FAN": 2}.items():
        monkeypatch.setattr(runs, name, value)
    monkeypatch.setattr(table, "RECENT_MAX", 3)
    monkeypatch.setattr(keys, "WINDOW", 2)


def column(values):
    return np.array(list(values), np.int64)


class Readers(RuleBasedStateMachine):
    start = 3

    def __init__(self) -> None:
        super().__init__()
        self.now = 100
        self.end = self.start
        self.where: dict[int, str] = {}
        self.rank: dict[int, int] = {}
        self.until: dict[int, int] = {}
        self.attempts: dict[int, int] = {}

    @initialize(order=st.sampled_from(["fifo", "priority", "timeline"]), keyed=st.booleans())
    def choose(self, order, keyed):
        self.order, self.keyed = order, keyed
        self.real = Reader(order, self.start, self.hashes if keyed else None)

    def hashes(self, offsets):
        return offsets % 3

    def named(self, *places):
        return sorted(offset for offset, where in self.where.items() if where in places)

    def some(self, data, *places):
        here = self.named(*places)
        return sorted(data.draw(st.lists(st.sampled_from(here), min_size=1, max_size=5, unique=True))) if here else []

    def wake(self):
        for offset in self.named("delayed"):
            if self.until[offset] <= self.now:
                self.where[offset] = "waiting"

    @rule(rows=st.lists(st.tuples(st.integers(0, 9), st.sampled_from([-1, 0, 20])), min_size=1, max_size=6))
    def admit(self, rows):
        offsets = range(self.end, self.end + len(rows))
        if self.order == "fifo":
            ranks = list(offsets)
        else:
            ranks = [rank if self.order == "priority" else self.now + 5 * (rank - 4) for rank, _ in rows]
        due = [-1 if wait < 0 else self.now + wait for _, wait in rows]
        self.real.admit(self.end, column(ranks), None if self.order == "timeline" else column(due), self.now)
        for offset, rank, at in zip(offsets, ranks, due, strict=True):
            later = self.order != "timeline" and at > self.now
            self.where[offset], self.rank[offset] = "delayed" if later else "waiting", rank
            self.until[offset], self.attempts[offset] = at, 0
        self.end += len(rows)

    @rule(count=st.integers(1, 5))
    def pass_over(self, count):
        self.real.pass_over(self.end, count)
        self.where |= dict.fromkeys(range(self.end, self.end + count), "settled")
        self.end += count

    @rule(n=st.integers(1, 6))
    def lease(self, n):
        self.real.wake(self.now)
        self.wake()
        got = self.real.lease(n, self.now, len)
        assert [self.rank[offset] for offset in got.offset.tolist()] == got.rank.tolist()
        pairs = list(zip(got.rank.tolist(), got.offset.tolist(), strict=True))
        assert pairs == sorted(pairs)
        ready = [o for o in self.named("waiting") if self.order != "timeline" or self.rank[o] <= self.now]
        assert set(got.offset.tolist()) <= set(ready)
        if not self.keyed:
            assert pairs == sorted((self.rank[offset], offset) for offset in ready)[:n]
        self.where |= dict.fromkeys(got.offset.tolist(), "leased")

    @rule(n=st.integers(1, 6), most=st.integers(1, 4))
    def lease_few(self, n, most):
        self.real.wake(self.now)
        self.wake()
        found = self.real.next_few(n, most, self.now)
        if found is None:
            assert self.keyed or self.order == "fifo" or len(self.named("waiting")) > most < n
            return
        ready = [o for o in self.named("waiting") if self.order != "timeline" or self.rank[o] <= self.now]
        pairs = list(zip(found[1], found[0], strict=True))
        assert pairs == sorted((self.rank[offset], offset) for offset in ready)[:n]
        self.real.lease_few(found[0])
        self.where |= dict.fromkeys(found[0], "leased")

    @rule(data=st.data())
    def settle_set(self, data):
        """Settle a set: messages on lease that have no other state settle at once; else nothing changes."""
        some = self.some(data, "leased", "leased", "settled")
        if some and self.real.settle_set(bitmap_of(column(some))):
            assert all(self.where[offset] == "leased" for offset in some)
            self.where |= dict.fromkeys(some, "settled")
        elif some:
            others = self.keyed or self.named("dead", "delayed") or self.order == "fifo"
            assert others or len(self.real.attempts_table) or any(self.where[each] == "settled" for each in some)

    @rule(data=st.data())
    def give_back(self, data):
        some = self.some(data, "leased")
        self.real.give_back(column(self.rank[o] for o in some), column(some))
        self.where |= dict.fromkeys(some, "waiting")

    @rule(data=st.data())
    def settle(self, data):
        some = self.some(data, "waiting", "leased", "delayed", "dead", "settled")
        new = self.real.settle(column(some)).tolist()
        assert new == [offset for offset in some if self.where[offset] != "settled"]
        self.where |= dict.fromkeys(some, "settled")

    @rule(data=st.data(), wait=st.sampled_from([0, 10, 30]), replayed=st.booleans())
    def fail(self, data, wait, replayed):
        """Fail messages. On replay nothing is leased: the operation finds each waiting, and due since the hand-over."""
        some = self.some(data, "leased", *(["waiting"] if replayed else []))
        some = [o for o in some if self.order != "timeline" or self.rank[o] <= self.now]
        hashes = column(offset % 3 for offset in some) if self.keyed else column([])
        until = column([self.now + wait] * len(some))
        self.real.fail(column(some), column(self.rank[o] for o in some), hashes, until, self.now, 0)
        for offset in some:
            self.where[offset], self.until[offset] = "delayed", self.now + wait
            self.attempts[offset] += 1
        self.wake()

    @rule(data=st.data())
    def bury(self, data):
        some = self.some(data, "leased", "waiting", "delayed")
        self.real.bury(column(some), column(self.rank[o] for o in some), self.now, 0, 0, failed=True)
        for offset in some:
            assert self.real.dead.get(column([offset]), "attempts", -1)[0] == self.attempts[offset] + 1
            self.where[offset], self.attempts[offset] = "dead", 0

    @rule(data=st.data())
    def redrive(self, data):
        some = self.some(data, "dead")
        self.real.redrive(column(some), column(self.rank[o] for o in some), column([-1] * len(some)), self.now)
        self.where |= dict.fromkeys(some, "waiting")

    @precondition(lambda self: self.named("waiting", "delayed"))
    @rule(data=st.data(), rank=st.integers(0, 9))
    def replace(self, data, rank):
        old = data.draw(st.sampled_from(self.named("waiting", "delayed")))
        self.real.replace(old, self.end, rank, None if self.order == "timeline" else -1, self.now)
        self.where[old], self.where[self.end] = "settled", "waiting"
        self.rank[self.end] = self.rank[old] if self.order == "fifo" else rank
        self.until[self.end], self.attempts[self.end] = -1, 0
        self.end += 1

    @rule(later=st.sampled_from([1, 10, 25]))
    def tick(self, later):
        self.now += later

    @invariant()
    def one_place_each(self):
        if not hasattr(self, "real"):
            return
        counts = self.real.counts(self.now, self.end)
        self.wake()
        _audit_reader(self.real, self.end, "reader")
        waiting = self.named("waiting")
        ready = [o for o in waiting if self.order != "timeline" or self.rank[o] <= self.now]
        assert counts == (
            len(ready),
            len(self.named("leased")),
            len(self.named("delayed")) + len(waiting) - len(ready),
            len(self.named("dead")),
        )
        assert sum(counts) + len(self.named("settled")) == self.end - self.start
        for offset, where in self.where.items():
            shown = "scheduled" if where == "delayed" else where
            assert self.real.state_of(offset, self.now) in (shown, "scheduled" if where == "waiting" else shown)
        open_ones = self.named("waiting", "leased", "delayed")
        assert self.real.attempts(column(open_ones)).tolist() == [self.attempts[o] for o in open_ones]


TestReaders = Readers.TestCase
TestReaders.settings = settings(max_examples=scaled(200), stateful_step_count=30)
