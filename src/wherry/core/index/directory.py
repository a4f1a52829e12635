"""The batches of a partition: base offset, messages and bytes still needed, time of the publish.

One row for each batch. The bytes that count are in proportion to the messages that count: exact for a batch of equal
messages and for one that is wholly settled, and without a stored size for each message.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Int64: TypeAlias = npt.NDArray[np.int64]

COLUMNS = ("base", "count", "live", "waiting", "bytes", "published_us")


class Directory:
    """Batches of one partition by base offset, ascending.

    The row of a batch whose messages are all gone is removed at once at the front, elsewhere when more than half of the
    rows are empty. No result about messages depends on that.
    """

    __slots__ = ("_data", "_empty", "_end", "_start")

    def __init__(self) -> None:
        self._data = np.zeros((len(COLUMNS), 16), np.int64)
        self._start = 0
        self._end = 0
        self._empty = 0

    def __len__(self) -> int:
        return self._end - self._start

    def _column(self, index: int) -> Int64:
        column: Int64 = self._data[index, self._start : self._end]
        return column

    @property
    def base(self) -> Int64:
        """First offset of each batch."""
        return self._column(0)

    @property
    def count(self) -> Int64:
        """Messages of each batch."""
        return self._column(1)

    @property
    def live(self) -> Int64:
        """Messages of each batch whose bodies are still needed."""
        return self._column(2)

    @property
    def waiting(self) -> Int64:
        """Messages of each batch that count against the topic's bounds."""
        return self._column(3)

    @property
    def bytes(self) -> Int64:
        """Content bytes of each batch."""
        return self._column(4)

    @property
    def published_us(self) -> Int64:
        """When each batch was published."""
        return self._column(5)

    def append(self, base: int, count: int, size: int, published_us: int) -> None:
        """Append a batch."""
        if self._end == self._data.shape[1]:
            self._make_room(1)
        self._data[:, self._end] = (base, count, count, count, size, published_us)
        self._end += 1

    def extend(self, base: Int64, count: Int64, size: Int64, published_us: Int64) -> None:
        """Append batches in this order."""
        end = self._end + len(base)
        if end > self._data.shape[1]:
            self._make_room(len(base))
            end = self._end + len(base)
        self._data[:, self._end : end] = (base, count, count, count, size, published_us)
        self._end = end

    def _make_room(self, more: int) -> None:
        rows = self._end - self._start
        fresh = np.zeros((len(COLUMNS), max(16, (rows + more) * 2)), np.int64)
        fresh[:, :rows] = self._data[:, self._start : self._end]
        self._data, self._start, self._end = fresh, 0, rows

    def release(self, offsets: Int64) -> list[tuple[int, int]]:
        """Release messages (sorted, distinct); return (base, end) of the batches that are empty now."""
        rows, gone = self._by_row(offsets)
        live = self._data[2, rows] - gone
        self._data[2, rows] = live
        if live.all():
            return []
        empty = rows if isinstance(rows, int) else rows.start + np.flatnonzero((live == 0) & (gone > 0))
        base, count = np.atleast_1d(self._data[0, empty]), self._data[1, empty]
        emptied = list(zip(base.tolist(), (base + count).tolist(), strict=True))
        self._empty += len(emptied)
        self._drop_empty()
        return emptied

    def end_run(self, first: int, stop: int) -> tuple[int, list[tuple[int, int]]]:
        """Finish and release consecutive messages, all of them waiting and needed until now.

        Returns the bytes that this frees, and (base, end) of the batches that are empty now.
        """
        row, freed, emptied = self._start, 0, []
        if first >= self._data[0, row] + self._data[1, row]:
            row += int(self.base.searchsorted(first, "right")) - 1
        while first < stop:
            base, count, live, waiting, size, _ = self._data[:, row].tolist()
            gone = min(stop, base + count) - first
            self._data[2:4, row] = (live - gone, waiting - gone)
            freed += size * waiting // count - size * (waiting - gone) // count
            if live == gone:
                emptied.append((base, base + count))
            first, row = first + gone, row + 1
        self._empty += len(emptied)
        self._drop_empty()
        return freed, emptied

    def finish(self, offsets: Int64) -> int:
        """Stop counting messages (sorted, distinct) against the bounds; return the bytes that this frees."""
        return self._move_waiting(offsets, -1)

    def bytes_of(self, offsets: Int64) -> int:
        """Return the bytes that `finish` of these messages would free."""
        rows, gone = self._by_row(offsets)
        count, waiting, size = self._data[1, rows], self._data[3, rows], self._data[4, rows]
        return int((size * waiting // count - size * (waiting - gone) // count).sum())

    def share_of(self, offsets: Int64) -> int:
        """Return the bytes of these messages by the proportional rule, rounded up, whether they count or not."""
        rows, some = self._by_row(offsets)
        return int((-(-self._data[4, rows] * some // self._data[1, rows])).sum())

    def unfinish(self, offsets: Int64) -> int:
        """Count messages against the bounds again; return the bytes that this takes."""
        return self._move_waiting(offsets, 1)

    def _move_waiting(self, offsets: Int64, sign: int) -> int:
        rows, moved = self._by_row(offsets)
        count, before, size = self._data[1, rows], self._data[3, rows].copy(), self._data[4, rows]
        after = before + sign * moved
        self._data[3, rows] = after
        return abs(int((size * after // count - size * before // count).sum()))

    def _by_row(self, offsets: Int64) -> tuple[int | slice, int | Int64]:
        """Return the rows of the offsets, and how many offsets are in each row.

        Most calls have one row, and get plain numbers, which are faster than arrays.
        """
        base = self.base
        last = int(base.searchsorted(offsets[-1], "right")) - 1 if len(offsets) and len(base) else -1
        if last < 0:
            return slice(0, 0), np.empty(0, np.int64)
        if offsets[0] >= base[last]:
            return self._start + last, len(offsets)
        rows = base.searchsorted(offsets, "right") - 1
        rows = rows[rows >= 0]
        low = int(rows[0])
        return slice(self._start + low, self._start + last + 1), np.bincount(rows - low).astype(np.int64)

    def _drop_empty(self) -> None:
        while self._empty and self._data[2, self._start] == 0:
            self._start += 1
            self._empty -= 1
        if self._empty * 2 > len(self):
            self.load(self._data[:, self._start : self._end])

    def waiting_bytes(self) -> int:
        """Return the bytes that count against the bounds."""
        return int((self.bytes * self.waiting // np.maximum(self.count, 1)).sum())

    def published_at_us(self, offset: int) -> int | None:
        """Return when the message at `offset`, or the next batch after it that is still here, was published."""
        here = np.flatnonzero((self.live > 0) & (self.base + self.count > offset))
        return int(self.published_us[here[0]]) if len(here) else None

    def published_of(self, offsets: Int64) -> Int64:
        """Return when each of these messages, which must still be here, was published."""
        published: Int64 = self.published_us[np.searchsorted(self.base, offsets, "right") - 1]
        return published

    def first_published_from(self, at_us: int) -> int | None:
        """Return the base of the first batch published at or after a time; None if there is none."""
        here = np.flatnonzero((self.live > 0) & (self.published_us >= at_us))
        return int(self.base[here[0]]) if len(here) else None

    def columns(self) -> Int64:
        """Return every row that is not empty, for a checkpoint."""
        rows = self._data[:, self._start : self._end]
        return rows[:, rows[2] > 0]

    def load(self, data: Int64) -> None:
        """Load what `columns` returned. Older checkpoints also have empty rows."""
        data = data[:, data[2] > 0]
        rows = data.shape[1]
        self._data = np.zeros((len(COLUMNS), max(16, rows * 2)), np.int64)
        self._data[:, :rows] = data
        self._start, self._end, self._empty = 0, rows, 0
