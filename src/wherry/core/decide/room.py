"""Bounds of a topic: how many messages of a publish fit, and which messages have to go to make room for it."""

from __future__ import annotations

import heapq
import sys
from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from wherry.core.decide.flow import FULL, nobodys, without_peers
from wherry.core.decide.removing import removal_ops
from wherry.core.index.directory import Directory
from wherry.core.state.partition import Partition
from wherry.core.state.state import SubscriptionState, TopicState
from wherry.model.errors import LimitReached
from wherry.model.ops import AnyOp, Bury, DeleteSubscription
from wherry.model.schema import content_sizes

Int64: TypeAlias = npt.NDArray[np.int64]
Candidates: TypeAlias = Callable[[Partition, int, int], Int64]
"""Returns which messages of a batch (partition, base offset, number) may be removed to make room."""
After: TypeAlias = Callable[[Partition, int], int]
"""Returns from which offset on, at or behind the given one, the next candidates are looked for."""

LOOKS = 16
"""Batches of which nothing may go that are looked at one by one: a refused publish must not look at each batch."""


def make_room(
    topic: TopicState,
    removals: list[AnyOp],
    messages: int,
    size: int,
    batches: Sequence[pa.RecordBatch] = (),
    spared: tuple[int, int] | None = None,
) -> int:
    """Return how many of the new messages may wait, and add to `removals` the operations that make room for them.

    Raises `LimitReached` where the topic refuses. `batches` are the new messages: the first ones may fit and the others
    become dead letters; without `batches` all of them fit or none. `spared` (partition, offset) is never removed. A
    call without new messages but with bytes is an amend that makes a waiting message larger.
    """
    config = topic.config
    there = _counted(topic)
    over_messages = 0 if config.messages_max is None else there.messages + messages - config.messages_max
    over_bytes = 0 if config.bytes_max is None else there.bytes + size - config.bytes_max
    if over_messages <= 0 and over_bytes <= 0:
        return messages
    if config.overflow == "dead-letter" and messages:
        fit = _fitting(topic, there, messages, size, batches)
        if topic.dead + messages - fit > config.dead_messages_max:
            raise LimitReached("dead letters of the topic", config.dead_messages_max, topic.dead + messages - fit)
        return fit
    too_big = (config.messages_max or messages) < messages or (config.bytes_max or size) < size
    if config.overflow in ("drop-oldest", "dead-letter-oldest") and not too_big:

        def free(partition: Partition, base: int, count: int) -> Int64:
            return _oldest(partition, base, count, spared)

        dropped = _drop_oldest(topic, over_messages, over_bytes, free)
        if dropped is not None:
            removals += dropped
            return messages
    if config.flows and config.overflow == "refuse" and not too_big:
        given_up = _give_up_peers(topic, messages, size)
        if given_up is not None:
            removals += given_up
            return messages
    if over_messages > 0 and config.messages_max is not None:
        raise LimitReached("messages of the topic", config.messages_max, there.messages + messages)
    raise LimitReached("bytes of the topic", config.bytes_max or 0, there.bytes + size)


class Counted(NamedTuple):
    """What counts against the bounds of a topic."""

    messages: int
    bytes: int


def _counted(topic: TopicState) -> Counted:
    """Return what counts against the bounds: all unsettled messages or, if configured so, only those not leased.

    Bytes are not known per message here, so the bytes of leased messages are subtracted in proportion.
    """
    if topic.config.counted == "all" or topic.messages == 0:
        return Counted(topic.messages, topic.bytes)
    held = sum(
        max((len(each.leased) for each in part.readers.values()), default=0) for part in topic.partitions.values()
    )
    waiting = max(0, topic.messages - held)
    return Counted(waiting, topic.bytes * waiting // topic.messages)


def _fitting(topic: TopicState, there: Counted, messages: int, size: int, batches: Sequence[pa.RecordBatch]) -> int:
    """Return how many of the new messages fit, counted from the first."""
    fit = messages
    if topic.config.messages_max is not None:
        fit = min(fit, max(0, topic.config.messages_max - there.messages))
    if topic.config.bytes_max is not None and there.bytes + size > topic.config.bytes_max:
        sizes = np.concatenate([np.empty(0, np.int64), *(content_sizes(batch) for batch in batches)])
        fit = min(fit, int(np.searchsorted(np.cumsum(sizes), topic.config.bytes_max - there.bytes, "right")))
    return fit


def _give_up_peers(topic: TopicState, messages: int, size: int) -> list[AnyOp] | None:
    """Return operations that cut off peers so that new messages fit; None where that is not enough.

    Where nobody else reads the topic, what the peers leave would wait for the next subscription: the oldest go.
    """
    most_messages = sys.maxsize if topic.config.messages_max is None else topic.config.messages_max
    most_bytes = sys.maxsize if topic.config.bytes_max is None else topic.config.bytes_max
    left = without_peers(topic, most_messages - messages, most_bytes - size)
    if left is None:
        return None
    steps: list[AnyOp] = [DeleteSubscription(each.number, FULL, keep_dead=True) for each in left.cut_off]
    over_messages, over_bytes = left.messages + messages - most_messages, left.bytes + size - most_bytes
    if left.is_read or (over_messages <= 0 and over_bytes <= 0):
        return steps
    free = _Nobodys(left.cut_off[-1] if left.cut_off else None)
    dropped = _drop_oldest(topic, over_messages, over_bytes, free.of_batch, free.next)
    return None if dropped is None else [*steps, *dropped]


class _Nobodys:
    """The messages that wait for nobody once the peers of a topic are cut off, `last` as the last one."""

    def __init__(self, last: SubscriptionState | None) -> None:
        self._last = last
        self._looks = 0
        """Batches without such a message, one after the other."""
        self._found: dict[int, Int64] = {}

    def of_batch(self, partition: Partition, base: int, count: int) -> Int64:
        """Return those of one batch."""
        found = nobodys(partition, partition.finished.missing(base, base + count), self._last)
        self._looks = 0 if len(found) else self._looks + 1
        return found

    def next(self, partition: Partition, offset: int) -> int:
        """Return the offset itself or, after many batches without any, that of the next such message, or the end."""
        if self._looks < LOOKS:
            return offset
        found = self._found.get(partition.number)
        if found is None:
            left = partition.finished.missing(offset, partition.next_offset)
            found = self._found[partition.number] = nobodys(partition, left, self._last)
        at = int(np.searchsorted(found, offset))
        return int(found[at]) if at < len(found) else partition.next_offset


def _in_turn(_: Partition, offset: int) -> int:
    return offset


def _drop_oldest(
    topic: TopicState, over_messages: int, over_bytes: int, candidates: Candidates, after: After = _in_turn
) -> list[AnyOp] | None:
    """Return operations that remove the oldest of the candidates; None when they are not enough."""
    bury, dying = topic.config.overflow == "dead-letter-oldest", 0
    heads: list[tuple[int, int, int, int]] = []
    """The next batch of each partition looked at: when it was published, partition, base offset, messages."""
    looked: list[int] = []
    dropped: list[AnyOp] = []
    while over_messages > 0 or over_bytes > 0:
        while (first := topic.oldest.first()) is not None and (not heads or first <= heads[0][:2]):
            topic.oldest.forget(first[1])
            looked.append(first[1])
            _push_next(heads, topic, first[1], 0)
        if not heads:
            break
        _, number, base, count = heapq.heappop(heads)
        rows = topic.partitions[number].directory
        old = candidates(topic.partitions[number], base, count)
        old = old[: _enough(rows, old, over_messages, over_bytes)]
        if len(old):
            gone = removal_ops(topic, topic.partitions[number], old, "dropped", bury=bury, dying=dying)
            # One dead letter for each subscription.
            dying += sum(len(op.offsets) for op in gone if isinstance(op, Bury))
            dropped += gone
            over_messages -= len(old)
            over_bytes -= rows.bytes_of(old)
        _push_next(heads, topic, number, after(topic.partitions[number], base + count))
    for number in looked:  # nothing is removed yet, so the oldest batch is unchanged; but its time is exact now
        oldest_us = topic.partitions[number].directory.oldest_us()
        if oldest_us is not None:
            topic.oldest.note(number, oldest_us)
    return dropped if over_messages <= 0 and over_bytes <= 0 else None


def _push_next(heads: list[tuple[int, int, int, int]], topic: TopicState, number: int, offset: int) -> None:
    """Push the next batch of a partition, from an offset on, that has a waiting message."""
    found = topic.partitions[number].directory.next_waiting(offset)
    if found is not None:
        heapq.heappush(heads, (found.published_us, number, found.base, found.messages))


def _oldest(partition: Partition, base: int, count: int, spared: tuple[int, int] | None) -> Int64:
    """Return the messages of one batch that count against the bounds and that no consumer holds."""
    old = partition.finished.missing(base, base + count)
    old = old[~partition.leased(old)]
    return old[old != spared[1]] if spared is not None and spared[0] == partition.number else old


def _enough(rows: Directory, old: Int64, over_messages: int, over_bytes: int) -> int:
    """Return how many of these messages have to go. Bytes are freed in proportion, so the number is searched for."""
    return bisect_left(range(len(old)), True, key=lambda n: n >= over_messages and rows.bytes_of(old[:n]) >= over_bytes)
