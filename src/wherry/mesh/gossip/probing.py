"""Whom to probe, and what follows from silence. Decides; it sends nothing.

    begin            + 2/5 period              + 1 period
      │ PING            │ PROBE to 3 helpers     │ no ACK, no RELAYED: suspected
      └─────────────────┴────────────────────────┴─ the next member of a shuffled round

Each round probes each live member once, so that each is probed in bounded time. A member that is slow itself (answers
come late, others suspected it, or it received nothing at all) stretches all of this by its *health*, 0 when well: it
is slower to accuse others.
"""

from __future__ import annotations

from typing import NamedTuple

from wherry.mesh.gossip.codec.packets import ProbeTarget
from wherry.mesh.gossip.members import Members
from wherry.mesh.gossip.terms import HEALTH_MAX, READ_PERIODS, GossipTerms
from wherry.mesh.gossip.values import Entropy

NUMBERS = 1 << 32
HELP_AFTER = 0.4
"""Of a period, without an answer."""
RELAYS_MAX = 256
RELAYS_OF_ONE_MAX = 16
"""Probes that are made for one member at a time; it has one under way."""
LATE_MAX = 4 * HEALTH_MAX
"""Failed probes that are remembered, to notice that an answer came late."""


class AwakeTime:
    """Time for which a process was awake; it has not waited for answers while it was stopped."""

    def __init__(self, period_ms: int) -> None:
        self._period_ms = period_ms
        self._seen_ms: float | None = None
        self._judge_at_ms = 0.0
        self.now_ms = 0.0

    @property
    def may_judge(self) -> bool:
        """Return whether silence means something: not yet where answers may still wait in the socket."""
        return self.now_ms >= self._judge_at_ms

    def wake(self, clock_ms: float) -> float:
        """Count the time since the last input, up to a period; return all that was counted."""
        if self._seen_ms is not None:
            passed_ms = max(clock_ms - self._seen_ms, 0)
            self.now_ms += min(passed_ms, self._period_ms)
            if passed_ms >= self._period_ms:
                self._judge_at_ms = self.now_ms + READ_PERIODS * self._period_ms
        self._seen_ms = clock_ms if self._seen_ms is None else max(clock_ms, self._seen_ms)
        return self.now_ms


class Probe(NamedTuple):
    """The probe that is under way."""

    name: str
    number: int
    began_at_ms: float
    help_at_ms: float
    ends_at_ms: float


class Relay(NamedTuple):
    """A probe that is made for another member."""

    origin: ProbeTarget
    number: int
    ends_at_ms: float


class Probing:
    """The probes of one member: at most one under way, and those that it makes for others."""

    def __init__(self, chance: Entropy, terms: GossipTerms) -> None:
        self._chance = chance
        self._terms = terms
        self._number = chance.randrange(NUMBERS)
        self._round: list[str] = []
        self._probe: Probe | None = None
        self._is_answered = self._is_helped = False
        self._next_at_ms: float = chance.randrange(terms.period_ms)
        self._late: dict[int, None] = {}
        self._relays: dict[int, Relay] = {}
        self.health = 0
        self.is_heard = False
        """Whether an ACK came: packets pass both ways."""

    def number(self) -> int:
        """Return a number that no packet under way has."""
        self._number = (self._number + 1) % NUMBERS
        return self._number

    @property
    def stretch(self) -> int:
        """Return by how much this member stretches the time that it gives others."""
        return 1 + self.health

    def begin(self, now_ms: float, members: Members) -> Probe | None:
        """Return the next probe, if it is time for one."""
        if now_ms < self._next_at_ms:
            return None
        period_ms = self._terms.period_ms * self.stretch
        self._next_at_ms = now_ms + period_ms
        name = self._next_name(members)
        if name is None:
            self._probe = None
            return None
        self._is_answered = self._is_helped = False
        self._probe = Probe(name, self.number(), now_ms, now_ms + period_ms * HELP_AFTER, self._next_at_ms)
        return self._probe

    def failed(self, now_ms: float) -> str | None:
        """Return the member that did not answer in time; once."""
        probe = self._probe
        if probe is None or self._is_answered or now_ms < probe.ends_at_ms:
            return None
        self._probe = None
        self._late[probe.number] = None
        while len(self._late) > LATE_MAX:
            del self._late[next(iter(self._late))]
        return probe.name

    def wants_help(self, now_ms: float) -> Probe | None:
        """Return the probe that helpers should make as well; once."""
        probe = self._probe
        if probe is None or self._is_answered or self._is_helped or now_ms < probe.help_at_ms:
            return None
        self._is_helped = True
        return probe

    def answered(self, number: int, now_ms: float) -> None:
        """Note an answer, by the target or through a helper."""
        if self._probe is not None and self._probe.number == number:
            if not self._is_answered:
                self._is_answered = True
                is_quick = now_ms <= self._probe.began_at_ms + self._terms.period_ms * HELP_AFTER
                self.feel(-(self.health + 1) // 2 if is_quick else -1)
        elif number in self._late:
            del self._late[number]
            self.feel(1)

    def feel(self, change: int) -> None:
        """Change the health, within its bounds: higher is worse."""
        self.health = min(max(self.health + change, 0), HEALTH_MAX)

    def relay(self, origin: ProbeTarget, number: int, now_ms: float) -> int | None:
        """Return the number of a PING that is made for another member; None if there are too many."""
        while self._relays and next(iter(self._relays.values())).ends_at_ms <= now_ms:
            del self._relays[next(iter(self._relays))]
        of_one = sum(relay.origin.name == origin.name for relay in self._relays.values())
        if len(self._relays) >= RELAYS_MAX or of_one >= RELAYS_OF_ONE_MAX:
            return None
        own = self.number()
        self._relays[own] = Relay(origin, number, now_ms + self._terms.period_ms * (1 + HEALTH_MAX))
        return own

    def relayed(self, number: int) -> Relay | None:
        """Return for whom a PING was made that was answered; once."""
        return self._relays.pop(number, None)

    def _next_name(self, members: Members) -> str | None:
        """Return the next live member of the round; begin another round at its end."""
        for _ in range(2):
            while self._round:
                name = self._round.pop()
                if name in members.live:
                    return name
            self._round = list(members.names)
            self._chance.shuffle(self._round)
        return None

    def joined(self, name: str) -> None:
        """Put a new member at a place of the round that chance decides."""
        self._round.insert(self._chance.randrange(len(self._round) + 1), name)
