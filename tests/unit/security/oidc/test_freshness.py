"""When a provider is asked for its keys, and how long they are good."""

from __future__ import annotations

import pytest

from wherry.security.oidc.freshness import Freshness


@pytest.mark.parametrize(("max_age_s", "due_at"), [(None, 300), (0, 60), (120, 120), (10**9, 3_600)])
def test_keys_are_due_after_the_age_that_the_provider_states_within_bounds(max_age_s, due_at):
    known = Freshness(kept_s=86_400, refetch_s=10)
    known.succeed(0.0, max_age_s)
    assert known.due_at == due_at


def test_keys_are_renewed_well_before_they_are_too_old():
    known = Freshness(kept_s=40, refetch_s=10)
    known.succeed(100.0, None)
    assert known.due_at == 120


def test_keys_stay_good_for_a_bounded_time_while_the_provider_fails():
    known = Freshness(kept_s=600, refetch_s=10)
    assert not known.is_good(0.0)
    known.succeed(0.0, None)
    for at in (300.0, 400.0, 500.0):
        known.fail(at)
    assert known.is_good(599.9)
    assert not known.is_good(600.0)
    known.succeed(700.0, None)
    assert known.is_good(700.0)
    assert not known.failures


def test_a_provider_that_fails_is_asked_less_and_less_often():
    known, now, pauses = Freshness(kept_s=600, refetch_s=10), 0.0, []
    for _ in range(8):
        known.fail(now)
        pauses.append(known.due_at - now)
        now = known.due_at
    assert pauses == [1, 2, 4, 8, 16, 30, 30, 30]


def test_a_key_that_is_not_known_causes_one_fetch_in_a_while():
    known = Freshness(kept_s=600, refetch_s=10)
    assert known.may_ask(0.0)
    known.ask(5.0)
    assert not known.may_ask(14.9)
    assert known.may_ask(15.0)
