"""Twenty seeds of no special kind, ten of them in `make test-quick`; `make sim SEEDS=1000` and `make test-long` try
many more."""

import pytest

from tests.sim.clean import assert_clean

SEEDS = [*range(1_000, 1_010), *(pytest.param(seed, marks=pytest.mark.more) for seed in range(1_010, 1_020))]


@pytest.mark.rows("G1", "D13", "D14", "A15")
@pytest.mark.parametrize("seed", SEEDS)
def test_a_fresh_seed_is_clean(seed):
    assert_clean(seed, "run")


@pytest.mark.parametrize("seed", SEEDS)
def test_a_fresh_seed_is_clean_over_wires(seed):
    assert_clean(seed, "wires")
