"""Sets of offsets: a floor below which every offset is a member, and a roaring bitmap above it."""

from __future__ import annotations

import array
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from pyroaring import BitMap64

Int64: TypeAlias = npt.NDArray[np.int64]
Mask: TypeAlias = npt.NDArray[np.bool_]


def bitmap_of(offsets: Int64) -> BitMap64:
    """Return a bitmap of sorted or unsorted offsets; a run of consecutive offsets costs nothing per message."""
    bitmap = BitMap64()
    count = len(offsets)
    if count == 0:
        return bitmap
    first, last = int(offsets[0]), int(offsets[-1])
    if last - first == count - 1 and (count < 3 or bool((np.diff(offsets) == 1).all())):
        bitmap.add_range(first, last + 1)
        return bitmap
    return BitMap64(array.array("Q", offsets.tobytes()))


def distinct(offsets: Int64) -> Int64:
    """Return the offsets once each, ascending. Not `np.unique`, which hashes integers first at many times the cost."""
    ordered = np.sort(offsets)
    return ordered[starts(ordered)]


def starts(ordered: Int64) -> Int64:
    """Return where in a sorted column each value occurs first."""
    first = np.ones(len(ordered), np.bool_)
    np.not_equal(ordered[1:], ordered[:-1], out=first[1:])
    return np.flatnonzero(first)


def offsets_of(bitmap: BitMap64) -> Int64:
    """Return the members of a bitmap, ascending."""
    return np.frombuffer(bitmap.to_array(), np.uint64).astype(np.int64)


def members(bitmap: BitMap64, offsets: Int64) -> Mask:
    """Return which of the offsets are in the bitmap."""
    if not bitmap or len(offsets) == 0:
        return np.zeros(len(offsets), np.bool_)
    found = offsets_of(bitmap & bitmap_of(offsets))
    if len(found) == 0:
        return np.zeros(len(offsets), np.bool_)
    if len(found) == len(offsets):
        return np.ones(len(offsets), np.bool_)
    index = np.minimum(np.searchsorted(found, offsets), len(found) - 1)
    result: Mask = found[index] == offsets
    return result


class OffsetSet:
    """A growing set of offsets that is mostly a prefix: every offset below `floor`, and `above` for the rest.

    Invariant: `floor` itself is not in the set, so `floor` is the lowest offset that is missing.
    """

    __slots__ = ("above", "floor")

    def __init__(self, floor: int = 0, above: BitMap64 | None = None) -> None:
        self.floor = floor
        self.above = BitMap64() if above is None else above

    def __len__(self) -> int:
        return self.floor + len(self.above)

    def __contains__(self, offset: int) -> bool:
        return offset < self.floor or offset in self.above

    def contains(self, offsets: Int64) -> Mask:
        """Return which of the offsets are in the set."""
        inside: Mask = offsets < self.floor
        if self.above:
            rest = np.flatnonzero(~inside)
            inside[rest] = members(self.above, offsets[rest])
        return inside

    def covers(self, offsets: Int64) -> bool:
        """Return whether all of the offsets (sorted) are below the floor: the common case, and a quick test."""
        return len(offsets) == 0 or int(offsets[-1]) < self.floor

    def has_run(self, start: int, stop: int) -> bool:
        """Return whether all of `start..stop` is in the set."""
        return stop <= self.floor or self.count_below(stop) - self.count_below(start) == stop - start

    def has_none_of(self, start: int, stop: int) -> bool:
        """Return whether nothing of `start..stop` is in the set."""
        return start >= self.floor and (not self.above or self.above.range_cardinality(start, stop) == 0)

    def has_all_of(self, some: BitMap64) -> bool:
        """Return whether all members of a bitmap that is not empty are in the set."""
        return some.max() < self.floor or (some.min() >= self.floor and some.issubset(self.above))

    def has_no_one_of(self, some: BitMap64) -> bool:
        """Return whether no member of a bitmap that is not empty is in the set."""
        return some.min() >= self.floor and self.above.isdisjoint(some)

    def add_set(self, some: BitMap64) -> None:
        """Add the members of a bitmap; the floor rises over consecutive ones."""
        self.above |= some
        self._raise_floor()

    def add(self, offsets: Int64) -> None:
        """Add offsets; the floor rises over consecutive ones."""
        if len(offsets) == 0:
            return
        first, last = int(offsets[0]), int(offsets[-1])
        if first == self.floor and not self.above and last - first == len(offsets) - 1:
            self.floor = last + 1
            return
        self.above |= bitmap_of(offsets)
        self._raise_floor()

    def remove(self, offsets: Int64) -> None:
        """Remove offsets; the floor falls to the lowest of them."""
        if len(offsets) == 0:
            return
        low = int(offsets.min())
        if low < self.floor:
            self.above.add_range(low, self.floor)
            self.floor = low
        self.above -= bitmap_of(offsets)

    def add_range(self, start: int, stop: int) -> None:
        """Add `start..stop`, the end not included."""
        if start == self.floor and not self.above:
            self.floor = max(start, stop)
        elif start < stop:
            self.above.add_range(start, stop)
            self._raise_floor()

    def missing(self, start: int, stop: int) -> Int64:
        """Return the offsets of `start..stop` that are not in the set."""
        start = max(start, self.floor)
        if start >= stop:
            return np.empty(0, np.int64)
        if not self.above:
            return np.arange(start, stop, dtype=np.int64)
        gap = BitMap64()
        gap.add_range(start, stop)
        return offsets_of(gap - self.above)

    def within(self, start: int, stop: int) -> Int64:
        """Return the offsets of `start..stop` that are in the set."""
        return offsets_of(self.inside(start, stop))

    def absorb(self, other: OffsetSet, start: int, stop: int) -> None:
        """Add the members of another set in `start..stop`; a long prefix costs nothing per offset."""
        self.above |= other.inside(start, stop)
        self._raise_floor()

    def copy(self) -> OffsetSet:
        """Return a copy."""
        return OffsetSet(self.floor, self.above.copy())

    def inside(self, start: int, stop: int) -> BitMap64:
        """Return the offsets of `start..stop` that are in the set, as a new bitmap."""
        asked = BitMap64()
        asked.add_range(start, stop)
        inside = asked & self.above
        if start < self.floor:
            inside.add_range(start, min(stop, self.floor))
        return inside

    def count_below(self, stop: int) -> int:
        """Return how many members are below `stop`."""
        if stop <= self.floor:
            return stop
        return self.floor + int(self.above.range_cardinality(self.floor, stop))

    def first_missing(self, count: int, stop: int) -> Int64:
        """Return the `count` lowest offsets below `stop` that are not in the set."""
        width = max(count * 2, 1024)
        found = self.missing(self.floor, min(stop, self.floor + width))
        while len(found) < count and self.floor + width < stop:
            width *= 4
            found = self.missing(self.floor, min(stop, self.floor + width))
        return found[:count]

    def _raise_floor(self) -> None:
        """Move the floor over the members that follow it directly, found by bisection on the bitmap's rank."""
        above = self.above
        if not above:
            return
        if above.min() < self.floor:
            above.remove_range(0, self.floor)
        if self.floor not in above:
            return
        base = self.floor
        low, high = base, int(above.max())
        while low < high:
            middle = (low + high + 1) // 2
            if above.range_cardinality(base, middle + 1) == middle + 1 - base:
                low = middle
            else:
                high = middle - 1
        self.floor = low + 1
        above.remove_range(base, self.floor)
