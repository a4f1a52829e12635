"""One member of a cluster, as a state machine: bytes and time in, packets and wishes out.

It never reads a clock, draws chance of its own, waits, or touches a socket: the shell (`registry`) and the simulator
run this same code. `now_ms` may be any clock that does not run backwards. Time counts only as far as the process was
awake: one that was stopped for a minute has not waited a minute for answers, so it accuses nobody when it goes on.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from wherry.mesh.gossip.exchanging import Exchanging
from wherry.mesh.gossip.members import Member, Members, mark_of
from wherry.mesh.gossip.packets import (
    Packet,
    PacketKind,
    ProbeTarget,
    claim_item,
    decode_packet,
    encode_claim,
    encode_listing,
    encode_packet,
    listing_item,
)
from wherry.mesh.gossip.probing import Probing
from wherry.mesh.gossip.seal import SEAL_BYTES
from wherry.mesh.gossip.spreading import Spreading
from wherry.mesh.gossip.states import ExchangeStage, Known, StateMessage, decode_state, encode_state
from wherry.mesh.gossip.terms import (
    FANOUT,
    HELPERS,
    KNOCKS,
    LEAVE_FANOUT,
    PACKET_BYTES_MAX,
    PIGGYBACK_BYTES_MAX,
    GossipTerms,
)
from wherry.mesh.gossip.values import (
    NUMBER_MAX,
    Claim,
    Entropy,
    Listing,
    MemberAddress,
    MemberEvent,
    Send,
    Standing,
    What,
)
from wherry.mesh.instance import Instance

BODY_BYTES_MAX = PACKET_BYTES_MAX - SEAL_BYTES


class GossipStep(NamedTuple):
    """What follows from one input."""

    sends: list[Send]
    exchanges: list[MemberAddress]
    """Whom to begin a state exchange with; a wish, which may be dropped."""
    events: list[MemberEvent]


class Gossip:
    """What one member knows and does.

    `birth` is the first incarnation and version: a number that is higher at each start of the same name, such as the
    milliseconds of the wall clock. If it is lower, because that clock was set back, the member learns its earlier
    incarnation from others, and continues above it.
    """

    def __init__(
        self,
        name: str,
        address: MemberAddress,
        birth: int,
        chance: Entropy,
        terms: GossipTerms | None = None,
        seeds: Sequence[MemberAddress] = (),
    ) -> None:
        self.terms = terms or GossipTerms()
        self.own = Claim(name, address, birth, Standing.ALIVE, birth)
        self.instances: tuple[Instance, ...] = ()
        self.members = Members(name, self.terms, self._report)
        self._chance = chance
        self._probing = Probing(chance, self.terms)
        self._exchanging = Exchanging(seeds, chance, self.terms)
        self._spreading = Spreading()
        self._now_ms = 0.0
        """Time for which the process was awake."""
        self._seen_ms: float | None = None
        self._received_at_ms = self._knock_at_ms = 0.0
        self._sends: list[Send] = []
        self._exchanges: list[MemberAddress] = []
        self._events: list[MemberEvent] = []
        self._restate()
        self._relist()

    @property
    def fingerprint(self) -> int:
        """Return the hash of all that is held alive; equal for members that know the same."""
        return self.members.fingerprint ^ self._own_mark

    @property
    def has_joined(self) -> bool:
        """Return whether a state was exchanged with another member, or there is no seed to join by."""
        return self._exchanging.has_joined

    @property
    def health(self) -> int:
        """Return how slow this member takes itself to be, from 0."""
        return self._probing.health

    # ------------------------------------------------------------------------------------------------ time and packets

    def tick(self, now_ms: float) -> GossipStep:
        """Do what time asks for; to be called `TICKS` times in a period."""
        now = self._wake(now_ms)
        if self.own.standing is not Standing.LEFT:
            self._judge(now)
            self.members.forget(now)
            self._probe(now)
            self._knock(now)
            self._spread(FANOUT)
            wish = self._exchanging.next(now, self.own.name, self.members)
            if wish is not None:
                self._exchanges.append(wish)
        return self._step()

    def receive(self, body: bytes, source: MemberAddress, now_ms: float) -> GossipStep:
        """Take a packet, without its seal; raise `GossipFault`, with nothing changed, if it is none."""
        packet = decode_packet(body)
        now = self._wake(now_ms)
        if self.own.standing is Standing.LEFT:
            return self._step()
        if packet.sender.name == self.own.name:
            if packet.sender.address != self.own.address:
                self._report(MemberEvent(What.DISPUTED, self.own.name))
            self._hold_of_self(packet.sender)
            return self._step()
        self._received_at_ms = now
        self._merge(packet.sender, now)
        for item in packet.items:
            if isinstance(item, Claim):
                self._merge(item, now)
            else:
                self._take_listing(item, now)
        self._answer(packet, source, now)
        return self._step()

    def announce(self, instances: Iterable[Instance]) -> None:
        """Provide these instances, in place of the earlier ones; raise `InvalidInput` if they are too many."""
        given = tuple(instances)
        encode_listing(Listing(self.own.name, self.own.version, given))
        self.instances = given
        self.own = self.own._replace(version=min(self.own.version + 1, NUMBER_MAX))
        self._exchanging.changed(self._now_ms)
        self._restate()
        self._relist()

    def leave(self) -> GossipStep:
        """Leave: some members get that at once, and spread it."""
        self.own = self.own._replace(standing=Standing.LEFT)
        self._restate()
        self._spread(LEAVE_FANOUT)
        return self._step()

    # ------------------------------------------------------------------------------------------------- state exchanges

    def offer(self) -> bytes:
        """Return the first message of a state exchange."""
        return encode_state(ExchangeStage.OFFER, self.own, self._known(), ())

    def answer(self, offer: bytes, now_ms: float) -> tuple[bytes, GossipStep]:
        """Take an offer; return the second message."""
        message = decode_state(offer, ExchangeStage.OFFER)
        self._take_state(message, self._wake(now_ms))
        answer = encode_state(ExchangeStage.ANSWER, self.own, self._known(), self._newer(message))
        return answer, self._step()

    def conclude(self, at: MemberAddress, answer: bytes, now_ms: float) -> tuple[bytes, GossipStep]:
        """Take the answer of the member at an address; return the third message."""
        message = decode_state(answer, ExchangeStage.ANSWER)
        now = self._wake(now_ms)
        self._take_state(message, now)
        self._exchanging.exchanged(now, at, message.sender.name)
        rest = encode_state(ExchangeStage.REST, self.own, (), self._newer(message))
        return rest, self._step()

    def absorb(self, rest: bytes, now_ms: float) -> GossipStep:
        """Take the third message."""
        message = decode_state(rest, ExchangeStage.REST)
        self._take_state(message, self._wake(now_ms))
        return self._step()

    def _known(self) -> list[Known]:
        members = [*self.members.live.values(), *(tomb.member for tomb in self.members.tombs.values())]
        return [Known(member.claim, member.held) for member in members]

    def _newer(self, message: StateMessage) -> list[Listing]:
        """Return the listings that are newer here than on the other side."""
        held = {known.claim.name: known.held for known in message.known}
        held[message.sender.name] = message.sender.version
        own = Listing(self.own.name, self.own.version, self.instances)
        listings = [own, *(member.listing for member in self.members.live.values())]
        return [listing for listing in listings if listing.version > held.get(listing.name, 0)]

    def _take_state(self, message: StateMessage, now: float) -> None:
        if self.own.standing is Standing.LEFT:
            return
        # What a member learns as it joins is known to the others; it would spread all of it.
        spreads = bool(self.members.live)
        for claim in (message.sender, *(known.claim for known in message.known)):
            member = self.members.live.get(claim.name)
            if claim.standing is Standing.DEAD and member is not None:
                # The other side may have been cut off from a member that lives: let the member answer.
                claim = claim._replace(standing=Standing.SUSPECT)  # noqa: PLW2901  the same claim, weaker
            self._merge(claim, now, spreads=spreads or claim.name == message.sender.name)
        for listing in message.listings:
            self._take_listing(listing, now, spreads=spreads)
        if message.sender.name != self.own.name:
            self._exchanging.exchanged(now)

    # --------------------------------------------------------------------------------------------------------- merging

    def _merge(self, claim: Claim, now: float, *, spreads: bool = True) -> None:
        if claim.name == self.own.name:
            self._hold_of_self(claim)
            return
        member = self.members.merge(claim, now)
        if member is not None:
            self._exchanging.changed(now)
            if spreads:
                self._spreading.claim(member.name, claim_item(member.claim))

    def _hold_of_self(self, claim: Claim) -> None:
        """Answer a claim about this member that is not its own: with a higher incarnation, which refutes it."""
        own = self.own
        is_beyond = claim.incarnation > own.incarnation or claim.version > own.version
        is_accused = claim.incarnation == own.incarnation and (
            claim.standing is not Standing.ALIVE or claim.address != own.address
        )
        if not is_beyond and not is_accused:
            return
        if claim.standing is Standing.SUSPECT:
            self._probing.feel(1)
        version = own.version if claim.version <= own.version else min(claim.version + 1, NUMBER_MAX)
        incarnation = min(max(claim.incarnation, own.incarnation) + 1, NUMBER_MAX)
        self.own = own._replace(incarnation=incarnation, version=version)
        self._exchanging.changed(self._now_ms)
        self._restate()
        if version != own.version:
            self._relist()

    def _take_listing(self, listing: Listing, now: float, *, spreads: bool = True) -> None:
        if listing.name == self.own.name:
            return
        member = self.members.list_instances(listing, now)
        if member is not None:
            self._exchanging.changed(now)
            if spreads:
                self._spread_listing(member.listing)

    def _restate(self) -> None:
        """Spread the own claim, and send it in each packet."""
        self._own_bytes = encode_claim(self.own)
        is_there = self.own.standing is not Standing.LEFT
        self._own_mark = mark_of(self.own.name, self.own.incarnation, self.own.version) if is_there else 0
        self._spreading.claim(self.own.name, claim_item(self.own))

    def _relist(self) -> None:
        self._spread_listing(Listing(self.own.name, self.own.version, self.instances))

    def _spread_listing(self, listing: Listing) -> None:
        item = listing_item(listing)
        if len(item) <= PIGGYBACK_BYTES_MAX:
            self._spreading.listing(listing.name, item)

    # --------------------------------------------------------------------------------------------------------- probing

    def _judge(self, now: float) -> None:
        """Suspect a member that did not answer; hold those dead that were suspected for long enough."""
        name = self._probing.failed(now)
        member = None if name is None else self.members.live.get(name)
        if member is not None:
            if now - self._received_at_ms >= self.terms.period_ms * self._probing.stretch:
                self._probing.feel(1)  # nothing came from anybody: the fault may be here
            self._merge(member.claim._replace(standing=Standing.SUSPECT), now)
        if self.members.suspects:
            # By what this member takes itself for now: one that was cut off is well again soon.
            most_ms = self._suspicion_ms()
            for name in [name for name, since_ms in self.members.suspects.items() if now - since_ms >= most_ms]:
                self._merge(self.members.live[name].claim._replace(standing=Standing.DEAD), now)

    def _probe(self, now: float) -> None:
        members = self.members
        probe = self._probing.begin(now, members)
        if probe is not None:
            target = ProbeTarget(probe.name, members.live[probe.name].address)
            self._send(PacketKind.PING, probe.number, target, target)
        probe = self._probing.wants_help(now)
        if probe is not None and probe.name in members.live:
            target = ProbeTarget(probe.name, members.live[probe.name].address)
            for helper in self._some(HELPERS, probe.name):
                self._send(PacketKind.PROBE, probe.number, target, ProbeTarget(helper.name, helper.address))

    def _knock(self, now: float) -> None:
        """Now and then send a dead member what is held of it: if it lives, it refutes that."""
        if now < self._knock_at_ms:
            return
        self._knock_at_ms = now + self.terms.period_ms
        dead = [tomb.member for tomb in self.members.tombs.values() if tomb.member.standing is Standing.DEAD]
        if not dead or self._chance.random() * (len(self.members.live) + 1) >= KNOCKS * len(dead):
            return
        member = dead[self._chance.randrange(len(dead))]
        target = ProbeTarget(member.name, member.address)
        self._send(PacketKind.PING, self._probing.number(), target, target)

    def _answer(self, packet: Packet, source: MemberAddress, now: float) -> None:
        """Do what a packet asks for."""
        sender, target = packet.sender, packet.target
        if packet.fingerprint != self.fingerprint and packet.kind in {PacketKind.PING, PacketKind.ACK}:
            self._exchanging.differed(sender.address, now)
        if packet.kind is PacketKind.PING and target is not None and target.name == self.own.name:
            self._send(PacketKind.ACK, packet.number, None, ProbeTarget(sender.name, source), sender.incarnation)
        elif packet.kind is PacketKind.ACK:
            self._probing.answered(packet.number, now)
            relay = self._probing.relayed(packet.number)
            if relay is not None:
                self._send(PacketKind.RELAYED, relay.number, None, ProbeTarget("", relay.origin))
        elif packet.kind is PacketKind.RELAYED:
            self._probing.answered(packet.number, now)
        elif packet.kind is PacketKind.PROBE and target is not None:
            number = self._probing.relay(source, packet.number, now)
            if number is not None:
                self._send(PacketKind.PING, number, target, target)

    # --------------------------------------------------------------------------------------------------------- sending

    def _spread(self, count: int) -> None:
        """Send what is to be spread to some members, if there is anything."""
        if self._spreading.is_empty:
            return
        for member in self._some(count):
            self._send(PacketKind.SPREAD, 0, None, ProbeTarget(member.name, member.address))

    def _send(
        self, kind: PacketKind, number: int, target: ProbeTarget | None, to: ProbeTarget, incarnation: int | None = None
    ) -> None:
        """Send a packet with as many updates as fit; first what is held of its receiver, if that is wrong or old."""
        first = self._about(to.name, incarnation)
        body = encode_packet(kind, number, self.fingerprint, self._own_bytes, target, first)
        room = BODY_BYTES_MAX - len(body)
        items = self._spreading.take(room, self.terms.transmissions(len(self.members.live) + 1))
        self._sends.append(Send(to.address, b"".join((body, *items))))

    def _about(self, name: str, incarnation: int | None) -> tuple[bytes, ...]:
        """Return what is held of a member, as an item, where it should know of it."""
        member = self.members.find(name)
        if member is None:
            return ()
        is_behind = incarnation is not None and incarnation < member.incarnation
        if member.standing is Standing.ALIVE and not is_behind:
            return ()
        return (claim_item(member.claim),)

    def _some(self, count: int, besides: str = "") -> list[Member]:
        """Return live members that chance chooses, at most `count`."""
        names = self.members.names
        chosen = self._chance.sample(names, min(count + 1, len(names)))
        return [self.members.live[name] for name in chosen if name != besides][:count]

    def _suspicion_ms(self) -> float:
        return self.terms.suspicion_ms(len(self.members.live) + 1) * self._probing.stretch

    # ---------------------------------------------------------------------------------------------------- what follows

    def _wake(self, now_ms: float) -> float:
        """Count the time since the last input, up to a period."""
        if self._seen_ms is not None:
            self._now_ms += min(max(now_ms - self._seen_ms, 0), self.terms.period_ms)
        self._seen_ms = now_ms if self._seen_ms is None else max(now_ms, self._seen_ms)
        return self._now_ms

    def _report(self, event: MemberEvent) -> None:
        if event.what is What.JOINED:
            self._probing.joined(event.name)
        self._events.append(event)

    def _step(self) -> GossipStep:
        step = GossipStep(self._sends, self._exchanges, self._events)
        self._sends, self._exchanges, self._events = [], [], []
        return step
