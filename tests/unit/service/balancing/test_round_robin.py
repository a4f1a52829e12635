"""Round robin: each instance gets as many calls as the others."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.unit.service.balancing.clients import chosen, instances, numbered
from wherry.model.errors import InvalidInput
from wherry.service.balancing.round_robin import RoundRobin


@pytest.mark.rows("P4")
@pytest.mark.parametrize("count", [1, 2, 3, 7, 100])
@pytest.mark.parametrize("calls", [1, 10, 999, 1_000])
def test_calls_are_spread_evenly_give_or_take_one(count, calls):
    balancer, there = RoundRobin(), numbered(count)
    counts = Counter(chosen(balancer, there, chance=0.4) for _ in range(calls))
    assert {counts[each.id] for each in there} <= {calls // count, -(-calls // count)}


def test_clients_that_start_together_begin_at_different_instances():
    there = numbered(10)
    assert [chosen(RoundRobin(), there, chance=at / 10 + 0.01) for at in range(10)] == [each.id for each in there]


@pytest.mark.rows("P10")
def test_an_instance_that_comes_gets_its_turn_and_no_other_is_passed_over():
    balancer = RoundRobin()
    few, more = instances("a", "c", "d"), instances("a", "b", "c", "d")
    assert [chosen(balancer, few) for _ in range(4)] == ["a", "c", "d", "a"]
    assert [chosen(balancer, more) for _ in range(5)] == ["b", "c", "d", "a", "b"]
    assert [chosen(balancer, few) for _ in range(3)] == ["c", "d", "a"]


def test_an_instance_that_goes_takes_no_turn_with_it():
    balancer = RoundRobin()
    assert [chosen(balancer, instances("a", "b", "c")) for _ in range(1)] == ["a"]
    assert [chosen(balancer, instances("b", "c")) for _ in range(1)] == ["b"]
    assert [chosen(balancer, instances("a")) for _ in range(2)] == ["a", "a"]


def test_without_an_instance_there_is_an_error():
    with pytest.raises(InvalidInput, match=r"instances: got \(\); allowed: at least one instance"):
        chosen(RoundRobin(), ())
