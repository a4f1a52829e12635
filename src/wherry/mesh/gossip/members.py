"""The members that a process knows. Decides which of two claims counts; it sends nothing and draws nothing.

Live members (alive or suspected) and tombstones (dead or left) are counted apart, each against the same bound. What is
claimed dead or left and is not known is not kept: tombstones would otherwise be passed round for ever.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import NamedTuple

from wherry.mesh.gossip.terms import GossipTerms
from wherry.mesh.gossip.values import Claim, Listing, MemberAddress, MemberEvent, Report, Standing, What
from wherry.mesh.instance import Instance


class Member:
    """What is known of one member."""

    __slots__ = ("address", "held", "incarnation", "instances", "lacking_since", "mark", "name", "standing", "version")

    def __init__(self, claim: Claim) -> None:
        self.name = claim.name
        self.address: MemberAddress = claim.address
        self.incarnation = claim.incarnation
        self.standing = claim.standing
        self.version = claim.version
        self.held = 0
        """The version of the instances below; less than `version` while the listing is still to come."""
        self.instances: tuple[Instance, ...] = ()
        self.lacking_since: float = 0
        self.mark = 0
        """Its part of the fingerprint."""

    @property
    def is_live(self) -> bool:
        """Return whether the member is alive or only suspected."""
        return self.standing <= Standing.SUSPECT

    @property
    def claim(self) -> Claim:
        """Return what this process holds of the member."""
        return Claim(self.name, self.address, self.incarnation, self.standing, self.version)

    @property
    def listing(self) -> Listing:
        """Return the instances, at the version that is held."""
        return Listing(self.name, self.held, self.instances)


class Tombstone(NamedTuple):
    """A member that is dead or left, until it is forgotten."""

    member: Member
    forget_at_ms: float


class Members:
    """All other members that this one knows."""

    def __init__(self, own_name: str, terms: GossipTerms, report: Report) -> None:
        self._own_name = own_name
        self._terms = terms
        self._report = report
        self.live: dict[str, Member] = {}
        self.tombs: dict[str, Tombstone] = {}
        """Oldest first."""
        self.suspects: dict[str, float] = {}
        """Since when each suspected member is."""
        self.lacking: dict[str, Member] = {}
        """Live members whose listing is still to come."""
        self.fingerprint = 0
        self._names: list[str] | None = None

    @property
    def names(self) -> list[str]:
        """Return the names of the live members; the same list until they change."""
        if self._names is None:
            self._names = list(self.live)
        return self._names

    def find(self, name: str) -> Member | None:
        """Return a member, live or not."""
        member = self.live.get(name)
        if member is None and (tomb := self.tombs.get(name)) is not None:
            return tomb.member
        return member

    def merge(self, claim: Claim, now_ms: float) -> Member | None:
        """Take a claim about another member; return the member if the claim changed what is known of it."""
        member = self.find(claim.name)
        if member is None:
            return self._add(claim, now_ms)
        newer = (claim.incarnation, claim.standing) > (member.incarnation, member.standing)
        if not newer and claim.version <= member.version:
            return None
        before = member.standing
        if claim.version > member.version:
            member.version = claim.version
            self._lacks(member, now_ms)
        if newer:
            if not member.is_live and claim.standing <= Standing.SUSPECT and not self._has_room(claim.name):
                return None
            if claim.incarnation > member.incarnation:
                member.incarnation, member.address = claim.incarnation, claim.address
            member.standing = claim.standing
            self._stand(member, before, now_ms)
        self._remark(member)
        return member

    def list_instances(self, listing: Listing, now_ms: float) -> Member | None:
        """Take the instances of another member; return the member if they are newer."""
        member = self.find(listing.name)
        if member is None or listing.version <= member.held:
            return None
        member.held, member.instances = listing.version, listing.instances
        member.version = max(member.version, member.held)
        self._lacks(member, now_ms)
        self._remark(member)
        if member.is_live:
            self._report(MemberEvent(What.LISTED, member.name))
        return member

    def forget(self, now_ms: float) -> None:
        """Forget tombstones that are old enough, or too many."""
        while self.tombs:
            name = next(iter(self.tombs))
            if self.tombs[name].forget_at_ms > now_ms and len(self.tombs) <= self._terms.members_max:
                return
            del self.tombs[name]

    def _has_room(self, name: str) -> bool:
        # The process itself is a member, too.
        if len(self.live) + 1 < self._terms.members_max:
            return True
        self._report(MemberEvent(What.REFUSED, name))
        return False

    def _add(self, claim: Claim, now_ms: float) -> Member | None:
        if claim.standing > Standing.SUSPECT or not self._has_room(claim.name):
            return None
        member = Member(claim)
        self.live[member.name] = member
        self._names = None
        self._report(MemberEvent(What.JOINED, member.name))
        if claim.standing is Standing.SUSPECT:
            self._suspect(member, now_ms)
        self._lacks(member, now_ms)
        self._remark(member)
        return member

    def _stand(self, member: Member, before: Standing, now_ms: float) -> None:
        """Carry out what follows from a new standing."""
        was_live = before <= Standing.SUSPECT
        if member.is_live and not was_live:
            del self.tombs[member.name]
            self.live[member.name] = member
            self._names = None
            self._report(MemberEvent(What.JOINED, member.name))
            self._lacks(member, now_ms)
        elif was_live and not member.is_live:
            del self.live[member.name]
            self.suspects.pop(member.name, None)
            self.lacking.pop(member.name, None)
            self._names = None
            self.tombs[member.name] = Tombstone(member, now_ms + self._terms.forget_periods * self._terms.period_ms)
            self._report(MemberEvent(What.LEFT if member.standing is Standing.LEFT else What.DEAD, member.name))
            return
        if member.standing is Standing.SUSPECT:
            self._suspect(member, now_ms)
        elif member.is_live and self.suspects.pop(member.name, None) is not None:
            self._report(MemberEvent(What.REFUTED, member.name))

    def _suspect(self, member: Member, now_ms: float) -> None:
        self.suspects[member.name] = now_ms
        self._report(MemberEvent(What.SUSPECTED, member.name))

    def _lacks(self, member: Member, now_ms: float) -> None:
        """Note whether the listing of a member is still to come."""
        if member.held >= member.version:
            self.lacking.pop(member.name, None)
        elif member.is_live and member.name not in self.lacking:
            member.lacking_since = now_ms
            self.lacking[member.name] = member

    def _remark(self, member: Member) -> None:
        mark = mark_of(member.name, member.incarnation, member.version) if member.is_live else 0
        self.fingerprint ^= member.mark ^ mark
        member.mark = mark


def mark_of(name: str, incarnation: int, version: int) -> int:
    """Return the part of one live member in the fingerprint."""
    return int.from_bytes(blake2b(f"{incarnation} {version} {name}".encode(), digest_size=8).digest(), "little")
