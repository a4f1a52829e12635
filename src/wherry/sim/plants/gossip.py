"""Planted bugs of gossip: in what a member believes, spreads, probes and asks for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from wherry.mesh.gossip.core import Gossip
from wherry.mesh.gossip.exchanging import Exchanging
from wherry.mesh.gossip.knowledge import Knowledge
from wherry.mesh.gossip.members import Member, Members
from wherry.mesh.gossip.probing import AwakeTime, Probing
from wherry.mesh.gossip.spreading import Spreading
from wherry.mesh.gossip.terms import GossipTerms
from wherry.mesh.gossip.values import Listing, Standing
from wherry.sim.patch import patched


def refute_nothing() -> Any:
    """Let claims about a member stand, though it lives."""
    return patched(Knowledge, "hold_of_self", lambda _: lambda self, claim, now: None)


def send_updates_once() -> Any:
    """Send each update in one packet, and never again."""
    return patched(GossipTerms, "transmissions", lambda _: lambda self, members: 1)


def send_updates_for_ever() -> Any:
    """Send each update again and again."""
    return patched(GossipTerms, "transmissions", lambda _: lambda self, members: 1 << 40)


def compare_no_incarnations() -> Any:
    """Believe what came last."""

    def make(merge: Any) -> Any:
        def believe(self: Members, claim: Any, *rest: Any) -> Any:
            member = self.find(claim.name)
            if member is not None and (claim.incarnation, claim.standing) != (member.incarnation, member.standing):
                member.incarnation = min(member.incarnation, claim.incarnation - 1)
            return merge(self, claim, *rest)

        return believe

    return patched(Members, "merge", make)


def suspect_for_ever() -> Any:
    """Suspect members that do not answer, and never hold them dead."""
    return patched(GossipTerms, "suspicion_ms", lambda _: lambda self, members: 1e12)


def suspect_for_a_moment() -> Any:
    """Hold members dead before they can answer a suspicion."""
    return patched(GossipTerms, "suspicion_ms", lambda _: lambda self, members: 0.0)


def knock_at_nobody() -> Any:
    """Send nothing to members that are dead, though they may live behind a cut that healed."""
    return patched(Gossip, "_knock", lambda _: lambda self, now: None)


def ask_for_no_listing() -> Any:
    """Wait for ever for a listing that is too large for packets."""
    return patched(Exchanging, "_lacking", lambda _: lambda self, now, members: None)


def give_no_listing() -> Any:
    """Leave listings out of state exchanges."""
    return patched(Knowledge, "newer", lambda _: lambda self, message: [])


def take_an_older_listing() -> Any:
    """Take the listing that came last, whatever its version."""

    def make(take: Any) -> Any:
        def believe(self: Members, listing: Any, now: float) -> Any:
            member = self.find(listing.name)
            if member is not None and listing.version < member.held:
                member.instances = listing.instances
            return take(self, listing, now)

        return believe

    return patched(Members, "list_instances", make)


def feel_well() -> Any:
    """Never take the fault for one's own: a slow member accuses the others."""
    return patched(Probing, "feel", lambda _: lambda self, change: None)


def fill_packets_without_end() -> Any:
    """Put all updates into one packet."""
    return patched(Spreading, "take", lambda take: lambda self, room, sends: take(self, room + 5_000, sends))


def probe_only_the_first() -> Any:
    """Probe one member again and again."""

    def make(_: Any) -> Any:
        return lambda self, members: next(iter(members.live), None)

    return patched(Probing, "_next_name", make)


def keep_who_left() -> Any:
    """Do not believe a member that says that it leaves, nor others that it is dead."""

    def make(merge: Any) -> Any:
        def believe(self: Members, claim: Any, *rest: Any) -> Any:
            return None if claim.standing >= Standing.DEAD else merge(self, claim, *rest)

        return believe

    return patched(Members, "merge", make)


def keep_an_old_version() -> Any:
    """Count the own list from the start of the process on, whatever an earlier life announced."""

    def make(hold: Any) -> Any:
        return lambda self, claim, now: hold(self, claim._replace(version=self.own.version), now)

    return patched(Knowledge, "hold_of_self", make)


def send_nothing_of_the_receiver() -> Any:
    """Leave a member that is held dead without word of that."""
    return patched(Knowledge, "about", lambda _: lambda self, name, incarnation=None: ())


def ask_no_helpers() -> Any:
    """Suspect a member after one's own probe alone."""
    return patched(Probing, "wants_help", lambda _: lambda self, now: None)


def probe_for_nobody() -> Any:
    """Leave out the probes that others ask for."""
    return patched(Probing, "relay", lambda _: lambda self, origin, number, now: None)


def leave_without_a_word() -> Any:
    """End as a crash does."""
    return patched(Gossip, "leave", lambda _: lambda self: self._step())


def spread_by_probes_alone() -> Any:
    """Send updates with probes and their answers, and no packet of their own."""
    return patched(Gossip, "_spread", lambda _: lambda self, count: None)


def ignore_fingerprints() -> Any:
    """Begin no state exchange because of a fingerprint that differs."""
    return patched(Exchanging, "differed", lambda _: lambda self, *args: None)


def count_stopped_time() -> Any:
    """Count the time for which the process was stopped as time that it waited for answers."""

    def make(_: Any) -> Any:
        def wake(self: AwakeTime, clock_ms: float) -> float:
            self.now_ms = clock_ms
            return clock_ms

        return wake

    return patched(AwakeTime, "wake", make)


def judge_before_reading() -> Any:
    """Take silence for a fault before what arrived in the stopped time is read."""
    return patched(AwakeTime, "may_judge", lambda _: True)


def hold_dead_at_once() -> Any:
    """Hold a member dead that did not answer one probe, without a suspicion that it could refute."""

    def make(_: Any) -> Any:
        def bury(self: Knowledge, name: str, now: float) -> None:
            self.merge(self.members.live[name].claim._replace(standing=Standing.DEAD), now)

        return bury

    return patched(Knowledge, "suspect", make)


def refute_without_a_higher_incarnation() -> Any:
    """Answer a suspicion by the same incarnation, which refutes nothing."""

    def make(hold: Any) -> Any:
        def answer(self: Knowledge, claim: Any, now: float) -> None:
            before = self.own.incarnation
            hold(self, claim, now)
            if claim.incarnation == before:
                self.own = self.own._replace(incarnation=before)
                self._restate()

        return answer

    return patched(Knowledge, "hold_of_self", make)


def starve_old_updates() -> Any:
    """Keep room for the newest update only: older ones are not sent again."""

    def make(add: Any) -> Any:
        def newest(self: Spreading, counts: list[dict[str, bytes]], name: str, item: bytes) -> None:
            counts.clear()
            counts.append({})
            add(self, counts, name, item)

        return newest

    return patched(Spreading, "_add", make)


def label_an_old_listing_anew() -> Any:
    """Pass on the listing that is held as the version that is claimed: what was withdrawn comes back."""
    anew = property(lambda self: Listing(self.name, self.version, self.instances))
    return patched(Member, "listing", lambda _: anew)


def keep_what_was_withdrawn() -> Any:
    """Take no listing that is empty."""

    def make(take: Any) -> Any:
        def believe(self: Members, listing: Any, now: float) -> Any:
            member = self.find(listing.name)
            kept = () if member is None else member.instances
            return take(self, listing if listing.instances else listing._replace(instances=kept), now)

        return believe

    return patched(Members, "list_instances", make)


GOSSIP_PLANTS: dict[str, tuple[Callable[[], Any], int, tuple[str, ...]]] = {
    "refute nothing": (refute_nothing, 0, ("live_held_dead",)),
    "send updates once": (send_updates_once, 4, ("gone_spread",)),
    "send updates for ever": (send_updates_for_ever, 2, ("quiet_bounded",)),
    "compare no incarnations": (compare_no_incarnations, 17, ("agreed",)),
    "suspect for ever": (suspect_for_ever, 2, ("gone_held_live",)),
    "suspect for a moment": (suspect_for_a_moment, 2, ("falsely_dead",)),
    "knock at nobody": (knock_at_nobody, 21, ("agreed", "live_held_dead")),
    "ask for no listing": (ask_for_no_listing, 8, ("announced_known", "agreed", "small_known")),
    "give no listing": (give_no_listing, 0, ("announced_known",)),
    "take an older listing": (take_an_older_listing, 0, ("small_known",)),
    "feel well": (feel_well, 0, ("slow_accuses",)),
    "fill packets without end": (fill_packets_without_end, 0, ("packets_bounded",)),
    "probe only the first": (probe_only_the_first, 0, ("gone_held_live", "agreed")),
    "keep an old version": (keep_an_old_version, 10, ("agreed", "announced_known")),
    "send nothing of the receiver": (send_nothing_of_the_receiver, 0, ("told",)),
    "ignore fingerprints": (ignore_fingerprints, 0, ("repaired",)),
    "count stopped time": (count_stopped_time, 8, ("accused_at_once",)),
    "judge before reading": (judge_before_reading, 8, ("accused_at_once",)),
    "hold dead at once": (hold_dead_at_once, 2, ("falsely_dead", "live_held_dead")),
    "refute without a higher incarnation": (refute_without_a_higher_incarnation, 0, ("live_held_dead",)),
    "starve old updates": (starve_old_updates, 0, ("flooded", "left_held_live")),
    "label an old listing anew": (label_an_old_listing_anew, 0, ("announced_known", "agreed")),
    "keep what was withdrawn": (keep_what_was_withdrawn, 0, ("agreed", "announced_known")),
    "ask no helpers": (ask_no_helpers, 3, ("falsely_suspected",)),
    "probe for nobody": (probe_for_nobody, 3, ("falsely_suspected",)),
    "leave without a word": (leave_without_a_word, 3, ("left_held_live",)),
    "spread by probes alone": (spread_by_probes_alone, 0, ("flooded",)),
    "keep who left": (keep_who_left, 0, ("gone_held_live", "agreed")),
}
