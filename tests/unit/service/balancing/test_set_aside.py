"""Failing instances are set aside, probed with one call at a time, and come back; for every balancer."""

from __future__ import annotations

from collections import Counter

import msgspec
import pytest

from tests.unit.service.balancing.clients import chosen, instances, numbered
from wherry.mesh.instance import Instance
from wherry.model.errors import InvalidInput
from wherry.service.balancing.kinds import KINDS, balancer_of
from wherry.service.balancing.set_aside import PAUSE_S, PAUSE_S_MAX, PROBE_S_MAX, SetAside

SESSION = "customer-7"


def call(balancer: SetAside, there: tuple[Instance, ...], now: float, bad: set[str], session: str | None = None) -> str:
    """Make a call that takes no time; it fails on the instances in `bad`."""
    name = balancer.choose(there, session=session, chance=now * 7.77 % 1.0, now=now).id
    balancer.began(name, now)
    balancer.ended(name, now, 0.0, name not in bad)
    return name


def aside(balancer: SetAside, now: float = 0.0) -> set[str]:
    return {each.id for each in balancer.statistics(now) if each.set_aside}


@pytest.mark.parametrize("kind", KINDS)
def test_an_instance_that_fails_gets_no_calls_but_probes(kind):
    balancer, there = balancer_of(kind), numbered(4)
    bad = there[1].id
    for at in range(100):
        call(balancer, there, at * 0.001, {bad}, f"s{at}")
    assert aside(balancer) == {bad}
    counts = Counter(call(balancer, there, 1 + at * 0.01, {bad}, f"s{at}") for at in range(6_000))
    assert 2 <= counts[bad] <= 8, "pauses of 1, 2, 4, … 30 seconds within a minute"
    assert min(counts[each.id] for each in there if each.id != bad) > 500


@pytest.mark.parametrize("kind", KINDS)
def test_an_instance_that_answers_its_probe_is_back(kind):
    balancer, there = balancer_of(kind), numbered(3)
    bad = there[0].id
    for at in range(100):
        call(balancer, there, at * 0.001, {bad}, f"s{at}")
    counts = Counter(call(balancer, there, 1 + at * 0.01, set(), f"s{at}") for at in range(3_000))
    assert aside(balancer) == set()
    assert counts[bad] > 500


@pytest.mark.parametrize("kind", KINDS)
def test_where_all_fail_calls_go_on(kind):
    balancer, there = balancer_of(kind), numbered(3)
    every = {each.id for each in there}
    counts = Counter(call(balancer, there, at * 0.001, every, f"s{at}") for at in range(300))
    assert aside(balancer) == every
    assert counts.keys() == every, "none of them gets all"
    assert call(balancer, there, 0.3, set(), "s") in every
    assert aside(balancer) != every


def test_a_probe_is_one_call_at_a_time():
    balancer, there = balancer_of("round-robin"), instances("a", "b")
    for at in range(10):
        call(balancer, there, at * 0.001, {"a"})
    due = 0.01 + PAUSE_S
    assert [balancer.choose(there, session=None, chance=0.5, now=due + at).id for at in range(20)].count("a") == 1
    balancer.ended("a", due + 20, 20.0, False)
    assert balancer.choose(there, session=None, chance=0.5, now=due + 20).id == "b"
    later = [balancer.choose(there, session=None, chance=0.5, now=due + 20 + 0.1 * at).id for at in range(30)]
    assert later.count("a") == 1


def test_a_probe_that_never_ends_is_given_up():
    balancer, there = balancer_of("round-robin"), instances("a", "b")
    for at in range(10):
        call(balancer, there, at * 0.001, {"a"})
    names = [balancer.choose(there, session=None, chance=0.5, now=1.0 + at).id for at in range(int(PROBE_S_MAX) + 2)]
    assert names.count("a") == 2


def test_calls_that_were_under_way_do_not_make_the_pause_longer():
    balancer, there = balancer_of("round-robin"), instances("a", "b")
    for _ in range(100):
        balancer.began("a", 0.0)
    balancer.choose(there, session=None, chance=0.999, now=0.0)
    for _ in range(100):
        balancer.ended("a", 0.1, 0.1, False)
    assert "a" in {balancer.choose(there, session=None, chance=0.5, now=0.2 + PAUSE_S).id for _ in range(2)}


@pytest.mark.parametrize("chance", [0.0, 0.5, 0.999])
def test_pauses_grow_up_to_a_bound_and_chance_spreads_them(chance):
    balancer, there = balancer_of("round-robin"), instances("a", "b")
    now = 0.0
    pauses: list[float] = []
    for _ in range(3):
        balancer.ended("a", now, 0.0, False)
        balancer.choose(there, session=None, chance=chance, now=now)
        balancer.ended("a", now, 0.0, False)
    failed = now
    while len(pauses) < 10:
        now += 0.01
        if balancer.choose(there, session=None, chance=chance, now=now).id == "a":
            pauses.append(now - failed)
            balancer.ended("a", now, 0.0, False)
            failed = now
    part = 0.5 + 0.5 * chance
    expected = [min(PAUSE_S_MAX, PAUSE_S * 2**at) * part for at in range(10)]
    assert pauses[1:] == pytest.approx(expected[1:], abs=0.03)


@pytest.mark.rows("P7")
def test_a_session_stays_where_it_is_while_another_instance_is_set_aside():
    balancer, there = balancer_of("sticky"), numbered(5)
    sessions = [f"s{at}" for at in range(200)]
    own = {each: chosen(balancer, there, each) for each in sessions}
    bad = there[2].id
    for _ in range(3):
        balancer.ended(bad, 0.0, 0.0, False)
    for now in (0.1, 5.0, 50.0):
        for each in sessions:
            found = balancer.choose(there, session=each, chance=0.5, now=now).id
            assert found == own[each] or own[each] == bad
    again = [balancer.choose(there, session=each, chance=0.5, now=0.2).id for each in sessions if own[each] == bad]
    assert bad not in again
    assert len(set(again)) == 4, "they are spread over the others"


def test_an_instance_that_was_started_again_is_in_use_again():
    balancer, there = balancer_of("round-robin"), instances("a", "b")
    chosen(balancer, there)
    for _ in range(3):
        balancer.ended("a", 0.0, 0.0, False)
    assert {chosen(balancer, there) for _ in range(4)} == {"b"}
    again = (msgspec.structs.replace(there[0], version=2), there[1])
    assert {chosen(balancer, again) for _ in range(4)} == {"a", "b"}


def test_one_answer_ends_the_row_of_failures():
    balancer, there = balancer_of("round-robin"), instances("a", "b")
    chosen(balancer, there)
    for ok in [False, False, True, False, False]:
        balancer.ended("a", 0.0, 0.0, ok)
    assert {chosen(balancer, there) for _ in range(4)} == {"a", "b"}


@pytest.mark.rows("P5")
@pytest.mark.parametrize("kind", KINDS)
def test_statistics_are_there_for_every_balancer(kind):
    balancer, there = balancer_of(kind), instances("a")
    call(balancer, there, 1.0, set(), SESSION)
    (found,) = balancer.statistics(1.0)
    assert (found.id, found.calls, found.failed, found.under_way, found.set_aside) == ("a", 1, 0, 0, False)
    assert (found.share == 1.0) is (kind == "fastest")


def test_failures_of_an_instance_that_is_gone_are_not_kept():
    balancer = balancer_of("round-robin")
    chosen(balancer, instances("a", "b"))
    chosen(balancer, instances("b"))
    for _ in range(5):
        balancer.ended("a", 0.0, 0.0, False)
    assert {chosen(balancer, instances("a", "b")) for _ in range(4)} == {"a", "b"}


def test_a_balancer_has_to_be_known():
    with pytest.raises(InvalidInput, match="balancer: got 'luck'; allowed: one of round-robin, fastest, sticky"):
        balancer_of("luck")
    own = balancer_of("sticky")
    assert balancer_of(own) is own
