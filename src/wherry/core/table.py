"""A few int64 columns keyed by offset, for the messages that are not in their plain first wait.

Failed, delayed and dead messages have state of their own; one Python object for each would cost 200 bytes, a row
here costs 8 a column. Two sorted levels: new rows go into a small one, which is merged into the large one when full.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Int64: TypeAlias = npt.NDArray[np.int64]
Mask: TypeAlias = npt.NDArray[np.bool_]

RECENT_MAX = 1 << 14


class OffsetTable:
    """Rows by offset; `names` are the columns beside the offset."""

    __slots__ = ("_main", "_recent", "names")

    def __init__(self, names: tuple[str, ...]) -> None:
        self.names = names
        self._main = np.empty((1 + len(names), 0), np.int64)
        self._recent = self._main

    def __len__(self) -> int:
        return int(self._main.shape[1] + self._recent.shape[1])

    def put(self, offsets: Int64, **columns: Int64 | int) -> None:
        """Insert or overwrite rows. Offsets are distinct, in any order."""
        if len(offsets) == 0:
            return
        self.remove(offsets)
        rows = np.empty((1 + len(self.names), len(offsets)), np.int64)
        rows[0] = offsets
        for index, name in enumerate(self.names, 1):
            rows[index] = columns[name]
        rows = rows[:, np.argsort(offsets, kind="stable")]
        self._recent = _merged(self._recent, rows)
        if self._recent.shape[1] > RECENT_MAX:
            self._main = _merged(self._main, self._recent)
            self._recent = self._recent[:, :0].copy()

    def get(self, offsets: Int64, name: str, default: Int64 | int) -> Int64:
        """One column for these offsets, `default` where there is no row."""
        result = np.empty(len(offsets), np.int64)
        result[:] = default
        if len(self):
            column = 1 + self.names.index(name)
            for level in (self._main, self._recent):
                found, place = _find(level, offsets)
                result[found] = level[column, place[found]]
        return result

    def has(self, offsets: Int64) -> Mask:
        """Which of the offsets have a row."""
        result = np.zeros(len(offsets), np.bool_)
        for level in (self._main, self._recent):
            result |= _find(level, offsets)[0]
        return result

    def remove(self, offsets: Int64) -> None:
        """Forget rows; offsets without one are passed over."""
        if len(self) == 0:
            return
        for attribute in ("_main", "_recent"):
            level: Int64 = getattr(self, attribute)
            found, place = _find(level, offsets)
            if found.any():
                setattr(self, attribute, np.delete(level, place[found], axis=1))

    def offsets(self) -> Int64:
        """Every offset that has a row, ascending."""
        return np.sort(np.concatenate((self._main[0], self._recent[0])))

    def columns(self) -> Int64:
        """Every row in the order of offsets, for a checkpoint: the offset, then the columns."""
        return _merged(self._main, self._recent)

    def load(self, rows: Int64) -> None:
        """The way back from `columns`."""
        self._main = rows
        self._recent = rows[:, :0].copy()


def _find(level: Int64, offsets: Int64) -> tuple[Mask, Int64]:
    if level.shape[1] == 0:
        return np.zeros(len(offsets), np.bool_), np.zeros(len(offsets), np.int64)
    place = np.minimum(np.searchsorted(level[0], offsets), level.shape[1] - 1)
    return level[0, place] == offsets, place


def _merged(one: Int64, other: Int64) -> Int64:
    if one.shape[1] == 0:
        return other
    if other.shape[1] == 0:
        return one
    return np.insert(one, np.searchsorted(one[0], other[0]), other, axis=1)
