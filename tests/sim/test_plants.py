"""Each checker finds the bug that was planted for it: otherwise its silence would mean nothing."""

import pytest

from wherry.sim.__main__ import try_run
from wherry.sim.plants.plants import PLANTS

SEEDS = 25
"""From the one that is known to show the bug; more, because a change of the workload moves it."""


@pytest.mark.parametrize("name", PLANTS)
def test_a_planted_bug_is_found(name):
    plant, first, checkers = PLANTS[name]
    for seed in range(first, first + SEEDS):
        with plant():
            found = try_run(seed)
        if any(violation.split(":")[0] in checkers for violation in found):
            return
    pytest.fail(f"{SEEDS} seeds, and none of {checkers} noticed: {name}")
