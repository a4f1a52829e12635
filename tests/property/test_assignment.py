"""Which consumer pulls from which partition: fair shares, no orphan, few moves, and a cost that follows the moves."""

from __future__ import annotations

import sys

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.examples import scaled
from wherry.core.state import assignment
from wherry.core.state.assignment import Ordered, make
from wherry.model.catalog.subscription import ASSIGNMENTS
from wherry.model.errors import InvalidInput


class Shares(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.consumers: list[str] = []
        self.named = 0

    @initialize(kind=st.sampled_from(["balanced", "ordered"]), partitions=st.integers(1, 12))
    def choose(self, kind, partitions):
        self.kind, self.partitions = kind, partitions
        self.real = make(kind, partitions)

    def owners(self):
        strategy = getattr(self.real, "_owners", self.real)
        return {name: list(strategy.of(name)) for name in self.consumers if strategy.of(name)}

    @rule()
    def join(self):
        before = self.owners()
        self.named += 1
        self.consumers.append(f"c{self.named}")
        self.real.join(self.consumers[-1])
        after = self.owners()
        share = self.partitions // len(after)
        moved = self.moved(before, after)
        assert moved <= (share if before else self.partitions), "a newcomer takes its share and nothing else moves"

    @precondition(lambda self: self.consumers)
    @rule(data=st.data())
    def leave(self, data):
        before = self.owners()
        going = data.draw(st.sampled_from(self.consumers))
        self.consumers.remove(going)
        self.real.leave(going)
        assert self.moved(before, self.owners()) <= len(before.get(going, ())), "only its own partitions move"

    def moved(self, before, after):
        was = {partition: name for name, owned in before.items() for partition in owned}
        return sum(was.get(partition) != name for name, owned in after.items() for partition in owned)

    @invariant()
    def fair(self):
        if not self.consumers:
            return
        owned = self.owners()
        assert sorted(p for each in owned.values() for p in each) == list(range(self.partitions)), "each has one owner"
        shares = [len(each) for each in owned.values()]
        assert max(shares) - min(shares) <= 1
        assert len(owned) == min(len(self.consumers), self.partitions)
        if self.kind == "balanced":
            assert all(self.real.of(name) for name in self.consumers), "no consumer is without a partition"


TestShares = Shares.TestCase
TestShares.settings = settings(max_examples=scaled(150), stateful_step_count=30)


@pytest.mark.parametrize(("kind", "partitions"), [("balanced", 1), ("balanced", 64), ("shared", 8), ("exclusive", 8)])
@pytest.mark.parametrize("consumers", [100_000, pytest.param(1_000_000, marks=pytest.mark.long)])
def test_a_million_consumers_join_at_a_constant_cost_each(kind, partitions, consumers):
    """Count lines that ran, not time: the last thousand of so many cost what the first do."""
    strategy = make(kind, partitions)
    lines = 0

    def count(frame, event, arg):
        nonlocal lines
        if frame.f_code.co_filename != assignment.__file__:
            return None
        lines += event == "line"
        return count

    def cost(names):
        nonlocal lines
        lines = 0
        sys.settrace(count)
        try:
            for name in names:
                strategy.join(name)
        finally:
            sys.settrace(None)
        return lines

    tracer = sys.gettrace()
    try:
        for number in range(1000):
            strategy.join(f"first-{number}")
        early = cost([f"early-{number}" for number in range(1000)])
        for number in range(consumers):
            strategy.join(f"c-{number}")
        late = cost([f"late-{number}" for number in range(1000)])
    finally:
        sys.settrace(tracer)
    assert late <= early * 1.5 + 1000
    assert late <= 20 * 1000


def test_the_heaps_do_not_grow_with_consumers_that_join_and_leave():
    strategy = Ordered(16)
    strategy.join("stays")
    for number in range(2_000):
        strategy.join(f"c{number}")
        strategy.leave(f"c{number}")
    assert len(strategy._most) + len(strategy._fewest) < 200
    assert sorted(strategy.of("stays")) == list(range(16))


def test_strategies_by_name():
    shared, exclusive = make("shared", 3), make("exclusive", 3)
    for strategy in (shared, exclusive):
        strategy.join("a")
        strategy.join("b")
    assert list(shared.of("b")) == [0, 1, 2]
    assert (list(exclusive.of("a")), list(exclusive.of("b"))) == ([0, 1, 2], [])
    exclusive.leave("a")
    shared.leave("a")
    assert list(exclusive.of("b")) == [0, 1, 2]
    assert list(shared.of("a")) == []
    with pytest.raises(InvalidInput, match="assignment: got 'nope'; allowed: one of balanced, "):
        make("nope", 1)


def test_a_strategy_of_ones_own(monkeypatch):
    monkeypatch.setattr(assignment, "_STRATEGIES", dict(assignment._STRATEGIES))
    monkeypatch.setattr(assignment, "ASSIGNMENTS", list(ASSIGNMENTS))
    assignment.register("mine", Ordered)
    assert isinstance(make("mine", 2), Ordered)
    with pytest.raises(InvalidInput, match="a name that is not taken"):
        assignment.register("mine", Ordered)
