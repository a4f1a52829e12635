"""Reasons and errors of failed messages, each stored once and referred to by number.

Their number is bounded, because clients choose them. A full table is swept: texts that no message refers to are
removed. If nearly all are still in use, the topics that use the most lose some, each down to the same share, so that a
topic with a new error text for each message takes nothing from the others. Errors are removed before reasons, then
texts of few messages before texts of many, then older ones before newer ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from wherry.core.index.table import OffsetTable
from wherry.model.limits import ERROR_CHARS_MAX

Int64: TypeAlias = npt.NDArray[np.int64]

TEXTS_MAX = 65_536

LOST = 1
"""The number that stands for texts that could not be kept."""

COLUMNS = ("reason", "error")


class Texts:
    """Texts by number. `texts` only grows, until a sweep replaces the list."""

    __slots__ = ("_numbers", "texts")

    def __init__(self) -> None:
        self.texts: list[str] = ["", "(too many different texts to keep this one)"]
        self._numbers: dict[str, int] = {"": 0}

    def number(self, text: str) -> int:
        """Return the number of a text; a new text gets one, or `LOST` if the table is full."""
        text = text[:ERROR_CHARS_MAX]
        known = self._numbers.get(text)
        if known is not None:
            return known
        if len(self.texts) >= TEXTS_MAX:
            return LOST
        self.texts.append(text)
        self._numbers[text] = len(self.texts) - 1
        return self._numbers[text]

    def find(self, text: str) -> int | None:
        """Return the number of a text, None if it has none."""
        return self._numbers.get(text)

    def has_room(self) -> bool:
        """Return whether a reason and an error fit."""
        return len(self.texts) + len(COLUMNS) <= TEXTS_MAX

    def load(self, texts: list[str]) -> None:
        """Load the texts of a checkpoint."""
        self.texts = texts
        self._numbers = {text: number for number, text in enumerate(texts) if number != LOST}

    def sweep(self, topics: Sequence[Sequence[OffsetTable]]) -> None:
        """Keep what the tables of each topic refer to, and leave a sixteenth free. Numbers change."""
        count = len(self.texts)
        ranked = [self._ranked(tables) for tables in topics]
        room = TEXTS_MAX - TEXTS_MAX // 16 - (LOST + 1) - len(COLUMNS)
        share = _fair_share([len(each) for each in ranked], room)
        kept = np.unique(np.concatenate([np.empty(0, np.int64), *(each[:share] for each in ranked)]))
        numbers = np.full(count, LOST, np.int64)
        numbers[0] = 0
        numbers[kept] = np.arange(len(kept)) + LOST + 1
        for table in (table for tables in topics for table in tables):
            _renumber(table, numbers)
        self.load([*self.texts[: LOST + 1], *(self.texts[number] for number in kept.tolist())])

    def _ranked(self, tables: Iterable[OffsetTable]) -> Int64:
        """Return the numbers that tables refer to, those to keep first."""
        used = {name: np.zeros(len(self.texts), np.int64) for name in COLUMNS}
        for table in tables:
            for name in _texts_of(table):
                used[name] += np.bincount(table.values(name), minlength=len(self.texts))
        rows = used["reason"] + used["error"]
        rows[: LOST + 1] = 0
        numbers = np.flatnonzero(rows)
        order = np.lexsort((-numbers, -rows[numbers], used["reason"][numbers] == 0))
        return numbers[order].astype(np.int64)


def _texts_of(table: OffsetTable) -> list[str]:
    return [name for name in COLUMNS if name in table.names]


def _renumber(table: OffsetTable, numbers: Int64) -> None:
    if all(np.array_equal(values, numbers[values]) for values in map(table.values, _texts_of(table))):
        return
    rows = table.columns().copy()
    for name in _texts_of(table):
        index = 1 + table.names.index(name)
        rows[index] = numbers[rows[index]]
    table.load(rows)


def _fair_share(sizes: list[int], room: int) -> int:
    """Return the largest share at which all fit, where topics with less take only what they need."""
    share = room
    for done, size in enumerate(sorted(sizes)):
        share = room // (len(sizes) - done)
        if size > share:
            break
        room -= size
        share = max(share, size)
    return share
