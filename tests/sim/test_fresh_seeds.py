"""Twenty seeds of no special kind; `make sim SEEDS=1000` and `make test-long` try many more."""

import pytest

from wherry.sim.__main__ import try_run, try_wires


@pytest.mark.rows("G1", "D13", "D14", "A15")
@pytest.mark.parametrize("seed", range(1_000, 1_020))
def test_a_fresh_seed_is_clean(seed):
    assert try_run(seed) == []


@pytest.mark.parametrize("seed", range(1_000, 1_020))
def test_a_fresh_seed_is_clean_over_wires(seed):
    assert try_wires(seed) == []
