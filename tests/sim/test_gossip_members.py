"""Fifty members of gossip through faults, what they send by their number, and one trace for a seed."""

import pytest

from tests.sim.clean import assert_clean, assert_one_trace
from wherry.mesh.gossip.codec.seal import SEAL_BYTES
from wherry.sim.gossip.gossip_bounds import FLOOD_PERIODS, bounds_of
from wherry.sim.gossip.gossip_bytes import bytes_of
from wherry.sim.gossip.gossip_run import run_gossip


def seeds(count: int, more: int, long: int) -> list[object]:
    """Return seeds for every run, and further ones under the markers `more` and `long`."""
    return [
        *range(count),
        *(pytest.param(seed, marks=pytest.mark.more) for seed in range(count, more)),
        *(pytest.param(seed, marks=pytest.mark.long) for seed in range(more, long)),
    ]


@pytest.mark.rows("P9", "P10")
@pytest.mark.parametrize("seed", seeds(1, 3, 40))
def test_fifty_members_agree_after_the_last_fault(seed):
    assert run_gossip(seed, members=50).violations == []


FAILED_ONCE = (
    293,  # a member back from a cut took itself for slow, and was heard by nobody for 13 periods
    546,  # a member was stopped for less than a period, and judged: a fault of the checker
    539,  # both seeds of a member ended before it had joined: a fault of the simulated names of hosts
)


@pytest.mark.rows("P9")
@pytest.mark.parametrize("seed", FAILED_ONCE)
def test_a_seed_that_failed_once_is_clean(seed):
    assert_clean(seed, "gossip")


def test_bounds_grow_with_the_logarithm_of_the_members_at_most():
    few, many, more = bounds_of(3), bounds_of(50), bounds_of(500)
    assert few.small_known == many.small_known
    assert few.held_dead == many.held_dead
    for one, other in ((few, many), (many, more)):
        assert all(a <= b <= 2 * a for a, b in zip(one, other, strict=True) if b > FLOOD_PERIODS)


@pytest.mark.parametrize("count", [50, pytest.param(200, marks=pytest.mark.long)])
def test_what_a_member_sends_does_not_grow_with_the_number_of_members(count):
    few, many = bytes_of(10), bytes_of(count)
    assert few.quiet > 2 * SEAL_BYTES
    assert many.quiet < 1.1 * few.quiet
    assert many.changing < 2 * few.changing, "by the logarithm, since an update is sent more often"


def test_the_same_seed_of_gossip_has_the_same_trace_under_two_hash_seeds():
    assert_one_trace(
        "from wherry.sim.gossip.gossip_run import run_gossip;"
        "print([(r.packets, r.exchanges, r.quiet_bytes, r.longest) for r in map(run_gossip, range(6))])"
    )
