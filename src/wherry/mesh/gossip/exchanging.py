"""When to exchange whole states, and with whom. Decides; it makes no connection.

Packets bring what changes. A state exchange brings the rest:

- to join: a seed, each period until one answered; later a seed that is no live member, now and then, since it may be on
  the other side of a cut;
- a listing that is too large for packets, or whose packets were lost: the member itself or another one;
- a fingerprint that differs though nothing changed here for a while: its sender. Members that know the same never make
  a connection, so this costs nothing while nothing is missing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from wherry.mesh.gossip.members import Members
from wherry.mesh.gossip.terms import GossipTerms
from wherry.mesh.gossip.values import Entropy, MemberAddress

SEED_PERIODS = 10
"""Between two attempts at a seed that is no live member, on average."""

SETTLE_PERIODS = 3
"""Without a change, before a fingerprint that differs means something."""

GAP_PERIODS = 4
"""Between two exchanges because of fingerprints."""

BUSY_PERIODS = 60
"""After so long a fingerprint that differs is followed though something changes all the time."""

PATIENCE_PERIODS = 2
"""How long a listing may be on its way in packets."""


class Exchanging:
    """The state exchanges that one member should begin."""

    def __init__(self, seeds: Sequence[MemberAddress], chance: Entropy, terms: GossipTerms) -> None:
        self._chance = chance
        self._terms = terms
        self._seeds: dict[MemberAddress, str | None] = dict.fromkeys(seeds)
        """With the name of the member that answered there last."""
        self._differs: MemberAddress | None = None
        self._exchanged_at_ms = self._seed_at_ms = self._lack_at_ms = 0.0
        self.has_joined = not seeds
        self.met_itself = False
        """Whether a seed was this member itself; that need not stay so, as behind an address that several share."""

    def set_seeds(self, seeds: Iterable[MemberAddress]) -> None:
        """Set where seeds are now: the names of hosts may lead elsewhere than before."""
        self._seeds = {seed: self._seeds.get(seed) for seed in seeds}

    def differed(self, sender: MemberAddress, now_ms: float, changed_at_ms: float) -> None:
        """Note a fingerprint that differs; and when what is known here changed last."""
        period_ms = self._terms.period_ms
        since_ms = now_ms - self._exchanged_at_ms
        is_settled = now_ms - changed_at_ms >= SETTLE_PERIODS * period_ms and since_ms >= GAP_PERIODS * period_ms
        if is_settled or since_ms >= BUSY_PERIODS * period_ms:
            self._differs = sender

    def exchanged(self, now_ms: float, at: MemberAddress | None = None, name: str | None = None) -> None:
        """Note an exchange; one with a seed shows which member is there."""
        self._exchanged_at_ms = now_ms
        if at in self._seeds:
            self._seeds[at] = name
        self.has_joined = True

    def next(self, now_ms: float, own: MemberAddress, members: Members) -> MemberAddress | None:
        """Return with whom to exchange states now."""
        return self._seed(now_ms, own, members) or self._lacking(now_ms, members) or self._different(now_ms)

    def _seed(self, now_ms: float, own: MemberAddress, members: Members) -> MemberAddress | None:
        if now_ms < self._seed_at_ms:
            return None
        absent = [seed for seed, name in self._seeds.items() if seed != own and name not in members.live]
        if not absent:
            return None
        periods = SEED_PERIODS * (0.5 + self._chance.random()) if self.has_joined else 1
        self._seed_at_ms = now_ms + periods * self._terms.period_ms
        return absent[self._chance.randrange(len(absent))]

    def _lacking(self, now_ms: float, members: Members) -> MemberAddress | None:
        if now_ms < self._lack_at_ms:
            return None
        for member in members.lacking.values():
            if now_ms - member.lacking_since < PATIENCE_PERIODS * self._terms.period_ms:
                return None  # the others lack theirs for a shorter time
            self._lack_at_ms = now_ms + self._terms.period_ms
            # Half of them ask another member, so that not all ask the one that changed.
            names = members.names
            name = member.name if self._chance.random() < 0.5 else names[self._chance.randrange(len(names))]
            return members.live[name].address
        return None

    def _different(self, now_ms: float) -> MemberAddress | None:
        found, self._differs = self._differs, None
        if found is not None:
            self._exchanged_at_ms = now_ms
        return found
