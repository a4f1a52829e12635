"""Counts by outcome, and quantiles with a known error."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wherry.service.outcomes import CallOutcome
from wherry.service.statistics import CallStatistics


@given(st.lists(st.floats(1e-6, 3_000), min_size=1, max_size=200), st.sampled_from([0.5, 0.9, 0.99]))
def test_a_quantile_is_within_an_eighth_of_the_true_one(seconds, share):
    found = CallStatistics()
    for each in seconds:
        found.note(CallOutcome.ANSWERED, each)
    wanted = next(value for at, value in enumerate(sorted(seconds), start=1) if at >= len(seconds) * share)
    assert found.quantile_s(share) == pytest.approx(wanted, rel=0.13, abs=2e-6)


def test_calls_that_were_not_run_are_counted_and_have_no_time():
    found = CallStatistics()
    found.note(CallOutcome.REFUSED, None)
    found.note(CallOutcome.ANSWERED, 1e9)  # longer than the last bucket
    assert found.counts()["refused"] == 1
    assert found.counts()["answered"] == 1
    assert found.quantile_s(0.5) > 3_600


def test_without_calls_there_is_no_time():
    assert CallStatistics().quantile_s(0.99) == 0.0
