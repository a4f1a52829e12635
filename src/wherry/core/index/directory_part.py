"""Rows of consecutive batches in a directory: open, with space for more, or packed.

An open part has int64 columns. In a packed part each column is its lowest value, and what each row is above it in as
few bytes as the largest takes. A publish of one message is a row, so most parts of a long queue hold single messages of
about the same time: 10 to 17 bytes a row, where int64 takes 48. Live and waiting messages are counted from zero, so
that they can change in place; no other column of a packed part is ever modified, so that a checkpoint refers to them.

As bytes, little-endian:

offset  size          field
0       4             rows
4       6 × 1         bytes of a value in each column: 1, 2, 4 (unsigned) or 8 (signed)
10      6 × 8         the lowest value of each column
58      rows × bytes  the columns, one after the other, in the order of `COLUMNS`
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

Int64: TypeAlias = npt.NDArray[np.int64]
Narrow: TypeAlias = npt.NDArray[Any]
"""Little-endian integers: unsigned of 1, 2 or 4 bytes, or int64."""

COLUMNS: Final = ("base", "count", "live", "waiting", "bytes", "published_us")
BASE, COUNT, LIVE, WAITING, BYTES, PUBLISHED = range(len(COLUMNS))

NEVER: Final = (1 << 63) - 1
"""Higher than every offset and every time."""

_HEAD: Final = struct.Struct(f"<I{len(COLUMNS)}B{len(COLUMNS)}q")
_TYPES: Final[dict[int, np.dtype[Any]]] = {
    width: np.dtype(name) for width, name in ((1, "<u1"), (2, "<u2"), (4, "<u4"), (8, "<i8"))
}


class DirectoryPart:
    """Rows `start..end` of these columns: ascending by base offset, some of them empty."""

    __slots__ = ("above", "empty", "end", "first", "lows", "start")

    def __init__(self, lows: tuple[int, ...], above: tuple[Narrow, ...], end: int) -> None:
        self.lows, self.above = lows, above
        self.start, self.end = 0, end
        self.empty = 0
        self.first = lows[BASE] + int(above[BASE].item(0)) if end else NEVER
        """No lower offset is here; `NEVER` without rows."""

    def __len__(self) -> int:
        return self.end - self.start

    @property
    def space(self) -> int:
        """Rows that it can hold, from the first row that it ever had."""
        return len(self.above[BASE])

    @property
    def oldest_us(self) -> int:
        """When the first of its batches was published; `NEVER` without rows."""
        found = self.above[PUBLISHED][self.start : self.end]
        return self.lows[PUBLISHED] + int(found.min()) if len(found) else NEVER

    def append(self, base: int, count: int, size: int, published_us: int) -> None:
        """Append a batch to an open part that has space."""
        at = self.end
        if at == self.start:
            self.first = base
        bases, counts, lives, waitings, sizes, times = self.above
        bases[at], counts[at], lives[at], waitings[at], sizes[at], times[at] = (
            *(base, count, count, count),
            *(size, published_us),
        )
        self.end = at + 1

    def extend(self, rows: Int64) -> None:
        """Append rows to an open part that has space."""
        if self.end == self.start and rows.shape[1]:
            self.first = int(rows[BASE, 0])
        end = self.end + rows.shape[1]
        for column, values in zip(self.above, rows, strict=True):
            column[self.end : end] = values
        self.end = end

    def column(self, index: int) -> Int64:
        """Return a column as a copy."""
        return self._values(index, slice(self.start, self.end))

    def _values(self, index: int, rows: slice | Int64) -> Int64:
        values: Int64 = self.above[index][rows].astype(np.int64)
        return values + self.lows[index]

    def _read(self, indices: tuple[int, ...], rows: int | slice) -> Iterator[Any]:
        """Yield the values of some columns: plain numbers for one row, which are faster, and else arrays."""
        for index in indices:
            if isinstance(rows, int):
                yield self.lows[index] + self.above[index].item(rows)
            else:
                yield self._values(index, rows)

    def rows(self) -> Int64:
        """Return every row that is not empty, as a copy."""
        rows = np.stack([self.column(index) for index in range(len(COLUMNS))])
        return rows[:, rows[LIVE] > 0] if self.empty else rows

    def release(self, offsets: Int64) -> list[tuple[int, int]]:
        """Release messages (sorted, distinct); return (base, end) of the batches that are empty now."""
        rows, gone = self._by_row(offsets)
        base, count, live = self._read((BASE, COUNT, LIVE), rows)
        live = live - gone
        self.above[LIVE][rows] = live
        if isinstance(rows, int):
            emptied = [] if live else [(base, base + count)]
        else:
            empty = (live == 0) & (gone > 0)
            emptied = list(zip(base[empty].tolist(), (base + count)[empty].tolist(), strict=True))
        self.empty += len(emptied)
        return emptied

    def end_run(self, first: int, stop: int, emptied: list[tuple[int, int]]) -> int:
        """Finish and release those of consecutive messages that are here, all of them waiting and needed until now.

        Adds (base, end) of the batches that are empty now to `emptied`, and returns the bytes that this frees.
        """
        bases, counts, lives, waitings, sizes, _ = self.above
        low, low_count, _, _, low_size, _ = self.lows
        row, freed = self.start, 0
        if first >= low + bases.item(row) + low_count + counts.item(row):
            row += int(bases[row : self.end].searchsorted(first - low, "right")) - 1
        while first < stop and row < self.end:
            base, count, size = low + bases.item(row), low_count + counts.item(row), low_size + sizes.item(row)
            gone = min(stop, base + count) - first
            if gone == count:
                lives[row] = waitings[row] = live = 0
                freed += size
            else:
                live, waiting = lives.item(row) - gone, waitings.item(row)
                lives[row], waitings[row] = live, waiting - gone
                freed += size * waiting // count - size * (waiting - gone) // count
            if not live:
                emptied.append((base, base + count))
                self.empty += 1
            first, row = first + gone, row + 1
        return freed

    def bytes_of(self, offsets: Int64) -> int:
        """Return the bytes that finishing these messages would free."""
        rows, gone = self._by_row(offsets)
        count, waiting, size = self._read((COUNT, WAITING, BYTES), rows)
        return _sum(size * waiting // count - size * (waiting - gone) // count)

    def share_of(self, offsets: Int64) -> int:
        """Return the bytes of these messages by the proportional rule, rounded up, whether they count or not."""
        rows, some = self._by_row(offsets)
        count, size = self._read((COUNT, BYTES), rows)
        return _sum(-(-size * some // count))

    def move_waiting(self, offsets: Int64, sign: int) -> int:
        """Count messages against the bounds (1) or stop counting them (-1); return the bytes that this moves."""
        rows, moved = self._by_row(offsets)
        count, before, size = self._read((COUNT, WAITING, BYTES), rows)
        after = before + sign * moved
        self.above[WAITING][rows] = after
        return abs(_sum(size * after // count - size * before // count))

    def _by_row(self, offsets: Int64) -> tuple[int | slice, int | Int64]:
        """Return the rows of the offsets, and how many offsets are in each row; plain numbers where it is one row."""
        base, low = self.above[BASE][self.start : self.end], self.lows[BASE]
        last = int(base.searchsorted(int(offsets[-1]) - low, "right")) - 1 if len(offsets) and len(base) else -1
        if last < 0:
            return slice(0, 0), np.empty(0, np.int64)
        if int(offsets[0]) - low >= base.item(last):
            return self.start + last, len(offsets)
        rows = base.searchsorted(offsets - low, "right") - 1
        rows = rows[rows >= 0]
        begin = int(rows[0])
        return slice(self.start + begin, self.start + last + 1), np.bincount(rows - begin).astype(np.int64)

    def sweep(self) -> bool:
        """Remove empty rows, at once at the front and elsewhere if they are most; return whether rows were moved."""
        lives = self.above[LIVE]
        while self.empty and not lives.item(self.start):
            self.start += 1
            self.empty -= 1
        if self.start == self.end:
            self.start = self.end = 0
            self.first = NEVER
            return True
        if self.empty * 2 <= len(self):
            return False
        kept = lives[self.start : self.end] > 0
        self.above = _together([column[self.start : self.end][kept] for column in self.above])
        self.start, self.end, self.empty = 0, len(self.above[BASE]), 0
        return True

    def published_of(self, offsets: Int64) -> Int64:
        """Return when each of these messages, which must be here, was published."""
        bases = self.above[BASE][self.start : self.end]
        return self._values(PUBLISHED, self.start + bases.searchsorted(offsets - self.lows[BASE], "right") - 1)

    def bytes_pieces(self) -> list[bytes | memoryview]:
        """Return a packed part without empty rows as bytes, in pieces that are never modified."""
        own = [column[self.start : self.end] for column in self.above]
        own[LIVE], own[WAITING] = own[LIVE].copy(), own[WAITING].copy()
        head = _HEAD.pack(len(self), *(column.itemsize for column in own), *self.lows)
        return [head, *(column.data for column in own)]


def _sum(found: int | Int64) -> int:
    return found if isinstance(found, int) else int(found.sum())


def opened(rows: Int64, space: int) -> DirectoryPart:
    """Return an open part with these rows."""
    part = DirectoryPart((0,) * len(COLUMNS), tuple(np.empty((len(COLUMNS), space), np.int64)), 0)
    part.extend(rows)
    return part


def packed(rows: Int64) -> DirectoryPart:
    """Return a packed part of these rows, at least one."""
    most = int(rows[COUNT].max())
    found = [
        (0, _narrow(column, 0, most)) if index in {LIVE, WAITING} else _above_lowest(column)
        for index, column in enumerate(rows)
    ]
    return DirectoryPart(tuple(low for low, _ in found), _together([above for _, above in found]), rows.shape[1])


def _above_lowest(column: Int64) -> tuple[int, Narrow]:
    low = int(column.min())
    return low, _narrow(column, low, int(column.max()))


def _narrow(column: Int64, low: int, high: int) -> Narrow:
    """Return how much each value is above `low`, in the smallest type that has `high` as well."""
    width = next(width for width in (1, 2, 4, 8) if width == 8 or high - low < 1 << 8 * width)
    return (column - low).astype(_TYPES[width])


def _together(columns: list[Narrow]) -> tuple[Narrow, ...]:
    """Return copies of columns, in one piece of memory.

    Columns of 1 KiB among what comes and goes with each message would leave holes as large as themselves.
    """
    space, at = np.empty(sum(column.nbytes for column in columns), np.uint8), 0
    placed = list(columns)
    for index in sorted(range(len(columns)), key=lambda index: -columns[index].itemsize):  # each one aligned
        column = columns[index]
        placed[index] = space[at : at + column.nbytes].view(column.dtype)
        placed[index][:] = column
        at += column.nbytes
    return tuple(placed)


def from_bytes(data: bytes) -> Iterator[DirectoryPart]:
    """Yield the parts whose bytes follow each other, each with memory of its own."""
    at = 0
    while at < len(data):
        rows, *numbers = _HEAD.unpack_from(data, at)
        at += _HEAD.size
        columns = []
        for width in numbers[: len(COLUMNS)]:
            columns.append(np.frombuffer(data, _TYPES[width], rows, at))
            at += rows * width
        yield DirectoryPart(tuple(numbers[len(COLUMNS) :]), _together(columns), rows)
