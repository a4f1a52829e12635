"""What clients did and saw. Checkers read this and nothing else, so they can not share a mistake with the broker.

Times are virtual seconds: `start` when a client asked, `end` when it had the answer. What the broker did lies between.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypeAlias

Outcome: TypeAlias = Literal["ok", "refused", "unknown"]
"""Unknown: the broker died before it answered. Refused: it said no, and nothing may have happened."""

SubscriptionKey: TypeAlias = tuple[str, str]

LOG = "log"
"""The subscription of the one who reads a topic as a log."""

Positions: TypeAlias = dict[int, int]
"""An offset for each partition."""


@dataclass(slots=True)
class Sent:
    """One message that somebody tried to publish; its name is its payload and unique."""

    name: str
    topic: str
    start: float
    end: float
    outcome: Outcome
    persistent: bool = True
    key: str | None = None
    priority: int | None = None
    due_ms: int | None = None
    expires_ms: int | None = None
    partition: int | None = None
    offset: int | None = None
    group: int = 0
    """Messages of one call or one transaction have one group: all of them are there, or none."""
    dead: bool = False
    callback: bool = False
    """Whether its producer wants to be told what becomes of it."""
    sender: str = ""
    """The channel or session that it was sent on: on one of these, messages keep their order."""
    number: int = 0
    """Its place among those of its sender."""


@dataclass(slots=True)
class Got:
    """One message in one delivery."""

    name: str
    subscription: SubscriptionKey
    consumer: str
    partition: int
    offset: int
    priority: int
    due_ms: int | None
    key: str | None
    attempt: int
    token: int
    start: float
    end: float
    seen_ms: int
    """The latest wall time that anybody had seen by then."""
    life: int
    """The epoch of the broker that handed it out."""
    delivery: int
    row: int
    again: bool | None = None
    """Over a wire that tells it: whether it is said to have been handed out before."""


@dataclass(slots=True)
class Settled:
    """One message that a consumer tried to settle, or a lease it tried to renew."""

    kind: Literal["ack", "nack", "dead", "release", "renew"]
    name: str
    subscription: SubscriptionKey
    token: int
    start: float
    end: float
    outcome: Outcome
    stale: bool
    delay_ms: int | None = None
    group: int = 0
    """Over a wire: that of the transaction which it was part of, with what was published in it."""
    under_way: int | None = None
    """Over a wire, of what goes back to its queue: how many others its consumer may have been sent already."""
    after: int = 0
    """With it: the number of the last delivery by then."""
    consumer: str = ""


@dataclass(slots=True)
class Changed:
    """A message that somebody tried to cancel or amend."""

    kind: Literal["cancel", "amend"]
    name: str
    topic: str
    start: float
    end: float
    outcome: Outcome
    due_ms: int | None = None
    priority: int | None = None


@dataclass(slots=True)
class Buried:
    """A dead letter that somebody saw at the end, or that was sent back (`redriven`)."""

    name: str
    topic: str
    subscription: str
    reason: str
    attempts: int


@dataclass(slots=True)
class Redriven:
    """Dead letters were sent back at some time between `start` and `end`."""

    topic: str
    start: float
    end: float


@dataclass(slots=True)
class Keyed:
    """An API key that somebody tried to put or delete, and the ids that a list showed right after it."""

    kind: Literal["put", "delete"]
    id: str
    outcome: Outcome = "unknown"
    listed: list[str] | None = None


@dataclass(slots=True)
class Heard:
    """What a producer was told of a message that it had published at a place (topic, partition, offset)."""

    place: tuple[str, int, int]
    fate: str
    at: float


@dataclass(slots=True)
class Asked:
    """What somebody who asked, or waited, was told of a message."""

    name: str
    fate: str
    start: float
    end: float


class LogRow(NamedTuple):
    """One message that was read in the log."""

    partition: int
    offset: int
    name: str
    bytes: int
    """Of its payload."""


@dataclass(slots=True)
class LogRead:
    """A read of the log: all messages of `start..stop` of each partition.

    A `range` was reached within bounds, `again` is one that was read before, a `look` goes to where the end was.
    """

    kind: Literal["range", "again", "look"]
    topic: str
    start_at: Positions
    stop_at: Positions
    start: float
    end: float
    rows: list[LogRow]
    messages_max: int | None = None
    bytes_max: int | None = None
    kept: bool = True
    """Whether the reader went on from here; else it went back, and reached anew."""


@dataclass(slots=True)
class Missed:
    """The reader of a log was told that messages are lost to it: some of `start_at..stop_at`."""

    topic: str
    start_at: Positions
    stop_at: Positions
    at: float


@dataclass(slots=True)
class Advanced:
    """The reader of a log tried to say that it is done with everything below these offsets."""

    topic: str
    positions: Positions
    start: float
    end: float
    outcome: Outcome


@dataclass(slots=True)
class Measured:
    """What the broker said of the subscription of a reader of the log, and of the partitions, in one moment."""

    topic: str
    start: float
    end: float
    lag: int
    stop_at: Positions
    """Where each partition ended."""


@dataclass(slots=True)
class Grown:
    """A topic to which somebody tried to give more partitions."""

    topic: str
    partitions: int
    start: float
    end: float
    outcome: Outcome


@dataclass(slots=True)
class Torn:
    """A pull that ended without an answer: it may have held messages for a while."""

    subscription: SubscriptionKey
    start: float
    end: float


@dataclass(slots=True)
class Bound:
    """A binding, by its number in the plan, that somebody tried to give to its route or to take from it."""

    kind: Literal["bind", "unbind"]
    binding: int
    start: float
    end: float = float("inf")
    outcome: Outcome = "unknown"


@dataclass(slots=True)
class Listed:
    """Which bindings of the plan the routes had, as they were listed."""

    bindings: list[int]
    strange: list[str]
    """What was listed and is in no plan."""
    start: float
    end: float


@dataclass(slots=True)
class Routed:
    """One message that somebody tried to publish through a route."""

    name: str
    timed: bool
    """Whether it has a due time."""
    route: str
    routing_key: str
    headers: dict[str, str]
    start: float
    end: float = float("inf")
    outcome: Outcome = "unknown"
    topics: tuple[str, ...] = ()
    """Where it went, as its producer was told."""


@dataclass(slots=True)
class Purged:
    """What was ready in a subscription somebody tried to throw away; unless that is ok, some of it may be gone."""

    subscription: SubscriptionKey
    start: float
    end: float = float("inf")
    outcome: Outcome = "unknown"
    count: int = 0


@dataclass(slots=True)
class Forwarded:
    """Dead letters of a subscription ("" for nobody's) that somebody tried to publish elsewhere in their place."""

    topic: str
    subscription: str
    names: list[str]
    fleeting: list[str]
    """Of these, the ones that are transient from now on."""
    start: float
    end: float = float("inf")
    outcome: Outcome = "unknown"
    count: int = 0
    """How many the broker said went."""


@dataclass(slots=True)
class Sampled:
    """What a topic said of itself."""

    topic: str
    at: float
    messages: int
    messages_max: int | None
    dead: int
    dead_max: int
    start: float
    partitions: int


@dataclass(slots=True)
class Life:
    """One run of the broker process: a digest of the state it found on the disk, and of the one it left."""

    number: int
    """Its epoch, which is in the tokens it gave."""
    start: float
    end: float = float("inf")
    left: str | None = None
    found: str | None = None


@dataclass(slots=True)
class History:
    """Everything, in the order it ended."""

    sent: list[Sent] = field(default_factory=list)
    got: list[Got] = field(default_factory=list)
    settled: list[Settled] = field(default_factory=list)
    changed: list[Changed] = field(default_factory=list)
    buried: list[Buried] = field(default_factory=list)
    redriven: list[Redriven] = field(default_factory=list)
    sampled: list[Sampled] = field(default_factory=list)
    keyed: list[Keyed] = field(default_factory=list)
    heard: list[Heard] = field(default_factory=list)
    asked: list[Asked] = field(default_factory=list)
    log_reads: list[LogRead] = field(default_factory=list)
    missed: list[Missed] = field(default_factory=list)
    advanced: list[Advanced] = field(default_factory=list)
    measured: list[Measured] = field(default_factory=list)
    grown: list[Grown] = field(default_factory=list)
    torn: list[Torn] = field(default_factory=list)
    bound: list[Bound] = field(default_factory=list)
    listed: list[Listed] = field(default_factory=list)
    routed: list[Routed] = field(default_factory=list)
    purged: list[Purged] = field(default_factory=list)
    forwarded: list[Forwarded] = field(default_factory=list)
    dropped: dict[str, int] = field(default_factory=dict)
    """How many messages each topic said at the end that it dropped, or buried, to make room."""
    left: dict[str, float] = field(default_factory=dict)
    """When consumers left: whatever they held was free from then on."""
    lives: list[Life] = field(default_factory=list)
    remaining: list[tuple[SubscriptionKey, str]] = field(default_factory=list)
    """Messages handed out by the last drain, after which every subscription was empty."""
    faults: list[str] = field(default_factory=list)
    """What the world itself found wrong: an audit that failed, an error nobody may see."""
