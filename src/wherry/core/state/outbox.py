"""Callbacks of a topic: which messages are watched, and which outcomes still have to be sent to producers.

When a watched message ends, its outcome is recorded here in the same step, as durable as the end itself. It stays until
a `Reported` operation removes it. A dead letter stays watched, because it may be redriven and then end in another way.
Rows of `watched` are keyed by the packed offset (partition and offset) of the message as it is now; outcomes by the
packed offset that it was published at. Each URL has a queue of outcomes, so that a URL that cannot be reached costs the
others nothing.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from wherry.core.index.ids import PackedOffset
from wherry.core.index.offsets import distinct, starts
from wherry.core.index.table import OffsetTable
from wherry.model.calls.fate import FATES, Outcome
from wherry.model.errors import LimitReached

Int64: TypeAlias = npt.NDArray[np.int64]
Mask: TypeAlias = npt.NDArray[np.bool_]

WATCHED = ("url", "first", "reported")
OUTCOMES = ("url", "fate", "at_ms")

OUTCOMES_MAX = 1_000_000
"""Kept for each topic. Beyond that the oldest sixteenth is dropped unreported."""

URLS_MAX = 16_384
"""Different callback URLs in use at a time, for each topic."""

SLACK = 64
"""Packed offsets without an outcome that may remain in a queue."""


class _Queue:
    """Packed offsets of the outcomes for one URL, in order of arrival. Outcomes reported since are skipped."""

    __slots__ = ("_begin", "_packed", "live")

    def __init__(self) -> None:
        self._packed = array("q")
        self._begin = 0
        self.live = 0
        """How many of the packed offsets have an outcome."""

    def put(self, packed: Int64) -> None:
        """Append outcomes."""
        self._packed.frombytes(packed.tobytes())
        self.live += len(packed)

    def head(self) -> int:
        """Return the first packed offset, whether its outcome is still there or not."""
        return self._packed[self._begin]

    def forget(self, count: int, outcomes: OffsetTable) -> None:
        """Note that `count` outcomes were removed; compact the queue when they are more than half of it."""
        self.live -= count
        if len(self._packed) > 2 * self.live + SLACK:
            packed = np.array(self._packed[self._begin :])
            self._packed, self._begin = array("q", packed[outcomes.has(packed)].tobytes()), 0
        else:
            self._pass_over(outcomes.has(np.array(self._packed[self._begin : self._begin + count + SLACK])))

    def _pass_over(self, unreported: Mask) -> None:
        """Skip the reported outcomes at the front, where most of them are, so that they are not tested again."""
        self._begin += int(np.argmax(unreported)) if unreported.any() else len(unreported)

    def first(self, limit: int, outcomes: OffsetTable, hidden: Int64) -> list[int]:
        """Return the first packed offsets that have an outcome and are not hidden."""
        # A message is twice in the queue if it got another outcome after the first was reported.
        found: dict[int, None] = {}
        at = self._begin
        while len(found) < limit and at < len(self._packed):
            packed = np.array(self._packed[at : at + limit + SLACK])
            unreported = outcomes.has(packed)
            if at == self._begin:
                self._pass_over(unreported)
            found |= dict.fromkeys(packed[unreported & ~np.isin(packed, hidden)].tolist())
            at += len(packed)
        return list(found)[:limit]


class Outbox:
    """Watched messages, and the outcomes that are not reported yet."""

    __slots__ = ("_numbers", "_queues", "_sweep_at", "outcomes", "urls", "watched")

    def __init__(self) -> None:
        self.watched = OffsetTable(WATCHED)
        self.outcomes = OffsetTable(OUTCOMES)
        self.urls: dict[int, str] = {}
        self._numbers: dict[str, int] = {}
        self._queues: dict[int, _Queue] = {}
        """By the number of the URL; a queue without an outcome is removed."""
        self._sweep_at = URLS_MAX // 16

    def check(self, url: str) -> None:
        """Raise `LimitReached` if one more URL would be too many."""
        if url not in self._numbers and len(self.urls) >= URLS_MAX and len(self._used()) >= URLS_MAX:
            raise LimitReached("different callback URLs of the topic", URLS_MAX, URLS_MAX + 1)

    def watch(self, packed: Int64, url: str) -> None:
        """Watch messages: their outcomes are to be sent to `url`."""
        number = self._numbers.get(url)
        if number is None:
            if len(self.urls) >= self._sweep_at:
                self._sweep()
            number = next(reversed(self.urls), 0) + 1
            self.urls[number], self._numbers[url] = url, number
        self.watched.put(packed, url=number, first=packed, reported=0)

    def _used(self) -> list[int]:
        rows = distinct(np.concatenate((self.watched.unordered()[1], self.outcomes.unordered()[1])))
        return [int(number) for number in rows]

    def _sweep(self) -> None:
        """Forget URLs that no row refers to. Runs the less often the more URLs there are."""
        self.load_urls({number: self.urls[number] for number in self._used()})

    def load_urls(self, urls: dict[int, str]) -> None:
        """Replace all URLs."""
        self.urls = urls
        self._numbers = {url: number for number, url in urls.items()}
        self._sweep_at = min(URLS_MAX, max(URLS_MAX // 16, 2 * len(urls)))

    def load(self, urls: dict[int, str], watched: Int64, outcomes: Int64) -> None:
        """Load the rows of both tables from a checkpoint."""
        self.load_urls(urls)
        self.watched.load(watched)
        self.outcomes.load(outcomes)
        packed, url, _, at_ms = outcomes
        order = np.lexsort((packed, at_ms))
        self._enqueue(packed[order], url[order])

    def _enqueue(self, packed: Int64, url: Int64) -> None:
        order = np.argsort(url, kind="stable")
        for rows in np.split(order, starts(url[order])[1:]) if len(url) else ():
            self._queues.setdefault(int(url[rows[0]]), _Queue()).put(packed[rows])

    def _dequeue(self, url: Int64) -> None:
        """Remove outcomes of these URLs from their queues."""
        ordered = np.sort(url)
        begins = starts(ordered)
        counts = np.diff(np.append(begins, len(ordered)))
        for number, count in zip(ordered[begins].tolist(), counts.tolist(), strict=True):
            queue = self._queues[number]
            queue.forget(count, self.outcomes)
            if not queue.live:
                del self._queues[number]

    def move(self, old: Int64, new: Int64) -> None:
        """Watch the replacement of an amended message instead of the original."""
        if self.watched.has(old)[0]:
            columns = {name: self.watched.get(old, name, 0) for name in WATCHED}
            self.watched.remove(old)
            self.watched.put(new, **columns)

    def among(self, partition: int, offset: Int64 | None) -> Int64:
        """Return the watched messages among some offsets of a partition; None for all of it."""
        if offset is not None:
            packed = PackedOffset.pack(partition, offset)
            return packed[self.watched.has(packed)]
        packed = self.watched.offsets()
        first, end = PackedOffset.pack(partition, np.array([0])), PackedOffset.pack(partition + 1, np.array([0]))
        return packed[np.searchsorted(packed, first)[0] : np.searchsorted(packed, end)[0]]

    def conclude(self, packed: Int64, fates: Int64, may_return: Mask, at_ms: int) -> tuple[Int64, int]:
        """Record that watched messages have ended.

        Returns the messages with a new outcome (by the packed offsets of their publish), and how many outcomes were
        dropped to make room. `may_return` marks dead letters, which can be redriven.
        """
        url, first, reported = (self.watched.get(packed, name, 0) for name in WATCHED)
        self.watched.remove(packed)
        again = may_return
        self.watched.put(packed[again], url=url[again], first=first[again], reported=fates[again])
        changed = fates != reported
        new = changed & ~self.outcomes.has(first)
        self._enqueue(first[new], url[new])
        self.outcomes.put(first[changed], url=url[changed], fate=fates[changed], at_ms=at_ms)
        return first[changed], self._make_room()

    def _make_room(self) -> int:
        if len(self.outcomes) <= OUTCOMES_MAX:
            return 0
        rows = self.outcomes.columns()
        oldest = np.argsort(rows[1 + OUTCOMES.index("at_ms")], kind="stable")
        oldest = np.sort(oldest[: rows.shape[1] - OUTCOMES_MAX * 15 // 16])
        self.outcomes.remove(rows[0, oldest])
        self._dequeue(rows[1 + OUTCOMES.index("url"), oldest])
        return len(oldest)

    def reported(self, packed: Int64, fates: Int64) -> None:
        """Remove outcomes that were reported; an outcome that has changed meanwhile stays."""
        packed = packed[self.outcomes.get(packed, "fate", -1) == fates]
        url = self.outcomes.get(packed, "url", 0)
        self.outcomes.remove(packed)
        self._dequeue(url)
        if not len(self.outcomes) and not len(self.watched):
            self.load_urls({})

    def unreported(self, topic: str, limit: int, hidden: Int64, without: Collection[str]) -> list[Outcome]:
        """Return outcomes to report, without those in `hidden` (packed offsets) and those of the URLs `without`.

        URL by URL, the URL that has waited longest first, and within a URL in order of arrival. There may be a million
        outcomes, so only the returned ones are looked up.
        """
        barred = {self._numbers.get(text) for text in without}
        queues = [queue for number, queue in self._queues.items() if number not in barred]
        heads = np.array([queue.head() for queue in queues], np.int64)
        found: list[int] = []
        for index in np.argsort(self.outcomes.get(heads, "at_ms", 0), kind="stable").tolist():
            if len(found) >= limit:
                break
            found += queues[index].first(limit - len(found), self.outcomes, hidden)
        packed = np.array(found, np.int64)
        columns = (self.outcomes.get(packed, name, 0).tolist() for name in OUTCOMES)
        return [
            self.outcome(topic, packed_offset, number, FATES[code], when)
            for packed_offset, number, code, when in zip(found, *columns, strict=True)
        ]

    def outcome(self, topic: str, packed_offset: int, url: int, fate: str, at_ms: int) -> Outcome:
        """Return a row as an `Outcome`."""
        partition, offset = PackedOffset.unpack(packed_offset)
        return Outcome(topic, partition, offset, f"{partition}-{offset}", self.urls[url], fate, at_ms)
