"""By measured speed: shares in proportion to 1 / response time, and quick to notice a change."""

from __future__ import annotations

from collections import Counter, deque
from random import Random

import pytest

from tests.unit.service.balancing.clients import World, chosen, instances, numbered
from wherry.service.balancing.fastest import Fastest
from wherry.service.balancing.speeds import Speeds

SECONDS = {"a": 0.040, "b": 0.020, "c": 0.010}
"""Speeds of 1 : 2 : 4."""


def even(name: str, random: Random) -> float:
    return SECONDS[name]


def uneven(name: str, random: Random) -> float:
    return SECONDS[name] * random.uniform(0.2, 1.8)


@pytest.mark.rows("P6")
@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("seconds", [even, uneven])
@pytest.mark.parametrize(("clients", "under_way"), [(1, 1), (1, 64), (200, 1)])
def test_shares_are_in_proportion_to_speed(seed, seconds, clients, under_way):
    world = World([Fastest() for _ in range(clients)], instances("a", "b", "c"), seed)
    world.start(under_way, seconds)
    world.run(5.0, seconds)
    world.shares()
    world.run(60.0 if clients * under_way == 1 else 10.0, seconds)
    assert world.shares() == {
        "a": pytest.approx(1 / 7, rel=0.1),
        "b": pytest.approx(2 / 7, rel=0.1),
        "c": pytest.approx(4 / 7, rel=0.1),
    }


@pytest.mark.rows("P6")
def test_an_instance_that_stops_to_answer_loses_its_share_within_seconds():
    balancer, there, random = Fastest(), instances("a", "b", "c"), Random(1)
    answers: deque[tuple[float, str]] = deque()
    stuck = Counter[int]()
    for at in range(14_000):  # a call each millisecond, answered after 10; from 10 s on, c answers nothing
        now = at / 1_000
        while answers and answers[0][0] <= now:
            balancer.ended(answers.popleft()[1], now, 0.01, True)
        name = balancer.choose(there, session=None, chance=random.random(), now=now).id
        balancer.began(name, now)
        if now >= 10 and name == "c":
            stuck[int(now)] += 1
        else:
            answers.append((now + 0.01, name))
    assert 0 < stuck[10] < 60
    assert stuck[11] < 10
    assert stuck[12] + stuck[13] < 5


@pytest.mark.rows("P6")
@pytest.mark.parametrize("slow", [0.1, 1.0, 2.0])
def test_an_instance_that_slows_down_loses_its_share_within_seconds(slow):
    world = World([Fastest() for _ in range(4)], instances("a", "b", "c"))

    def before(name: str, random: Random) -> float:
        return 0.01

    def after(name: str, random: Random) -> float:
        return slow if name == "c" else 0.01

    world.start(8, before)
    world.run(20.0, before)
    world.shares()
    world.run(23.0, after)
    world.shares()
    world.run(25.0, after)
    assert world.shares()["c"] < 1 / 6, "half of what it had"


@pytest.mark.rows("P6")
def test_an_instance_that_recovers_gets_its_share_back():
    world = World([Fastest()], instances("a", "b"))
    world.start(8, lambda name, random: 2.0 if name == "a" else 0.01)
    world.run(20.0, lambda name, random: 2.0 if name == "a" else 0.01)
    assert world.shares()["a"] < 0.02
    world.run(50.0, lambda name, random: 0.01)
    world.shares()
    world.run(60.0, lambda name, random: 0.01)
    assert world.shares()["a"] > 0.4


@pytest.mark.rows("P6", "P10")
def test_a_new_instance_gets_the_next_call_and_then_its_share():
    balancer = Fastest()
    world = World([balancer], instances("a", "b"))
    world.start(4, lambda name, random: 0.01)
    world.run(10.0, lambda name, random: 0.01)
    world.shares()
    world.there = instances("a", "b", "new")
    world.run(10.011, lambda name, random: 0.01)
    assert world.shares()["new"] > 0
    world.run(30.0, lambda name, random: 0.01)
    assert world.shares()["new"] == pytest.approx(1 / 3, rel=0.1)


def test_a_new_instance_that_does_not_answer_gets_no_flood():
    world = World([Fastest()], numbered(3))
    new = numbered(4)[-1].id
    world.start(4, lambda name, random: 0.01)
    world.run(10.0, lambda name, random: 0.01)
    world.shares()
    world.there = numbered(4)
    world.run(40.0, lambda name, random: 1e9 if name == new else 0.01)
    assert world.counts[new] < 4, "of its one call, and of the typical time it was given, it looks slower by the second"


def test_clients_that_start_together_begin_at_different_instances():
    there = numbered(10)
    assert len({chosen(Fastest(), there, chance=at / 10 + 0.01) for at in range(10)}) == 10


def test_each_instance_is_tried_before_one_is_called_again():
    balancer, there = Fastest(), numbered(50)
    assert len({chosen(balancer, there) for _ in range(50)}) == 50


@pytest.mark.rows("P5")
def test_the_statistics_can_be_read():
    balancer, there = Fastest(), instances("a", "b", "c")
    for name, seconds, ok in [("a", 0.1, True), ("a", 0.3, True), ("b", 0.1, True), ("b", 0.1, False)]:
        balancer.choose(there, session=None, chance=0.0, now=1.0)
        balancer.began(name, 1.0)
        balancer.ended(name, 1.0 + seconds, seconds, ok)
    balancer.began("b", 1.5)
    first, second = balancer.statistics(1.5)
    assert (first.id, first.calls, first.failed, first.under_way) == ("a", 2, 0, 0)
    assert first.seconds == pytest.approx(0.2, rel=0.05)
    assert (second.id, second.calls, second.failed, second.under_way) == ("b", 2, 1, 1)
    assert second.share is not None
    assert first.share is not None
    assert first.share > second.share > 0, "the call that is under way weighs more"


@pytest.mark.rows("P5")
def test_what_was_measured_long_ago_counts_less():
    speeds = Speeds()
    for now, seconds in [(0.0, 1.0), (30.0, 0.1)]:
        speeds.began("a", now - seconds)
        speeds.ended("a", now, seconds, True)
    assert speeds.seconds("a", 30.0) == pytest.approx(0.1, rel=0.05)


def test_a_call_that_is_under_way_for_long_makes_its_instance_slow():
    speeds = Speeds()
    speeds.began("a", 0.0)
    speeds.ended("a", 0.1, 0.1, True)
    speeds.began("a", 1.0)
    assert speeds.seconds("a", 1.0) < 0.2
    assert speeds.seconds("a", 4.0) > 2.0


def test_one_call_that_hangs_outweighs_many_quick_answers():
    speeds = Speeds()
    for at in range(1_000):
        speeds.began("a", at * 0.005)
        speeds.ended("a", at * 0.005 + 0.01, 0.01, True)
    assert speeds.seconds("a", 5.0) < 0.011
    speeds.began("a", 5.0)
    assert speeds.seconds("a", 6.0) >= 0.5


def test_an_instance_that_refuses_quickly_is_not_fast():
    speeds = Speeds()
    for name, seconds, ok in [("a", 0.1, True), ("b", 0.001, False)] * 20:
        speeds.began(name, 1.0)
        speeds.ended(name, 1.0 + seconds, seconds, ok)
    assert speeds.seconds("b", 2.0) >= speeds.seconds("a", 2.0)


def test_an_end_without_a_beginning_counts_as_nothing():
    speeds = Speeds()
    speeds.ended("a", 1.0, 0.1, True)
    speeds.began("b", 1.0)
    speeds.ended("b", 1.1, 0.1, True)
    speeds.ended("b", 1.1, 0.1, True)
    assert [(each.id, each.calls) for each in speeds.statistics(2.0)] == [("b", 1)]


def test_instances_that_are_gone_are_forgotten_in_time():
    balancer = Fastest()
    for at in range(1_000):
        there = instances(f"once-{at}")
        name = chosen(balancer, there)
        balancer.began(name, float(at))
        balancer.ended(name, at + 0.1, 0.1, True)
    assert len(balancer.speeds) < 100


def test_a_call_to_an_instance_that_is_gone_ends_quietly():
    balancer = Fastest()
    balancer.began(chosen(balancer, instances("a")), 0.0)
    chosen(balancer, instances("b"))
    balancer.ended("a", 1.0, 1.0, False)
    assert chosen(balancer, instances("b")) == "b"
