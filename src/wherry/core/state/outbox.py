"""Callbacks of a topic: which producers want to hear of which messages, and what is still to be told.

A watched message that comes to its end leaves an outcome here, in the same step and as durable as the end itself; it
stays until somebody says that it was told. A dead letter is watched on: people may send it back, and then its end is
another. Rows go by place (partition and offset), outcomes by the place that the message was published at. Outcomes
stand in a queue for each URL, so that those who cannot be reported now cost the others nothing.
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
"""For each topic; beyond that a sixteenth of them, the oldest, are let go unreported."""

URLS_MAX = 16_384
"""Different callback URLs in use at a time, for each topic."""

SLACK = 64
"""Places of outcomes reported since that may stand in any queue."""


class _Queue:
    """Places of the outcomes for one URL, in the order in which they came. Those reported since are passed over."""

    __slots__ = ("_begin", "_places", "live")

    def __init__(self) -> None:
        self._places = array("q")
        self._begin = 0
        self.live = 0
        """How many of the places have an outcome."""

    def put(self, places: Int64) -> None:
        """More came."""
        self._places.frombytes(places.tobytes())
        self.live += len(places)

    def head(self) -> int:
        """The first place, reported or not."""
        return self._places[self._begin]

    def forget(self, count: int, outcomes: OffsetTable) -> None:
        """So many were taken out of the outcomes; their places go when they are more than half."""
        self.live -= count
        if len(self._places) > 2 * self.live + SLACK:
            places = np.array(self._places[self._begin :])
            self._places, self._begin = array("q", places[outcomes.has(places)].tobytes()), 0
        else:
            self._pass_over(outcomes.has(np.array(self._places[self._begin : self._begin + count + SLACK])))

    def _pass_over(self, unreported: Mask) -> None:
        """What was reported lies in front, as a rule: it is not looked at again."""
        self._begin += int(np.argmax(unreported)) if unreported.any() else len(unreported)

    def first(self, limit: int, outcomes: OffsetTable, hidden: Int64) -> list[int]:
        """The first places that have an outcome and are not hidden."""
        found: dict[int, None] = {}  # a place stands here twice if there was other news of it after it was told
        at = self._begin
        while len(found) < limit and at < len(self._places):
            places = np.array(self._places[at : at + limit + SLACK])
            unreported = outcomes.has(places)
            if at == self._begin:
                self._pass_over(unreported)
            found |= dict.fromkeys(places[unreported & ~np.isin(places, hidden)].tolist())
            at += len(places)
        return list(found)[:limit]


class Outbox:
    """What is watched, and what has come of it."""

    __slots__ = ("_numbers", "_queues", "_sweep_at", "outcomes", "urls", "watched")

    def __init__(self) -> None:
        self.watched = OffsetTable(WATCHED)
        self.outcomes = OffsetTable(OUTCOMES)
        self.urls: dict[int, str] = {}
        self._numbers: dict[str, int] = {}
        self._queues: dict[int, _Queue] = {}
        """By the number of the URL; none without an outcome."""
        self._sweep_at = URLS_MAX // 16

    def check(self, url: str) -> None:
        """`LimitReached` if one more URL would be too many."""
        if url not in self._numbers and len(self.urls) >= URLS_MAX and len(self._used()) >= URLS_MAX:
            raise LimitReached("different callback URLs of the topic", URLS_MAX, URLS_MAX + 1)

    def watch(self, places: Int64, url: str) -> None:
        """Tell `url` what becomes of these."""
        number = self._numbers.get(url)
        if number is None:
            if len(self.urls) >= self._sweep_at:
                self._sweep()
            number = next(reversed(self.urls), 0) + 1
            self.urls[number], self._numbers[url] = url, number
        self.watched.put(places, url=number, first=places, reported=0)

    def _used(self) -> list[int]:
        rows = distinct(np.concatenate((self.watched.unordered()[1], self.outcomes.unordered()[1])))
        return [int(number) for number in rows]

    def _sweep(self) -> None:
        """Forget URLs that no row refers to; the rarer, the more there are."""
        self.load_urls({number: self.urls[number] for number in self._used()})

    def load_urls(self, urls: dict[int, str]) -> None:
        """These and no others."""
        self.urls = urls
        self._numbers = {url: number for number, url in urls.items()}
        self._sweep_at = min(URLS_MAX, max(URLS_MAX // 16, 2 * len(urls)))

    def load(self, urls: dict[int, str], watched: Int64, outcomes: Int64) -> None:
        """The way back from a checkpoint, which has the rows of both tables."""
        self.load_urls(urls)
        self.watched.load(watched)
        self.outcomes.load(outcomes)
        places, url, _, at_ms = outcomes
        order = np.lexsort((places, at_ms))
        self._enqueue(places[order], url[order])

    def _enqueue(self, places: Int64, url: Int64) -> None:
        order = np.argsort(url, kind="stable")
        for rows in np.split(order, starts(url[order])[1:]) if len(url) else ():
            self._queues.setdefault(int(url[rows[0]]), _Queue()).put(places[rows])

    def _dequeue(self, url: Int64) -> None:
        """Outcomes for these URLs were taken out."""
        ordered = np.sort(url)
        begins = starts(ordered)
        counts = np.diff(np.append(begins, len(ordered)))
        for number, count in zip(ordered[begins].tolist(), counts.tolist(), strict=True):
            queue = self._queues[number]
            queue.forget(count, self.outcomes)
            if not queue.live:
                del self._queues[number]

    def move(self, old: Int64, new: Int64) -> None:
        """A message was amended: the one in its place is watched now."""
        if self.watched.has(old)[0]:
            columns = {name: self.watched.get(old, name, 0) for name in WATCHED}
            self.watched.remove(old)
            self.watched.put(new, **columns)

    def among(self, partition: int, offset: Int64 | None) -> Int64:
        """Watched places among some offsets of a partition; None for all of it."""
        if offset is not None:
            places = PackedOffset.pack(partition, offset)
            return places[self.watched.has(places)]
        places = self.watched.offsets()
        first, end = PackedOffset.pack(partition, np.array([0])), PackedOffset.pack(partition + 1, np.array([0]))
        return places[np.searchsorted(places, first)[0] : np.searchsorted(places, end)[0]]

    def conclude(self, places: Int64, fates: Int64, may_return: Mask, at_ms: int) -> tuple[Int64, int]:
        """Watched messages came to their end. What is to be reported now (first places), and how many went unreported.

        `may_return` says which are dead letters that can be sent back.
        """
        url, first, reported = (self.watched.get(places, name, 0) for name in WATCHED)
        self.watched.remove(places)
        again = may_return
        self.watched.put(places[again], url=url[again], first=first[again], reported=fates[again])
        news = fates != reported
        new = news & ~self.outcomes.has(first)
        self._enqueue(first[new], url[new])
        self.outcomes.put(first[news], url=url[news], fate=fates[news], at_ms=at_ms)
        return first[news], self._make_room()

    def _make_room(self) -> int:
        if len(self.outcomes) <= OUTCOMES_MAX:
            return 0
        rows = self.outcomes.columns()
        oldest = np.argsort(rows[1 + OUTCOMES.index("at_ms")], kind="stable")
        oldest = np.sort(oldest[: rows.shape[1] - OUTCOMES_MAX * 15 // 16])
        self.outcomes.remove(rows[0, oldest])
        self._dequeue(rows[1 + OUTCOMES.index("url"), oldest])
        return len(oldest)

    def reported(self, places: Int64, fates: Int64) -> None:
        """These were told; an outcome that has changed meanwhile stays."""
        places = places[self.outcomes.get(places, "fate", -1) == fates]
        url = self.outcomes.get(places, "url", 0)
        self.outcomes.remove(places)
        self._dequeue(url)
        if not len(self.outcomes) and not len(self.watched):
            self.load_urls({})

    def unreported(self, topic: str, limit: int, hidden: Int64, without: Collection[str]) -> list[Outcome]:
        """What is to be told: neither what is `hidden` (places), nor to the URLs `without`.

        URL by URL, the one that has waited longest first, and for each in the order in which it came. There may be a
        million outcomes: only those that are wanted are looked at.
        """
        barred = {self._numbers.get(text) for text in without}
        queues = [queue for number, queue in self._queues.items() if number not in barred]
        heads = np.array([queue.head() for queue in queues], np.int64)
        found: list[int] = []
        for index in np.argsort(self.outcomes.get(heads, "at_ms", 0), kind="stable").tolist():
            if len(found) >= limit:
                break
            found += queues[index].first(limit - len(found), self.outcomes, hidden)
        places = np.array(found, np.int64)
        columns = (self.outcomes.get(places, name, 0).tolist() for name in OUTCOMES)
        return [
            self.outcome(topic, place, number, FATES[code], when)
            for place, number, code, when in zip(found, *columns, strict=True)
        ]

    def outcome(self, topic: str, place: int, url: int, fate: str, at_ms: int) -> Outcome:
        """A row in words."""
        partition, offset = PackedOffset.unpack(place)
        return Outcome(topic, partition, offset, f"{partition}-{offset}", self.urls[url], fate, at_ms)
