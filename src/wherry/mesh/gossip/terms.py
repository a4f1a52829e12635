"""The pace and the bounds of gossip. All times derive from the period, so that one number makes it faster or slower."""

from __future__ import annotations

from math import ceil, log10

import msgspec

MEMBERS_MAX = 2_000
"""Members that a process knows; and as many more that are dead or left, until they are forgotten."""

INSTANCES_MAX = 64
"""Of one member."""

LISTING_BYTES_MAX = 64 << 10
"""Of the instances of one member."""

PACKET_BYTES_MAX = 1_200
"""Of a packet as it is sent: it passes any network in one piece."""

PIGGYBACK_BYTES_MAX = 900
"""Of a listing that travels in packets; a larger one travels by state exchanges only."""

TICKS = 5
"""Calls of `tick` in a period."""

HELPERS = 3
"""Members that are asked to probe a member that did not answer."""

FANOUT = 3
"""Members to which a tick sends what is to be spread."""

RETRANSMIT = 4
"""Times the logarithm of the number of members: how often one update is sent by one member."""

SUSPICION = 5
"""Times the logarithm of the number of members: the periods until a suspected member is dead."""

KNOCKS = 4
"""Packets in a period, from all members together, to each that is dead: it may live behind a cut that healed. Of one
member also the most in a period, so that each is knocked at less often when many are dead."""

KNOCK_RECENT = 32
"""Members that died last, to which every second of these packets goes, in turn."""

SILENT_PERIODS = 2
"""Without a packet from anybody, a member sends PINGs to `FANOUT` others each period: it may have been cut off."""

READ_PERIODS = 0.5
"""After a process stood still for a period or longer, it judges nobody for so long: what arrived is read first."""

HEALTH_MAX = 5
"""A member that is slow itself gives others up to so many more periods to answer."""

LEAVE_FANOUT = 8
"""Members to which a member that leaves says so itself."""


class GossipTerms(msgspec.Struct, frozen=True, kw_only=True):
    """The terms of one member. All members of a cluster should have the same."""

    period_ms: int = 1_000
    forget_periods: int = 3_600
    """How long a dead member is remembered, and knocked at."""
    members_max: int = MEMBERS_MAX

    @property
    def tick_ms(self) -> float:
        """Return the time between two calls of `tick`."""
        return self.period_ms / TICKS

    def suspicion_ms(self, members: int) -> float:
        """Return how long a member is suspected before it is dead: long enough for its answer to reach all."""
        return self.period_ms * SUSPICION * max(1.0, log10(max(members, 1)))

    def transmissions(self, members: int) -> int:
        """Return how often a member sends one update."""
        return RETRANSMIT * ceil(log10(members + 1))
