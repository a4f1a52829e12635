"""Which claim counts, what is to be spread, and the bounds of both."""

from __future__ import annotations

from itertools import permutations
from random import Random

import pytest

from tests.unit.mesh.gossip.meeting import TERMS, address, claim, instance
from wherry.mesh.gossip.members import Members
from wherry.mesh.gossip.spreading import Spreading
from wherry.mesh.gossip.terms import GossipTerms
from wherry.mesh.gossip.values import Listing, MemberEvent, Standing, What

ALIVE, SUSPECT, DEAD, LEFT = Standing


def members(terms: GossipTerms = TERMS) -> tuple[Members, list[MemberEvent]]:
    events: list[MemberEvent] = []
    return Members("m0", terms, events.append), events


def standing(known: Members, number: int = 1) -> Standing | None:
    member = known.find(f"m{number}")
    return None if member is None else member.standing


@pytest.mark.parametrize(
    ("held", "told", "then"),
    [
        ((5, ALIVE), (5, SUSPECT), SUSPECT),
        ((5, ALIVE), (4, DEAD), ALIVE),
        ((5, SUSPECT), (5, ALIVE), SUSPECT),
        ((5, SUSPECT), (6, ALIVE), ALIVE),
        ((5, SUSPECT), (5, DEAD), DEAD),
        ((5, DEAD), (5, ALIVE), DEAD),
        ((5, DEAD), (6, ALIVE), ALIVE),
        ((5, DEAD), (5, LEFT), LEFT),
        ((5, LEFT), (5, DEAD), LEFT),
        ((5, LEFT), (6, ALIVE), ALIVE),
        ((5, ALIVE), (6, LEFT), LEFT),
    ],
)
def test_the_higher_incarnation_counts_and_then_the_later_standing(
    held: tuple[int, Standing], told: tuple[int, Standing], then: Standing
):
    known, _ = members()
    known.merge(claim(1, 5), 0)
    known.merge(claim(1, *held), 0)
    known.merge(claim(1, *told), 0)
    assert standing(known) is then
    assert ("m1" in known.live) is (then <= SUSPECT)


def test_the_order_of_claims_does_not_matter():
    claims = [claim(1, 1), claim(1, 2), claim(1, 1, SUSPECT), claim(1, 2, SUSPECT), claim(1, 1, DEAD)]
    ends = set()
    for order in permutations(claims[1:]):
        known, _ = members()
        for each in (claims[0], *order):
            known.merge(each, 0)
        ends.add((standing(known), known.fingerprint))
    assert len(ends) == 1


def test_old_claims_sent_again_change_nothing():
    known, events = members()
    chance = Random(3)
    history = [claim(1, incarnation, each) for incarnation in range(1, 9) for each in (ALIVE, SUSPECT, DEAD)]
    for each in history:
        known.merge(each, 0)
    known.merge(claim(1, 9), 0)
    known.list_instances(Listing("m1", 4, (instance(),)), 0)
    before, count = known.fingerprint, len(events)
    for _ in range(500):
        assert known.merge(chance.choice(history), 0) is None
        assert known.list_instances(Listing("m1", chance.randrange(4), ()), 0) is None
    assert known.fingerprint == before
    assert len(events) == count
    assert known.live["m1"].instances == (instance(),)


def test_an_unknown_member_that_is_gone_is_not_kept():
    known, events = members()
    assert known.merge(claim(1, standing=DEAD), 0) is None
    assert known.merge(claim(2, standing=LEFT), 0) is None
    assert known.tombs == {}
    assert events == []


def test_an_address_changes_with_the_incarnation_only():
    known, _ = members()
    known.merge(claim(1), 0)
    known.merge(claim(1)._replace(address=address(9)), 0)
    assert known.live["m1"].address == address(1)
    known.merge(claim(1, 2)._replace(address=address(9)), 0)
    assert known.live["m1"].address == address(9)


def test_a_version_counts_though_the_incarnation_is_old():
    known, _ = members()
    known.merge(claim(1, 5, version=1), 0)
    assert known.merge(claim(1, 4, version=2), 3) is not None
    assert known.live["m1"].claim == claim(1, 5, version=2)
    assert list(known.lacking) == ["m1"]
    known.list_instances(Listing("m1", 2, (instance(),)), 4)
    assert known.lacking == {}


def test_members_and_tombstones_are_bounded_and_the_oldest_tombstone_goes():
    known, events = members(GossipTerms(members_max=10, forget_periods=50))
    for number in range(1, 30):
        known.merge(claim(number), 0)
    assert len(known.live) == 9, "the process itself is the tenth"
    assert [event.what for event in events].count(What.REFUSED) == 20
    for turn in range(1, 30):
        number = int(next(iter(known.live))[1:])
        known.merge(claim(number, standing=DEAD), 0)
        known.forget(0)
        known.merge(claim(100 + turn), 0)
    assert len(known.tombs) == 10
    assert len(known.live) == 9
    known.merge(claim(100 + 29, 2, DEAD), 0)
    known.merge(claim(500), 0)
    assert known.merge(claim(100 + 29, 3), 0) is None, "there is no room for its return"


def test_a_tombstone_is_forgotten_after_its_time():
    known, _ = members()
    known.merge(claim(1), 0)
    known.merge(claim(1, standing=DEAD), 1_000)
    known.forget(50_999)
    assert standing(known) is DEAD
    known.forget(51_000)
    assert standing(known) is None


def test_fingerprints_are_equal_for_equal_knowledge_however_it_came():
    one, _ = members()
    other, _ = members()
    for number in (1, 2, 3):
        one.merge(claim(number), 0)
    one.merge(claim(2, 2, version=5), 0)
    one.merge(claim(3, 1, SUSPECT), 0)
    one.merge(claim(1, 1, DEAD), 0)
    for each in (claim(3), claim(2, 2, version=5)):
        other.merge(each, 0)
    assert one.fingerprint == other.fingerprint != 0


# ------------------------------------------------------------------------------------------------------------ spreading


def test_an_update_is_sent_so_often_and_the_least_sent_goes_first():
    spreading = Spreading()
    spreading.claim("a", b"a" * 100)
    assert spreading.take(1_000, 3) == [b"a" * 100]
    spreading.claim("b", b"b" * 100)
    assert spreading.take(100, 3) == [b"b" * 100], "sent less often"
    assert sorted(spreading.take(1_000, 3)) == [b"a" * 100, b"b" * 100]
    while not spreading.is_empty:
        spreading.take(1_000, 3)
    assert len(spreading) == 0


@pytest.mark.parametrize("times", [1, 4, 12])
def test_each_update_is_sent_exactly_so_often(times):
    spreading = Spreading()
    for number in range(40):
        spreading.claim(f"m{number}", b"%02d" % number * 30)
    sent: dict[bytes, int] = {}
    while not spreading.is_empty:
        items = spreading.take(1_100, times)
        assert sum(map(len, items)) <= 1_100
        assert len(items) == len(set(items))
        for item in items:
            sent[item] = sent.get(item, 0) + 1
    assert len(sent) == 40
    assert set(sent.values()) == {times}


def test_a_newer_update_takes_the_place_of_the_older():
    spreading = Spreading()
    spreading.claim("a", b"old" * 30)
    spreading.take(1_000, 8)
    spreading.claim("a", b"new" * 30)
    spreading.listing("a", b"list" * 30)
    assert spreading.take(1_000, 8) == [b"new" * 30, b"list" * 30], "claims go first"
    spreading.drop_listing("a")
    assert spreading.take(1_000, 8) == [b"new" * 30]


def test_what_does_not_fit_waits_and_holds_up_nothing():
    spreading = Spreading()
    spreading.listing("a", b"a" * 900)
    spreading.listing("b", b"b" * 80)
    assert spreading.take(500, 4) == [b"b" * 80]
    assert spreading.take(900, 4) == [b"a" * 900]


# ------------------------------------------------------------------------------------------------------------- services
