"""Waits for the fates of messages, in process: one future for a publish, however many messages it had.

A watch is updated by consumers at hand-overs, and by applied entries when messages end. It never changes the state, and
while there is no watch, it costs nothing.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left, bisect_right
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from pyroaring import BitMap64

from wherry.core.apply.step import Effects
from wherry.core.index.offsets import bitmap_of, offsets_of
from wherry.core.state import fates
from wherry.core.state.partition import Partition
from wherry.core.state.state import State
from wherry.model.calls.fate import (
    DELIVERED,
    DROPPED,
    WAITING,
    Until,
)
from wherry.model.errors import LimitReached

Int64: TypeAlias = npt.NDArray[np.int64]

WATCHES_MAX = 65_536
"""Watches at a time."""

ANYWHERE = -1
"""The start of a watch whose offsets are no longer one run."""


class FateWatch:
    """Messages of one publish, and which of them have not got as far as the caller waits for."""

    def __init__(self, topic: int, partition: Int64, offset: Int64, until: Until) -> None:
        self.topic, self.partition, self.offset = topic, partition, offset.copy()
        self.until = until
        self.code = np.full(len(offset), WAITING, np.int64)
        """The fate of each message; `WAITING` until it has got that far."""
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._left: dict[int, BitMap64] = {}
        self.starts: dict[int, int] = {}
        """The first offset of the publish in each partition, by which `Ranges` finds this watch."""

    def begin(self, partition: Partition) -> None:
        """Read the fates in a partition once; from then on `update` and `handed` change them."""
        rows = np.flatnonzero(self.partition == partition.number)
        given = self.offset[rows]
        self.offset[rows] = at = fates.replacements(partition, given)
        self.code[rows] = code = self._come(partition, at)
        left = bitmap_of(np.sort(at[code == WAITING]))
        if left:
            self._left[partition.number] = left
            self.starts[partition.number] = int(given.min()) if np.array_equal(at, given) else ANYWHERE

    def _come(self, partition: Partition, offset: Int64) -> Int64:
        code = fates.ended(partition, offset)
        if self.until == "delivered":
            code[(code == WAITING) & fates.was_delivered(partition, offset)] = DELIVERED
        return code

    def update(self, partition: Partition, offset: Int64 | None) -> None:
        """Update messages (None: any) that may have ended."""
        hits = self._among(partition.number, offset)
        if len(hits):
            self._note(partition.number, hits, fates.ending(partition, hits))

    def handed(self, number: int, offset: Int64) -> None:
        """Update messages that were handed to a consumer."""
        hits = self._among(number, offset)
        if len(hits) and self.until == "delivered":
            self._note(number, hits, np.full(len(hits), DELIVERED, np.int64))

    def moved(self, number: int, old: int, new: int) -> None:
        """Follow a message that was amended to its new offset."""
        left = self._left.get(number)
        if left is not None and old in left:
            left.remove(old)
            left.add(new)
        self.offset[(self.partition == number) & (self.offset == old)] = new

    def drop(self) -> None:
        """End the watch, since its topic was deleted: messages that had not ended are dropped."""
        self.code[self.code == WAITING] = DROPPED
        self._left.clear()
        self.wake()

    def wake(self) -> None:
        """End the wait."""
        if not self.done.done():
            self.done.set_result(None)

    def is_complete(self) -> bool:
        """Return whether every message has got as far as the caller waits for."""
        return not self._left

    def _among(self, number: int, offset: Int64 | None) -> Int64:
        left = self._left.get(number)
        if left is None:
            return np.empty(0, np.int64)
        return offsets_of(left if offset is None else left & bitmap_of(offset))

    def _note(self, number: int, offset: Int64, code: Int64) -> None:
        come = code != WAITING
        rows = np.flatnonzero(self.partition == number)
        rows = rows[np.argsort(self.offset[rows], kind="stable")]
        self.code[rows[np.searchsorted(self.offset[rows], offset[come])]] = code[come]
        left = self._left[number]
        left -= bitmap_of(offset[come])
        if not left:
            del self._left[number]
            if not self._left:
                self.wake()


class Ranges:
    """Watches of one partition by first offset; publishes are runs of offsets side by side, so few watches match."""

    __slots__ = ("_starts", "_watches")

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._watches: list[FateWatch] = []

    def __len__(self) -> int:
        return len(self._starts)

    def add(self, start: int, watch: FateWatch) -> None:
        """Add a watch."""
        at = bisect_right(self._starts, start)
        self._starts.insert(at, start)
        self._watches.insert(at, watch)

    def remove(self, start: int, watch: FateWatch) -> None:
        """Remove a watch."""
        at = self._watches.index(watch, bisect_left(self._starts, start))
        del self._starts[at], self._watches[at]

    def near(self, offset: Int64 | None) -> list[FateWatch]:
        """Return the watches that may wait for one of these offsets (sorted)."""
        if offset is None or not len(offset) or not self._starts:
            return list(self._watches)
        anywhere = bisect_right(self._starts, ANYWHERE)
        before = max(anywhere, bisect_right(self._starts, int(offset[0])) - 1)
        low = bisect_left(self._starts, self._starts[before]) if before < len(self._starts) else before
        return self._watches[:anywhere] + self._watches[low : bisect_right(self._starts, int(offset[-1]))]


class Watches:
    """All watches, by topic and by partition."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._by_topic: dict[int, dict[FateWatch, None]] = {}
        self._by_place: dict[tuple[int, int], Ranges] = {}
        self._count = 0

    def __bool__(self) -> bool:
        return self._count > 0

    def add(self, watch: FateWatch) -> None:
        """Add a watch that has read its fates already."""
        if self._count >= WATCHES_MAX:
            raise LimitReached("waits for a fate", WATCHES_MAX, self._count + 1)
        self._by_topic.setdefault(watch.topic, {})[watch] = None
        for number, start in watch.starts.items():
            self._by_place.setdefault((watch.topic, number), Ranges()).add(start, watch)
        self._count += 1

    def remove(self, watch: FateWatch) -> None:
        """Remove a watch that has ended, or whose caller gave up."""
        watches = self._by_topic[watch.topic]
        del watches[watch]
        self._count -= 1
        if not watches:
            del self._by_topic[watch.topic]
        for number, start in watch.starts.items():
            ranges = self._by_place[watch.topic, number]
            ranges.remove(start, watch)
            if not len(ranges):
                del self._by_place[watch.topic, number]

    def _near(self, topic: int, number: int, offset: Int64 | None) -> list[FateWatch]:
        ranges = self._by_place.get((topic, number))
        return [] if ranges is None else ranges.near(offset)

    def handed(self, topic: int, number: int, offset: Int64) -> None:
        """Update watches of messages that were handed to a consumer."""
        for watch in self._near(topic, number, np.sort(offset)):
            watch.handed(number, offset)

    def update(self, effects: Effects) -> None:
        """Update watches by the effects of an entry."""
        for number, at, old, new in effects.amended:
            for watch in self._near(number, at, np.array([old], np.int64)):
                self._move(watch, at, old, new)
        for number, at, offset in effects.maybe_ended:
            if number in self._by_topic and number in self._state.topics:
                partition = self._state.topics[number].partitions[at]
                for watch in self._near(number, at, None if offset is None else np.sort(offset)):
                    watch.update(partition, offset)
        for number in effects.dropped_topics:
            for watch in list(self._by_topic.get(number, ())):
                watch.drop()

    def _move(self, watch: FateWatch, number: int, old: int, new: int) -> None:
        """Follow an amended message to its new offset; from now on its watch is updated by every change."""
        watch.moved(number, old, new)
        ranges = self._by_place[watch.topic, number]
        ranges.remove(watch.starts[number], watch)
        watch.starts[number] = ANYWHERE
        ranges.add(ANYWHERE, watch)

    def wake_all(self) -> None:
        """Wake all callers, since the broker closes: they raise the reason."""
        for watches in self._by_topic.values():
            for watch in watches:
                watch.wake()
