"""The soak test in short: some of its runs, and that its plans have everything in them. In full: `make soak-spark`."""

import pytest

from tests.spark.soak.plan import KINDS, ON_A_CLUSTER, drawn, places
from tests.spark.soak.rig import LOCAL, rig
from tests.spark.soak.runs import run

SEEDS = (
    pytest.param(LOCAL, (7, 104), id="a worker, the broker and connections"),
    pytest.param(LOCAL, (2, 4, 143), id="a driver too", marks=pytest.mark.long),
    pytest.param("cluster", (31,), id="an executor of a cluster", marks=pytest.mark.long),
)
"""Few of each kind; a new driver takes longest, so the one that needs it comes last."""


@pytest.mark.rows("A22")
@pytest.mark.parametrize(("master", "seeds"), SEEDS)
def test_each_row_once_whatever_dies(tmp_path, master, seeds):
    with rig(tmp_path, master) as made:
        for seed in seeds:
            outcome = run(seed, made)
            print(outcome.line())
            assert outcome.wrong == [], outcome.line()
            assert outcome.struck, outcome.line()


@pytest.mark.parametrize("kinds", [KINDS, ON_A_CLUSTER])
def test_seeds_in_a_row_have_every_fault_at_every_point(kinds):
    everything = places(kinds)
    first = [drawn(seed, kinds).faults[0][:3] for seed in range(5, 5 + len(everything))]
    assert sorted(first) == sorted(everything)
    assert len(everything) < 200
    assert drawn(17, kinds) == drawn(17, kinds)
