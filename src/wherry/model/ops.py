"""The operations of the journal: the only things that change durable state, live and on replay alike.

An **entry** is one atomic step: a time, a few operations, and the compact batches that they carry. All of an entry is
applied or none of it. Fields may be added at the end with a default; no field is ever removed or given a new meaning.
Arrays are int64. A list of offsets is encoded as ranges `[start, stop, start, stop, …]`, which is short when messages
are settled in order, and never longer than two numbers a message.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from wherry.model.catalog.key import Key
from wherry.model.catalog.route import Binding, Route
from wherry.model.catalog.subscription import Subscription
from wherry.model.catalog.topic import Topic
from wherry.model.row_batch import RowBatch

Int64: TypeAlias = npt.NDArray[np.int64]

Settled: TypeAlias = Literal["acked", "discarded", "expired"]
Removed: TypeAlias = Literal["cancelled", "expired", "dropped", "trimmed"]


class Op(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """One change of durable state."""


class Opened(Op, frozen=True, tag="open"):
    """A new owner took the shard. A barrier that begins a new epoch of fencing tokens."""

    epoch: int
    owner: str


class PutTopic(Op, frozen=True, tag="topic"):
    """A topic was created, or its configuration changed."""

    number: int
    topic: Topic


class DeleteTopic(Op, frozen=True, tag="topic-"):
    """A topic was deleted with all its messages and subscriptions."""

    number: int


class PutSubscription(Op, frozen=True, tag="sub"):
    """A durable subscription was created; `starts` holds one offset for each partition, or one for all."""

    number: int
    topic: int
    subscription: Subscription
    starts: Int64


class DeleteSubscription(Op, frozen=True, tag="sub-"):
    """A durable subscription was deleted, by a client or because it was cut off.

    With `keep_dead` its dead letters stay, as dead letters of no subscription: a cut-off is not a request to delete
    them.
    """

    number: int
    why: str
    keep_dead: bool = False


class Admit(Op, frozen=True, tag="admit"):
    """Messages that were in the topic before a subscription are now in its order, up to offset `stop`.

    `ranges` are the admitted offsets; `ranks` and `due_ms` (-1 for none) have one value for each. They are journaled
    because the bodies may be on disk, and replay must not need them.
    """

    subscription: int
    partition: int
    stop: int
    ranges: Int64
    ranks: Int64
    due_ms: Int64


class PutRoute(Op, frozen=True, tag="route"):
    """A route was created or changed."""

    route: Route


class DeleteRoute(Op, frozen=True, tag="route-"):
    """A route was deleted."""

    name: str


class Bind(Op, frozen=True, tag="bind"):
    """A binding was added to a route."""

    route: str
    binding: Binding


class Unbind(Op, frozen=True, tag="bind-"):
    """A binding was removed from a route."""

    route: str
    binding: Binding


class Publish(Op, frozen=True, tag="pub"):
    """Messages `base .. base+count` were published to a partition; the body is the next batch of the entry.

    `columns` is the bit set of its columns, with `AS_ROWS` if the batch is a row batch and not Arrow. `dead` is the
    reason if the messages did not fit and became dead letters at once. Offsets between the last message and
    `base` belonged to transient messages, which are gone. `origin` is the node where the messages were published first,
    if a peer passed them on to this one; `from_hub`, whether that peer is a hub.
    """

    topic: int
    partition: int
    base: int
    count: int
    columns: int
    bytes: int
    dead: str = ""
    origin: str = ""
    from_hub: bool = False


class Sequenced(Op, frozen=True, tag="seq"):
    """Sequence numbers of a producer were used: `placed` holds `partition, base, count` for each part of the call.

    `fingerprint` identifies the content of the call, 0 for none: a call with the same numbers and another fingerprint
    is no repeat. `partitions` is how many the topic had then, if there are several parts (0: as many as it has).
    """

    topic: int
    producer: str
    first: int
    count: int
    placed: Int64
    fingerprint: int = 0
    partitions: int = 0


class Reserve(Op, frozen=True, tag="reserve"):
    """Offsets below `below` may have been used for transient messages, and are never used again."""

    topic: int
    partition: int
    below: int


class Settle(Op, frozen=True, tag="settle"):
    """A subscription settled messages for good."""

    subscription: int
    partition: int
    ranges: Int64
    outcome: Settled


class Fail(Op, frozen=True, tag="fail"):
    """Deliveries failed: one more attempt each, and no delivery before a time each.

    `ranks` and `hashes` (key hashes, if the subscription has key order) restore their order without their bodies.
    """

    subscription: int
    partition: int
    offsets: Int64
    ranks: Int64
    hashes: Int64
    until_ms: Int64
    error: str


class Bury(Op, frozen=True, tag="bury"):
    """Messages became dead letters; `failed` is whether this was one more failed attempt.

    Subscription 0 means that they are dead letters of no subscription: they died where there was none.
    """

    topic: int
    subscription: int
    partition: int
    offsets: Int64
    ranks: Int64
    reason: str
    error: str
    failed: bool


class Redrive(Op, frozen=True, tag="redrive"):
    """Dead letters of a subscription wait again, with no attempts counted, until their due times (-1 for none)."""

    topic: int
    subscription: int
    partition: int
    offsets: Int64
    ranks: Int64
    due_ms: Int64
    by: str


class Discard(Op, frozen=True, tag="discard"):
    """Dead letters were deleted by a client, or published again in the same entry (`redriven`).

    With a `reason` the messages waited until this entry: they died for that reason, and were never dead letters.
    """

    topic: int
    subscription: int
    partition: int
    offsets: Int64
    by: str
    redriven: bool = False
    reason: str = ""


class Remove(Op, frozen=True, tag="remove"):
    """Messages were removed from the topic for every subscription."""

    topic: int
    partition: int
    ranges: Int64
    reason: Removed


class Replace(Op, frozen=True, tag="replace"):
    """A new message replaced the waiting message `old` (an amend); its version is one higher.

    The body of `publish` is the next batch of the entry.
    """

    topic: int
    partition: int
    old: int
    version: int
    publish: Publish


class Stage(Op, frozen=True, tag="stage"):
    """Messages were staged under a key, not visible yet; the body is the next batch of the entry.

    A `count` of 0 means that settles were staged.
    """

    key: str
    topic: int
    partition: int
    count: int
    columns: int
    bytes: int


class Commit(Op, frozen=True, tag="commit"):
    """Everything staged under a key became visible: `bases` holds one offset for each staged part, in order.

    With `stages`, everything staged under those keys became visible, and `key` only names the commit.
    """

    key: str
    bases: Int64
    stages: list[str] | None = None


TOO_LATE = "it was not committed in time"


class Abort(Op, frozen=True, tag="abort"):
    """Everything staged under a key was dropped."""

    key: str
    why: str


class PutKey(Op, frozen=True, tag="key"):
    """An API key was created, or its name, rights or expiry changed."""

    key: Key


class DeleteKey(Op, frozen=True, tag="key-"):
    """An API key was deleted."""

    id: str


class ChangeSubscription(Op, frozen=True, tag="sub+"):
    """A subscription got another lease time, retry policy, buffer or webhook."""

    number: int
    subscription: Subscription


class Watch(Op, frozen=True, tag="watch"):
    """The producer of messages `base .. base+count` gave a callback: their outcomes are to be sent to `url`."""

    topic: int
    partition: int
    base: int
    count: int
    url: str


class Reported(Op, frozen=True, tag="told"):
    """Outcomes were reported to the callbacks of producers, or given up: `fates` are the reported ones.

    `offsets` are those at which the messages were published.
    """

    topic: int
    partition: int
    offsets: Int64
    fates: Int64


AnyOp: TypeAlias = (
    Opened
    | PutTopic
    | DeleteTopic
    | PutSubscription
    | DeleteSubscription
    | Admit
    | PutRoute
    | DeleteRoute
    | Publish
    | Sequenced
    | Reserve
    | Settle
    | Fail
    | Bury
    | Redrive
    | Discard
    | Remove
    | Replace
    | Stage
    | Commit
    | Abort
    | PutKey
    | DeleteKey
    | ChangeSubscription
    | Watch
    | Reported
    | Bind
    | Unbind
)


@dataclass(slots=True)
class Entry:
    """One atomic step of a shard. A `volatile` entry changes the state and is never journaled (transient messages)."""

    at_us: int
    ops: list[AnyOp]
    batches: list[pa.RecordBatch | RowBatch] = field(default_factory=list)
    volatile: bool = False


def to_ranges(offsets: Int64) -> Int64:
    """Return sorted distinct offsets as `[start, stop, …]`."""
    if len(offsets) == 0:
        return np.empty(0, np.int64)
    first, last = int(offsets[0]), int(offsets[-1])
    if last - first == len(offsets) - 1:
        return np.array((first, last + 1), np.int64)
    breaks = np.flatnonzero(np.diff(offsets) != 1)
    starts = np.concatenate((offsets[:1], offsets[breaks + 1]))
    stops = np.concatenate((offsets[breaks], offsets[-1:])) + 1
    return np.column_stack((starts, stops)).ravel()


def from_ranges(ranges: Int64) -> Int64:
    """Return the offsets of `[start, stop, …]`."""
    if len(ranges) == 2:
        return np.arange(ranges[0], ranges[1], dtype=np.int64)
    starts, stops = ranges[0::2], ranges[1::2]
    lengths = stops - starts
    if bool((lengths == 1).all()):  # as scattered acks are
        return starts.copy()
    ends = np.cumsum(lengths)
    total = int(ends[-1]) if len(ends) else 0
    result: Int64 = np.arange(total, dtype=np.int64) + np.repeat(starts - (ends - lengths), lengths)
    return result
