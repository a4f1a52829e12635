"""A few int64 columns keyed by offset, for messages that are not simply waiting for the first time.

Failed, delayed and dead messages have state of their own. A Python object for each would take 200 bytes, a row takes 8
bytes a column. There are two sorted levels: new rows go into the small one, which is merged into the large one when it
is full. A removed row is only marked; marked rows are swept when they are half of a level, so that an ack costs the
same however large the table is.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Int64: TypeAlias = npt.NDArray[np.int64]
Mask: TypeAlias = npt.NDArray[np.bool_]

RECENT_MAX = 1 << 14

FEW = 8
"""So many offsets are compared one by one before they are searched for."""

SPACE_MIN = 16
"""Rows that a level has space for once it grows."""


class OffsetTable:
    """Rows by offset; `names` are the columns beside the offset."""

    __slots__ = ("_main", "_recent", "names")

    def __init__(self, names: tuple[str, ...]) -> None:
        self.names = names
        nothing = np.empty((1 + len(names), 0), np.int64)
        self._main, self._recent = _Level(nothing), _Level(nothing)

    def __len__(self) -> int:
        return self._main.count + self._recent.count

    def ends_before(self, offset: int) -> bool:
        """Return whether an offset is higher than those of all rows."""
        return self._main.ends_before(offset) and self._recent.ends_before(offset)

    def put(self, offsets: Int64, **columns: Int64 | int) -> None:
        """Insert or overwrite rows. Offsets are distinct, in any order."""
        if len(offsets) == 0:
            return
        self.remove(offsets)
        rows = np.empty((1 + len(self.names), len(offsets)), np.int64)
        rows[0] = offsets
        for index, name in enumerate(self.names, 1):
            rows[index] = columns[name]
        if len(offsets) > 1:
            rows = rows[:, np.argsort(offsets, kind="stable")]
        if self._recent.ends_before(int(rows[0, 0])):
            self._recent.extend(rows)
        else:
            self._recent = _Level(_merged(self._recent.rows(), rows))
        if self._recent.count > RECENT_MAX:
            self._main = _Level(self.columns())
            self._recent = _Level(rows[:, :0].copy())

    def get(self, offsets: Int64, name: str, default: Int64 | int) -> Int64:
        """Return one column for these offsets, `default` where there is no row."""
        result = np.empty(len(offsets), np.int64)
        result[:] = default
        if len(self):
            column = 1 + self.names.index(name)
            for level in (self._main, self._recent):
                found, index = level.find(offsets)
                result[found] = level.all[column, index[found]]
        return result

    def has(self, offsets: Int64) -> Mask:
        """Return which of the offsets have a row."""
        return self._main.find(offsets)[0] | self._recent.find(offsets)[0]

    def remove(self, offsets: Int64) -> None:
        """Remove rows. Offsets are distinct; those without a row are ignored."""
        self._main.remove(offsets)
        self._recent.remove(offsets)

    def rows_of(self, offsets: Int64) -> Int64:
        """Return the rows of those offsets that have one: the offset, then the columns. Offsets are ascending."""
        (in_main, main), (in_recent, recent) = self._main.find(offsets), self._recent.find(offsets)
        if not in_main.any():
            return self._recent.all[:, recent[in_recent]]
        return _merged(self._main.all[:, main[in_main]], self._recent.all[:, recent[in_recent]])

    def offsets(self) -> Int64:
        """Return every offset that has a row, ascending."""
        return np.sort(np.concatenate((self._main.rows()[0], self._recent.rows()[0])))

    def columns(self) -> Int64:
        """Return every row in the order of offsets, for a checkpoint: the offset, then the columns."""
        return _merged(self._main.rows(), self._recent.rows())

    def unordered(self) -> Int64:
        """Return every row in no order, without the cost of a merge."""
        return np.concatenate((self._main.rows(), self._recent.rows()), axis=1)

    def values(self, name: str) -> Int64:
        """Return one column in no order."""
        column = 1 + self.names.index(name)
        return np.concatenate((self._main.values(column), self._recent.values(column)))

    def load(self, rows: Int64) -> None:
        """Load what `columns` returned."""
        self._main, self._recent = _Level(rows), _Level(rows[:, :0].copy())


class _Level:
    """Rows sorted by offset, some marked as removed. What `all` shows is never modified: a checkpoint may keep it.

    There may be space behind these rows, for more of them: most rows that come have higher offsets than all before.
    """

    __slots__ = ("_gone", "_gone_space", "_space", "all", "count")

    def __init__(self, rows: Int64) -> None:
        self._hold(rows)

    def _hold(self, rows: Int64) -> None:
        self.all = self._space = rows
        self._gone = self._gone_space = np.zeros(rows.shape[1], np.bool_)
        self.count = int(rows.shape[1])
        """Of the rows that are not removed."""

    def ends_before(self, offset: int) -> bool:
        """Return whether an offset is higher than those of all rows, also of removed ones."""
        return self.all.shape[1] == 0 or int(self.all[0, -1]) < offset

    def extend(self, rows: Int64) -> None:
        """Add rows behind the others."""
        begin, end = self.all.shape[1], self.all.shape[1] + rows.shape[1]
        if end > self._space.shape[1]:
            self._space = np.empty((rows.shape[0], max(SPACE_MIN, 2 * end)), np.int64)
            self._space[:, :begin] = self.all
            self._gone_space = np.zeros(self._space.shape[1], np.bool_)
            self._gone_space[:begin] = self._gone
        self._space[:, begin:end] = rows
        self.all, self._gone = self._space[:, :end], self._gone_space[:end]
        self.count += rows.shape[1]

    def find(self, offsets: Int64) -> tuple[Mask, Int64]:
        """Return which of the offsets have a row here, and in which column of `all` it is."""
        if self.count == 0 or self._ends_before_all(offsets):
            return np.zeros(len(offsets), np.bool_), np.zeros(len(offsets), np.int64)
        index = np.minimum(np.searchsorted(self.all[0], offsets), self.all.shape[1] - 1)
        return (self.all[0, index] == offsets) & ~self._gone[index], index

    def _ends_before_all(self, offsets: Int64) -> bool:
        """Return whether these offsets are a few that are higher than those of all rows: newer messages mostly are."""
        return 0 < len(offsets) <= FEW and self.ends_before(min(offsets.tolist()))

    def remove(self, offsets: Int64) -> None:
        """Mark rows as removed; sweep when more than half are."""
        if self.count == 0 or self._ends_before_all(offsets):
            return
        found, index = self.find(offsets)
        self._gone[index[found]] = True
        self.count -= int(np.count_nonzero(found))
        if self.count * 2 < self.all.shape[1]:
            self._hold(self.rows())

    def values(self, column: int) -> Int64:
        """Return one column of the rows that are not removed."""
        return self.all[column, ~self._gone]

    def rows(self) -> Int64:
        """Return the rows that are not removed."""
        return self.all[:, ~self._gone] if self.count < self.all.shape[1] else self.all


def _merged(one: Int64, other: Int64) -> Int64:
    if one.shape[1] == 0:
        return other
    if other.shape[1] == 0:
        return one
    return np.insert(one, np.searchsorted(one[0], other[0]), other, axis=1)
