"""Balancers over any sets of instances that come and go."""

from __future__ import annotations

from collections import Counter

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.service.balancing.clients import chosen, instances
from wherry.service.balancing.fastest import Fastest
from wherry.service.balancing.kinds import KINDS, balancer_of
from wherry.service.balancing.round_robin import RoundRobin
from wherry.service.balancing.split import keys_of, split
from wherry.service.balancing.sticky import Sticky
from wherry.service.balancing.weights import Weights

names = st.sampled_from("abcdefgh")
sets = st.sets(names, min_size=1)
chances = st.floats(0.0, 1.0, exclude_max=True)


@given(st.lists(st.tuples(sets, st.integers(0, 20)), min_size=1, max_size=12), chances)
def test_round_robin_gives_two_instances_the_same_give_or_take_one_while_both_are_there(periods, chance):
    balancer, always = RoundRobin(), set.intersection(*(there for there, _ in periods))
    counts: Counter[str] = Counter()
    for there, calls in periods:
        now_there = instances(*there)
        counts.update(chosen(balancer, now_there, chance=chance) for _ in range(calls))
    assert max((counts[each] for each in always), default=0) - min((counts[each] for each in always), default=0) <= 1


@given(st.sets(st.text(max_size=8), min_size=1, max_size=200), sets)
def test_a_split_is_equal_and_depends_on_the_two_sets_alone(sessions, there):
    ids = sorted(there)
    counts = np.bincount(split(keys_of(sorted(sessions)), ids), minlength=len(ids))
    assert counts.max() - counts.min() <= 1
    one, other = Sticky(sessions), Sticky(sorted(sessions, reverse=True))
    chosen(other, instances("z"), "s")
    now_there = instances(*ids)
    assert all(chosen(one, now_there, each) == chosen(other, now_there, each) for each in sorted(sessions))


@given(st.lists(st.integers(1, 50), min_size=1, max_size=40), st.data())
def test_weights_are_drawn_as_a_list_of_them_would(values, data):
    weights = Weights(values)
    for at, value in data.draw(
        st.lists(st.tuples(st.integers(0, len(values) - 1), st.integers(1, 50)), max_size=20), label="changes"
    ):
        weights.set(at, value)
        values[at] = value
    assert weights.total == sum(values)
    tickets = [at for at, value in enumerate(values) for _ in range(value)]
    assert [weights.draw((ticket + 0.5) / len(tickets)) for ticket in range(len(tickets))] == tickets


@given(
    st.sampled_from([*KINDS]),
    st.lists(st.tuples(sets, chances, st.booleans(), st.floats(0.0, 100.0)), min_size=1, max_size=60),
)
def test_a_balancer_chooses_one_of_those_that_are_there_whatever_happens(kind, calls):
    balancer, now = balancer_of(kind), 0.0
    for there, chance, ok, seconds in calls:
        now_there = instances(*there)
        name = balancer.choose(now_there, session="s" if ok else None, chance=chance, now=now).id
        assert name in there
        balancer.began(name, now)
        now += seconds
        balancer.ended(name, now, seconds, ok)
    assert sum(each.under_way for each in balancer.statistics(now)) == 0


@given(st.lists(st.tuples(names, st.floats(0.0, 1e9), st.booleans()), max_size=60))
def test_shares_are_parts_of_one_whatever_was_measured(calls):
    balancer, there, now = Fastest(), instances(*"abcdefgh"), 0.0
    chosen(balancer, there)
    for name, seconds, ok in calls:
        balancer.began(name, now)
        now += seconds
        balancer.ended(name, now, seconds, ok)
    shares = [balancer.share(each.id) for each in there]
    assert all(0 < each <= 1 for each in shares)
    assert abs(sum(shares) - 1) < 1e-9
