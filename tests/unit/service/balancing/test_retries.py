"""Retries and hedges: only what may run twice, within the budget, never past the deadline."""

from __future__ import annotations

import pytest

from wherry.service.balancing.retries import ATTEMPTS_MAX, SPARE, Retries


def pause(retries, attempts=1, *, idempotent=True, untaken=False, now=0.0, chance=0.5):
    return retries.pause(attempts, idempotent=idempotent, untaken=untaken, now=now, deadline=10.0, chance=chance)


@pytest.mark.parametrize(
    ("idempotent", "untaken", "again"),
    [(True, True, True), (True, False, True), (False, True, True), (False, False, False)],
)
def test_only_what_may_run_twice_is_sent_again(idempotent, untaken, again):
    assert (pause(Retries(), idempotent=idempotent, untaken=untaken) is not None) is again


def test_the_pause_grows_and_chance_spreads_it():
    assert pause(Retries(), 1, chance=0.0) == pytest.approx(0.025)
    assert pause(Retries(), 1, chance=0.999) == pytest.approx(0.075, rel=0.01)
    assert pause(Retries(), 2) == pytest.approx(0.1)


def test_a_call_has_so_many_attempts_and_no_more():
    assert [pause(Retries(), at) is not None for at in range(1, 6)] == [at < ATTEMPTS_MAX for at in range(1, 6)]


def test_no_attempt_begins_after_the_deadline():
    retries = Retries()
    assert pause(retries, now=9.96) is None
    assert pause(retries, now=9.94) is not None
    assert retries.further == 1, "what is not sent costs nothing"


@pytest.mark.parametrize("calls", [0, 1, 10, 1_000])
def test_there_are_at_most_a_tenth_more_attempts_and_ten(calls):
    retries = Retries()
    for _ in range(calls):
        retries.began()
        pause(retries)
        pause(retries, 2)
    while pause(retries) is not None:
        pass
    assert retries.further <= calls / 10 + SPARE
    assert retries.further >= min(2 * calls, calls // 10)


def test_a_quiet_time_saves_up_no_flood():
    retries = Retries()
    for _ in range(100_000):
        retries.began()
    assert sum(pause(retries) is not None for _ in range(1_000)) == SPARE


def test_hedges_and_retries_have_one_budget():
    retries = Retries()
    assert not retries.hedge(idempotent=False), "what may not run twice has none, and takes none"
    assert sum(retries.hedge(idempotent=True) for _ in range(100)) == SPARE
    assert pause(retries) is None
