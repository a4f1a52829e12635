"""`SortedRuns` against a dict: whatever is merged, swept, refilled or cut short, the smallest pairs come first."""

from __future__ import annotations

import inspect
import sys

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.examples import scaled
from wherry.core.index import runs
from wherry.core.index.offsets import members
from wherry.core.index.runs import SortedRuns, sort_pairs

SIZES = {"TAIL_MAX": 6, "RUN_MAX": 48, "BLOCK": 4, "MERGE_FAN": 3, "SHORT_MAX": 5}
"""Small enough that every path of the tree is taken within a few steps (a refill reads 64 pairs a run at least)."""


@pytest.fixture(autouse=True)
def small(monkeypatch):
    for name, value in SIZES.items():
        monkeypatch.setattr(runs, name, value)


def column(values):
    return np.array(list(values), np.int64)


class Runs(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.real = SortedRuns()
        self.here: dict[int, int] = {}
        self.discarded: dict[int, int] = {}
        self.next_offset = 0

    def expected(self, n, rank_max=None):
        pairs = sorted((rank, offset) for offset, rank in self.here.items())
        return [pair for pair in pairs if rank_max is None or pair[0] <= rank_max][:n]

    @initialize(count=st.integers(0, 300), spread=st.sampled_from([1, 7, 1000]))
    def fill(self, count, spread):
        self.add([(offset * 7919) % spread for offset in range(count)])

    @rule(ranks=st.lists(st.integers(0, 12), min_size=1, max_size=9))
    def insert(self, ranks):
        self.add(ranks)

    @rule(count=st.integers(1, 200), rank=st.integers(0, (1 << 43) - 1), step=st.sampled_from([0, -1]))
    def insert_many(self, count, rank, step):
        """Insert ever more urgent messages: the front grows and has to be cut short."""
        self.add([max(0, rank + step * index) for index in range(count)])

    def add(self, ranks):
        offsets = range(self.next_offset, self.next_offset + len(ranks))
        self.next_offset += len(ranks)
        self.real.insert(column(ranks), column(offsets))
        self.here |= dict(zip(offsets, ranks, strict=True))

    @precondition(lambda self: self.here)
    @rule(data=st.data())
    def discard(self, data):
        leaving = data.draw(st.lists(st.sampled_from(sorted(self.here)), min_size=1, max_size=40, unique=True))
        self.real.discard(column(leaving))
        for offset in leaving:
            self.discarded[offset] = self.here.pop(offset)

    @precondition(lambda self: self.discarded)
    @rule(data=st.data())
    def bring_back(self, data):
        back = data.draw(st.lists(st.sampled_from(sorted(self.discarded)), min_size=1, max_size=10, unique=True))
        self.real.insert(column(self.discarded[offset] for offset in back), column(back))
        for offset in back:
            self.here[offset] = self.discarded.pop(offset)

    @rule(n=st.integers(0, 100), rank_max=st.none() | st.integers(0, 20))
    def peek(self, n, rank_max):
        got = self.real.peek(n, rank_max)
        assert list(zip(got.rank.tolist(), got.offset.tolist(), strict=True)) == self.expected(n, rank_max)

    @rule(n=st.integers(0, 100), rank_max=st.none() | st.integers(0, 20))
    def take(self, n, rank_max):
        expected = self.expected(n, rank_max)
        got = self.real.take(n, rank_max)
        assert list(zip(got.rank.tolist(), got.offset.tolist(), strict=True)) == expected
        for _, offset in expected:
            del self.here[offset]

    @rule(rank_max=st.integers(0, 1000))
    def count(self, rank_max):
        assert self.real.count_to(rank_max) == sum(rank <= rank_max for rank in self.here.values())

    @rule()
    def columns(self):
        rank, offset = self.real.columns()
        assert dict(zip(offset.tolist(), rank.tolist(), strict=True)) == self.here

    @rule()
    def first(self):
        assert self.real.first_rank() == min(self.here.values(), default=None)

    @invariant()
    def size(self):
        assert len(self.real) == len(self.here)


TestRuns = Runs.TestCase
TestRuns.settings = settings(max_examples=scaled(150), stateful_step_count=25)


def test_every_path_of_the_tree_is_taken(monkeypatch):
    """Check that the sizes above are small enough: merging, sweeping, refilling and shortening all happen."""
    taken: dict[str, int] = {}

    def counting(name):
        real = getattr(SortedRuns, name)

        def wrapper(self, *args):
            taken[name] = taken.get(name, 0) + 1
            return real(self, *args)

        monkeypatch.setattr(SortedRuns, name, wrapper)

    for name in ("_sweep", "_next_block", "_sort_tail", "_absorb_tail"):
        counting(name)
    index = SortedRuns()
    for start in range(0, 600, 20):
        index.insert(column(range(10_000 - start, 10_000 - start - 20, -1)), column(range(start, start + 20)))
        index.peek(1)
    assert max(len(run.rank) for run in index._runs) > SIZES["BLOCK"] * 4, "runs were merged, and the front was cut"
    assert len(index._front.rank) <= 4 * SIZES["BLOCK"] + 20
    index.discard(column(range(400)))
    assert [int(offset) for offset in index.take(600).offset] == list(range(599, 399, -1))
    assert set(taken) == {"_sweep", "_next_block", "_sort_tail", "_absorb_tail"}


def test_many_discarded_at_the_head_of_many_runs_is_no_recursion(monkeypatch):
    """Refills called each other: 40,000 cancelled messages at the head of a long timeline were a RecursionError."""
    monkeypatch.setattr(runs, "RUN_MAX", 1)
    index = SortedRuns()
    for start in range(0, 20_000, 100):
        index.insert(column(range(start, start + 100)), column(range(start, start + 100)))
    index.discard(column(range(9_000)))
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(len(inspect.stack()) + 60)
    try:
        assert index.first_rank() == 9_000
    finally:
        sys.setrecursionlimit(limit)


def test_what_was_discarded_far_behind_is_not_looked_for(monkeypatch):
    monkeypatch.undo()
    index = SortedRuns()
    index.insert(np.arange(50_000), np.arange(50_000))
    asked: list[int] = []

    def counting(gone, offset):
        asked.append(len(offset))
        return members(gone, offset)

    monkeypatch.setattr(runs, "members", counting)
    index.discard(np.arange(20_000, 20_100))
    for start in range(0, 1_000, 10):
        assert index.take(10).offset.tolist() == list(range(start, start + 10))
    assert set(asked) == {10}
    index.discard(np.arange(1_000, 20_000))
    asked.clear()
    assert index.first_rank() == 20_100
    assert len(asked) < 20, "the window grows: few looks, although one pair was asked for"


def test_more_rows_than_a_packed_row_number_holds():
    count = (1 << 20) + 3
    offset = np.arange(count, dtype=np.int64)[::-1].copy()
    pairs = sort_pairs(offset % 5, offset)
    assert pairs.rank[:3].tolist() == [0, 0, 0]
    assert pairs.offset[:3].tolist() == [0, 5, 10]
    assert bool((np.diff(pairs.rank) >= 0).all())


def test_memory_follows_the_backlog(monkeypatch):
    monkeypatch.undo()
    index = SortedRuns()
    count = 1 << 19
    rank = np.random.default_rng(7).permutation(count).astype(np.int64)
    for start in range(0, count, 1 << 15):
        index.insert(rank[start : start + (1 << 15)].copy(), np.arange(start, start + (1 << 15), dtype=np.int64))
    assert index.bytes() <= 24 * count
    for _ in range(90):
        index.take(count // 100)
    assert index.bytes() <= 24 * (count // 10) + 24 * runs.BLOCK * 4
