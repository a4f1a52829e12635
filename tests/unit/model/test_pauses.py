"""Pauses that grow: doubled with each failure, never above the bound, for any number of failures."""

from __future__ import annotations

import pytest

from wherry.model.pauses import growing


@pytest.mark.parametrize(("failures", "pause"), [(0, 0.5), (1, 1.0), (5, 16.0), (6, 30.0), (63, 30.0), (10**9, 30.0)])
def test_a_pause_doubles_up_to_its_bound(failures, pause):
    assert growing(0.5, 30.0, failures) == pause


def test_a_first_pause_above_the_bound_is_the_bound():
    assert growing(60.0, 30.0, 0) == 30.0
