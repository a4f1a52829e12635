"""How far a reader of the log may go: offsets by partition, bounded in messages and in bytes.

A reader of the log has positions, not leases: for each partition the offset that it reads next. What it is done with it
says by `advance`, which settles everything below for its subscription: so lag and retention mean the same for a stream
job as for consumers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
from pyroaring import BitMap64

from wherry.core.decide.volatile import separate
from wherry.core.index.offsets import members, offsets_of
from wherry.core.state.bodies import Bodies
from wherry.core.state.partition import ENDS_MAX, LOST_SPAN, Partition
from wherry.core.state.reader import Reader
from wherry.core.state.state import State, SubscriptionState, TopicState
from wherry.model import check, limits, ops
from wherry.model.calls.fate import DROPPED
from wherry.model.calls.log import Extent
from wherry.model.errors import NotWaiting
from wherry.model.ops import AnyOp, Entry, to_ranges

Int64: TypeAlias = npt.NDArray[np.int64]
Positions: TypeAlias = Mapping[int, int]
"""The next offset to read of each partition."""

ADVANCE_STEP = 65_536
"""Messages that one entry settles: others get their turn between two of them."""


class ReadBudget(NamedTuple):
    """How much to read at most."""

    messages: int
    bytes: int


def extents(topic: TopicState) -> list[Extent]:
    """What there is of every partition, also of those that never had a message."""
    result = []
    for number in range(topic.config.partitions):
        partition = topic.partitions.get(number)
        start, stop = (0, 0) if partition is None else (partition.released.floor, partition.next_offset)
        result.append(Extent(number, start, stop))
    return result


def at_time(topic: TopicState, at_us: int) -> dict[int, int]:
    """For each partition the offset of the first message published at or after a time; its end if there is none."""
    result = {}
    for number, _, stop in extents(topic):
        partition = topic.partitions.get(number)
        first = None if partition is None else partition.directory.first_published_from(at_us)
        result[number] = stop if first is None else first
    return result


def first_lost(partition: Partition, start: int, stop: int) -> int | None:
    """The first message of `start..stop` that went before it was read: by retention, or settled by its reader before.

    What was cancelled, amended, expired or transient is nobody's loss; nor is what an amend made: if that went unread,
    its reader had settled the message before it.
    """
    floor = partition.released.floor
    lost = _lost_below(partition, start, min(floor, stop)) if start < floor else None
    if lost is not None or stop <= floor or not len(partition.ends):
        return lost
    offset = partition.ends.offsets()  # above the floor messages stay, so only those that were dropped can be missed
    offset = offset[np.searchsorted(offset, max(start, floor)) : np.searchsorted(offset, stop)]
    offset = offset[(partition.ends.get(offset, "why", 0) == DROPPED) & partition.released.contains(offset)]
    return int(offset[0]) if len(offset) else None


def _lost_below(partition: Partition, start: int, stop: int) -> int | None:
    if stop - start > ENDS_MAX + LOST_SPAN:  # more than endings are remembered for
        return start
    gone = BitMap64()
    gone.add_range(start, stop)
    gone -= partition.lost  # whole ranges of transient messages, which a restart passes over
    if len(gone) > ENDS_MAX:
        return int(gone.min())
    offset = offsets_of(gone)
    why, replacement = (
        partition.ends.get(offset, name, default) for name, default in (("why", 0), ("replacement", -1))
    )
    offset = offset[((why == 0) & (replacement < 0)) | (why == DROPPED)]
    if len(offset) and len(partition.ends):
        offset = offset[~np.isin(offset, partition.ends.values("replacement"))]
    return int(offset[0]) if len(offset) else None


class LogRange(NamedTuple):
    """What one reader has still ahead of it in a partition: `start..stop`."""

    topic: TopicState
    partition: Partition
    start: int
    stop: int


def reach(bodies: Bodies, ranges: Sequence[LogRange], budget: ReadBudget) -> list[int]:
    """Where to read to on each wanted, all of them within the budget: evenly first, then whoever can use what is left.

    A single message above the budget is read alone. May raise `Cold`.
    """
    ends = [wanted.start for wanted in ranges]
    far = [wanted.stop - wanted.start for wanted in ranges]
    ahead = sorted((n for n in range(len(ranges)) if far[n] > 0), key=far.__getitem__)
    left = budget
    for even in (True, False):
        waiting = len(ahead)
        for n in ahead:
            share = ReadBudget(left.messages // waiting, left.bytes // waiting) if even else left
            ends[n], used = _reach_one(bodies, ranges[n]._replace(start=ends[n]), share)
            left, waiting = ReadBudget(left.messages - used.messages, left.bytes - used.bytes), waiting - 1
    if left.messages == budget.messages:
        for n in ahead:
            first = _first_kept(ranges[n].partition, ends[n], ranges[n].stop)
            if first is not None:
                ends[n] = first + 1
                break
            ends[n] = ranges[n].stop
    return ends


def _first_kept(partition: Partition, start: int, stop: int) -> int | None:
    """The first message of `start..stop` that is still there."""
    while start < stop:
        here = partition.released.missing(start, min(start + ADVANCE_STEP, stop))
        if len(here):
            return int(here[0])
        start += ADVANCE_STEP
    return None


def _reach_one(bodies: Bodies, wanted: LogRange, share: ReadBudget) -> tuple[int, ReadBudget]:
    """How far the share goes on one wanted, and what it took of it: by batches, the last one message by message."""
    topic, partition, start, stop = wanted
    directory = partition.directory
    low, high = np.searchsorted(directory.base, (start, stop))
    low = max(0, int(low) - 1)  # the batch that `start` lies in
    base, count = directory.base[low:high], directory.count[low:high]
    here = (directory.live[low:high] > 0) & (base + count > start)
    base, end = base[here], np.minimum(base[here] + count[here], stop)
    messages = np.cumsum(_kept(partition, np.maximum(base, start), end))
    size = np.cumsum(directory.bytes[low:high][here])
    whole = int(np.argmin(np.append((messages <= share.messages) & (size <= share.bytes), False)))
    used = ReadBudget(int(messages[whole - 1]), int(size[whole - 1])) if whole else ReadBudget(0, 0)
    if whole == len(base):
        return stop, used
    at = int(end[whole - 1]) if whole else start
    room = ReadBudget(share.messages - used.messages, share.bytes - used.bytes)
    offset = partition.released.missing(max(at, int(base[whole])), int(end[whole]))[: room.messages]
    if len(offset) == 0:
        return at, used
    sizes = bodies.sizes(topic.number, partition.number, offset)
    fitting = int(np.searchsorted(np.cumsum(sizes), room.bytes, "right"))
    if fitting:
        at = int(offset[fitting - 1]) + 1
        used = ReadBudget(used.messages + fitting, used.bytes + int(sizes[:fitting].sum()))
    return at, used


def _kept(partition: Partition, start: Int64, end: Int64) -> Int64:
    """How many messages of each stretch, ascending, are still there."""
    if not partition.released.above or not len(start):
        return end - np.maximum(start, partition.released.floor)
    gone = partition.released.within(int(start[0]), int(end[-1]))
    return end - start - (np.searchsorted(gone, end) - np.searchsorted(gone, start))


def _unsettled(reader: Reader, stop: int, count: int) -> Int64:
    """Some of the first messages below `stop` that are neither settled nor dead letters; at most `count`.

    It looks in large steps, however few are wanted: hundreds of thousands may lie settled before the next one.
    """
    start = reader.settled.floor
    while start < stop:
        offset = reader.settled.missing(start, min(start + ADVANCE_STEP, stop))
        if len(reader.dead):
            offset = offset[~reader.dead.has(offset)]
        if len(offset):
            return offset[:count]
        start += ADVANCE_STEP
    return np.empty(0, np.int64)


def check_positions(topic: TopicState, positions: Positions) -> None:
    """Partitions that the topic has, and offsets that can be; else `InvalidInput`."""
    for number, offset in positions.items():
        check.integer("partition", number, 0, topic.config.partitions - 1)
        check.integer("offset", offset, 0, limits.OFFSET_MAX)


def advance(state: State, subscription: SubscriptionState, positions: Positions, now_us: int) -> list[Entry]:
    """The next step of settling everything below `positions`, at most `ADVANCE_STEP` messages; empty when it is done.

    `NotWaiting` if somebody holds one of them on lease: a subscription is read by position, or by consumers.
    """
    room = ADVANCE_STEP
    steps: list[AnyOp] = []
    for number, position in positions.items():
        reader, partition = subscription.readers.get(number), subscription.topic.partitions.get(number)
        if reader is None or partition is None or room <= 0:
            continue
        offset = _unsettled(reader, min(position, partition.next_offset), room)
        room -= len(offset)
        if reader.leased and (held := members(reader.leased, offset)).any():
            raise NotWaiting(f"{number}-{int(offset[held][0])}", "leased")
        if len(offset):
            steps.append(ops.Settle(subscription.number, number, to_ranges(offset), "acked"))
    return separate(state, now_us, steps)
