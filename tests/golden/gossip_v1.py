"""Packets and states of gossip, version 1: by name, their bytes as encoded now, and how they are decoded."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from wherry.mesh.gossip.codec import packets, states
from wherry.mesh.gossip.codec.packets import Packet, PacketKind, ProbeTarget
from wherry.mesh.gossip.codec.seal import PACKETS, STATES, Seal
from wherry.mesh.gossip.codec.states import ExchangeStage, Known, StateMessage
from wherry.mesh.gossip.values import Claim, Listing, MemberAddress, Standing
from wherry.mesh.instance import Instance

FILE = Path(__file__).parent / "gossip_v1.txt"
"""A line for each: its name, and its bytes in hex, with the seal."""

KEY = bytes(range(32))
PACKET_SEAL = Seal(KEY, "golden", PACKETS)
STATE_SEAL = Seal(KEY, "golden", STATES).between(b"s" * 16, b"c" * 16)

OWN = Claim("one", MemberAddress("10.0.0.1", 7073), 1_700_000_000_000, Standing.ALIVE, 1_700_000_000_003)
OTHER = Claim("two", MemberAddress("2001:db8::2", 7_100), 5, Standing.SUSPECT, 9)
GONE = Claim("three", MemberAddress("10.0.0.3", 7073), 7, Standing.DEAD, 7)
LEFT = Claim("four", MemberAddress("10.0.0.4", 7073), 7, Standing.LEFT, 7)
TARGET = ProbeTarget("two", OTHER.address)
LISTING = Listing(
    "two",
    9,
    (
        Instance(service="billing", id="b-1", url="http://10.0.0.2:7080", version=2, methods=("total",)),
        Instance(service="stock", id="s-1", url="https://10.0.0.2:7443", labels={"zone": "eu"}),
    ),
)
ITEMS: list[Claim | Listing] = [OTHER, GONE, LEFT, LISTING]


class GoldenGossip(NamedTuple):
    """A packet or a state: its bytes as encoded now, its seal, its value, and how it is decoded."""

    body: bytes
    seal: Seal
    value: Any
    decode: Callable[[bytes], Any]


def _packet(kind: PacketKind, number: int, target: ProbeTarget | None, items: list[Claim | Listing]) -> GoldenGossip:
    encoded = [packets.claim_item(each) if isinstance(each, Claim) else packets.listing_item(each) for each in items]
    body = packets.encode_packet(kind, number, 0x0123456789ABCDEF, packets.encode_claim(OWN), target, encoded)
    value = Packet(kind, number, 0x0123456789ABCDEF, OWN, target, items)
    return GoldenGossip(body, PACKET_SEAL, value, packets.decode_packet)


def _state(stage: ExchangeStage, known: list[Known], listings: list[Listing]) -> GoldenGossip:
    body = states.encode_state(stage, OWN, known, listings)
    value = StateMessage(stage, OWN, known, listings)
    return GoldenGossip(body, STATE_SEAL, value, partial(states.decode_state, stage=stage))


GOSSIP: dict[str, GoldenGossip] = {
    "ping": _packet(PacketKind.PING, 1, TARGET, []),
    "ack": _packet(PacketKind.ACK, 1, None, ITEMS),
    "probe": _packet(PacketKind.PROBE, 0xFFFFFFFF, TARGET, [OTHER]),
    "relayed": _packet(PacketKind.RELAYED, 0xFFFFFFFF, None, []),
    "spread": _packet(PacketKind.SPREAD, 0, None, ITEMS),
    "offer": _state(ExchangeStage.OFFER, [Known(OTHER, 8), Known(GONE, 0)], []),
    "answer": _state(ExchangeStage.ANSWER, [Known(OTHER, 9), Known(LEFT, 7)], [LISTING]),
    "rest": _state(ExchangeStage.REST, [], [LISTING]),
}
