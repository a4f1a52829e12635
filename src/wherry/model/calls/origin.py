"""Where a message of a `flow` topic was published first, as the header of a message that was passed on shows it.

    a 5f0c 0-17 leaf orders        node, run of its data, partition and offset there, role of the last peer, topic

The receiving node writes the header, and reads it in what a peer passes on. A copy of such a message in another topic
is a message of its own: the header names a topic that is not its own then.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from wherry.model import check, limits
from wherry.model.catalog.subscription import ROLES, Role, Subscription
from wherry.model.errors import InvalidInput

Int64: TypeAlias = npt.NDArray[np.int64]

HEADER = "wherry-origin"

ORIGIN = "mesh:"
"""What the producers of origins begin with; no client may name its producer so."""

RUN_CHARS_MAX = 32

HEADER_BYTES_MAX = len(HEADER) + 4 * limits.NODE_NAME_CHARS_MAX + RUN_CHARS_MAX + limits.TOPIC_NAME_BYTES_MAX + 32
"""Of the header that a peer adds: its name, node, run, numbers, role and topic, and what is between them."""


class OriginPlace(NamedTuple):
    """A partition of a topic, as one node stored it.

    `run` identifies the data of the node: offsets begin again where data was lost, or a topic was made anew.
    """

    node: str
    run: str
    partition: int

    @property
    def producer(self) -> str:
        """The name by which the core remembers what came from here. Only the node may have colons in its name."""
        return f"{ORIGIN}{self.node}:{self.run}:{self.partition}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Where the messages of one publish come from: offsets there, growing, and the role of the peer that sent them."""

    place: OriginPlace
    offsets: Int64
    role: Role = "hub"

    def part(self, start: int, stop: int | None = None) -> Origin:
        """Return the origin of some of the messages."""
        return Origin(place=self.place, offsets=self.offsets[start:stop], role=self.role)

    def check(self, count: int) -> None:
        """Raise `InvalidInput` for values that no peer gives."""
        check.graphic("origin.node", self.place.node, limits.NODE_NAME_CHARS_MAX)
        check.graphic("origin.run", self.place.run, RUN_CHARS_MAX)
        if ":" in self.place.run:
            raise InvalidInput("origin.run", self.place.run, "no colon")
        check.integer("origin.partition", self.place.partition, 0, limits.FLOW_PARTITIONS_MAX - 1)
        check.one_of("origin.role", self.role, ROLES)
        offsets = self.offsets
        if len(offsets) != count or np.any(np.diff(offsets) <= 0) or offsets[0] < 0 or offsets[-1] > limits.OFFSET_MAX:
            raise InvalidInput("origin.offsets", f"{len(offsets)} numbers", f"{count} growing offsets")


def show_origin(place: OriginPlace, offset: int, role: Role, topic: str) -> str:
    """Return the text of the header."""
    return f"{place.node} {place.run} {place.partition}-{offset} {role} {topic}"


def read_origin(text: str, topic: str) -> tuple[OriginPlace, int, Role] | None:
    """Return what a header says of a message in a topic; None if it is that of another topic, or no such header.

    Examples
    --------
    >>> read_origin("a 5f0c 0-17 leaf orders", "orders")
    (OriginPlace(node='a', run='5f0c', partition=0), 17, 'leaf')
    """
    parts = text.split(" ", 4)
    if len(parts) != 5 or parts[4] != topic or parts[3] not in ROLES:
        return None
    partition, _, offset = parts[2].partition("-")
    if not (partition.isdecimal() and offset.isdecimal() and parts[0] and parts[1]):
        return None
    return OriginPlace(parts[0], parts[1], int(partition)), int(offset), parts[3]


def passes_on(to: Subscription, origin: str, *, from_hub: bool) -> bool:
    """Return whether a node passes on to the reader of a subscription what it got from a peer itself.

    A leaf gets everything but its own messages. A hub gets what came from leaves: what came from a hub, that hub has
    sent to all hubs. So a message takes one way to each node, and none comes back.
    """
    if to.peer is None:
        return True
    return origin != to.peer and not (from_hub and to.peer_role == "hub")
