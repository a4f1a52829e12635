"""How long things may take among members, in periods: derived from the protocol's own terms, not from what runs took.

Each bound is a sum of steps. A step of the protocol takes the time that its term says. A step that chance decides is
given so many tries that all of them fail once in a million times (`tries`), at the loss of packets that is named. What
runs took longest is in docs/testing.md, with the seeds that were run; it is a fraction of these bounds. Nothing here
calls the code that is judged.
"""

from __future__ import annotations

from math import ceil, log, log10
from typing import NamedTuple

from wherry.mesh.gossip.exchanging import GAP_PERIODS, PATIENCE_PERIODS
from wherry.mesh.gossip.terms import HEALTH_MAX, KNOCK_RECENT, KNOCKS, RETRANSMIT, SILENT_PERIODS, SUSPICION

LUCK = 1e-6
"""How seldom a bound may be broken by chance alone, for one member and one event."""

LOSS_MAX = 0.2
"""Of the packets of a run; see `gossip_plan`."""

REPAIR_PERIODS = GAP_PERIODS + 3
"""What a member missed in packets it has after this: a packet of each period shows another fingerprint; the exchange
that follows waits for the one before it (`GAP_PERIODS`), for a tick, and takes three messages; members are looked at
once a period."""


FLOOD_PERIODS = 4
"""Of three rounds of packets, with which each that knows something tells three others a tick: a tick and a delay each,
and members are looked at once a period."""


class GossipBounds(NamedTuple):
    """The bounds for a number of members."""

    agree: int
    """After the last fault: everyone knows who runs, and what each provides."""
    held_dead: int
    """A process that runs and can be reached is not held dead for longer by another."""
    held_live: int
    """A process that crashed or left is not held alive for longer."""
    gone_spread: int
    """Once one member holds a process dead that ended, the others do within this time."""
    gone_spread_clear: int
    """The same where no packet is lost."""
    known: int
    """What a member provides is known to each that it can reach."""
    small_known: int
    """The same of a list that fits into packets, where few packets are lost."""
    left: int
    """A process that announced its end is held alive no longer than this, where few packets are lost."""


def bounds_of(members: int) -> GossipBounds:
    """Return the bounds for so many members."""
    suspicion = ceil(SUSPICION * max(1.0, log10(members)))
    transmissions = RETRANSMIT * ceil(log10(members + 1))
    worst = 1 + HEALTH_MAX
    answered = (1 - LOSS_MAX) ** 2
    # The rounds of the others begin at any place: in each period one of them comes to a certain member, or (n-2)/(n-1)
    # of the rounds do not; a round ends after as many periods as there are others.
    others = max(members - 1, 2)
    probed = min(others, tries(1 - (1 - 1 / others) ** others))
    return GossipBounds(
        agree=max(
            # A crash just before: a probe at the worst pace is still under way, then paces are well again.
            worst + probed + 1 + suspicion + REPAIR_PERIODS,
            # Two halves that hold each other dead: each knocks at all that died last in turn; then two of them
            # exchange states, those who were dead answer suspicions, and what was missed meanwhile is repaired.
            2 * KNOCK_RECENT // KNOCKS + 2 * REPAIR_PERIODS,
        ),
        # It hears nothing, and calls until one call and its answer pass; then its answer spreads.
        held_dead=SILENT_PERIODS + tries(answered) + REPAIR_PERIODS,
        # It is probed, does not answer, and is suspected, all at the worst pace: where all others are gone, the last
        # one takes itself for slow.
        held_live=worst * (2 + suspicion),
        # Who missed the claim hears of it in an exchange; there a dead member is only suspected.
        gone_spread=REPAIR_PERIODS + suspicion,
        # With n transmissions e^-n of the members miss a claim: none of those that send it eight times.
        gone_spread_clear=FLOOD_PERIODS if transmissions >= 8 else REPAIR_PERIODS + suspicion,
        # The version comes late, the listing is waited for, and every second exchange is with one that lacks it too.
        known=REPAIR_PERIODS + PATIENCE_PERIODS + tries(0.5, 1e-3),
        small_known=REPAIR_PERIODS + PATIENCE_PERIODS,
        left=REPAIR_PERIODS,
    )


def tries(chance: float, luck: float = LUCK) -> int:
    """Return how many tries it takes until all of them fail so seldom.

    Examples
    --------
    >>> tries(0.5)
    20
    """
    return ceil(log(luck) / log(1 - chance))
