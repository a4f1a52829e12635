"""Decide which messages are forwarded as they expire: one entry publishes their copies and removes them.

What a layer above would copy elsewhere at once need not be a dead letter in between, with an entry of its own. Only
what is certain is decided here: few messages of a queue, in memory and in the journal, for topics without a bound. All
other messages that expire become dead letters first, and the layer above moves them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, Protocol

from wherry.core.decide.expiring import OP_BYTES, Expiring
from wherry.core.decide.leasing import Now
from wherry.core.state.state import State, TopicState
from wherry.model import limits, ops
from wherry.model.calls.dead import DeadCopy
from wherry.model.ops import Entry
from wherry.model.row_batch import AS_ROWS, ROWS_BYTES_MAX, ROWS_MAX, RowBatch, of_columns
from wherry.model.schema import STORED

FEW: Final = 64
"""Messages of a partition that one entry forwards at most: each is read and copied while nothing else runs."""

MESSAGES_MAX: Final = 256
"""Messages that are read for one entry at most: some milliseconds."""

COPIES_MAX: Final = 512
"""Copies that one entry publishes at most: a message may go to several topics."""

BYTES_MAX: Final = 1 << 20
"""About the most bytes of the copies that one entry publishes."""

COPY_BYTES: Final = 256
"""What a copy takes in an entry beside its payload and its envelope, at most, without its headers."""

ENVELOPE_FACTOR: Final = 6
"""What an envelope has is in the headers too, as text: a short number takes five times as many bytes there."""


class Forwarder(Protocol):
    """What the shell knows of messages that expire."""

    by: str
    """The name that the audit shows."""

    def copies(self, topic: TopicState, partition: int, offsets: Sequence[int], died_ms: int) -> list[DeadCopy] | None:
        """Return the copies of messages, all of them persistent; None if they have to be dead letters first."""

    def has_room(self, size: int) -> bool:
        """Return whether an entry with messages of so many bytes may be written now."""


class Forwarding:
    """The copies of one entry, by the topic that they go to; the entry has `others` bytes of operations at most."""

    def __init__(self, state: State, forwarder: Forwarder | None, now: Now, others: int) -> None:
        self._state, self._forwarder, self._now, self._others = state, forwarder, now, others
        self._to: dict[int, list[dict[str, Any]]] = {}
        self._messages = self._copies = self._bytes = 0
        self._is_full = False
        """Whether copies were too many or too large beside the others: no more are asked for."""

    def steps(self, each: Expiring) -> list[ops.AnyOp] | None:
        """Return the operations that remove expired messages, whose copies are published; None if they must be dead."""
        subscription, count = _only_subscription(each), len(each.free)
        if self._forwarder is None or subscription is None or self._is_full or self._messages + count > MESSAGES_MAX:
            return None
        self._messages += count  # of those too that are refused below: reading them takes as long
        number, offsets = each.partition.number, each.free.tolist()
        copies = self._forwarder.copies(each.topic, number, offsets, self._now.wall_ms)
        if copies is None or not self._add(copies):
            return None
        place = (each.topic.number, subscription, number)
        return [ops.Discard(*place, each.free, self._forwarder.by, redriven=True, reason="expired")]

    def _add(self, copies: list[DeadCopy]) -> bool:
        """Add copies, all or none; return whether they were added."""
        to: list[int] = []
        size = self._bytes + OP_BYTES
        for name, columns in copies:
            number = self._state.catalog.topics.get(name)
            if number is None or not (number in self._to or _takes_any(self._state.topics[number])):
                return False
            if not _is_small(self._state.topics[number], columns):
                return False
            to.append(number)
            size += _bytes_max(columns)
        if not self._has_room(len(copies), size):
            self._is_full = True
            return False
        for number, copy in zip(to, copies, strict=True):
            self._to.setdefault(number, []).append(copy.columns)
        self._copies += len(copies)
        self._bytes = size
        return True

    def _has_room(self, more: int, size: int) -> bool:
        """Return whether the entry takes more copies, which make `size` bytes with the others, and the journal it."""
        if self._copies + more > COPIES_MAX or size > BYTES_MAX or self._forwarder is None:
            return False
        return self._forwarder.has_room(self._others + size)

    def publishes(self) -> list[Entry]:
        """Return the publishes of all copies as part of an entry; nothing if there are none."""
        entry = Entry(self._now.wall_us, [])
        for number, messages in self._to.items():
            base = self._state.topics[number].next_offset(0)
            for rows in _row_batches(messages):
                columns = rows.columns | AS_ROWS
                entry.ops.append(ops.Publish(number, 0, base, rows.num_rows, columns, rows.size))
                entry.batches.append(rows)
                base += rows.num_rows
        return [entry] if entry.ops else []


def _only_subscription(each: Expiring) -> int | None:
    """Return the subscription that messages wait for; None if there may be another reader, or they may not be alone.

    While a topic has dead letters, those that expire later have to come behind them.
    """
    topic, partition = each.topic, each.partition
    config = topic.config
    if config.expired != "dead-letter" or topic.is_stream() or topic.dead or len(each.held):
        return None
    if len(partition.readers) != 1 or partition.ephemeral or partition.transient:
        return None
    if not 0 < len(each.free) <= min(FEW, config.dead_messages_max):
        return None
    return next(iter(partition.readers))


def _takes_any(topic: TopicState) -> bool:
    """Return whether a topic takes messages whatever is in it."""
    config = topic.config
    if config.flows:  # a copy may have headers that only a node writes there
        return False
    if config.partitions > 1 or config.is_bounded or topic.next_offset(0) + COPIES_MAX > limits.OFFSET_MAX:
        return False
    others = (each.config for each in topic.subscriptions.values())
    return all(each.buffer_messages is None and each.buffer_bytes is None for each in others)


def _is_small(topic: TopicState, columns: dict[str, Any]) -> bool:
    """Return whether a message is small enough for a topic, and for a row batch."""
    return len(columns["payload"]) <= topic.config.payload_bytes_max and _bytes_max(columns) <= ROWS_BYTES_MAX


def _bytes_max(columns: dict[str, Any]) -> int:
    return COPY_BYTES + len(columns["payload"]) + ENVELOPE_FACTOR * len(columns["envelope"])


def _row_batches(messages: list[dict[str, Any]]) -> Iterator[RowBatch]:
    """Yield messages as row batches, in their order."""
    some, size = list[dict[str, Any]](), 0
    for columns in messages:
        more = _bytes_max(columns)
        if some and (len(some) == ROWS_MAX or size + more > ROWS_BYTES_MAX):
            yield _row_batch(some)
            some, size = [], 0
        some.append(columns)
        size += more
    yield _row_batch(some)


def _row_batch(messages: list[dict[str, Any]]) -> RowBatch:
    values = {name: [columns.get(name) for columns in messages] for name in STORED}
    return of_columns({name: column for name, column in values.items() if any(each is not None for each in column)})
