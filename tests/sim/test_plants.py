"""Each checker finds a bug that was planted for it: otherwise its silence would mean nothing."""

import pytest

from wherry.sim.__main__ import try_gossip, try_native, try_run, try_wires
from wherry.sim.checkers import checkers, routes, wires
from wherry.sim.gossip import gossip_checkers
from wherry.sim.plants.gossip import GOSSIP_PLANTS
from wherry.sim.plants.native import NATIVE_PLANTS
from wherry.sim.plants.plants import PLANTS
from wherry.sim.plants.wires import WIRE_PLANTS

SEEDS = 25
"""From the one that is known to show the bug; more, because a change of the workload moves it."""


def test_every_checker_has_a_plant():
    tables = (PLANTS, WIRE_PLANTS, NATIVE_PLANTS)
    named = {checker for plants in tables for _, _, names in plants.values() for checker in names}
    lists = (checkers.CHECKERS, routes.CHECKERS, wires.CHECKERS)
    assert {checker.__name__ for each in lists for checker in each} <= named


def test_a_plant_of_gossip_is_known_to_show_within_thirty_seeds():
    assert all(first < 30 for _, first, _ in GOSSIP_PLANTS.values())


def test_every_checker_of_gossip_has_a_plant_that_it_must_find_alone():
    assert {names[0] for _, _, names in GOSSIP_PLANTS.values() if len(names) == 1} == set(gossip_checkers.NAMES)


@pytest.mark.parametrize("name", PLANTS)
def test_a_planted_bug_is_found(name):
    assert_found(name, *PLANTS[name], try_run)


@pytest.mark.parametrize("name", WIRE_PLANTS)
def test_a_bug_that_is_planted_in_a_wire_is_found(name):
    assert_found(name, *WIRE_PLANTS[name], try_wires)


@pytest.mark.parametrize("name", NATIVE_PLANTS)
def test_a_bug_that_is_planted_in_the_native_wire_is_found(name):
    assert_found(name, *NATIVE_PLANTS[name], try_native)


@pytest.mark.parametrize("name", GOSSIP_PLANTS)
def test_a_bug_that_is_planted_in_gossip_is_found(name):
    assert_found(name, *GOSSIP_PLANTS[name], try_gossip)


def assert_found(name, plant, first, checkers, tried):
    for seed in range(first, first + SEEDS):
        with plant():
            found = tried(seed)
        if any(violation.split(":")[0] in checkers for violation in found):
            return
    pytest.fail(f"{SEEDS} seeds, and none of {checkers} noticed: {name}")
