"""The drill: the power is cut behind each answer, and a late call follows each lease. Every step, and its plants.

The waits of the broker are read from its source: a step must find a new one, or `FOUND_BY` gives the reason why not.
"""

from pathlib import Path

import pytest

import wherry
from tests.sim.clean import assert_clean
from wherry.sim.drill.drill import drill
from wherry.sim.drill.drill_steps import STEPS
from wherry.sim.plants.tokens import TOKEN_PLANTS
from wherry.sim.plants.waits import (
    FOUND_BY,
    MODULES,
    NO_ANSWER,
    unwaited,
    waits,
)

SEEDS = (range(1), pytest.param(range(1, 4), marks=pytest.mark.long))
"""A plant is found by every step that is named for it, with each of these."""

WAITS = {place.name: place for place in waits(*MODULES)}


@pytest.mark.rows("G1", "D14", "A6")
@pytest.mark.parametrize("seed", range(3))
def test_what_an_answer_reported_holds_after_a_power_cut(seed):
    assert_clean(seed, "drill")


def test_every_wait_of_the_broker_is_a_plant_that_some_step_finds():
    assert sorted(WAITS) == sorted([*FOUND_BY, *NO_ANSWER])
    waiting = {
        path.name
        for path in Path(wherry.__file__).with_name("broker").rglob("*.py")
        if "committer.wait(" in path.read_text()
    }
    assert waiting - {"calls.py"} <= {Path(module.__file__ or "").name for module in MODULES}


@pytest.mark.parametrize("seeds", SEEDS)
@pytest.mark.parametrize("name", FOUND_BY)
def test_an_answer_that_does_not_wait_is_found(name, seeds):
    for step in FOUND_BY[name]:
        for seed in seeds:
            with unwaited(WAITS[name]):
                found = drill(seed, STEPS, only=[step])
            assert found, f"seed {seed}, and the step {step!r} did not notice"


@pytest.mark.parametrize("seeds", SEEDS)
@pytest.mark.parametrize("name", TOKEN_PLANTS)
def test_a_token_that_is_not_compared_is_found(name, seeds):
    plant, steps = TOKEN_PLANTS[name]
    for step in steps:
        for seed in seeds:
            with plant():
                found = drill(seed, STEPS, only=[step])
            assert found, f"seed {seed}, and the step {step!r} did not notice"
