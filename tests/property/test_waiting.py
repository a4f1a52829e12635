"""`Fifo`, `Ranked` and `Delayed` against plain Python: order, nothing early, nothing twice."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.examples import scaled
from wherry.core.index import runs, waiting
from wherry.core.index.offsets import bitmap_of
from wherry.core.index.table import OffsetTable
from wherry.core.index.waiting import Delayed, Fifo, Ranked
from wherry.core.state.reader import ATTEMPTS


@pytest.fixture(autouse=True)
def small(monkeypatch):
    for name, value in {"TAIL_MAX": 6, "RUN_MAX": 48, "BLOCK": 4, "MERGE_FAN": 3}.items():
        monkeypatch.setattr(runs, name, value)
    monkeypatch.setattr(waiting, "TAIL_MAX", 6)


def column(values):
    return np.array(list(values), np.int64)


class Waits(RuleBasedStateMachine):
    """Messages wait at a rank; some are claimed or handed out, and come back to the rank they had."""

    start = 7

    def __init__(self) -> None:
        super().__init__()
        self.here: dict[int, int] = {}
        self.away: dict[int, int] = {}
        self.end = self.start
        self.now = 5

    @initialize(kind=st.sampled_from(["fifo", "priority", "timeline"]))
    def choose(self, kind):
        self.kind = kind
        self.real = Fifo(self.start) if kind == "fifo" else Ranked(timed=kind == "timeline")

    def ready(self):
        pairs = sorted((rank, offset) for offset, rank in self.here.items())
        return [pair for pair in pairs if self.kind != "timeline" or pair[0] <= self.now]

    @rule(gap=st.sampled_from([0, 0, 3]), ranks=st.lists(st.integers(0, 12), min_size=1, max_size=8))
    def admit(self, gap, ranks):
        base = self.end + gap
        offsets = list(range(base, base + len(ranks)))
        ranks = offsets if self.kind == "fifo" else ranks
        self.real.admit(base, len(ranks), column(ranks))
        self.here |= dict(zip(offsets, ranks, strict=True))
        self.end = base + len(ranks)

    @precondition(lambda self: self.here)
    @rule(data=st.data(), gone=st.booleans())
    def leave(self, data, gone):
        """Take messages away: claimed ones come back, discarded ones never do."""
        some = sorted(data.draw(st.lists(st.sampled_from(sorted(self.here)), min_size=1, max_size=6, unique=True)))
        leaving = {offset: self.here.pop(offset) for offset in some}
        if gone or any(offset in self.away for offset in some):
            self.real.discard(column(some))
        else:
            fresh = [offset for offset in some if self.kind != "fifo" or leaving[offset] == offset]
            self.real.discard(column(some))
            self.away |= {offset: leaving[offset] for offset in fresh}

    @precondition(lambda self: self.away)
    @rule(data=st.data())
    def put_back(self, data):
        some = data.draw(st.lists(st.sampled_from(sorted(self.away)), min_size=1, max_size=6, unique=True))
        self.real.put_back(column(self.away[offset] for offset in some), column(some))
        self.here |= {offset: self.away.pop(offset) for offset in some}

    @rule(n=st.integers(1, 12), cut=st.integers(0, 12))
    def pick(self, n, cut):
        expected = self.ready()[:n]
        seen = self.real.peek(n, self.now)
        assert list(zip(seen.rank.tolist(), seen.offset.tolist(), strict=True)) == expected
        got = self.real.pick(n, self.now, lambda offsets: min(cut, len(offsets)))
        assert list(zip(got.rank.tolist(), got.offset.tolist(), strict=True)) == expected[:cut]
        for rank, offset in expected[:cut]:
            del self.here[offset]
            self.away[offset] = rank

    @rule(later=st.integers(0, 4))
    def tick(self, later):
        self.now += later

    @rule()
    def a_cold_body_moves_nothing(self):
        def cold(offsets):
            raise LookupError

        with pytest.raises(LookupError):
            self.real.pick(5, self.now, cold)

    @invariant()
    def counts(self):
        if not hasattr(self, "real"):
            return
        assert self.real.ready(self.now) == len(self.ready())
        assert sorted(self.real.offsets().tolist()) == sorted(self.here)
        if self.kind == "timeline":
            assert self.real.next_at_ms(self.now) == min(self.here.values(), default=None)
        if self.kind != "fifo":
            rank, offset = self.real.columns()
            assert dict(zip(offset.tolist(), rank.tolist(), strict=True)) == self.here


TestWaits = Waits.TestCase
TestWaits.settings = settings(max_examples=scaled(200), stateful_step_count=25)


class Delays(RuleBasedStateMachine):
    """A message may be delayed anew before its first delay is over; only the last time counts."""

    def __init__(self) -> None:
        super().__init__()
        self.held = OffsetTable(ATTEMPTS)
        self.real = Delayed(self.held)
        self.until: dict[int, int] = {}
        self.now = 0

    @rule(offsets=st.lists(st.integers(0, 30), min_size=1, max_size=6, unique=True), wait=st.integers(0, 9))
    def add(self, offsets, wait):
        until = [self.now + wait + offset % 3 for offset in offsets]
        rest = dict.fromkeys(set(ATTEMPTS) - {"until_ms"}, 0)
        self.held.put(column(offsets), until_ms=column(until), **rest)
        self.real.add(column(until), column(offsets))
        self.until |= dict(zip(offsets, until, strict=True))

    @precondition(lambda self: self.until)
    @rule(data=st.data())
    def discard(self, data):
        some = data.draw(st.lists(st.sampled_from(sorted(self.until)), min_size=1, max_size=6, unique=True))
        self.real.discard(bitmap_of(column(some)))
        self.held.remove(column(some))
        for offset in some:
            del self.until[offset]

    @rule(later=st.integers(0, 4))
    def due(self, later):
        self.now += later
        due = sorted(offset for offset, until in self.until.items() if until <= self.now)
        assert self.real.due(self.now).tolist() == due
        for offset in due:
            del self.until[offset]
        assert self.real.due(self.now).tolist() == []

    @invariant()
    def members(self):
        assert sorted(self.real.members) == sorted(self.until)
        assert len(self.real) == len(self.until)
        first = self.real.next_at_ms()
        assert (first is None) == (not self.until)
        assert first is None or first <= min(self.until.values()), "never later than the next one is due"


TestDelays = Delays.TestCase
TestDelays.settings = settings(max_examples=scaled(150), stateful_step_count=25)
