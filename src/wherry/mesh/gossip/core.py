"""One member of a cluster, as a state machine: bytes and time in, packets and wishes out.

It never reads a clock, draws chance of its own, waits, or touches a socket: the shell (`registry`) and the simulator
run this same code. `now_ms` may be any clock that does not run backwards. Time counts only as far as the process was
awake: one that was stopped for a minute has not waited a minute for answers. It judges nobody before it had time to
read what arrived meanwhile, and a member that hears nothing at all calls others, since it may have been cut off.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from wherry.mesh.gossip.codec.packets import Packet, PacketKind, ProbeTarget, decode_packet, encode_packet
from wherry.mesh.gossip.codec.seal import SEAL_BYTES
from wherry.mesh.gossip.codec.states import ExchangeStage, StateMessage, decode_state, encode_state
from wherry.mesh.gossip.exchanging import Exchanging
from wherry.mesh.gossip.knowledge import Knowledge
from wherry.mesh.gossip.members import Member, Members
from wherry.mesh.gossip.probing import AwakeTime, Probing
from wherry.mesh.gossip.terms import (
    FANOUT,
    HELPERS,
    KNOCK_RECENT,
    KNOCKS,
    LEAVE_FANOUT,
    PACKET_BYTES_MAX,
    SILENT_PERIODS,
    GossipTerms,
)
from wherry.mesh.gossip.values import Claim, Entropy, MemberAddress, MemberEvent, Send, Standing, What
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
        self._knowledge = Knowledge(name, address, birth, self.terms, self._report)
        self._chance = chance
        self._probing = Probing(chance, self.terms)
        self._exchanging = Exchanging(seeds, chance, self.terms)
        self._awake = AwakeTime(self.terms.period_ms)
        self._received_at_ms = self._knock_at_ms = self._call_at_ms = 0.0
        self._turn = 0
        """Of those that died last, to be knocked at."""
        self._sends: list[Send] = []
        self._exchanges: list[MemberAddress] = []
        self._events: list[MemberEvent] = []

    @property
    def own(self) -> Claim:
        """Return what this member claims of itself."""
        return self._knowledge.own

    @property
    def instances(self) -> tuple[Instance, ...]:
        """Return what this member provides."""
        return self._knowledge.instances

    @property
    def members(self) -> Members:
        """Return the other members."""
        return self._knowledge.members

    @property
    def fingerprint(self) -> int:
        """Return the hash of all that is held alive; equal for members that know the same."""
        return self._knowledge.fingerprint

    @property
    def has_joined(self) -> bool:
        """Return whether a state was exchanged with another member, or there is no seed to join by."""
        return self._exchanging.has_joined

    @property
    def met_itself(self) -> bool:
        """Return whether a seed was this member itself."""
        return self._exchanging.met_itself

    @property
    def is_answered(self) -> bool:
        """Return whether a member answered a packet of this one: packets pass both ways."""
        return self._probing.is_heard

    @property
    def health(self) -> int:
        """Return how slow this member takes itself to be, from 0."""
        return self._probing.health

    # ------------------------------------------------------------------------------------------------ time and packets

    def tick(self, now_ms: float) -> GossipStep:
        """Do what time asks for; to be called `TICKS` times in a period."""
        now = self._awake.wake(now_ms)
        if not self._knowledge.has_left:
            if self._awake.may_judge:
                self._judge(now)
            self.members.forget(now)
            self._probe(now)
            self._call(now)
            self._knock(now)
            self._spread(FANOUT)
            wish = self._exchanging.next(now, self.own.address, self.members)
            if wish is not None:
                self._exchanges.append(wish)
        return self._step()

    def receive(self, body: bytes, source: MemberAddress, now_ms: float) -> GossipStep:
        """Take a packet, without its seal; raise `GossipFault`, with nothing changed, if it is none."""
        packet = decode_packet(body)
        now = self._awake.wake(now_ms)
        knowledge = self._knowledge
        if knowledge.has_left:
            return self._step()
        if packet.sender.name == self.own.name:
            knowledge.hold_of_self(packet.sender, now)
            return self._step()
        self._received_at_ms = now
        knowledge.merge(packet.sender, now)
        for item in packet.items:
            if isinstance(item, Claim):
                knowledge.merge(item, now)
            else:
                knowledge.take_listing(item, now)
        self._answer(packet, source, now)
        return self._step()

    def announce(self, instances: Iterable[Instance]) -> None:
        """Provide these instances, in place of the earlier ones; raise `InvalidInput` if they are too many."""
        self._knowledge.announce(instances, self._awake.now_ms)

    def set_seeds(self, seeds: Iterable[MemberAddress]) -> None:
        """Set the addresses that the seeds have now."""
        self._exchanging.set_seeds(seeds)

    def greet(self) -> GossipStep:
        """Send some members a PING, beside the probes: to learn soon whether packets pass."""
        for member in self._some(FANOUT):
            self._ping(member)
        return self._step()

    def leave(self) -> GossipStep:
        """Leave: some members get that at once, and spread it."""
        self._knowledge.leave()
        self._spread(LEAVE_FANOUT)
        return self._step()

    # ------------------------------------------------------------------------------------------------- state exchanges

    def offer(self) -> bytes:
        """Return the first message of a state exchange."""
        return encode_state(ExchangeStage.OFFER, self.own, self._knowledge.known(), ())

    def answer(self, offer: bytes, now_ms: float) -> tuple[bytes, GossipStep]:
        """Take an offer; return the second message."""
        message = decode_state(offer, ExchangeStage.OFFER)
        self._take_state(message, now_ms)
        knowledge = self._knowledge
        answer = encode_state(ExchangeStage.ANSWER, self.own, knowledge.known(), knowledge.newer(message))
        return answer, self._step()

    def conclude(self, at: MemberAddress, answer: bytes, now_ms: float) -> tuple[bytes, GossipStep]:
        """Take the answer of the member at an address; return the third message."""
        message = decode_state(answer, ExchangeStage.ANSWER)
        self._take_state(message, now_ms, at)
        rest = encode_state(ExchangeStage.REST, self.own, (), self._knowledge.newer(message))
        return rest, self._step()

    def absorb(self, rest: bytes, now_ms: float) -> GossipStep:
        """Take the third message."""
        self._take_state(decode_state(rest, ExchangeStage.REST), now_ms)
        return self._step()

    def _take_state(self, message: StateMessage, now_ms: float, at: MemberAddress | None = None) -> None:
        now = self._awake.wake(now_ms)
        if self._knowledge.has_left:
            return
        self._knowledge.take_state(message, now)
        self._exchanging.met_itself |= message.sender.name == self.own.name
        if at is not None or message.sender.name != self.own.name:
            self._exchanging.exchanged(now, at, message.sender.name)

    # --------------------------------------------------------------------------------------------------------- probing

    def _judge(self, now: float) -> None:
        """Suspect a member that did not answer; hold those dead that were suspected for long enough."""
        knowledge, probing = self._knowledge, self._probing
        probing.feel(knowledge.refuted)
        knowledge.refuted = 0
        name = probing.failed(now)
        if name is not None and name in self.members.live:
            if now - self._received_at_ms >= self.terms.period_ms * probing.stretch:
                probing.feel(1)  # nothing came from anybody: the fault may be here
            knowledge.suspect(name, now)
        if self.members.suspects:
            # By what this member takes itself for now: one that was cut off is well again soon.
            most_ms = self.terms.suspicion_ms(len(self.members.live) + 1) * probing.stretch
            knowledge.bury_suspects(now - most_ms, now)

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

    def _call(self, now: float) -> None:
        """Send some members a PING in each period in which nothing came from anybody.

        A member that is back from a cut takes itself for slow, and its next probe may be periods away; those that hold
        it dead tell it so in their answers.
        """
        period_ms = self.terms.period_ms
        if now >= max(self._received_at_ms + SILENT_PERIODS * period_ms, self._call_at_ms):
            self._call_at_ms = now + period_ms
            for member in self._some(FANOUT):
                self._ping(member)

    def _knock(self, now: float) -> None:
        """Now and then send some dead members what is held of them: one that lives refutes that."""
        if now < self._knock_at_ms:
            return
        self._knock_at_ms = now + self.terms.period_ms
        dead = [tomb.member for tomb in self.members.tombs.values() if tomb.member.standing is Standing.DEAD]
        share = KNOCKS * len(dead) / (len(self.members.live) + 1)
        count = min(int(share + self._chance.random()), KNOCKS)
        recent = dead[-KNOCK_RECENT:]
        for _ in range(count):
            self._turn += 1
            if self._turn % 2:
                # In turn, so that each of them is reached in bounded time.
                self._ping(recent[self._turn // 2 % len(recent)])
            else:
                # Old names without a process must not hold up one that is back: the chance of the nth is 1/n.
                self._ping(dead[-int((len(dead) + 1) ** self._chance.random())])

    def _ping(self, member: Member) -> None:
        """Send a PING that is no probe: nothing follows from silence."""
        target = ProbeTarget(member.name, member.address)
        self._send(PacketKind.PING, self._probing.number(), target, target)

    def _answer(self, packet: Packet, source: MemberAddress, now: float) -> None:
        """Do what a packet asks for."""
        sender, target, number = packet.sender, packet.target, packet.number
        if packet.kind in {PacketKind.PING, PacketKind.ACK} and packet.fingerprint != self.fingerprint:
            self._exchanging.differed(sender.address, now, self._knowledge.changed_at_ms)
        if packet.kind is PacketKind.PING and target is not None and target.name == self.own.name:
            self._send(PacketKind.ACK, number, None, ProbeTarget(sender.name, source), sender.incarnation)
        elif packet.kind is PacketKind.ACK:
            self._probing.is_heard = True
            self._probing.answered(number, now)
            relay = self._probing.relayed(number)
            if relay is not None:
                self._send(PacketKind.RELAYED, relay.number, None, relay.origin)
        elif packet.kind is PacketKind.RELAYED:
            self._probing.answered(number, now)
        elif packet.kind is PacketKind.PROBE and target is not None:
            own_number = self._probing.relay(ProbeTarget(sender.name, source), number, now)
            if own_number is not None:
                self._send(PacketKind.PING, own_number, target, target)

    # --------------------------------------------------------------------------------------------------------- sending

    def _spread(self, count: int) -> None:
        """Send what is to be spread to some members, if there is anything."""
        if self._knowledge.spreading.is_empty:
            return
        for member in self._some(count):
            self._send(PacketKind.SPREAD, 0, None, ProbeTarget(member.name, member.address))

    def _send(
        self, kind: PacketKind, number: int, target: ProbeTarget | None, to: ProbeTarget, incarnation: int | None = None
    ) -> None:
        """Send a packet with as many updates as fit; first what is held of its receiver, if that is wrong or old.

        Only a packet to the address of a member spends updates: a source may be a lie of someone who repeats a packet.
        """
        knowledge = self._knowledge
        first = knowledge.about(to.name, incarnation)
        body = encode_packet(kind, number, knowledge.fingerprint, knowledge.own_bytes, target, first)
        transmissions = self.terms.transmissions(len(self.members.live) + 1)
        member = self.members.find(to.name)
        is_known = member is not None and member.address == to.address
        items = knowledge.spreading.take(BODY_BYTES_MAX - len(body), transmissions) if is_known else []
        self._sends.append(Send(to.address, b"".join((body, *items))))

    def _some(self, count: int, besides: str = "") -> list[Member]:
        """Return live members that chance chooses, at most `count`."""
        names = self.members.names
        chosen = self._chance.sample(names, min(count + 1, len(names)))
        return [self.members.live[name] for name in chosen if name != besides][:count]

    # ---------------------------------------------------------------------------------------------------- what follows

    def _report(self, event: MemberEvent) -> None:
        if event.what is What.JOINED:
            self._probing.joined(event.name)
        self._events.append(event)

    def _step(self) -> GossipStep:
        step = GossipStep(self._sends, self._exchanges, self._events)
        self._sends, self._exchanges, self._events = [], [], []
        return step
