"""The values that members exchange: who a member is, what is claimed of it, and which instances it provides.

    ALIVE ──no answer──► SUSPECT ──time──► DEAD          LEFT: the member announced that it leaves
      ▲                     │                │
      └── a claim of the member itself, with a higher incarnation ◄──┘

Of two claims about a member the one with the higher incarnation counts; of two with the same one, the later standing in
the order above. Only the member itself raises its incarnation. So a claim that is late, repeated or recorded and sent
again changes nothing once a newer one is known. Knows no bytes and no time.
"""

from __future__ import annotations

from collections.abc import Callable, MutableSequence, Sequence
from enum import IntEnum, StrEnum
from typing import Any, NamedTuple, Protocol, TypeVar

from wherry.mesh.instance import Instance
from wherry.model.errors import WherryError

T = TypeVar("T")

NUMBER_MAX = (1 << 63) - 1
"""Of an incarnation and of a version."""


class GossipFault(WherryError):
    """Bytes that are no packet of this cluster and version: a broken rule, or another key."""

    code = "gossip-fault"


class MemberAddress(NamedTuple):
    """Where a member receives packets and state exchanges; a host name is allowed for seeds only."""

    host: str
    port: int


class Standing(IntEnum):
    """How a member is held by others; higher ones count more within one incarnation."""

    ALIVE = 0
    SUSPECT = 1
    DEAD = 2
    LEFT = 3


class Claim(NamedTuple):
    """What one member holds of another, or says of itself."""

    name: str
    address: MemberAddress
    incarnation: int
    standing: Standing
    version: int
    """Of its list of instances; it only grows, in restarts too."""


class Listing(NamedTuple):
    """The instances that a member provides, at a version."""

    name: str
    version: int
    instances: tuple[Instance, ...]


class What(StrEnum):
    """What happened to a member."""

    JOINED = "joined"
    SUSPECTED = "suspected"
    REFUTED = "refuted"
    DEAD = "dead"
    LEFT = "left"
    LISTED = "listed"
    REFUSED = "refused"
    """There are as many members as there may be."""
    DISPUTED = "disputed"
    """Another process uses the name of this one; or an earlier life did, at another address and by a later clock."""


class MemberEvent(NamedTuple):
    """A change that the process around the core may want to know of."""

    what: What
    name: str


class Send(NamedTuple):
    """A packet to send; it may be lost, repeated or overtaken."""

    to: MemberAddress
    body: bytes


class Entropy(Protocol):
    """The chance that the core is given: `random.Random`."""

    def random(self) -> float: ...
    def randrange(self, stop: int, /) -> int: ...
    def shuffle(self, x: MutableSequence[Any], /) -> None: ...
    def sample(self, population: Sequence[T], /, k: int) -> list[T]: ...


Report = Callable[[MemberEvent], None]
