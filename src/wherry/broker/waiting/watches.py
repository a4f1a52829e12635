"""Those who wait in process for what becomes of messages: one future for a publish, however many messages it had.

A watch hears of hand-overs from consumers, and of ends from the entries that are applied. It never changes anything,
and while there is none nobody pays for it.
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
"""Waits for a fate at a time."""

ANYWHERE = -1
"""Where a watch is found that no longer waits for a run of offsets."""


class Watch:
    """Messages of one publish, and which of them are still to come as far as somebody waits for."""

    def __init__(self, topic: int, partition: Int64, offset: Int64, until: Until) -> None:
        self.topic, self.partition, self.offset = topic, partition, offset.copy()
        self.until = until
        self.code = np.full(len(offset), WAITING, np.int64)
        """The fate of each that has come so far."""
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._left: dict[int, BitMap64] = {}
        self.starts: dict[int, int] = {}
        """Where it is found: the first offset of the publish in each partition."""

    def begin(self, partition: Partition) -> None:
        """Look once; from then on it must be told."""
        rows = np.flatnonzero(self.partition == partition.number)
        given = self.offset[rows]
        self.offset[rows] = at = fates.heirs(partition, given)
        self.code[rows] = code = self._come(partition, at)
        left = bitmap_of(np.sort(at[code == WAITING]))
        if left:
            self._left[partition.number] = left
            self.starts[partition.number] = int(given.min()) if np.array_equal(at, given) else ANYWHERE

    def _come(self, partition: Partition, offset: Int64) -> Int64:
        code = fates.ended(partition, offset)
        if self.until == "delivered":
            code[(code == WAITING) & fates.is_handed(partition, offset)] = DELIVERED
        return code

    def look(self, partition: Partition, offset: Int64 | None) -> None:
        """These (None: any) may have come to their end."""
        hits = self._among(partition.number, offset)
        if len(hits):
            self._note(partition.number, hits, fates.ending(partition, hits))

    def handed(self, number: int, offset: Int64) -> None:
        """These were handed to a consumer."""
        hits = self._among(number, offset)
        if len(hits) and self.until == "delivered":
            self._note(number, hits, np.full(len(hits), DELIVERED, np.int64))

    def moved(self, number: int, old: int, new: int) -> None:
        """A message was amended."""
        left = self._left.get(number)
        if left is not None and old in left:
            left.remove(old)
            left.add(new)
        self.offset[(self.partition == number) & (self.offset == old)] = new

    def drop(self) -> None:
        """The topic went, and with it what had not come yet."""
        self.code[self.code == WAITING] = DROPPED
        self._left.clear()
        self.wake()

    def wake(self) -> None:
        """No longer to wait."""
        if not self.done.done():
            self.done.set_result(None)

    def is_complete(self) -> bool:
        """Whether all have come."""
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
    """Watches of one partition by where each begins: publishes are runs of offsets side by side, so few are near."""

    __slots__ = ("_starts", "_watches")

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._watches: list[Watch] = []

    def __len__(self) -> int:
        return len(self._starts)

    def add(self, start: int, watch: Watch) -> None:
        """One more."""
        at = bisect_right(self._starts, start)
        self._starts.insert(at, start)
        self._watches.insert(at, watch)

    def remove(self, start: int, watch: Watch) -> None:
        """One less."""
        at = self._watches.index(watch, bisect_left(self._starts, start))
        del self._starts[at], self._watches[at]

    def near(self, offset: Int64 | None) -> list[Watch]:
        """Those that may wait for one of these (sorted)."""
        if offset is None or not len(offset) or not self._starts:
            return list(self._watches)
        anywhere = bisect_right(self._starts, ANYWHERE)
        before = max(anywhere, bisect_right(self._starts, int(offset[0])) - 1)
        low = bisect_left(self._starts, self._starts[before]) if before < len(self._starts) else before
        return self._watches[:anywhere] + self._watches[low : bisect_right(self._starts, int(offset[-1]))]


class Watches:
    """Every watch, by topic and by place."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._by_topic: dict[int, dict[Watch, None]] = {}
        self._by_place: dict[tuple[int, int], Ranges] = {}
        self._count = 0

    def __bool__(self) -> bool:
        return self._count > 0

    def add(self, watch: Watch) -> None:
        """One more; it has looked already."""
        if self._count >= WATCHES_MAX:
            raise LimitReached("waits for a fate", WATCHES_MAX, self._count + 1)
        self._by_topic.setdefault(watch.topic, {})[watch] = None
        for number, start in watch.starts.items():
            self._by_place.setdefault((watch.topic, number), Ranges()).add(start, watch)
        self._count += 1

    def remove(self, watch: Watch) -> None:
        """It has ended, or nobody waits for it any more."""
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

    def _near(self, topic: int, number: int, offset: Int64 | None) -> list[Watch]:
        ranges = self._by_place.get((topic, number))
        return [] if ranges is None else ranges.near(offset)

    def handed(self, topic: int, number: int, offset: Int64) -> None:
        """Messages were handed to a consumer."""
        for watch in self._near(topic, number, np.sort(offset)):
            watch.handed(number, offset)

    def look(self, effects: Effects) -> None:
        """An entry was applied."""
        for number, at, old, new in effects.amended:
            for watch in self._near(number, at, np.array([old], np.int64)):
                self._move(watch, at, old, new)
        for number, at, offset in effects.over:
            if number in self._by_topic and number in self._state.topics:
                partition = self._state.topics[number].partitions[at]
                for watch in self._near(number, at, None if offset is None else np.sort(offset)):
                    watch.look(partition, offset)
        for number in effects.dropped_topics:
            for watch in list(self._by_topic.get(number, ())):
                watch.drop()

    def _move(self, watch: Watch, number: int, old: int, new: int) -> None:
        """An amended message stands elsewhere: its watch is asked about everything from now on."""
        watch.moved(number, old, new)
        ranges = self._by_place[watch.topic, number]
        ranges.remove(watch.starts[number], watch)
        watch.starts[number] = ANYWHERE
        ranges.add(ANYWHERE, watch)

    def wake_all(self) -> None:
        """The broker ends: whoever waits learns why."""
        for watches in self._by_topic.values():
            for watch in watches:
                watch.wake()
