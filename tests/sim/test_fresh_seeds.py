"""Twenty seeds of no special kind; `make sim SEEDS=1000` and `make test-long` try many more.

`make test-quick` runs each seed in one of the ways: in process, or over wires and with the native wire.
"""

import pytest

from tests.sim.clean import assert_clean

EARLY, LATE = range(1_000, 1_010), range(1_010, 1_020)


def more(seeds: range) -> list[object]:
    return [pytest.param(seed, marks=pytest.mark.more) for seed in seeds]


@pytest.mark.rows("G1", "D13", "D14", "A15")
@pytest.mark.parametrize("seed", [*EARLY, *more(LATE)])
def test_a_fresh_seed_is_clean(seed):
    assert_clean(seed, "run")


@pytest.mark.parametrize("seed", [*LATE, *more(EARLY)])
def test_a_fresh_seed_is_clean_over_wires(seed):
    assert_clean(seed, "wires")


@pytest.mark.parametrize("seed", [*LATE, *more(EARLY)])
def test_a_fresh_seed_is_clean_with_the_native_wire(seed):
    assert_clean(seed, "native")


@pytest.mark.rows("P9")
@pytest.mark.parametrize("seed", [*EARLY, *more(LATE)])
def test_a_fresh_seed_is_clean_with_gossip(seed):
    assert_clean(seed, "gossip")
