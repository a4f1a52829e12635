"""Bytes of packets and states: there and back, and no error but `GossipFault` for anything else."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.mesh.gossip.meeting import claim, instance
from wherry.mesh.gossip.codec import packets, states
from wherry.mesh.gossip.codec.packets import PacketKind, ProbeTarget, decode_packet, encode_packet
from wherry.mesh.gossip.codec.seal import MAC_BYTES, PACKETS, STATES, Seal, check_cluster, check_key
from wherry.mesh.gossip.codec.states import ExchangeStage, Known, decode_state, encode_state
from wherry.mesh.gossip.terms import INSTANCES_MAX
from wherry.mesh.gossip.values import NUMBER_MAX, Claim, GossipFault, Listing, MemberAddress, Standing
from wherry.model.errors import InvalidInput

KEY = b"0123456789abcdef"
CLAIM = claim(1)
LISTING = Listing("m2", 7, (instance("a"), instance("b", methods=("total",))))
TARGET = ProbeTarget("m3", MemberAddress("2001:db8::7", 65_535))


def packet(kind: PacketKind = PacketKind.PING, items: tuple[bytes, ...] = ()) -> bytes:
    target = TARGET if kind in {PacketKind.PING, PacketKind.PROBE} else None
    return encode_packet(kind, 9, 1 << 63, packets.encode_claim(CLAIM), target, items)


def state(stage: ExchangeStage = ExchangeStage.ANSWER) -> bytes:
    return encode_state(stage, CLAIM, [Known(claim(2), 3), Known(claim(4, standing=Standing.LEFT), 0)], [LISTING])


def decoded(data: bytes) -> None:
    """Decode bytes in each way that there is; only `GossipFault` may be raised."""
    decoders: list[Callable[[bytes], object]] = [decode_packet]
    decoders += [partial(decode_state, stage=stage) for stage in ExchangeStage]
    for decode in decoders:
        try:
            decode(data)
        except GossipFault as fault:
            assert str(fault)


@pytest.mark.parametrize("kind", PacketKind)
def test_a_packet_is_its_bytes_and_back(kind):
    found = decode_packet(packet(kind, (packets.claim_item(claim(5)), packets.listing_item(LISTING))))
    assert found == (
        kind,
        9,
        1 << 63,
        CLAIM,
        TARGET if kind in {PacketKind.PING, PacketKind.PROBE} else None,
        [claim(5), LISTING],
    )


@given(
    st.text("!~azAZ09-._", min_size=1, max_size=64),
    st.ip_addresses().map(str),
    st.integers(1, 65_535),
    st.integers(0, NUMBER_MAX),
    st.sampled_from(Standing),
    st.integers(0, NUMBER_MAX),
)
def test_any_claim_is_its_bytes_and_back(name, host, port, incarnation, standing, version):
    given_claim = Claim(name, MemberAddress(host, port), incarnation, standing, version)
    body = encode_packet(PacketKind.SPREAD, 0, 0, packets.encode_claim(given_claim), None, ())
    assert decode_packet(body).sender == given_claim


def test_a_state_is_its_bytes_and_back():
    found = decode_state(state(), ExchangeStage.ANSWER)
    assert found.sender == CLAIM
    assert found.known == [(claim(2), 3), (claim(4, standing=Standing.LEFT), 0)]
    assert found.listings == [LISTING]


def test_every_beginning_of_a_packet_and_of_a_state_is_refused():
    whole = packet(items=(packets.listing_item(LISTING),))
    empty = len(packet())
    for end in range(len(whole)):
        if end != empty:
            with pytest.raises(GossipFault):
                decode_packet(whole[:end])
    for end in range(len(state())):
        with pytest.raises(GossipFault):
            decode_state(state()[:end], ExchangeStage.ANSWER)
    with pytest.raises(GossipFault, match="behind the end"):
        decode_state(state() + b"x", ExchangeStage.ANSWER)
    with pytest.raises(GossipFault, match="stage 2"):
        decode_state(state(), ExchangeStage.REST)


@given(st.binary(max_size=300))
def test_any_bytes_are_a_packet_or_a_fault(data):
    decoded(data)


@pytest.mark.parametrize("count", [20_000, pytest.param(1_000_000, marks=pytest.mark.long)])
def test_changed_bytes_are_a_packet_or_a_fault(count):
    chance = Random(7)
    wholes = [packet(kind, (packets.claim_item(claim(5)), packets.listing_item(LISTING))) for kind in PacketKind]
    wholes += [state(stage) for stage in ExchangeStage]
    for _ in range(count):
        if chance.random() < 0.2:
            decoded(chance.randbytes(chance.randrange(200)))
            continue
        data = bytearray(chance.choice(wholes))
        for _ in range(chance.randint(1, 4)):
            at, length = chance.randrange(len(data)), chance.randint(1, 9)
            match chance.randrange(3):
                case 0:
                    data[at] = chance.randrange(256)
                case 1:
                    del data[at : at + length]
                case _:
                    data[at:at] = chance.randbytes(length)
        decoded(bytes(data))


@pytest.mark.parametrize(
    ("at", "byte", "match"),
    [
        (0, 9, "kind 9"),
        (13, 4, "standing 4"),
        (13 + 8, 0xFF, "incarnation"),
        (13 + 16, 0xFF, "version"),
        (13 + 19, 5, "an address of 5 bytes"),
        (13 + 20, 0, "a name of 0 bytes"),
        (13 + 25, ord(" "), "visible ASCII"),
    ],
)
def test_a_broken_field_is_named(at, byte, match):
    data = bytearray(packet())
    data[at] = byte
    with pytest.raises(GossipFault, match=match):
        decode_packet(bytes(data))


def test_a_broken_listing_is_a_fault():
    item = packets.listing_item(Listing("m2", 7, (instance("a"),)))
    for changed in (item.replace(b"http://", b"ftps://"), item.replace(b"{", b"["), b"\x03" + item[1:]):
        with pytest.raises(GossipFault):
            decode_packet(packet(items=(changed,)))
    many = bytearray(item)
    many[9] = INSTANCES_MAX + 1
    with pytest.raises(GossipFault, match="65 instances"):
        decode_packet(packet(items=(bytes(many),)))


def test_a_listing_that_is_too_large_is_refused_before_it_is_sent():
    with pytest.raises(InvalidInput, match="65 of one member"):
        packets.encode_listing(Listing("m2", 1, tuple(instance(f"i{at}") for at in range(INSTANCES_MAX + 1))))
    large = tuple(instance(f"i{at}", labels={"text": "x" * 10_000}) for at in range(7))
    with pytest.raises(InvalidInput, match="bytes of one member"):
        packets.encode_listing(Listing("m2", 1, large))


def test_listings_beyond_the_bound_of_a_state_are_left_for_the_next_exchange(monkeypatch):
    monkeypatch.setattr(states, "LISTINGS_BYTES_MAX", 2 * len(packets.encode_listing(LISTING)))
    found = decode_state(encode_state(ExchangeStage.REST, CLAIM, [], [LISTING] * 5), ExchangeStage.REST)
    assert found.listings == [LISTING] * 2


def test_an_offer_is_bounded_more_than_what_follows():
    with pytest.raises(GossipFault, match="bytes of state"):
        decode_state(b"\x01" * (states.OFFER_BYTES_MAX + 1), ExchangeStage.OFFER)
    with pytest.raises(GossipFault, match="members in a state"):
        decode_state(b"\x01" + packets.encode_claim(CLAIM) + b"\xff\xff", ExchangeStage.OFFER)


def test_the_largest_offer_fits_its_bound():
    longest = Claim("n" * 64, MemberAddress("2001:db8::1", 1), NUMBER_MAX, Standing.DEAD, NUMBER_MAX)
    found = encode_state(ExchangeStage.OFFER, longest, [Known(longest, NUMBER_MAX)] * 4_000, ())
    assert len(found) <= states.OFFER_BYTES_MAX


# --------------------------------------------------------------------------------------------------------------- seals


def test_a_seal_opens_what_it_sealed_and_nothing_else():
    seal = Seal(KEY, "wherry", PACKETS)
    sealed = seal.seal(packet())
    assert seal.open(sealed) == packet()
    for at in range(len(sealed)):
        changed = bytearray(sealed)
        changed[at] ^= 1
        with pytest.raises(GossipFault):
            seal.open(bytes(changed))
    for length in range(1 + MAC_BYTES):
        with pytest.raises(GossipFault):
            seal.open(sealed[:length])


@pytest.mark.parametrize(
    "other",
    [
        Seal(b"another key of 16", "wherry", PACKETS),
        Seal(b"", "wherry", PACKETS),
        Seal(KEY, "wherry2", PACKETS),
        Seal(KEY, "wherry", STATES),
        Seal(KEY, "wherry", PACKETS).between(b"a" * 16, b"b" * 16),
    ],
)
def test_another_key_cluster_channel_or_exchange_is_refused(other):
    with pytest.raises(GossipFault, match="another key or of another cluster"):
        Seal(KEY, "wherry", PACKETS).open(other.seal(packet()))


def test_a_bad_key_is_refused_without_showing_it():
    assert check_key(b"") == b""
    assert check_key(KEY) == KEY
    for bad in (b"secret", b"x" * 1_025, "secret" * 5):
        with pytest.raises(InvalidInput) as raised:
            check_key(bad)
        assert "secret" not in str(raised.value)
    for cluster in ("", "x" * 65, "a\nb", "\ud800", 7):
        with pytest.raises(InvalidInput):
            check_cluster(cluster)
