"""What happens by the passing of time: leases expire, messages expire, streams are trimmed, stages are aborted.

The shell calls `due` before every decision and with the same time, so that no decision is made on an outdated state. It
costs next to nothing when nothing is due. A decision observes only the topics that it is about: the messages of other
topics expire together, in rounds (ADR 0026).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from wherry.core.decide.expiring import EXPIRE_STEP, EXPIRY_BYTES_MIN, RANGE_BYTES, Expiring, gathered
from wherry.core.decide.forwarding import Forwarder, Forwarding
from wherry.core.decide.leasing import Now
from wherry.core.decide.removing import buried_in, expiry_ops
from wherry.core.decide.settling import (
    Ending,
    Entropy,
    Failure,
    failed,
)
from wherry.core.decide.volatile import joined, separate
from wherry.core.index.ids import PARTITION_SHIFT
from wherry.core.index.offsets import distinct
from wherry.core.state.partition import Partition
from wherry.core.state.state import State, SubscriptionState, TopicState
from wherry.model import ops
from wherry.model.ops import AnyOp, Entry, to_ranges

Int64: TypeAlias = npt.NDArray[np.int64]

STAGE_MS_MAX = 3_600_000
"""A stage that is not committed within an hour is aborted."""

IDS_SLACK = 4_096


class Room(NamedTuple):
    """What the journal has room for."""

    settles: Callable[[int], bool] = lambda _: True
    """Returns whether an entry that ends leases of so many messages fits."""
    expiry: Callable[[int], bool] = lambda _: True
    """Returns whether an entry fits in which messages expire, with operations of so many bytes."""


def due(
    state: State,
    now: Now,
    entropy: Entropy,
    room: Room | None = None,
    about: Iterable[int] | None = None,
    forwarder: Forwarder | None = None,
) -> Iterator[Entry]:
    """Yield the entries that are due; each must be applied before the next is asked for.

    Leases end in all topics. Messages expire in the topics that a decision is `about`; None stands for all topics.
    What the journal has no `room` for stays due. With a `forwarder` copies of messages that expire are published in
    the entry that removes them.
    """
    room = room or Room()
    while (lease := state.leases.expired(now.steady_ms)) is not None and room.settles(len(lease)):
        ending = Ending()
        steps = failed(state, ending, lease, None, Failure("the lease expired", now.wall_ms, entropy))
        yield from separate(state, now.wall_us, steps)
        ending.carry_out(state)
    if state.expiry_times.is_due(now.wall_ms):
        yield from _expire(state, state.expiry_times.due(about), now, room, forwarder)


def _expire(
    state: State, places: list[tuple[int, int]], now: Now, room: Room, forwarder: Forwarder | None
) -> Iterator[Entry]:
    """Yield entries that remove the expired messages of some partitions: one entry for all of them, if it fits.

    An entry has at most `EXPIRE_STEP` messages, and half as many each time that it does not fit.
    """
    left, step = deque(places), EXPIRE_STEP
    while step > 1 and not room.expiry(step * RANGE_BYTES):  # saves the work of gathering what cannot fit
        step //= 2
    while left and room.expiry(EXPIRY_BYTES_MIN):
        group = gathered(state, left, now.wall_ms, step)
        total, size = sum(each.total for each in group), sum(each.bytes_max for each in group)
        if total and not room.expiry(size):
            left.extendleft(each.place for each in reversed(group))
            if total == 1:
                return
            step = total // 2
            continue
        yield from _removed(state, group, now, Forwarding(state, forwarder, now, size))
        left.extend(each.place for each in group if each.more)


def _removed(state: State, group: list[Expiring], now: Now, forwarding: Forwarding) -> Iterator[Entry]:
    """Yield the entry that removes gathered messages, then note when the next ones expire.

    What a subscription holds stays in `overdue`, for that subscription only, and is tried again when the hold ends
    (`State.end_hold`).
    """
    steps: list[AnyOp] = []
    dying: dict[int, int] = {}
    for each in group:
        topic = each.topic
        forwarded = forwarding.steps(each)
        if forwarded is not None:
            steps += forwarded
            continue
        gone = expiry_ops(topic, each.partition, each.free, each.held, dying.get(topic.number, 0))
        dying[topic.number] = dying.get(topic.number, 0) + buried_in(gone)
        steps += gone
    yield from joined([*forwarding.publishes(), *separate(state, now.wall_us, steps)])
    for each in group:
        each.partition.overdue = each.rest
        if not each.more:
            state.expiry_times.done(*each.place, each.partition.expiry.first_rank())


def housekeeping(state: State, now_us: int) -> Iterator[Entry]:
    """Yield entries for slower duties, about once a second: retention and stages that were not committed in time."""
    now_ms = now_us // 1000
    for topic in list(state.topics.values()):
        if topic.is_stream():
            result = [op for partition in topic.partitions.values() for op in _trim(topic, partition, now_us)]
            yield from separate(state, now_us, result)
        _prune_ids(topic)
    for key in state.stages.older_than(now_ms - STAGE_MS_MAX):
        yield Entry(now_us, [ops.Abort(key, ops.TOO_LATE)])


def overrun(state: State, topic: TopicState) -> Iterator[SubscriptionState]:
    """Yield subscriptions that are further behind than the buffer that they declared."""
    for subscription in list(topic.subscriptions.values()):
        config = subscription.config
        if config.buffer_messages is None and config.buffer_bytes is None:
            continue
        too_many = config.buffer_messages is not None and subscription.behind() > config.buffer_messages
        too_large = config.buffer_bytes is not None and subscription.backlog_bytes > config.buffer_bytes
        if too_many or too_large:
            yield subscription


def _trim(topic: TopicState, partition: Partition, now_us: int) -> list[AnyOp]:
    """Remove whole batches that are too old, or beyond the byte limit, oldest first. Dead letters are kept."""
    # Without empty batches, whose bytes are gone.
    base, messages, _, _, size, published_us = partition.directory.columns()
    if len(base) == 0:
        return []
    if topic.config.keep_ms is not None:
        # Publish times are by the wall clock. A batch with a time in the future must not keep later batches.
        stamps = np.minimum.accumulate(published_us[::-1])[::-1]
        old = stamps + topic.config.keep_ms * 1000 <= now_us
        count = int(np.argmin(old)) if not old.all() else len(base)
    else:
        newest_first = np.cumsum(size[::-1])
        count = len(base) - int(np.searchsorted(newest_first, topic.config.keep_bytes or 0, "right"))
    if count == 0:
        return []
    stop = int(base[count - 1] + messages[count - 1])
    offset = partition.released.missing(0, stop)
    for table in (partition.dead, *(reader.dead for reader in partition.readers.values())):
        if len(table):
            offset = offset[~table.has(offset)]
    offset = offset[~partition.leased(offset)]
    if len(offset) == 0:
        return []
    return [ops.Remove(topic.number, partition.number, to_ranges(offset), "trimmed")]


def _prune_ids(topic: TopicState) -> None:
    """Drop ids of removed messages from the index once they are about half of it. No operation depends on them."""
    if len(topic.ids) <= IDS_SLACK:  # what is left is counted for few of a thousand topics
        return
    if len(topic.ids) > 2 * sum(p.directory.live_messages() for p in topic.partitions.values()) + IDS_SLACK:
        topic.ids.prune(lambda packed: _gone(topic, packed))


def _gone(topic: TopicState, packed: Int64) -> npt.NDArray[np.bool_]:
    """Return which packed offsets belong to messages that are no longer in the topic."""
    numbers, offsets = packed >> PARTITION_SHIFT, packed & ((1 << PARTITION_SHIFT) - 1)
    gone = np.zeros(len(packed), np.bool_)
    for number in distinct(numbers).tolist():
        mine = np.flatnonzero(numbers == number)
        gone[mine] = topic.partitions[number].released.contains(offsets[mine])
    return gone


def lease_ends_in_ms(state: State, now: Now) -> int | None:
    """Return the milliseconds until a lease ends; None for never."""
    deadline_ms = state.leases.next_deadline_ms()
    return None if deadline_ms is None else max(0, deadline_ms - now.steady_ms)


def expires_in_ms(state: State, now: Now) -> int | None:
    """Return the milliseconds until a message may expire; None for never."""
    next_ms = state.expiry_times.next_ms()
    return None if next_ms is None else max(0, next_ms - now.wall_ms)
