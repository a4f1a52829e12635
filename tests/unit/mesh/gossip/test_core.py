"""One member beside others, on a network that the test drives: what it sends, asks for and believes."""

from __future__ import annotations

from random import Random

import pytest

from tests.unit.mesh.gossip.meeting import TERMS, Meeting, address, claim, instance
from wherry.mesh.gossip.codec.packets import (
    PacketKind,
    ProbeTarget,
    claim_item,
    decode_packet,
    encode_claim,
    encode_packet,
)
from wherry.mesh.gossip.codec.seal import SEAL_BYTES
from wherry.mesh.gossip.core import Gossip
from wherry.mesh.gossip.probing import RELAYS_MAX, RELAYS_OF_ONE_MAX
from wherry.mesh.gossip.terms import FANOUT, HEALTH_MAX, KNOCKS, PACKET_BYTES_MAX, TICKS
from wherry.mesh.gossip.values import GossipFault, MemberAddress, Standing, What
from wherry.model.errors import InvalidInput

ALIVE, SUSPECT, DEAD, LEFT = Standing


def whats(meeting: Meeting, about: str, at: int | None = None) -> list[What]:
    return [event.what for number, event in meeting.events if event.name == about and at in {None, number}]


def packet(kind: PacketKind, sender: int, number: int = 0, target: int | None = None, *items: bytes) -> bytes:
    to = None if target is None else ProbeTarget(f"m{target}", address(target))
    return encode_packet(kind, number, 0, encode_claim(claim(sender)), to, items)


def joined(count: int) -> Meeting:
    meeting = Meeting(count)
    meeting.pass_periods(10)
    everyone = sorted(f"m{number}" for number in meeting.cores)
    for number, core in meeting.cores.items():
        assert sorted([*meeting.held(number), core.own.name]) == everyone
    return meeting


@pytest.mark.rows("P9")
def test_what_one_member_announces_all_know_within_two_periods():
    meeting = joined(12)
    meeting.cores[5].announce([instance("a")])
    meeting.pass_periods(2)
    for number, core in meeting.cores.items():
        if number != 5:
            assert core.members.live["m5"].instances == (instance("a"),)
    assert len({core.fingerprint for core in meeting.cores.values()}) == 1


def test_members_that_agree_make_no_state_exchange_and_spread_nothing():
    meeting = joined(8)
    meeting.sent.clear()
    before = meeting.exchanges
    meeting.pass_periods(50)
    assert meeting.exchanges == before
    kinds = [decode_packet(send.body).kind for _, send in meeting.sent]
    assert set(kinds) == {PacketKind.PING, PacketKind.ACK}
    assert len(kinds) <= 2 * 8 * 51


def test_each_member_is_probed_once_in_each_round():
    meeting = joined(6)
    meeting.sent.clear()
    meeting.pass_periods(20)
    probed = [to for kind, to in meeting.packets(1) if kind == "PING"]
    assert {probed.count(address(number)) for number in range(2, 7)} == {4}


def test_a_member_that_is_silent_is_probed_through_helpers_suspected_and_dead():
    meeting = joined(6)
    del meeting.cores[6]
    meeting.events.clear()
    meeting.sent.clear()
    meeting.pass_periods(25)
    kinds = [kind for number in meeting.cores for kind, _ in meeting.packets(number)]
    assert "PROBE" in kinds
    for number in meeting.cores:
        assert whats(meeting, "m6", number)[:2] == [What.SUSPECTED, What.DEAD]
        assert "m6" not in meeting.held(number)


def test_a_suspicion_lasts_as_long_as_its_terms():
    core = Gossip("m1", address(1), 1, Random(1), TERMS)
    core.receive(packet(PacketKind.SPREAD, 2), address(2), 0)
    core.receive(packet(PacketKind.SPREAD, 3, 0, None, claim_item(claim(2, standing=SUSPECT))), address(3), 0)
    now, ends = 0.0, None
    while ends is None and now < 20_000:
        now += TERMS.tick_ms
        if any(event.what is What.DEAD and event.name == "m2" for event in core.tick(now).events):
            ends = now
        core.receive(packet(PacketKind.SPREAD, 3), address(3), now)  # so that only m2 is silent
    assert ends is not None
    assert TERMS.suspicion_ms(3) <= ends <= TERMS.suspicion_ms(3) * (1 + HEALTH_MAX)


def test_a_member_behind_a_bad_line_is_reached_through_helpers():
    meeting = joined(5)
    meeting.events.clear()
    meeting.lost = lambda sender, receiver: {sender, receiver} == {1, 2}
    meeting.pass_periods(40)
    assert "m2" in meeting.held(1)
    assert "m1" in meeting.held(2)
    assert What.DEAD not in [event.what for _, event in meeting.events]


def test_a_suspected_member_refutes_and_is_alive_everywhere():
    meeting = joined(5)
    before = meeting.cores[2].own.incarnation
    body = packet(PacketKind.SPREAD, 3, 0, None, claim_item(claim(2, before, SUSPECT)))
    meeting.carry_out(1, meeting.cores[1].receive(body, address(3), meeting.now_ms))
    assert 1 in [number for number, event in meeting.events if event.what is What.SUSPECTED]
    meeting.pass_periods(3)
    assert meeting.cores[2].own.incarnation == before + 1
    for number, core in meeting.cores.items():
        if number != 2:
            assert core.members.live["m2"].standing is ALIVE
            assert core.members.live["m2"].incarnation == before + 1


def test_a_halved_cluster_meets_again_without_its_seed():
    meeting = joined(9)
    del meeting.cores[1]
    meeting.lost = lambda sender, receiver: (sender < 6) is not (receiver < 6)
    meeting.pass_periods(25)
    assert meeting.held(2) == ["m3", "m4", "m5"]
    meeting.lost = lambda _sender, _receiver: False
    meeting.pass_periods(12)
    for number, core in meeting.cores.items():
        assert sorted([*meeting.held(number), core.own.name]) == [f"m{each}" for each in range(2, 10)]


def test_a_restart_takes_the_place_of_its_earlier_life_though_its_clock_was_set_back():
    meeting = joined(4)
    meeting.cores[4].announce([instance("old")])
    meeting.pass_periods(2)
    again = meeting.add(4, birth=0)
    again.announce([instance("new")])
    meeting.pass_periods(6)
    for number in (1, 2, 3):
        member = meeting.cores[number].members.live["m4"]
        assert member.instances == (instance("new"),)
        assert member.claim == again.own


def test_a_member_that_leaves_is_gone_at_once_and_gets_no_knocks():
    meeting = joined(6)
    meeting.carry_out(3, meeting.cores[3].leave())
    left = meeting.cores.pop(3)
    meeting.pass_periods(2)
    assert all("m3" not in meeting.held(number) for number in meeting.cores)
    meeting.sent.clear()
    meeting.pass_periods(20)
    assert address(3) not in [send.to for _, send in meeting.sent]
    assert left.tick(meeting.now_ms).sends == []
    assert left.receive(packet(PacketKind.PING, 1, 4, 3), address(1), meeting.now_ms) == ([], [], [])


def test_a_dead_member_is_knocked_at_by_a_few_and_forgotten_in_the_end():
    meeting = joined(12)
    del meeting.cores[12]
    meeting.pass_periods(20)
    meeting.sent.clear()
    meeting.pass_periods(20)
    knocks = [send for _, send in meeting.sent if send.to == address(12)]
    assert 20 <= len(knocks) <= 200, "about 4 a period, of all members together"
    meeting.pass_periods(60)
    assert all(core.members.tombs == {} for core in meeting.cores.values())


def test_a_process_that_was_stopped_accuses_no_member():
    meeting = joined(4)
    core = meeting.cores.pop(4)
    meeting.pass_periods(1)
    meeting.now_ms += 3_600_000
    step = core.tick(meeting.now_ms)
    assert [event for event in step.events if event.what is What.DEAD] == []
    meeting.cores[4] = core
    meeting.events.clear()
    meeting.pass_periods(15)
    assert [event for number, event in meeting.events if number == 4 and event.what is What.DEAD] == []
    assert meeting.held(4) == ["m1", "m2", "m3"]


def test_a_slow_member_gives_others_more_time_and_recovers():
    meeting = joined(5)
    meeting.lost = lambda sender, receiver: receiver == 5
    meeting.pass_periods(30)
    assert meeting.cores[5].health > 0
    meeting.lost = lambda _sender, _receiver: False
    meeting.pass_periods(30)
    assert meeting.cores[5].health == 0


def test_a_clock_that_runs_backwards_stops_and_breaks_nothing():
    core = Gossip("m1", address(1), 1, Random(1), TERMS)
    core.receive(packet(PacketKind.SPREAD, 2), address(2), 5_000)
    for now in (4_000, 0, 5_000, 5_200):
        core.tick(now)
    assert core.members.live["m2"].standing is ALIVE


# ------------------------------------------------------------------------------------------------------------- packets


def test_a_ping_for_another_is_not_answered():
    core = Gossip("m1", address(1), 1, Random(1), TERMS)
    assert core.receive(packet(PacketKind.PING, 2, 7, 3), address(2), 0).sends == []
    (ack,) = core.receive(packet(PacketKind.PING, 2, 7, 1), MemberAddress("10.9.9.9", 99), 0).sends
    assert ack.to == MemberAddress("10.9.9.9", 99), "where the ping came from"
    assert (decode_packet(ack.body).kind, decode_packet(ack.body).number) == (PacketKind.ACK, 7)


def test_a_recorded_ping_sent_again_from_elsewhere_spends_no_update():
    meeting = joined(5)
    core = meeting.cores[1]
    ping = packet(PacketKind.PING, 2, 7, 1)
    core.announce([instance("a")])
    for number in range(300):
        source = MemberAddress("10.9.9.9", 1 + number)
        for send in core.receive(ping, source, meeting.now_ms).sends:
            assert decode_packet(send.body).items == [], "an answer as small as the question"
    meeting.pass_periods(2)
    for number in range(2, 6):
        assert meeting.cores[number].members.live["m1"].instances == (instance("a"),)


def test_a_member_that_is_back_is_not_held_up_by_many_dead_names():
    meeting = joined(6)
    for core in meeting.cores.values():
        for number in range(1_000):
            for standing in (ALIVE, DEAD):
                ended = claim(1_000 + number, standing=standing)
                core.members.merge(ended._replace(address=address(99)), core._awake.now_ms)
    meeting.lost = lambda sender, receiver: 6 in {sender, receiver}
    meeting.pass_periods(30)
    for number in range(1, 6):
        assert "m6" not in meeting.held(number)
    meeting.cores[6]._exchanging.set_seeds([])  # nor does a seed help
    meeting.lost = lambda _sender, _receiver: False
    meeting.sent.clear()
    meeting.pass_periods(15)
    assert all("m6" in meeting.held(number) for number in range(1, 6))
    knocks = [sender for sender, send in meeting.sent if send.to == address(99)]
    assert max(knocks.count(number) for number in range(1, 6)) <= 16 * KNOCKS


@pytest.mark.rows("P9")
def test_a_member_without_packets_calls_others_each_period():
    meeting = joined(6)
    meeting.lost = lambda sender, receiver: 6 in {sender, receiver}
    meeting.pass_periods(8)
    core = meeting.cores[6]
    assert core.health >= 3, "its own probes are periods apart now"
    meeting.sent.clear()
    meeting.pass_periods(5)
    calls = [send for sender, send in meeting.sent if sender == 6 and decode_packet(send.body).kind is PacketKind.PING]
    assert len(calls) >= 5 * FANOUT
    meeting.lost = lambda _sender, _receiver: False
    meeting.pass_periods(3)
    assert meeting.held(6) == ["m1", "m2", "m3", "m4", "m5"]
    assert all("m6" in meeting.held(number) for number in range(1, 6))
    meeting.sent.clear()
    meeting.pass_periods(5)
    pings = [send for sender, send in meeting.sent if sender == 6 and decode_packet(send.body).kind is PacketKind.PING]
    assert len(pings) <= 5, "and calls nobody once it is heard"


@pytest.mark.rows("P9")
def test_a_process_that_goes_on_reads_what_arrived_before_it_accuses_anyone():
    meeting = joined(3)
    core = meeting.cores[1]
    answers: list[bytes] = []
    while not answers:  # the process is stopped as soon as it has sent a probe
        meeting.now_ms += TERMS.tick_ms
        for send in core.tick(meeting.now_ms).sends:
            if decode_packet(send.body).kind is PacketKind.PING:
                to = int(send.to.host.rpartition(".")[2])
                step = meeting.cores[to].receive(send.body, address(1), meeting.now_ms)
                answers += [each.body for each in step.sends]
    meeting.now_ms += 60 * TERMS.period_ms
    assert core.tick(meeting.now_ms).events == []
    for answer in answers:
        assert core.receive(answer, address(2), meeting.now_ms).events == []
    assert core.tick(meeting.now_ms + TERMS.tick_ms).events == []
    assert core.members.suspects == {}
    assert meeting.held(1) == ["m2", "m3"]


def test_probes_for_others_are_bounded():
    core = Gossip("m1", address(1), 1, Random(1), TERMS)

    def made(origin: int) -> int:
        probes = (packet(PacketKind.PROBE, origin, number, 3) for number in range(100))
        # From an address of its own each: who repeats a packet may put any on it.
        return sum(
            len(core.receive(each, MemberAddress("10.9.9.9", at + 1), 0).sends) for at, each in enumerate(probes)
        )

    assert made(2) == RELAYS_OF_ONE_MAX
    assert sum(made(origin) for origin in range(4, 40)) == RELAYS_MAX - RELAYS_OF_ONE_MAX
    for now in range(0, 100_000, 500):
        core.tick(now)
    assert len(core.receive(packet(PacketKind.PROBE, 2, 7, 3), address(2), 100_000).sends) == 1


def test_an_answer_to_no_probe_counts_for_nothing():
    meeting = joined(3)
    core = meeting.cores[1]
    for number in range(100):
        for kind in (PacketKind.ACK, PacketKind.RELAYED):
            step = core.receive(packet(kind, 2, number), address(2), meeting.now_ms)
            assert step.events == []
    assert core.health == 0


def test_no_packet_is_larger_than_the_bound_however_much_there_is_to_spread():
    meeting = Meeting(40)
    for number, core in meeting.cores.items():
        core.announce([instance(f"{number}-{at}") for at in range(8)])
    meeting.pass_periods(15)
    sizes = [len(send.body) + SEAL_BYTES for _, send in meeting.sent]
    assert 1_000 < max(sizes) <= PACKET_BYTES_MAX
    assert len({core.fingerprint for core in meeting.cores.values()}) == 1


def test_a_large_listing_comes_by_state_exchange_and_only_that():
    meeting = joined(6)
    before = meeting.exchanges
    meeting.cores[2].announce([instance(f"i{at}", labels={"text": "x" * 100}) for at in range(20)])
    meeting.pass_periods(8)
    for number, core in meeting.cores.items():
        if number != 2:
            assert len(core.members.live["m2"].instances) == 20
    assert before + 5 <= meeting.exchanges <= before + 20


def test_a_broken_packet_changes_nothing():
    meeting = joined(3)
    core = meeting.cores[1]
    before = core.fingerprint
    body = packet(PacketKind.SPREAD, 9, 0, None, claim_item(claim(8)), b"\x07")
    with pytest.raises(GossipFault):
        core.receive(body, address(9), meeting.now_ms)
    assert core.fingerprint == before
    assert core.tick(meeting.now_ms).events == []


def test_another_process_with_the_same_name_is_reported():
    core = Gossip("m1", address(1), 5, Random(1), TERMS)
    body = encode_packet(PacketKind.SPREAD, 0, 0, encode_claim(claim(1, 7)._replace(address=address(9))), None, ())
    step = core.receive(body, address(9), 0)
    assert [event.what for event in step.events] == [What.DISPUTED]
    assert core.own.incarnation == 8


def test_too_many_instances_are_refused_and_the_old_ones_stay():
    core = Gossip("m1", address(1), 5, Random(1), TERMS)
    core.announce([instance("a")])
    with pytest.raises(InvalidInput):
        core.announce([instance(f"i{at}") for at in range(65)])
    assert core.instances == (instance("a"),)
    assert core.own.version == 6


def test_the_same_entropy_gives_the_same_run():
    def trace() -> list[object]:
        meeting = Meeting(7)
        meeting.pass_periods(12)
        return [*meeting.sent, *meeting.events]

    assert trace() == trace()


def test_ticks_are_so_many_in_a_period():
    assert TERMS.tick_ms * TICKS == TERMS.period_ms
