"""The soak test in short: some of its runs, and that its plans have everything in them. In full: `make soak-spark`."""

import pytest

from tests.spark.soak import bad_rows
from tests.spark.soak.plan import KINDS, ON_A_CLUSTER, drawn, places
from tests.spark.soak.rig import LOCAL, rig
from tests.spark.soak.runs import run

SEEDS = {LOCAL: (7, 2, 4, 104, 143), "cluster": (31,)}
"""Few of each kind; a new driver takes longest, so the one that needs it comes last."""


@pytest.mark.rows("A22")
@pytest.mark.parametrize("master", SEEDS)
def test_each_row_once_whatever_dies(tmp_path, master):
    with rig(tmp_path, master) as made:
        for seed in SEEDS[master]:
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


@pytest.mark.rows("A11")
def test_bad_rows_are_told_mended_and_published_once(spark, broker, tmp_path):
    bad_rows.show(spark, broker, tmp_path, 50_000)
