"""What one member knows of itself and the others, and what it still has to spread of that. It sends nothing.

A claim or a listing that changes what is known is spread on; one that does not ends here. A claim about this member
that is not its own is answered by a higher incarnation.
"""

from __future__ import annotations

from collections.abc import Iterable

from wherry.mesh.gossip.codec.packets import claim_item, encode_claim, encode_listing, listing_item
from wherry.mesh.gossip.codec.states import Known, StateMessage
from wherry.mesh.gossip.members import Members, mark_of
from wherry.mesh.gossip.spreading import Spreading
from wherry.mesh.gossip.terms import PIGGYBACK_BYTES_MAX, GossipTerms
from wherry.mesh.gossip.values import (
    NUMBER_MAX,
    Claim,
    Listing,
    MemberAddress,
    MemberEvent,
    Report,
    Standing,
    What,
)
from wherry.mesh.instance import Instance


class Knowledge:
    """The own claim and listing, and those of all others."""

    def __init__(self, name: str, address: MemberAddress, birth: int, terms: GossipTerms, report: Report) -> None:
        self.own = Claim(name, address, birth, Standing.ALIVE, birth)
        self.instances: tuple[Instance, ...] = ()
        self.members = Members(name, terms, report)
        self.spreading = Spreading()
        self.changed_at_ms = 0.0
        self.refuted = 0
        """How often this member was suspected, and answered."""
        self._report = report
        self._restate()
        self._relist()

    @property
    def fingerprint(self) -> int:
        """Return the hash of all that is held alive; equal for members that know the same."""
        return self.members.fingerprint ^ self._own_mark

    @property
    def has_left(self) -> bool:
        """Return whether this member has left."""
        return self.own.standing is Standing.LEFT

    # ---------------------------------------------------------------------------------------------------- about itself

    def announce(self, instances: Iterable[Instance], now_ms: float) -> None:
        """Provide these instances, in place of the earlier ones; raise `InvalidInput` if they are too many."""
        given = tuple(instances)
        encode_listing(Listing(self.own.name, self.own.version, given))
        self.instances = given
        self.own = self.own._replace(version=min(self.own.version + 1, NUMBER_MAX))
        self.changed_at_ms = now_ms
        self._restate()
        self._relist()

    def leave(self) -> None:
        """Claim to have left."""
        self.own = self.own._replace(standing=Standing.LEFT)
        self._restate()

    def hold_of_self(self, claim: Claim, now_ms: float) -> None:
        """Answer a claim about this member that is not its own: with a higher incarnation, which refutes it."""
        own = self.own
        is_beyond = claim.incarnation > own.incarnation or claim.version > own.version
        is_accused = claim.incarnation == own.incarnation and (
            claim.standing is not Standing.ALIVE or claim.address != own.address
        )
        if self.has_left or not (is_beyond or is_accused):
            return
        if claim.standing is Standing.ALIVE and claim.address != own.address and claim.incarnation >= own.incarnation:
            self._report(MemberEvent(What.DISPUTED, own.name))
        self.refuted += claim.standing is Standing.SUSPECT
        version = own.version if claim.version <= own.version else min(claim.version + 1, NUMBER_MAX)
        incarnation = min(max(claim.incarnation, own.incarnation) + 1, NUMBER_MAX)
        self.own = own._replace(incarnation=incarnation, version=version)
        self.changed_at_ms = now_ms
        self._restate()
        if version != own.version:
            self._relist()

    def _restate(self) -> None:
        """Spread the own claim, and send it in each packet."""
        self.own_bytes = encode_claim(self.own)
        self._own_mark = 0 if self.has_left else mark_of(self.own.name, self.own.incarnation, self.own.version)
        self.spreading.claim(self.own.name, claim_item(self.own))

    def _relist(self) -> None:
        self._spread_listing(Listing(self.own.name, self.own.version, self.instances))

    # ---------------------------------------------------------------------------------------------------- about others

    def merge(self, claim: Claim, now_ms: float, *, spreads: bool = True) -> None:
        """Take a claim about any member."""
        if claim.name == self.own.name:
            self.hold_of_self(claim, now_ms)
            return
        member = self.members.merge(claim, now_ms)
        if member is not None:
            self.changed_at_ms = now_ms
            if spreads:
                self.spreading.claim(member.name, claim_item(member.claim))

    def take_listing(self, listing: Listing, now_ms: float, *, spreads: bool = True) -> None:
        """Take the listing of another member."""
        if listing.name == self.own.name:
            return
        member = self.members.list_instances(listing, now_ms)
        if member is not None:
            self.changed_at_ms = now_ms
            if spreads:
                self._spread_listing(member.listing)

    def suspect(self, name: str, now_ms: float) -> None:
        """Suspect a member that is alive."""
        self.merge(self.members.live[name].claim._replace(standing=Standing.SUSPECT), now_ms)

    def bury_suspects(self, since_ms: float, now_ms: float) -> None:
        """Hold those dead that were suspected since before a time."""
        for name in [name for name, suspected_ms in self.members.suspects.items() if suspected_ms <= since_ms]:
            self.merge(self.members.live[name].claim._replace(standing=Standing.DEAD), now_ms)

    def about(self, name: str, incarnation: int | None = None) -> tuple[bytes, ...]:
        """Return what is held of a member, as an item, where it should know of it: it is wrong, or its own is old."""
        member = self.members.find(name)
        if member is None:
            return ()
        is_behind = incarnation is not None and incarnation < member.incarnation
        if member.standing is Standing.ALIVE and not is_behind:
            return ()
        return (claim_item(member.claim),)

    def _spread_listing(self, listing: Listing) -> None:
        item = listing_item(listing)
        if len(item) <= PIGGYBACK_BYTES_MAX:
            self.spreading.listing(listing.name, item)
        else:
            self.spreading.drop_listing(listing.name)

    # ---------------------------------------------------------------------------------------------------- whole states

    def known(self) -> list[Known]:
        """Return what is known of all others."""
        members = [*self.members.live.values(), *(tomb.member for tomb in self.members.tombs.values())]
        return [Known(member.claim, member.held) for member in members]

    def newer(self, message: StateMessage) -> list[Listing]:
        """Return the listings that are newer here than on the other side."""
        held = {known.claim.name: known.held for known in message.known}
        held[message.sender.name] = message.sender.version
        own = Listing(self.own.name, self.own.version, self.instances)
        listings = [own, *(member.listing for member in self.members.live.values())]
        return [listing for listing in listings if listing.version > held.get(listing.name, 0)]

    def take_state(self, message: StateMessage, now_ms: float) -> None:
        """Take what the other side of a state exchange knows."""
        # What a member learns as it joins is known to the others; it would spread all of it.
        spreads = bool(self.members.live)
        for claim in (message.sender, *(known.claim for known in message.known)):
            if claim.standing is Standing.DEAD and claim.name in self.members.live:
                # The other side may have been cut off from a member that lives: let the member answer.
                claim = claim._replace(standing=Standing.SUSPECT)  # noqa: PLW2901  the same claim, weaker
            self.merge(claim, now_ms, spreads=spreads or claim.name == message.sender.name)
        for listing in message.listings:
            self.take_listing(listing, now_ms, spreads=spreads)
