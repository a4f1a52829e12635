"""When a member wishes to exchange states, and with whom."""

from __future__ import annotations

from random import Random

from tests.unit.mesh.gossip.meeting import TERMS, address, claim, instance
from wherry.mesh.gossip.codec.packets import PacketKind, ProbeTarget, encode_claim, encode_packet
from wherry.mesh.gossip.codec.states import LISTINGS_BYTES_MAX
from wherry.mesh.gossip.core import Gossip
from wherry.mesh.gossip.exchanging import BUSY_PERIODS, GAP_PERIODS, Exchanging
from wherry.mesh.gossip.terms import TICKS
from wherry.mesh.gossip.values import MemberAddress

PERIOD_MS = TERMS.period_ms
SEED = address(1)


def wishes(core: Gossip, periods: float, start_ms: float = 0.0) -> list[tuple[float, MemberAddress]]:
    """Return when a member that gets no packet wishes which exchange."""
    found = []
    for at in range(round(periods * TICKS)):
        now = start_ms + at * TERMS.tick_ms
        found += [(now / PERIOD_MS, to) for to in core.tick(now).exchanges]
    return found


def member(*seeds: MemberAddress) -> Gossip:
    return Gossip("m9", address(9), 1, Random(9), TERMS, seeds)


def test_a_seed_is_tried_each_period_until_one_answered_and_then_now_and_then():
    core = member(SEED, address(2))
    assert not core.has_joined
    tried = wishes(core, 10)
    assert 9 <= len(tried) <= 10
    assert {to for _, to in tried} == {SEED, address(2)}
    other = Gossip("m1", SEED, 1, Random(1), TERMS)
    answer, _ = other.answer(core.offer(), 10_000)
    core.conclude(SEED, answer, 10_000)
    assert core.has_joined
    later = wishes(core, 4, 10_000)
    assert {to for _, to in later} <= {address(2)}
    assert len(later) <= 1


def test_its_own_address_as_a_seed_is_never_tried():
    assert wishes(member(address(9)), 30) == []


def test_a_seed_that_led_to_oneself_is_tried_again_since_several_may_share_its_address():
    core = member(SEED)
    answer, _ = core.answer(core.offer(), 0)
    core.conclude(SEED, answer, 0)
    assert core.met_itself
    assert {to for _, to in wishes(core, 60)} == {SEED}


def test_seeds_move():
    core = member(SEED, address(2))
    core.set_seeds([address(2), address(3)])
    assert {to for _, to in wishes(core, 30)} == {address(2), address(3)}


def test_without_seeds_there_is_nothing_to_wish():
    core = member()
    assert core.has_joined
    assert wishes(core, 50) == []


def ping(core: Gossip, fingerprint: int, now_ms: float) -> None:
    target = ProbeTarget("m9", address(9))
    body = encode_packet(PacketKind.PING, 1, fingerprint, encode_claim(claim(1, version=0)), target, ())
    core.receive(body, SEED, now_ms)


def test_another_fingerprint_leads_to_one_exchange_once_nothing_changes():
    core = member()
    ping(core, 0, 0)
    assert wishes(core, 1) == [], "m1 was new"
    for period in range(2, 12):
        ping(core, core.fingerprint ^ 1, period * PERIOD_MS)
        found = wishes(core, 0.4, period * PERIOD_MS)
        if found:
            break
    assert found[0][1] == SEED
    assert 3 <= period <= 8
    ping(core, core.fingerprint ^ 1, (period + 1) * PERIOD_MS)
    assert wishes(core, 0.4, (period + 1) * PERIOD_MS) == [], f"not within {GAP_PERIODS} periods"


def test_the_same_fingerprint_leads_to_none():
    core = member()
    ping(core, 0, 0)
    for period in range(1, 100):
        ping(core, core.fingerprint, period * PERIOD_MS)
        assert [to for _, to in wishes(core, 0.4, period * PERIOD_MS)] == []


def test_another_fingerprint_is_followed_in_the_end_though_something_changes_all_the_time():
    exchanging = Exchanging([], Random(1), TERMS)
    core = member()
    for period in range(1, BUSY_PERIODS + 1):
        now = period * PERIOD_MS
        exchanging.differed(SEED, now, now)
        assert exchanging.next(now, SEED, core.members) == (None if period < BUSY_PERIODS else SEED)


def test_a_listing_that_does_not_come_is_asked_for_after_a_while():
    core = member()
    body = encode_packet(PacketKind.SPREAD, 0, 0, encode_claim(claim(1, version=5)), None, ())
    core.receive(body, SEED, 0)
    found = wishes(core, 5)
    assert found[0][0] >= 2
    assert {to for _, to in found} == {SEED}
    assert 2 <= len(found) <= 3, "once a period"
    other = Gossip("m1", SEED, 5, Random(1), TERMS)
    other.announce([instance("a", labels={"text": "x" * 3_000})])
    answer, _ = other.answer(core.offer(), 0)
    assert 3_000 < len(answer) < LISTINGS_BYTES_MAX
    core.conclude(SEED, answer, 6_000)
    assert core.members.live["m1"].instances == other.instances
    assert wishes(core, 1, 6_000) == []


def test_both_sides_learn_what_is_newer_on_the_other():
    one, other = member(), Gossip("m1", SEED, 1, Random(1), TERMS)
    one.announce([instance("a")])
    other.announce([instance("b")])
    answer, _ = other.answer(one.offer(), 0)
    rest, _ = one.conclude(SEED, answer, 0)
    other.absorb(rest, 0)
    assert one.members.live["m1"].instances == (instance("b"),)
    assert other.members.live["m9"].instances == (instance("a"),)
    assert one.fingerprint == other.fingerprint
    answer, _ = other.answer(one.offer(), 0)
    assert len(answer) < 150, "nothing is newer: only the claims"
