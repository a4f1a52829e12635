"""The bytes of packets, version 1. Decides what is a packet; it never takes one in part, nor knows keys or sockets.

All integers are little-endian. A packet as it is sent has its seal before this (`seal`). Its body:

    byte   0        1        5               13
           │ kind   │ number │ fingerprint   │ claim of the sender │ target      │ items … to the end
           │ u8     │ u32    │ u64           │                     │ PING, PROBE │

    kind 1 PING      answer with an ACK of the same number, if the target is you
         2 ACK       the answer to a PING
         3 PROBE     send a PING to the target, and a RELAYED of the same number when it answers
         4 RELAYED   the target of a PROBE answered
         5 SPREAD    items only; the number is 0

    claim            21 bytes and two texts                target
    │ standing       u8, 0 alive 1 suspect 2 dead 3 left   │ port           u16
    │ incarnation    u64                                   │ host length    u8
    │ version        u64, of the list of instances         │ name length    u8
    │ port           u16                                   │ host │ name
    │ host length    u8, 4 or 16: an address of IP
    │ name length    u8, 1 to 64
    │ host │ name    bytes of the address; visible ASCII

    item 1           u8 = 1, claim
    item 2           u8 = 2, listing: version u64, instances u16, name length u8, name, then for each instance
                     its length u16 and its JSON

The fingerprint is a hash over all members that the sender holds alive, with incarnations and versions of their lists:
two members that know the same have the same.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from enum import IntEnum
from functools import lru_cache
from ipaddress import ip_address
from struct import Struct
from typing import Final, NamedTuple

from wherry.mesh.gossip.terms import INSTANCES_MAX, LISTING_BYTES_MAX
from wherry.mesh.gossip.values import NUMBER_MAX, Claim, GossipFault, Listing, MemberAddress, Standing
from wherry.mesh.instance import decode, encode
from wherry.model.errors import InvalidInput

NAME_BYTES_MAX: Final = 64

_HEAD = Struct("<BIQ")
_CLAIM = Struct("<BQQHBB")
_TARGET = Struct("<HBB")
_LISTING = Struct("<QHB")
_LENGTH = Struct("<H")
_NAME = re.compile(rb"[!-~]{1,64}")
_STANDINGS = tuple(Standing)

CLAIM_ITEM: Final = 1
LISTING_ITEM: Final = 2


class PacketKind(IntEnum):
    """What a packet asks for."""

    PING = 1
    ACK = 2
    PROBE = 3
    RELAYED = 4
    SPREAD = 5


_KINDS = {int(kind): kind for kind in PacketKind}
_TARGETED = (PacketKind.PING, PacketKind.PROBE)


class ProbeTarget(NamedTuple):
    """The member that a PING or a PROBE is about."""

    name: str
    address: MemberAddress


class Packet(NamedTuple):
    """A packet that was received, whole and checked."""

    kind: PacketKind
    number: int
    fingerprint: int
    sender: Claim
    target: ProbeTarget | None
    items: list[Claim | Listing]


@lru_cache(maxsize=8_192)
def packed_host(host: str) -> bytes:
    """Return the bytes of an address of IP; raise `ValueError` for a host name."""
    return ip_address(host).packed


@lru_cache(maxsize=8_192)
def _host(packed: bytes) -> str:
    return str(ip_address(packed))


def check_name(name: object) -> str:
    """Return the name of a member, or raise `InvalidInput`."""
    if not isinstance(name, str) or not name.isascii() or not _NAME.fullmatch(name.encode()):
        raise InvalidInput("name", name, f"1 to {NAME_BYTES_MAX} visible ASCII characters")
    return name


def encode_claim(claim: Claim) -> bytes:
    """Return the bytes of a claim, without the number of an item."""
    host, name = packed_host(claim.address.host), claim.name.encode()
    head = _CLAIM.pack(claim.standing, claim.incarnation, claim.version, claim.address.port, len(host), len(name))
    return head + host + name


def claim_item(claim: Claim) -> bytes:
    """Return a claim as an item of a packet."""
    return b"\x01" + encode_claim(claim)


def encode_listing(listing: Listing) -> bytes:
    """Return the bytes of a listing; raise `InvalidInput` if it is too large."""
    if len(listing.instances) > INSTANCES_MAX:
        raise InvalidInput("instances", f"{len(listing.instances)} of one member", f"at most {INSTANCES_MAX}")
    name = listing.name.encode()
    parts = [_LISTING.pack(listing.version, len(listing.instances), len(name)), name]
    for instance in listing.instances:
        content = encode(instance)
        parts += (_LENGTH.pack(len(content)), content)
    found = b"".join(parts)
    if len(found) > LISTING_BYTES_MAX:
        raise InvalidInput("instances", f"{len(found)} bytes of one member", f"at most {LISTING_BYTES_MAX} bytes")
    return found


def listing_item(listing: Listing) -> bytes:
    """Return a listing as an item of a packet."""
    return b"\x02" + encode_listing(listing)


def encode_packet(
    kind: PacketKind, number: int, fingerprint: int, sender: bytes, target: ProbeTarget | None, items: Iterable[bytes]
) -> bytes:
    """Return the body of a packet; the claim of the sender and the items are encoded already."""
    parts = [_HEAD.pack(kind, number, fingerprint), sender]
    if target is not None:
        host, name = packed_host(target.address.host), target.name.encode()
        parts += (_TARGET.pack(target.address.port, len(host), len(name)), host, name)
    parts += items
    return b"".join(parts)


def decode_packet(body: bytes) -> Packet:
    """Return a packet, or raise `GossipFault`."""
    reading = Reading(body)
    number, head = reading.kind()
    kind = _KINDS.get(number)
    if kind is None:
        raise GossipFault(f"a packet of kind {number}; allowed: 1 to 5")
    sender = reading.claim()
    target = reading.target() if kind in _TARGETED else None
    items: list[Claim | Listing] = []
    while not reading.is_at_end:
        items.append(reading.item())
    return Packet(kind, *head, sender, target, items)


class Reading:
    """A place in bytes of another process: each method takes one thing, or raises `GossipFault`."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def is_at_end(self) -> bool:
        """Return whether everything was taken."""
        return self._at == len(self._data)

    def fields(self, layout: Struct) -> tuple[int, ...]:
        """Take the numbers of a layout."""
        start = self._at
        self._at = start + layout.size
        if self._at > len(self._data):
            raise GossipFault(f"{len(self._data)} bytes end before byte {self._at}")
        return layout.unpack_from(self._data, start)

    def take(self, count: int) -> bytes:
        """Take so many bytes."""
        start = self._at
        self._at = start + count
        if self._at > len(self._data):
            raise GossipFault(f"{len(self._data)} bytes end before byte {self._at}")
        return self._data[start : self._at]

    def kind(self) -> tuple[int, tuple[int, int]]:
        """Take the head of a packet: kind; number and fingerprint."""
        kind, number, fingerprint = self.fields(_HEAD)
        return kind, (number, fingerprint)

    def claim(self) -> Claim:
        """Take a claim."""
        standing, incarnation, version, port, host_length, name_length = self.fields(_CLAIM)
        if standing >= len(_STANDINGS) or incarnation > NUMBER_MAX or version > NUMBER_MAX:
            raise GossipFault(f"a claim of standing {standing}, incarnation {incarnation}, version {version}")
        address = self._address(host_length, port)
        return Claim(self._name(name_length), address, incarnation, _STANDINGS[standing], version)

    def target(self) -> ProbeTarget:
        """Take the target of a PING or a PROBE."""
        port, host_length, name_length = self.fields(_TARGET)
        address = self._address(host_length, port)
        return ProbeTarget(self._name(name_length), address)

    def item(self) -> Claim | Listing:
        """Take an item of a packet."""
        kind = self.take(1)[0]
        if kind == CLAIM_ITEM:
            return self.claim()
        if kind == LISTING_ITEM:
            return self.listing()
        raise GossipFault(f"an item of kind {kind}; allowed: 1 or 2")

    def listing(self) -> Listing:
        """Take a listing, with each instance checked."""
        start = self._at
        version, count, name_length = self.fields(_LISTING)
        name = self._name(name_length)
        if count > INSTANCES_MAX or version > NUMBER_MAX:
            raise GossipFault(f"a listing of {count} instances, version {version}")
        try:
            instances = tuple(decode(self.take(*self.fields(_LENGTH))) for _ in range(count))
        except InvalidInput as fault:
            raise GossipFault(f"a listing of {name}: {fault}") from None
        if self._at - start > LISTING_BYTES_MAX:
            raise GossipFault(f"a listing of {self._at - start} bytes; allowed: {LISTING_BYTES_MAX}")
        return Listing(name, version, instances)

    def _address(self, length: int, port: int) -> MemberAddress:
        if length not in {4, 16} or port == 0:
            raise GossipFault(f"an address of {length} bytes and port {port}")
        return MemberAddress(_host(self.take(length)), port)

    def _name(self, length: int) -> str:
        name = self.take(length)
        if not _NAME.fullmatch(name):
            raise GossipFault(f"a name of {length} bytes that are not visible ASCII, or too many")
        return name.decode()
