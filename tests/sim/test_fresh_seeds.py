"""Twenty seeds of no special kind; `make sim SEEDS=1000` and `make test-long` try many more."""

import pytest

from tests.sim.clean import assert_clean


@pytest.mark.rows("G1", "D13", "D14", "A15")
@pytest.mark.parametrize("seed", range(1_000, 1_020))
def test_a_fresh_seed_is_clean(seed):
    assert_clean(seed, "run")


@pytest.mark.parametrize("seed", range(1_000, 1_020))
def test_a_fresh_seed_is_clean_over_wires(seed):
    assert_clean(seed, "wires")
