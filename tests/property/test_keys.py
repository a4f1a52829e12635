"""Order per key: a key is out with one delivery at a time, its messages come in order, and parking is bounded."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.examples import scaled
from wherry.core.index import keys
from wherry.core.index.keys import Busy, KeyGate
from wherry.core.index.waiting import Fifo, Ranked

PARKED, WINDOW = 20, 4
hashes = st.lists(st.integers(-3, 3), max_size=12)


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(keys, "PARKED_MAX", PARKED)
    monkeypatch.setattr(keys, "WINDOW", WINDOW)


def column(values):
    return np.array(list(values), np.int64)


@given(st.lists(st.tuples(st.booleans(), hashes), max_size=8))
def test_busy_is_a_multiset(steps):
    real = Busy()
    naive: Counter[int] = Counter()
    for adding, values in steps:
        if adding:
            real.add(column(values))
            naive.update(value for value in values if value)
        else:
            real.remove(column(values))
            naive.subtract(value for value in values if value)
            naive = Counter({key: count for key, count in naive.items() if count > 0})
        assert len(real) == naive.total()
        assert real.has(column(range(-4, 5))).tolist() == [naive[key] > 0 for key in range(-4, 5)]


class Gate(RuleBasedStateMachine):
    """0 is no key. What is out is out with some delivery; keys of deliveries never meet."""

    def __init__(self) -> None:
        super().__init__()
        self.key: dict[int, int] = {}
        self.rank: dict[int, int] = {}
        self.here: set[int] = set()
        self.deliveries: list[list[int]] = []

    @initialize(ranked=st.booleans())
    def choose(self, ranked):
        self.ranked = ranked
        self.gate = KeyGate(
            Ranked(timed=False) if ranked else Fifo(0), lambda o: column(self.key[x] for x in o.tolist())
        )

    @rule(rows=st.lists(st.tuples(st.sampled_from([0, 0, 1, 2, 3]), st.integers(0, 5)), min_size=1, max_size=8))
    def admit(self, rows):
        base = len(self.key)
        for offset, (key, rank) in enumerate(rows, base):
            self.key[offset], self.rank[offset] = key, rank if self.ranked else offset
        self.gate.admit(base, len(rows), column(self.rank[base + index] for index in range(len(rows))))
        self.here |= set(range(base, base + len(rows)))

    def out(self):
        return {offset for delivery in self.deliveries for offset in delivery}

    def allowed(self):
        """Return what may be handed over now, in order, were there no bound on parking."""
        busy = {self.key[offset] for offset in self.out()} - {0}
        order = sorted(self.here, key=lambda offset: (self.rank[offset], offset))
        return [offset for offset in order if self.key[offset] not in busy]

    @rule(n=st.integers(1, 10), cut=st.integers(0, 10))
    def pick(self, n, cut):
        allowed = self.allowed()[:n]
        got = self.gate.pick(n, 0, lambda offsets: min(cut, len(offsets))).offset.tolist()
        if len(self.here) <= PARKED:
            assert got == allowed[:cut]
        else:
            assert set(got) <= set(self.allowed()), "one slow key may stop the look-ahead, never break the order"
            assert got == sorted(got, key=lambda offset: (self.rank[offset], offset))
        if got:
            self.deliveries.append(got)
            self.here -= set(got)

    @precondition(lambda self: self.deliveries)
    @rule(data=st.data(), how=st.sampled_from(["settle", "give back", "delay"]))
    def end(self, data, how):
        delivery = data.draw(st.sampled_from(self.deliveries))
        some = sorted(data.draw(st.lists(st.sampled_from(delivery), min_size=1, unique=True)))
        if how == "delay":  # the message failed and waits for its time: its key stays busy
            self.gate.hold(column(some), self.gate.hashes(column(some)))
            return
        if how == "settle":
            self.gate.let_go(column(some))
        else:
            self.gate.put_back(column(self.rank[offset] for offset in some), column(some))
            self.here |= set(some)
        delivery[:] = [offset for offset in delivery if offset not in some]
        self.deliveries = [each for each in self.deliveries if each]

    @precondition(lambda self: self.here)
    @rule(data=st.data())
    def discard(self, data):
        some = sorted(data.draw(st.lists(st.sampled_from(sorted(self.here)), min_size=1, max_size=5, unique=True)))
        self.gate.discard(column(some))
        self.here -= set(some)

    @invariant()
    def bounds(self):
        if not hasattr(self, "gate"):
            return
        seen = [{self.key[offset] for offset in delivery} - {0} for delivery in self.deliveries]
        assert sum(map(len, seen)) == len(set().union(*seen)), "a key is out with two deliveries"
        assert self.gate.ready(0) == len(self.here)
        assert sorted(self.gate.offsets().tolist()) == sorted(self.here)
        assert self.gate.hashes(column(sorted(self.out()))).tolist() == [self.key[o] for o in sorted(self.out())]


TestGate = Gate.TestCase
TestGate.settings = settings(max_examples=scaled(200), stateful_step_count=25)


def test_looking_ahead_parks_no_more_than_its_bound():
    gate = KeyGate(Fifo(0), lambda offsets: np.ones(len(offsets), np.int64))
    gate.admit(0, 500, np.arange(500))
    assert gate.pick(1, 0, len).offset.tolist() == [0]
    assert len(gate.pick(400, 0, len).offset) == 0, "the key is busy"
    assert len(gate._rank) == PARKED


def test_something_more_urgent_passes_what_is_parked():
    gate = KeyGate(Ranked(timed=False), lambda offsets: offsets + 1)
    gate.admit(0, 4, column([5, 5, 5, 5]))
    assert gate.pick(1, 0, len).offset.tolist() == [0]
    gate.admit(4, 1, column([1]))
    assert gate.peek(2, 0).offset.tolist() == [4, 1]
    assert gate.pick(9, 0, len).offset.tolist() == [4, 1, 2, 3]
