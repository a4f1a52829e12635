"""Idempotent producers and the index of ids, against lists."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tests.examples import scaled
from wherry.core.index import ids
from wherry.core.index.ids import IdIndex, PackedOffset
from wherry.core.state import producers
from wherry.core.state.producers import ProducerCall, Producers
from wherry.model.errors import OutOfSequence

CALLS, PRODUCERS, RUN_MAX = 3, 2, 16


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(producers, "PRODUCER_CALLS_MAX", CALLS)
    monkeypatch.setattr(producers, "PRODUCERS_MAX", PRODUCERS)
    monkeypatch.setattr(ids, "RUN_MAX", RUN_MAX)


class Calls(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.real = Producers()
        self.naive: dict[str, list[tuple[int, int, int]]] = {}
        self.number = 0

    @rule(producer=st.sampled_from("abc"), first=st.integers(0, 25), count=st.integers(1, 4))
    def publish(self, producer, first, count):
        known = self.naive.get(producer, [])
        expected: object = "new"
        if known and first < known[-1][0] + known[-1][1]:
            same = [call for call in known if call[:2] == (first, count)]
            expected = same[0] if same else "refused"
        if expected == "refused":
            with pytest.raises(OutOfSequence, match=f"producer '{producer}': sequence {first} "):
                self.real.repeated(producer, first, count)
            return
        got = self.real.repeated(producer, first, count)
        if expected != "new":
            assert got is not None
            assert (got.first, got.messages, got.placed[1]) == expected
            return
        assert got is None
        self.number += 1
        self.real.note(producer, ProducerCall(first, count, [0, self.number, count]))
        if producer not in self.naive and len(self.naive) == PRODUCERS:
            del self.naive[next(iter(self.naive))]
        self.naive[producer] = [*self.naive.pop(producer, []), (first, count, self.number)][-CALLS:]

    @rule()
    def reload(self):
        again = Producers()
        again.load(self.real.dump())
        self.real = again

    @invariant()
    def same(self):
        dumped = [(name, [(c[0], c[1], c[2][1]) for c in calls]) for name, calls in self.real.dump()]
        assert dumped == list(self.naive.items())


TestCalls = Calls.TestCase
TestCalls.settings = settings(max_examples=scaled(150), stateful_step_count=30)

pairs = st.lists(
    st.tuples(st.integers(0, 6), st.integers(0, 9), st.integers(0, 99)), max_size=10, unique_by=lambda p: p[1:]
)


@given(st.lists(pairs, max_size=12), st.lists(st.integers(0, 7), max_size=6), st.sets(st.integers(0, 99)))
def test_ids_are_found_by_rank(added, asked, kept):
    index = IdIndex()
    naive: set[tuple[int, int, int]] = set()
    for rows in added:
        fresh = [(rank, part, offset) for rank, part, offset in rows if (part, offset) not in {n[1:] for n in naive}]
        rank = np.array([row[0] for row in fresh], np.int64)
        place = np.array([(row[1] << 43) | row[2] for row in fresh], np.int64)
        index.add(rank, place)
        naive |= set(fresh)

    def check():
        rows, places = index.find(np.array(asked, np.int64))
        assert rows.tolist() == sorted(rows.tolist())
        got = sorted(
            (row, *PackedOffset.unpack(place)) for row, place in zip(rows.tolist(), places.tolist(), strict=True)
        )
        assert got == sorted((row, p, o) for row, rank in enumerate(asked) for r, p, o in naive if r == rank)
        assert len(index) == len(naive)
        lengths = [len(run.rank) for run in index._runs]
        assert max(lengths, default=0) <= RUN_MAX, "no merge is larger"
        assert all(a + b > RUN_MAX or a >= 2 * b for a, b in pairwise(lengths)), "no more runs than it takes"
        assert sorted(zip(*(c.tolist() for c in index.columns()), strict=True)) == sorted(
            (r, p << 43 | o) for r, p, o in naive
        )

    check()
    naive = {row for row in naive if row[2] in kept}
    for _ in range(len(index._runs)):
        index.prune(lambda places: np.array([place & 0xFF not in kept for place in places.tolist()], np.bool_))
    check()


def test_places_hold_the_last_partition_and_offset():
    place = PackedOffset.pack(65_534, np.array([(1 << 43) - 1], np.int64))
    assert PackedOffset.unpack(int(place[0])) == (65_534, (1 << 43) - 1)
