"""Callbacks of a topic: which producers want to hear of which messages, and what is still to be told.

A watched message that comes to its end leaves an outcome here, in the same step and as durable as the end itself; it
stays until somebody says that it was told. A dead letter is watched on: people may send it back, and then its end is
another. Rows go by place (partition and offset), outcomes by the place that the message was published at.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from wherry.core.ids import Place
from wherry.core.offsets import distinct
from wherry.core.table import OffsetTable
from wherry.model.errors import LimitReached
from wherry.model.fate import FATES

Int64: TypeAlias = npt.NDArray[np.int64]
Mask: TypeAlias = npt.NDArray[np.bool_]

WATCHED = ("url", "first", "told")
OUTCOMES = ("url", "fate", "at_ms")

OUTCOMES_MAX = 1_000_000
"""For each topic; beyond that a sixteenth of them, the oldest, are let go untold."""

URLS_MAX = 16_384
"""Different callback URLs in use at a time, for each topic."""


class Outcome(NamedTuple):
    """What is to be told to a producer. Partition and offset, and with them the id, are those of its publish."""

    topic: str
    partition: int
    offset: int
    id: str
    url: str
    fate: str
    at_ms: int


class Outbox:
    """What is watched, and what has come of it."""

    __slots__ = ("_numbers", "_sweep_at", "outcomes", "urls", "watched")

    def __init__(self) -> None:
        self.watched = OffsetTable(WATCHED)
        self.outcomes = OffsetTable(OUTCOMES)
        self.urls: dict[int, str] = {}
        self._numbers: dict[str, int] = {}
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
        self.watched.put(places, url=number, first=places, told=0)

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

    def move(self, old: Int64, new: Int64) -> None:
        """A message was amended: the one in its place is watched now."""
        if self.watched.has(old)[0]:
            columns = {name: self.watched.get(old, name, 0) for name in WATCHED}
            self.watched.remove(old)
            self.watched.put(new, **columns)

    def among(self, partition: int, offset: Int64 | None) -> Int64:
        """Watched places among some offsets of a partition; None for all of it."""
        if offset is not None:
            places = Place.pack(partition, offset)
            return places[self.watched.has(places)]
        places = self.watched.offsets()
        first, end = Place.pack(partition, np.array([0])), Place.pack(partition + 1, np.array([0]))
        return places[np.searchsorted(places, first)[0] : np.searchsorted(places, end)[0]]

    def conclude(self, places: Int64, fates: Int64, may_return: Mask, at_ms: int) -> tuple[Int64, int]:
        """Watched messages came to their end. What is to be told now (first places), and how many went untold.

        `may_return` says which are dead letters that can be sent back.
        """
        url, first, told = (self.watched.get(places, name, 0) for name in WATCHED)
        self.watched.remove(places)
        again = may_return
        self.watched.put(places[again], url=url[again], first=first[again], told=fates[again])
        news = fates != told
        self.outcomes.put(first[news], url=url[news], fate=fates[news], at_ms=at_ms)
        return first[news], self._make_room()

    def _make_room(self) -> int:
        if len(self.outcomes) <= OUTCOMES_MAX:
            return 0
        rows = self.outcomes.columns()
        oldest = np.argsort(rows[1 + OUTCOMES.index("at_ms")], kind="stable")
        oldest = oldest[: rows.shape[1] - OUTCOMES_MAX * 15 // 16]
        self.outcomes.remove(rows[0, np.sort(oldest)])
        return len(oldest)

    def told(self, places: Int64, fates: Int64) -> None:
        """These were told; an outcome that has changed meanwhile stays."""
        same = self.outcomes.get(places, "fate", 0) == fates
        self.outcomes.remove(places[same])
        if not len(self.outcomes) and not len(self.watched):
            self.load_urls({})

    def untold(self, topic: str, limit: int, hidden: Int64, without: Collection[str]) -> list[Outcome]:
        """What is to be told, oldest first: neither what is `hidden` (places), nor to the URLs `without`."""
        places, url, fate, at_ms = self.outcomes.unordered()
        barred = [number for text in without if (number := self._numbers.get(text)) is not None]
        rows = np.flatnonzero(~(np.isin(places, hidden) | np.isin(url, barred)))
        if len(rows) > limit:  # there may be a million; only those that are wanted are sorted
            rows = rows[np.argpartition(at_ms[rows], limit)[:limit]]
        rows = rows[np.lexsort((places[rows], at_ms[rows]))]
        columns = (column[rows].tolist() for column in (places, url, fate, at_ms))
        return [
            self.outcome(topic, place, number, FATES[code], when)
            for place, number, code, when in zip(*columns, strict=True)
        ]

    def outcome(self, topic: str, place: int, url: int, fate: str, at_ms: int) -> Outcome:
        """A row in words."""
        partition, offset = Place.unpack(place)
        return Outcome(topic, partition, offset, f"{partition}-{offset}", self.urls[url], fate, at_ms)
