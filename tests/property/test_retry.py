"""Delays of retries: they grow, they are capped, jitter spreads them by its share and no more."""

from __future__ import annotations

import warnings

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from wherry.model.catalog.retry import delays_ms, used_up
from wherry.model.catalog.subscription import Retry
from wherry.model.limits import ATTEMPTS_MAX

policies = st.builds(
    lambda first, factor, more, jitter: Retry(
        attempts=None, first_ms=first, factor=factor, cap_ms=first + more, jitter=jitter
    ).checked(),
    st.integers(0, 100_000),
    st.floats(1, 1000),
    st.integers(0, 10_000_000),
    st.floats(0, 1),
)
attempts = st.lists(st.integers(1, ATTEMPTS_MAX), min_size=1, max_size=8)


def delays(policy, tries, entropy):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return delays_ms(policy, np.array(tries, np.int64), np.full(len(tries), entropy)).tolist()


def plain(policy, tries):
    try:
        return min(policy.first_ms * float(policy.factor) ** (tries - 1), policy.cap_ms)
    except OverflowError:
        return policy.cap_ms if policy.first_ms else 0


@given(policies, attempts, st.floats(0, 1))
@example(Retry(attempts=None, first_ms=0), [2000], 0.5)
@example(Retry(first_ms=1, factor=1000.0, cap_ms=1), [ATTEMPTS_MAX], 1.0)
def test_within_the_share_of_jitter(policy, tries, entropy):
    for tried, delay in zip(tries, delays(policy, tries, entropy), strict=True):
        wanted = plain(policy, tried)
        slack = 1 + wanted * 1e-9
        assert max(0, wanted * (1 - policy.jitter) - slack) <= delay <= wanted * (1 + policy.jitter) + slack
        assert delay <= policy.cap_ms * (1 + policy.jitter) + slack


@given(policies, attempts)
def test_entropy_in_the_middle_is_no_jitter_and_then_delays_only_grow(policy, tries):
    tries = sorted(tries)
    got = delays(policy, tries, 0.5)
    assert got == sorted(got)
    assert got[-1] <= policy.cap_ms


def test_the_usual_policy_doubles_from_a_second_to_ten_minutes():
    policy = Retry(jitter=0.0)
    assert delays(policy, [1, 2, 3, 4, 10, 11, 16], 0.3) == [1000, 2000, 4000, 8000, 512_000, 600_000, 600_000]
    assert delays(Retry(), [1, 1], 0.0) == [900, 900]
    assert delays(Retry(), [1, 1], 1.0) == [1100, 1100]


def test_attempts_are_used_up_at_their_number_and_for_none_never():
    tries = np.array([1, 2, 3, 4], np.int64)
    assert used_up(Retry(attempts=3), tries).tolist() == [False, False, True, True]
    assert not used_up(Retry(attempts=None), np.array([ATTEMPTS_MAX])).any()
