"""The bytes of a state exchange: all that two members know, where it differs. Bounded, and complete or refused.

    byte   0        1
           │ stage  │ claim of the sender │ u16 members │ for each: claim, held u64 │ u16 listings │ listings …
           │ u8     │

    stage 1 OFFER    members as the sender knows them, with the version of the list that it holds of each; no listings
          2 ANSWER   the same of the other side, and the listings that it holds newer
          3 REST     the listings that the first side holds newer; no members

A listing that does not fit is left out: the versions show that it is missing, and the next exchange brings it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import IntEnum
from struct import Struct
from typing import Final, NamedTuple

from wherry.mesh.gossip.codec.packets import Reading, encode_claim, encode_listing
from wherry.mesh.gossip.terms import MEMBERS_MAX
from wherry.mesh.gossip.values import NUMBER_MAX, Claim, GossipFault, Listing

OFFER_BYTES_MAX: Final = 512 << 10
"""Of the first message, which nobody has proved yet: 4,000 members fit."""

LISTINGS_BYTES_MAX: Final = 3 << 20
"""Of the listings in one message."""

STATE_BYTES_MAX: Final = OFFER_BYTES_MAX + LISTINGS_BYTES_MAX
"""Of one message."""

_COUNT = Struct("<H")
_HELD = Struct("<Q")


class ExchangeStage(IntEnum):
    """Which of the three messages this is."""

    OFFER = 1
    ANSWER = 2
    REST = 3


class Known(NamedTuple):
    """What a member knows of another, and the version of the list that it holds."""

    claim: Claim
    held: int


class StateMessage(NamedTuple):
    """One message of a state exchange."""

    stage: ExchangeStage
    sender: Claim
    known: list[Known]
    listings: list[Listing]


def encode_state(stage: ExchangeStage, sender: Claim, known: Sequence[Known], listings: Iterable[Listing]) -> bytes:
    """Return the bytes of a message, with as many of the listings as fit."""
    parts = [bytes((stage,)), encode_claim(sender), _COUNT.pack(len(known))]
    for claim, held in known:
        parts += (encode_claim(claim), _HELD.pack(held))
    contents: list[bytes] = []
    left = LISTINGS_BYTES_MAX
    for listing in listings:
        content = encode_listing(listing)
        left -= len(content)
        if left < 0:
            break
        contents.append(content)
    return b"".join([*parts, _COUNT.pack(len(contents)), *contents])


def decode_state(data: bytes, stage: ExchangeStage) -> StateMessage:
    """Return a message that must be of this stage, or raise `GossipFault`."""
    most = OFFER_BYTES_MAX if stage is ExchangeStage.OFFER else STATE_BYTES_MAX
    if len(data) > most:
        raise GossipFault(f"{len(data)} bytes of state; allowed: {most}")
    reading = Reading(data)
    found = reading.take(1)[0]
    if found != stage:
        raise GossipFault(f"stage {found} of a state exchange; allowed here: {stage}")
    sender = reading.claim()
    known = [_known(reading) for _ in range(_bounded(reading, 2 * MEMBERS_MAX))]
    listings = [reading.listing() for _ in range(_bounded(reading, 2 * MEMBERS_MAX))]
    if not reading.is_at_end:
        raise GossipFault("bytes behind the end of a state")
    return StateMessage(stage, sender, known, listings)


def _known(reading: Reading) -> Known:
    claim = reading.claim()
    (held,) = reading.fields(_HELD)
    if held > NUMBER_MAX:
        raise GossipFault(f"version {held} held of {claim.name}")
    return Known(claim, held)


def _bounded(reading: Reading, most: int) -> int:
    (count,) = reading.fields(_COUNT)
    if count > most:
        raise GossipFault(f"{count} members in a state; allowed: {most}")
    return count
