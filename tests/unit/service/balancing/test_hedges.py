"""Hedges: after the time that 95 of 100 calls take, as it is now; and how much sooner the slowest calls end."""

from __future__ import annotations

from random import Random

import pytest

from wherry.service.balancing.hedges import AFTER_S_MIN, EVERY, TIMES_MAX, TIMES_MIN, Hedges
from wherry.service.balancing.retries import PART, SPARE, Retries


def noted(*seconds):
    found = Hedges()
    for each in seconds:
        found.note(each)
    return found


def test_a_hedge_comes_after_the_time_that_95_of_100_calls_take():
    hedges = noted(*(at / 100 for at in range(1, 101)))
    assert hedges.after_s(True, left_s=10.0) == pytest.approx(0.95, abs=EVERY / 100)


def test_there_is_none_before_enough_calls_were_measured():
    assert noted(*[0.1] * (TIMES_MIN - 1)).after_s(True, left_s=10.0) is None
    assert noted(*[0.1] * TIMES_MIN).after_s(True, left_s=10.0) == 0.1


def test_old_times_are_forgotten():
    hedges = noted(*[0.01] * 1_000, *[1.0] * (TIMES_MAX + EVERY))
    assert hedges.after_s(True, left_s=10.0) == 1.0


def test_a_time_that_is_given_needs_no_measure():
    assert Hedges().after_s(0.3, left_s=10.0) == 0.3
    assert noted(*[1.0] * 100).after_s(0.3, left_s=10.0) == 0.3


def test_no_hedge_is_sent_unasked_or_behind_the_deadline_or_sooner_than_a_loop_can_wait():
    assert noted(*[0.1] * 100).after_s(False, left_s=10.0) is None
    assert Hedges().after_s(0.3, left_s=0.3) is None
    assert noted(*[1e-6] * 100).after_s(True, left_s=10.0) == AFTER_S_MIN


@pytest.mark.parametrize("seed", range(5))
def test_of_calls_of_which_one_in_thirty_hangs_the_slowest_end_soon_and_the_budget_holds(seed):
    chance, hedges, retries = Random(seed), Hedges(), Retries()
    plain, ended = [], []
    for _ in range(5_000):
        one, other = (10.0 if chance.random() < 1 / 30 else chance.uniform(0.01, 0.02) for _ in range(2))
        retries.began()
        plain.append(one)
        after_s = hedges.after_s(True, left_s=30.0)
        if after_s is not None and after_s < one and retries.hedge(idempotent=True):
            one = min(one, after_s + other)
        ended.append(one)
        hedges.note(one)
    assert sorted(plain)[4_950] == 10.0
    assert sorted(ended)[4_950] < 0.1
    assert retries.further <= 5_000 * PART + SPARE
