"""The batches of a partition: base offset, messages and bytes still needed, time of the publish.

One row for each batch, in parts of at most `PART_ROWS`: the newest rows are open, the others are packed. The bytes that
count are in proportion to the messages that count: exact for a batch of equal messages and for one that is wholly
settled, and without a stored size for each message.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from operator import attrgetter
from typing import Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from wherry.core.index.directory_part import (
    BASE,
    COLUMNS,
    COUNT,
    LIVE,
    NEVER,
    PUBLISHED,
    WAITING,
    DirectoryPart,
    from_bytes,
    opened,
    packed,
)

Int64: TypeAlias = npt.NDArray[np.int64]

PART_ROWS: Final = 1_024
"""Most rows of a part: packing them takes some 50 µs, and until then they take 48 KiB."""

OPEN_MIN: Final = 16
"""Rows that the open part has space for at least."""

_NO_ROWS: Final = np.empty((len(COLUMNS), 0), np.int64)
_FIRST: Final = attrgetter("first")


class WaitingBatch(NamedTuple):
    """A batch with messages that count against the bounds of the topic."""

    published_us: int
    base: int
    messages: int


class Directory:
    """Batches of one partition by base offset, ascending.

    The row of a batch whose messages are all gone is removed at once at the front of a part, elsewhere when more than
    half of the rows of the part are empty. No result about messages depends on that.
    """

    __slots__ = ("_parts",)

    def __init__(self) -> None:
        self._parts: list[DirectoryPart] = [opened(_NO_ROWS, OPEN_MIN)]
        """Ascending. The last one is open and may have no rows, the others are packed and have some."""

    def __len__(self) -> int:
        return sum(map(len, self._parts))

    def append(self, base: int, count: int, size: int, published_us: int) -> None:
        """Append a batch."""
        part = self._parts[-1]
        if part.end == part.space:
            part = self._make_room(part)
        part.append(base, count, size, published_us)

    def extend(self, base: Int64, count: Int64, size: Int64, published_us: Int64) -> None:
        """Append batches in this order."""
        self._add(np.stack((base, count, count, count, size, published_us)))

    def _make_room(self, part: DirectoryPart) -> DirectoryPart:
        """Return an open part with space for another row: packed rows come before it if most of the space is in use."""
        rows = part.rows()
        count = rows.shape[1]
        if 2 * count >= PART_ROWS:
            self._parts[-1:] = [packed(rows), opened(_NO_ROWS, PART_ROWS)]
        else:
            self._parts[-1] = opened(rows, max(OPEN_MIN, 2 * count))
        return self._parts[-1]

    def _add(self, rows: Int64) -> None:
        """Append rows that are not empty."""
        whole = np.concatenate((self._parts[-1].rows(), rows), axis=1)
        at = 0
        while whole.shape[1] - at > PART_ROWS:
            self._parts.insert(-1, packed(whole[:, at : at + PART_ROWS]))
            at += PART_ROWS
        rest = whole[:, at:]
        self._parts[-1] = opened(rest, max(OPEN_MIN, min(2 * rest.shape[1], PART_ROWS)))

    def _at(self, offset: int) -> int:
        """Return the index of the part that holds an offset, if one does."""
        parts = self._parts
        last = len(parts) - 1
        if offset >= parts[last].first:
            return last
        if last == 0 or offset < parts[1].first:
            return 0
        return bisect_right(parts, offset, 1, last, key=_FIRST) - 1

    def _by_part(self, offsets: Int64) -> list[tuple[int, Int64]]:
        """Return the index of each part that may hold some of the offsets (sorted), with these."""
        if len(offsets) == 0:
            return []
        low, last = self._at(int(offsets[0])), int(offsets[-1])
        if low + 1 == len(self._parts) or last < self._parts[low + 1].first:
            return [(low, offsets)]
        high = self._at(last)
        cuts = np.searchsorted(offsets, [part.first for part in self._parts[low + 1 : high + 1]])
        return [(low + at, mine) for at, mine in enumerate(np.split(offsets, cuts)) if len(mine)]

    def release(self, offsets: Int64) -> list[tuple[int, int]]:
        """Release messages (sorted, distinct); return (base, end) of the batches that are empty now."""
        touched = self._by_part(offsets)
        emptied = [batch for at, mine in touched for batch in self._parts[at].release(mine)]
        if emptied:
            self._sweep(at for at, _ in reversed(touched))
        return emptied

    def end_run(self, first: int, stop: int) -> tuple[int, list[tuple[int, int]]]:
        """Finish and release consecutive messages, all of them waiting and needed until now.

        Returns the bytes that this frees, and (base, end) of the batches that are empty now.
        """
        emptied: list[tuple[int, int]] = []
        if first >= self._parts[-1].first:  # of a short queue all are there
            part = self._parts[-1]
            freed = part.end_run(first, stop, emptied)
            if emptied:
                part.sweep()
            return freed, emptied
        freed = 0
        low = high = self._at(first)
        while first < stop and high < len(self._parts):
            part = self._parts[high]
            end = min(stop, self._parts[high + 1].first) if high + 1 < len(self._parts) else stop
            freed += part.end_run(first, end, emptied)
            first, high = end, high + 1
        if emptied:
            self._sweep(range(high - 1, low - 1, -1))
        return freed, emptied

    def finish(self, offsets: Int64) -> int:
        """Stop counting messages (sorted, distinct) against the bounds; return the bytes that this frees."""
        return sum(self._parts[at].move_waiting(mine, -1) for at, mine in self._by_part(offsets))

    def unfinish(self, offsets: Int64) -> int:
        """Count messages against the bounds again; return the bytes that this takes."""
        return sum(self._parts[at].move_waiting(mine, 1) for at, mine in self._by_part(offsets))

    def bytes_of(self, offsets: Int64) -> int:
        """Return the bytes that `finish` of these messages would free."""
        return sum(self._parts[at].bytes_of(mine) for at, mine in self._by_part(offsets))

    def share_of(self, offsets: Int64) -> int:
        """Return the bytes of these messages by the proportional rule, rounded up, whether they count or not."""
        return sum(self._parts[at].share_of(mine) for at, mine in self._by_part(offsets))

    def _sweep(self, touched: Iterable[int]) -> None:
        """Remove empty rows of parts, the last one first, and join parts that became small."""
        for at in touched:
            if not self._parts[at].sweep() or at == len(self._parts) - 1:
                continue
            if not len(self._parts[at]):
                del self._parts[at]
            else:
                self._join(at)

    def _join(self, at: int) -> None:
        """Join a part with one beside it, if both fit into one: a few rows must not cost as much as a whole part."""
        for left in (at - 1, at):
            both = self._parts[left : left + 2] if left >= 0 and left + 2 < len(self._parts) else []
            if both and sum(map(len, both)) <= PART_ROWS:
                self._parts[left : left + 2] = [packed(np.concatenate([part.rows() for part in both], axis=1))]
                return

    def live_messages(self) -> int:
        """Return how many messages are still needed."""
        return sum(int(part.column(LIVE).sum()) for part in self._parts)

    def published_at_us(self, offset: int) -> int | None:
        """Return when the message at `offset`, or the next batch after it that is still here, was published."""
        for part in self._parts[self._at(offset) :]:
            here = np.flatnonzero((part.column(LIVE) > 0) & (part.column(BASE) + part.column(COUNT) > offset))
            if len(here):
                return int(part.column(PUBLISHED)[here[0]])
        return None

    def published_of(self, offsets: Int64) -> Int64:
        """Return when each of these messages (sorted), which must still be here, was published."""
        return np.concatenate(
            [np.empty(0, np.int64), *(self._parts[at].published_of(mine) for at, mine in self._by_part(offsets))]
        )

    def first_published_from(self, at_us: int) -> int | None:
        """Return the base of the first batch published at or after a time; None if there is none."""
        for part in self._parts:
            here = np.flatnonzero(part.column(PUBLISHED) >= at_us)
            here = here[part.column(LIVE)[here] > 0]
            if len(here):
                return int(part.column(BASE)[here[0]])
        return None

    def oldest_us(self) -> int | None:
        """Return a time at or before which no batch was published, mostly that of the oldest batch; None without one.

        A part behind others counts with the oldest batch that it ever had, so that they are not searched.
        """
        first, *others = self._parts
        found = min(first.oldest_us, *(part.lows[PUBLISHED] for part in others[:-1]), self._parts[-1].oldest_us)
        return None if found == NEVER else found

    def next_waiting(self, offset: int) -> WaitingBatch | None:
        """Return the first batch from an offset on with messages that count against the bounds."""
        for part in self._parts[self._at(offset) :]:
            here = np.flatnonzero((part.above[WAITING][part.start : part.end] > 0) & (part.column(BASE) >= offset))
            if len(here):
                return WaitingBatch(*(int(part.column(each)[here[0]]) for each in (PUBLISHED, BASE, COUNT)))
        return None

    def between(self, start: int, stop: int) -> Int64:
        """Return the rows of batches that are not empty and have offsets in `start..stop`."""
        parts = self._parts[self._at(start) : self._at(stop) + 1]
        rows = np.concatenate([_NO_ROWS, *(part.rows() for part in parts)], axis=1)
        return rows[:, (rows[BASE] < stop) & (rows[BASE] + rows[COUNT] > start)]

    def columns(self) -> Int64:
        """Return every row that is not empty: the `COLUMNS`."""
        return np.concatenate([part.rows() for part in self._parts], axis=1)

    def load(self, data: Int64) -> None:
        """Load what `columns` returned. Older checkpoints also have empty rows."""
        self._parts = [opened(_NO_ROWS, OPEN_MIN)]
        self._add(data[:, data[LIVE] > 0])

    def bytes_pieces(self) -> list[bytes | memoryview]:
        """Return every row that is not empty as bytes, in pieces that are never modified, for a checkpoint."""
        pieces: list[bytes | memoryview] = []
        for part in self._parts:
            own = packed(part.rows()) if len(part) and (part.empty or part is self._parts[-1]) else part
            pieces += own.bytes_pieces() if len(own) else []
        return pieces

    def load_bytes(self, data: bytes) -> None:
        """Load the bytes of `bytes_pieces`."""
        parts = list(from_bytes(data))
        self._parts = [*parts[:-1], opened(_NO_ROWS, OPEN_MIN)]
        if parts:
            self._add(parts[-1].rows())
