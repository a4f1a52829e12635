"""What a link counts, and how the view of the mesh shows it."""

from __future__ import annotations

import logging
from collections import Counter
from typing import Literal, TypeAlias, get_args

import msgspec

from wherry.model.catalog.subscription import Role

Part: TypeAlias = Literal["links", "link", "topic", "announce", "peers"]
"""What can fail in a mesh by itself, and begins again: the look after all links, one link, one topic of a link, the
record of this node, the records of others."""

PARTS: tuple[Part, ...] = get_args(Part)

_log = logging.getLogger("wherry.mesh")

LinkState: TypeAlias = Literal["connecting", "connected", "refused"]


class FlowFigures(msgspec.Struct):
    """What came of one topic over one link, since the link was made.

    `stored` were new. `repeated` were here before. `left_out` come by another way. `refused` can never be stored here,
    and are lost for this node. `cut_offs`: how often this node fell so far behind that the peer dropped its backlog.
    """

    topic: str
    stored: int = 0
    repeated: int = 0
    left_out: int = 0
    refused: int = 0
    cut_offs: int = 0
    last_fault: str = ""


class MeshFailures:
    """Exceptions that nobody expected: each is logged and counted, and what it ended begins again."""

    def __init__(self) -> None:
        self.counts: Counter[Part] = Counter()

    def note(self, part: Part, **about: str) -> None:
        """Log and count the exception that is being handled."""
        self.counts[part] += 1
        _log.exception("a part of the mesh failed, and begins again", extra={"part": part, **about})


class LinkView(msgspec.Struct):
    """A link to a peer: its address, what is known of the peer, and what came of each topic."""

    url: str
    state: LinkState
    node: str | None
    role: Role | None
    why: str
    topics: list[FlowFigures]


class BacklogView(msgspec.Struct):
    """What a peer has not read of a topic yet."""

    topic: str
    peer: str
    waiting: int


class CutOffView(msgspec.Struct):
    """A peer whose backlog of a topic was dropped here, since it had fallen too far behind."""

    topic: str
    subscription: str
    at_ms: int
    why: str


class MeshView(msgspec.Struct):
    """This node of the mesh, its links, what its peers have not read, and the nodes that it knows of."""

    node: str
    role: Role
    url: str
    links: list[LinkView]
    backlogs: list[BacklogView]
    cut_offs: list[CutOffView]
    """The last ones of each topic."""
    known: list[str]
    refused: dict[str, str]
    """Addresses that are not connected to, and why."""


class TopicAtNode(msgspec.Struct):
    """What a peer has to know of a topic at this node before it reads it."""

    node: str
    role: Role
    run: str
    hub: str | None = None
    partitions: int = 1
