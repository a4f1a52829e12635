"""Records what clients did and received. Checkers read only this, so they cannot share a mistake with the broker.

Times are virtual seconds: `start` when a client sent its call, `end` when it had the answer. The broker acted between
them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypeAlias

Outcome: TypeAlias = Literal["ok", "refused", "unknown"]
"""Unknown: the broker died before it answered. Refused: the broker refused the call, and nothing may have changed."""

SubscriptionKey: TypeAlias = tuple[str, str]

Copy: TypeAlias = tuple[str, str, str]
"""A message as one subscription has it: topic, subscription ("" for none), name of the message."""

LOG = "log"
"""The subscription of the client that reads a topic as a log."""

NOWHERE = -1
"""The partition and offset of a message that came over a wire which does not show them."""

Positions: TypeAlias = dict[int, int]
"""An offset for each partition."""


@dataclass(slots=True)
class Sent:
    """One message that a client tried to publish; its name is its payload, and is unique."""

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
    """Messages of one call or one transaction have one group: all of them are stored, or none."""
    dead: bool = False
    callback: bool = False
    """Whether the producer asked for a report of the outcome."""
    sender: str = ""
    """The channel or session that sent it: messages of one channel or session keep their order."""
    number: int = 0
    """Its number among the messages of its sender."""


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
    """The latest wall time that was read by then."""
    life: int
    """The epoch of the broker that delivered it."""
    delivery: int
    row: int
    again: bool | None = None
    """The redelivered flag, over a wire that has one."""


@dataclass(slots=True)
class Settled:
    """One message that a consumer tried to settle, or a lease that it tried to renew."""

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
    """Over a wire: the group of its transaction, shared with the messages published in it."""
    under_way: int | None = None
    """Over a wire, for a requeued message: how many other messages the broker may have sent its consumer already."""
    after: int = 0
    """For a requeued message: the number of the last delivery by then."""
    consumer: str = ""


@dataclass(slots=True)
class Changed:
    """A message that a client tried to cancel or amend."""

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
    """A dead letter that was listed at the end of the run, or that was redriven."""

    name: str
    topic: str
    subscription: str
    reason: str
    attempts: int


@dataclass(slots=True)
class Redriven:
    """Dead letters were redriven at some time between `start` and `end`."""

    topic: str
    start: float
    end: float


@dataclass(slots=True)
class Keyed:
    """An API key that a client tried to put or delete, and the ids of a list right after it."""

    kind: Literal["put", "delete"]
    id: str
    start: float
    outcome: Outcome = "unknown"
    listed: list[str] | None = None


@dataclass(slots=True)
class ReportedOutcome:
    """An outcome that was reported to the producer of the message at a place (topic, partition, offset)."""

    place: tuple[str, int, int]
    fate: str
    at: float


@dataclass(slots=True)
class Asked:
    """The answer to a client that asked for the fate of a message, or waited for it."""

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

    A `range` was read up to the end that the broker gave, `again` is the repeat of an earlier read, a `look` reads up
    to the current end of the log.
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
    """Whether the reader continued from here; else it went back to its saved position and read again."""


@dataclass(slots=True)
class Missed:
    """The broker answered the reader of a log that messages are lost: some of `start_at..stop_at`."""

    topic: str
    start_at: Positions
    stop_at: Positions
    at: float


@dataclass(slots=True)
class Advanced:
    """The reader of a log tried to report that it has processed everything below these offsets."""

    topic: str
    positions: Positions
    start: float
    end: float
    outcome: Outcome


@dataclass(slots=True)
class Measured:
    """The statistics of the subscription of a log reader, and of the partitions, at one moment."""

    topic: str
    start: float
    end: float
    lag: int
    stop_at: Positions
    """The end of each partition."""


@dataclass(slots=True)
class Grown:
    """A topic to which a client tried to add partitions."""

    topic: str
    partitions: int
    start: float
    end: float
    outcome: Outcome


@dataclass(slots=True)
class Torn:
    """A pull without an answer: the broker may have leased messages to it for a while."""

    subscription: SubscriptionKey
    start: float
    end: float


@dataclass(slots=True)
class Bound:
    """A binding, by its number in the plan, that a client tried to bind or unbind."""

    kind: Literal["bind", "unbind"]
    binding: int
    start: float
    end: float = float("inf")
    outcome: Outcome = "unknown"


@dataclass(slots=True)
class Listed:
    """The bindings of the plan that were listed."""

    bindings: list[int]
    strange: list[str]
    """Listed bindings that are not in the plan."""
    start: float
    end: float


@dataclass(slots=True)
class Routed:
    """One message that a client tried to publish through a route."""

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
    """The topics in the answer to its publish."""


@dataclass(slots=True)
class Purged:
    """A purge of a subscription; unless its outcome is ok, some of the messages may be gone."""

    subscription: SubscriptionKey
    start: float
    end: float = float("inf")
    outcome: Outcome = "unknown"
    count: int = 0


@dataclass(slots=True)
class Forwarded:
    """Dead letters of one or more topics that a client tried to forward in one step."""

    copies: list[Copy]
    fleeting: list[Copy]
    """Those of them that are transient from now on."""
    start: float
    end: float = float("inf")
    outcome: Outcome = "unknown"
    count: int = 0
    """How many were forwarded, by the answer of the broker."""


@dataclass(slots=True)
class Sampled:
    """The statistics of a topic."""

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
    """One life of the broker process: digests of the state that it recovered and of the state that it left."""

    number: int
    """Its epoch, which is part of its tokens."""
    start: float
    end: float = float("inf")
    left: str | None = None
    found: str | None = None
    ended_by: str = ""


@dataclass(slots=True)
class Acted:
    """Something that no checker reads: a fault that was caused, or a call of the drill. It explains a history."""

    start: float
    client: str
    what: str
    end: float = float("inf")
    result: str = ""


@dataclass(slots=True)
class History:
    """All records of a run.

    Clients of the broker add a record when its call has ended. Clients of wires add it when the call begins, and set
    its end and outcome later.
    """

    sent: list[Sent] = field(default_factory=list)
    got: list[Got] = field(default_factory=list)
    settled: list[Settled] = field(default_factory=list)
    changed: list[Changed] = field(default_factory=list)
    buried: list[Buried] = field(default_factory=list)
    redriven: list[Redriven] = field(default_factory=list)
    sampled: list[Sampled] = field(default_factory=list)
    keyed: list[Keyed] = field(default_factory=list)
    reported: list[ReportedOutcome] = field(default_factory=list)
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
    """How many messages each topic dropped, or buried, to make room, by its own count at the end."""
    left: dict[str, float] = field(default_factory=dict)
    """When consumers left: the messages that they held were free from then on."""
    lives: list[Life] = field(default_factory=list)
    acted: list[Acted] = field(default_factory=list)
    full: list[tuple[float, float]] = field(default_factory=list)
    """From when until when the disk was full."""
    remaining: list[tuple[SubscriptionKey, str]] = field(default_factory=list)
    """Messages delivered by the last drain, after which every subscription was empty."""
    faults: list[str] = field(default_factory=list)
    """Faults that the world itself found: an audit that failed, an error that must never be raised."""


Seen: TypeAlias = dict[str, tuple[History, ...]]
"""The histories of runs by the name of the run, for a caller that wants them even if a run ends in an exception."""
