"""By session: the same instance for each call, equal parts, and few moves when the instances change."""

from __future__ import annotations

from collections import Counter
from random import Random

import numpy as np
import pytest

from tests.unit.service.balancing.clients import chosen, instances, numbered
from wherry.model.errors import InvalidInput
from wherry.service.balancing.split import key_of, keys_of, mixed, split
from wherry.service.balancing.sticky import KNOWN_MAX, SLOTS, Sticky

SESSIONS = [f"customer-{at}" for at in range(1_000)]
KEYS = mixed(np.arange(SLOTS, dtype=np.uint64))


def moved(before: list[str], after: list[str]) -> int:
    return sum(one != other for one, other in zip(before, after, strict=True))


@pytest.mark.rows("P7")
def test_a_session_reaches_the_same_instance_whatever_was_called_before():
    there, random = numbered(7), Random(3)
    balancer = Sticky()
    first = {each: chosen(balancer, there, each) for each in SESSIONS}
    others = SESSIONS * 2
    random.shuffle(others)
    assert all(chosen(balancer, there, each, random.random()) == first[each] for each in others)
    other = Sticky()
    assert all(chosen(other, there, each) == first[each] for each in SESSIONS)


@pytest.mark.rows("P8")
@pytest.mark.parametrize("count", range(1, 21))
def test_a_thousand_known_sessions_are_split_equally_within_one(count):
    balancer, there = Sticky(SESSIONS), numbered(count)
    counts = Counter(chosen(balancer, there, each) for each in SESSIONS)
    assert {counts[each.id] for each in there} <= {1_000 // count, -(-1_000 // count)}


@pytest.mark.rows("P8")
@pytest.mark.parametrize("count", [1, 2, 3, 7, 20, 100, 1_000, 5_000])
def test_the_slots_are_split_equally_within_one(count):
    counts = np.bincount(split(KEYS, [each.id for each in numbered(count)]), minlength=count)
    assert counts.max() - counts.min() <= 1


def test_unknown_sessions_are_split_as_evenly_as_chance_has_it():
    balancer, there = Sticky(), numbered(10)
    counts = Counter(chosen(balancer, there, f"session {at}") for at in range(100_000))
    assert max(counts.values()) < 10_000 * 1.05
    assert min(counts.values()) > 10_000 * 0.95


@pytest.mark.rows("P8")
@pytest.mark.parametrize("count", [1, 2, 3, 5, 10, 19])
def test_few_sessions_move_when_an_instance_comes_or_goes(count):
    there = numbered(count + 1)
    ids = [each.id for each in there]
    after = split(KEYS, ids)
    for gone in {0, count // 2, count}:
        kept = [each for at, each in enumerate(ids) if at != gone]
        before = [kept[at] for at in split(KEYS, kept)]
        assert moved(before, [ids[at] for at in after]) <= 1.15 * SLOTS / (count + 1)


@pytest.mark.rows("P8")
@pytest.mark.parametrize("count", [1, 2, 5, 10, 19])
def test_few_known_sessions_move_when_an_instance_comes_or_goes(count):
    balancer, there = Sticky(SESSIONS), numbered(count + 1)
    after = [chosen(balancer, there, each) for each in SESSIONS]
    fewer = there[:-1]
    before = [chosen(balancer, fewer, each) for each in SESSIONS]
    assert moved(before, after) <= 1.6 * 1_000 / (count + 1)


@pytest.mark.rows("P8")
def test_the_split_stays_what_it_is():
    """Another version of Wherry beside this one computes the same: what is written here must not change."""
    assert (key_of("customer-7"), key_of("")) == (6532683804238450281, 13020603013274838756)
    owners = split(KEYS, ["a", "b", "c"])
    assert "".join("abc"[at] for at in owners[:40]) == "cbccbccabccbacbbcbabaacacbbacacccabccaac"
    assert int(np.bitwise_xor.reduce(mixed(KEYS ^ keys_of(["a", "b", "c"])[owners]))) == 14271683391605127829


@pytest.mark.rows("P8")
def test_where_an_instance_listens_is_not_what_decides():
    there = numbered(5)
    others = tuple(type(each)(service="x", id=each.id, url="http://elsewhere:1", version=9) for each in there)
    one, other = Sticky(), Sticky()
    assert all(chosen(one, there, each) == chosen(other, others, each) for each in SESSIONS)


def test_the_order_of_the_known_sessions_is_not_what_decides():
    there, mixed_up = numbered(5), SESSIONS[::-1] + SESSIONS[:10]
    one, other = Sticky(SESSIONS), Sticky(mixed_up)
    assert all(chosen(one, there, each) == chosen(other, there, each) for each in SESSIONS)


def test_a_call_without_a_session_goes_anywhere():
    balancer, there, random = Sticky(), numbered(4), Random(1)
    counts = Counter(chosen(balancer, there, None, random.random()) for _ in range(4_000))
    assert all(900 < counts[each.id] < 1_100 for each in there)


@pytest.mark.parametrize("session", ["", "ü", "\udc80", "x" * 10_000])
def test_any_text_is_a_session(session):
    assert chosen(Sticky(), numbered(3), session) in {each.id for each in numbered(3)}


def test_there_is_a_bound_on_known_sessions_and_on_instances():
    with pytest.raises(InvalidInput, match="sessions: got '100001 sessions'; allowed: at most 100000"):
        Sticky(str(at) for at in range(KNOWN_MAX + 1))
    with pytest.raises(InvalidInput, match="instances: got '16385 instances'; allowed: at most 16384"):
        chosen(Sticky(), numbered(SLOTS + 1), "a")


def test_the_splits_that_were_used_last_are_kept():
    balancer = Sticky()
    both, one = instances("a", "b"), instances("b")
    for there in (both, one, both, one):
        assert chosen(balancer, there, "s") in {each.id for each in there}
