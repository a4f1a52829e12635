"""Fifty members of gossip through faults, what they send by their number, and one trace for a seed."""

import pytest

from tests.sim.clean import assert_one_trace
from wherry.mesh.gossip.codec.seal import SEAL_BYTES
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
