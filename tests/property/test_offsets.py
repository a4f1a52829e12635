"""`OffsetSet` and ranges against Python sets."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from pyroaring import BitMap64

from tests.examples import scaled
from wherry.core.index.offsets import (
    OffsetSet,
    bitmap_of,
    distinct,
    members,
    offsets_of,
)
from wherry.model.ops import from_ranges, to_ranges

some = st.lists(st.integers(0, 90), max_size=20, unique=True)
neighbours = st.tuples(st.integers(0, 80), st.integers(1, 40)).map(lambda pair: list(range(pair[0], sum(pair))))
far = st.lists(st.integers(0, 1 << 42), max_size=5, unique=True)
offsets = some | neighbours | far
ends = st.integers(0, 130)


def column(values):
    return np.array(list(values), np.int64)


class Sets(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.real = OffsetSet()
        self.naive: set[int] = set()

    @rule(values=offsets)
    def add(self, values):
        self.real.add(column(sorted(values)))
        self.naive |= set(values)

    @rule(start=ends, stop=ends)
    def add_range(self, start, stop):
        self.real.add_range(start, stop)
        self.naive |= set(range(start, stop))

    @rule(values=some | neighbours)
    def remove(self, values):
        self.real.remove(column(values))
        self.naive -= set(values)

    @rule(values=offsets)
    def contains(self, values):
        assert self.real.contains(column(values)).tolist() == [value in self.naive for value in values]

    @rule(start=ends, stop=ends)
    def missing_and_within(self, start, stop):
        assert self.real.missing(start, stop).tolist() == [v for v in range(start, stop) if v not in self.naive]
        if start <= stop:
            assert self.real.within(start, stop).tolist() == [v for v in range(start, stop) if v in self.naive]

    @rule(count=st.integers(0, 50), stop=ends)
    def first_missing(self, count, stop):
        expected = [v for v in range(stop) if v not in self.naive][:count]
        assert self.real.first_missing(count, stop).tolist() == expected

    @rule(stop=ends)
    def count_below(self, stop):
        assert self.real.count_below(stop) == sum(value < stop for value in self.naive)

    @invariant()
    def floor(self):
        assert self.real.floor not in self.naive
        assert all(value in self.naive for value in range(min(self.real.floor, 200)))
        assert not self.real.above or self.real.above.min() > self.real.floor
        assert len(self.real) == len(self.naive)


TestSets = Sets.TestCase
TestSets.settings = settings(max_examples=scaled(150), stateful_step_count=30)


def test_first_missing_looks_as_far_as_it_has_to():
    have = OffsetSet()
    have.add_range(1, 10_000)
    assert have.first_missing(3, 20_000).tolist() == [0, 10_000, 10_001]
    assert have.first_missing(3, 10_001).tolist() == [0, 10_000]


@given(offsets)
def test_bitmaps_hold_what_was_given_in_any_order(values):
    assert offsets_of(bitmap_of(column(values))).tolist() == sorted(values)


def test_a_bitmap_is_not_misled_by_ends_that_look_like_a_run():
    assert offsets_of(bitmap_of(column([0, 7, 2]))).tolist() == [0, 2, 7]


@given(offsets, offsets)
def test_members(inside, asked):
    assert members(BitMap64(inside), column(asked)).tolist() == [value in inside for value in asked]


@given(offsets.map(sorted))
def test_ranges_are_a_way_there_and_back(values):
    ranges = to_ranges(column(values))
    assert from_ranges(ranges).tolist() == values
    assert len(ranges) <= 2 * len(values)
    assert ranges.dtype == np.int64


@given(st.integers(0, 1 << 40), st.integers(1, 1000))
def test_neighbours_are_one_range(start, count):
    assert to_ranges(np.arange(start, start + count, dtype=np.int64)).tolist() == [start, start + count]


@given(st.lists(st.integers(-5, 5) | st.integers(-(1 << 63), (1 << 63) - 1)))
def test_distinct_is_a_sorted_set(values):
    given_values = column(values)
    assert distinct(given_values).tolist() == sorted(set(values))
    assert given_values.tolist() == values
