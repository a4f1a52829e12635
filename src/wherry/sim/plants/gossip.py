"""Planted bugs of gossip: in what a member believes, spreads, probes and asks for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from wherry.mesh.gossip.core import Gossip
from wherry.mesh.gossip.exchanging import Exchanging
from wherry.mesh.gossip.knowledge import Knowledge
from wherry.mesh.gossip.members import Members
from wherry.mesh.gossip.probing import Probing
from wherry.mesh.gossip.spreading import Spreading
from wherry.mesh.gossip.terms import GossipTerms
from wherry.mesh.gossip.values import Standing
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


GOSSIP_PLANTS: dict[str, tuple[Callable[[], Any], int, tuple[str, ...]]] = {
    "refute nothing": (refute_nothing, 0, ("live_held_dead",)),
    "send updates once": (send_updates_once, 3, ("gone_spread",)),
    "send updates for ever": (send_updates_for_ever, 2, ("quiet_bounded",)),
    "compare no incarnations": (compare_no_incarnations, 4, ("agreed",)),
    "suspect for ever": (suspect_for_ever, 0, ("gone_held_live",)),
    "suspect for a moment": (suspect_for_a_moment, 2, ("falsely_dead",)),
    "knock at nobody": (knock_at_nobody, 21, ("agreed", "live_held_dead")),
    "ask for no listing": (ask_for_no_listing, 5, ("announced_known", "agreed")),
    "give no listing": (give_no_listing, 0, ("announced_known",)),
    "take an older listing": (take_an_older_listing, 17, ("announced_known", "agreed")),
    "feel well": (feel_well, 33, ("falsely_dead",)),
    "fill packets without end": (fill_packets_without_end, 0, ("packets_bounded",)),
    "probe only the first": (probe_only_the_first, 1, ("gone_held_live", "agreed")),
    "keep an old version": (keep_an_old_version, 10, ("agreed", "announced_known")),
    "send nothing of the receiver": (send_nothing_of_the_receiver, 285, ("agreed", "live_held_dead", "falsely_dead")),
    "ask no helpers": (ask_no_helpers, 0, ("falsely_suspected",)),
    "probe for nobody": (probe_for_nobody, 0, ("falsely_suspected",)),
    "leave without a word": (leave_without_a_word, 0, ("left_held_live",)),
    "spread by probes alone": (spread_by_probes_alone, 0, ("small_known",)),
    "keep who left": (keep_who_left, 0, ("gone_held_live", "agreed")),
}
