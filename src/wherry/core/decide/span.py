"""Reading a topic as a log: ranges of offsets by partition, bounded in messages and in bytes.

A log reader is a client that has positions instead of leases: for each partition the offset that it reads next. With
`advance` it settles everything below its positions for its subscription, so lag and retention mean the same for a
stream job as for consumers.
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
"""For each partition the offset to read next."""

ADVANCE_STEP = 65_536
"""Messages that one entry settles. Other calls are served between two such entries."""


class ReadBudget(NamedTuple):
    """The most messages and bytes to read."""

    messages: int
    bytes: int


def extents(topic: TopicState) -> list[Extent]:
    """Return the first and the next offset of every partition, also of partitions that never had a message."""
    result = []
    for number in range(topic.config.partitions):
        partition = topic.partitions.get(number)
        start, stop = (0, 0) if partition is None else (partition.released.floor, partition.next_offset)
        result.append(Extent(number, start, stop))
    return result


def at_time(topic: TopicState, at_us: int) -> dict[int, int]:
    """Return for each partition the first offset published at or after a time, or its end if there is none."""
    result = {}
    for number, _, stop in extents(topic):
        partition = topic.partitions.get(number)
        first = None if partition is None else partition.directory.first_published_from(at_us)
        result[number] = stop if first is None else first
    return result


def first_lost(partition: Partition, start: int, stop: int) -> int | None:
    """Return the first message of `start..stop` that is gone and that the log reader should have seen; None if none is.

    Such a message was removed by retention, or its own subscription settled it earlier. Messages that were cancelled,
    amended, expired or transient are not counted as lost. Neither is the replacement that an amend made: if it is gone
    unread, the reader's subscription had settled the original.
    """
    floor = partition.released.floor
    lost = _lost_below(partition, start, min(floor, stop)) if start < floor else None
    if lost is not None or stop <= floor or not len(partition.ends):
        return lost
    offset = partition.ends.offsets()  # above the floor messages are kept, so only dropped ones can be missing
    offset = offset[np.searchsorted(offset, max(start, floor)) : np.searchsorted(offset, stop)]
    offset = offset[(partition.ends.get(offset, "why", 0) == DROPPED) & partition.released.contains(offset)]
    return int(offset[0]) if len(offset) else None


def _lost_below(partition: Partition, start: int, stop: int) -> int | None:
    if stop - start > ENDS_MAX + LOST_SPAN:  # longer than what is remembered about ended messages
        return start
    gone = BitMap64()
    gone.add_range(start, stop)
    gone -= partition.lost  # whole ranges of transient messages, which a restart skips
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
    """What one log reader has still to read in a partition: `start..stop`."""

    topic: TopicState
    partition: Partition
    start: int
    stop: int


def reach(bodies: Bodies, ranges: Sequence[LogRange], budget: ReadBudget) -> list[int]:
    """Return where to stop reading in each range so that all ranges together stay within the budget.

    The budget is first shared evenly; what short ranges leave over goes to the others. A message larger than the whole
    budget is read alone. May raise `Cold`.
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
    """Return the first message of `start..stop` that is still in the partition."""
    while start < stop:
        here = partition.released.missing(start, min(start + ADVANCE_STEP, stop))
        if len(here):
            return int(here[0])
        start += ADVANCE_STEP
    return None


def _reach_one(bodies: Bodies, wanted: LogRange, share: ReadBudget) -> tuple[int, ReadBudget]:
    """Return how far a share of the budget reaches in one range, and how much of it was used.

    Counts whole batches first, then single messages of the batch that does not fit.
    """
    topic, partition, start, stop = wanted
    base, count, _, _, size, _ = partition.directory.between(start, stop)
    end = np.minimum(base + count, stop)
    messages, size = np.cumsum(_kept(partition, np.maximum(base, start), end)), np.cumsum(size)
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
    """Return how many messages of each range (ascending) are still in the partition."""
    if not partition.released.above or not len(start):
        return end - np.maximum(start, partition.released.floor)
    gone = partition.released.within(int(start[0]), int(end[-1]))
    return end - start - (np.searchsorted(gone, end) - np.searchsorted(gone, start))


def _unsettled(reader: Reader, stop: int, count: int) -> Int64:
    """Return the first messages below `stop`, at most `count`, that are neither settled nor dead letters.

    Searches in large steps even for a small `count`: hundreds of thousands of settled messages may come before one.
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
    """Raise `InvalidInput` for a partition that the topic does not have, or an impossible offset."""
    for number, offset in positions.items():
        check.integer("partition", number, 0, topic.config.partitions - 1)
        check.integer("offset", offset, 0, limits.OFFSET_MAX)


def advance(state: State, subscription: SubscriptionState, positions: Positions, now_us: int) -> list[Entry]:
    """Decide the next step of settling everything below `positions`; an empty list when nothing is left to do.

    A step has at most `ADVANCE_STEP` messages. Raises `NotWaiting` if a consumer holds one of them: a subscription is
    read either by position or by consumers.
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
