"""An index of waiting messages ordered by (rank, offset), 16 bytes each, never a Python object per message.

Rank is a priority, a due time or a place in a fifo. The index is an LSM tree of columns:

    insert ──► tail (unsorted) ──► runs (sorted, at most RUN_MAX pairs each) ──► front (sorted, the smallest of all)
                                                                                   └──► take

`take` cuts slices off the front, so its cost does not depend on the backlog. When the front is empty it is refilled
with a block from the head of every run. Removal is lazy: `discard` remembers offsets, and they are dropped when they
reach the front.

Ranks must fit 43 bits: (rank, row) is packed into one uint64, because numpy sorts one column far quicker than two.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
from pyroaring import BitMap64

from wherry.core.index.offsets import bitmap_of, members

Int64: TypeAlias = npt.NDArray[np.int64]

TAIL_MAX = 1 << 15
"""Pairs collected before they are sorted into a run: about 2 ms of sorting."""

RUN_MAX = 1 << 18
"""Runs are merged up to this size: about 15 ms of sorting on an idle machine, the longest pause of this index."""

MERGE_FAN = 4
BLOCK = 1 << 15
"""Pairs that a refill reads, spread over the runs."""

SHORT_MAX = 1_024
"""Pairs of an index that is the front alone, without runs: with so few, a copy costs less than a run and a refill."""

SLACK = 1.2

_ROW_BITS = 20
_ROW_MASK = (1 << _ROW_BITS) - 1
_EMPTY = np.empty(0, np.int64)


class Pairs(NamedTuple):
    """Ranks and offsets of the same messages, row by row."""

    rank: Int64
    offset: Int64


NOTHING = Pairs(_EMPTY, _EMPTY)


def sort_pairs(rank: Int64, offset: Int64) -> Pairs:
    """Return the pairs sorted by (rank, offset)."""
    if len(offset) == 1:
        return Pairs(rank, offset)
    if len(offset) > _ROW_MASK:
        order = np.lexsort((offset, rank))
        return Pairs(rank[order], offset[order])
    if len(offset) > 1 and not bool((offset[1:] > offset[:-1]).all()):
        order = np.argsort(offset, kind="stable")
        rank, offset = rank[order], offset[order]
    packed = (rank << _ROW_BITS) | np.arange(len(rank), dtype=np.int64)
    packed.sort()
    return Pairs(packed >> _ROW_BITS, offset[packed & _ROW_MASK])


def count_up_to(pairs: Pairs, bound: tuple[int, int]) -> int:
    """Return how many of the sorted pairs are at or below `bound`."""
    low = int(np.searchsorted(pairs.rank, bound[0], "left"))
    high = int(np.searchsorted(pairs.rank, bound[0], "right"))
    return low + int(np.searchsorted(pairs.offset[low:high], bound[1], "right"))


def _merge(old: Pairs, new: Pairs) -> Pairs:
    """Merge two sorted sets of pairs. New messages mostly have the higher offsets, and then no sort is needed."""
    index = np.searchsorted(old.rank, new.rank, "right")
    before = np.maximum(index - 1, 0)
    if bool(((old.rank[before] == new.rank) & (old.offset[before] > new.offset)).any()):
        return sort_pairs(np.concatenate((old.rank, new.rank)), np.concatenate((old.offset, new.offset)))
    return Pairs(np.insert(old.rank, index, new.rank), np.insert(old.offset, index, new.offset))


def _joined(old: Pairs, new: Pairs) -> Pairs:
    """Return two sorted sets of a few pairs as one; mostly the new ones come behind all others."""
    if len(old.rank) == 0:
        return new
    if int(new.rank[0]) > int(old.rank[-1]):
        return Pairs(np.concatenate((old.rank, new.rank)), np.concatenate((old.offset, new.offset)))
    return _merge(old, new)


class SortedRuns:
    """Waiting messages by (rank, offset)."""

    __slots__ = ("_front", "_gone", "_runs", "_size", "_tail", "_tail_size")

    def __init__(self) -> None:
        self._front = NOTHING
        self._runs: list[Pairs] = []
        self._tail: list[Pairs] = []
        self._tail_size = 0
        self._size = 0
        self._gone = BitMap64()

    def __len__(self) -> int:
        return self._size - len(self._gone)

    def insert(self, rank: Int64, offset: Int64) -> None:
        """Add messages that are not in the index. The arrays are kept: do not change them afterwards.

        A message that was discarded may be added again with the rank it had: its old pair becomes valid again.
        """
        if self._gone:
            back = members(self._gone, offset)
            if back.any():
                self._gone -= bitmap_of(offset[back])
                rank, offset = rank[~back], offset[~back]
        if len(offset) == 0:
            return
        self._tail.append(Pairs(rank, offset))
        self._tail_size += len(offset)
        self._size += len(offset)
        if self._tail_size >= TAIL_MAX:
            self._sort_tail()

    def discard(self, offset: Int64) -> None:
        """Remove messages that are in the index."""
        self._gone |= bitmap_of(offset)
        if self._size > TAIL_MAX and len(self._gone) * 2 > self._size:
            self._sweep()

    def peek(self, n: int, rank_max: int | None = None) -> Pairs:
        """Return the `n` smallest pairs, with ranks of at most `rank_max`, without removing them."""
        self._fill(n, rank_max)
        pairs = Pairs(self._front.rank[:n], self._front.offset[:n])
        if rank_max is not None and len(pairs.rank) and pairs.rank[-1] > rank_max:
            stop = int(np.searchsorted(pairs.rank, rank_max, "right"))
            pairs = Pairs(pairs.rank[:stop], pairs.offset[:stop])
        return pairs

    def take(self, n: int, rank_max: int | None = None) -> Pairs:
        """Remove and return the `n` smallest pairs, with ranks of at most `rank_max`."""
        pairs = self.peek(n, rank_max)
        self.drop_first(len(pairs.rank))
        return pairs

    def drop_first(self, n: int) -> None:
        """Remove the first `n` pairs that `peek` returned."""
        self._front = Pairs(self._front.rank[n:], self._front.offset[n:])
        self._size -= n

    def first_rank(self) -> int | None:
        """Return the smallest rank, None when empty."""
        pairs = self.peek(1)
        return int(pairs.rank[0]) if len(pairs.rank) else None

    def count_to(self, rank_max: int) -> int:
        """Return how many messages have a rank of at most `rank_max`."""
        if self._gone:
            self._sweep()
        total = 0
        for pairs in (self._front, *self._runs):
            total += int(np.searchsorted(pairs.rank, rank_max, "right"))
        return total + sum(int((pairs.rank <= rank_max).sum()) for pairs in self._tail)

    def parts(self) -> list[Pairs]:
        """Return every pair, in no order, without a copy.

        A checkpoint may keep these arrays: they are never modified.
        """
        if self._gone:
            self._sweep()
        return [self._front, *self._runs, *self._tail]

    def columns(self) -> Pairs:
        """Return every pair, in no order, as a copy."""
        parts = self.parts()
        return Pairs(np.concatenate([p.rank for p in parts]), np.concatenate([p.offset for p in parts]))

    def bytes(self) -> int:
        """Return the memory that the columns take, including what a slice keeps alive."""
        seen: dict[int, int] = {}
        for pairs in (self._front, *self._runs, *self._tail):
            for column in pairs:
                root: npt.NDArray[np.int64] = column
                while isinstance(root.base, np.ndarray):
                    root = root.base
                seen[id(root)] = root.nbytes
        return sum(seen.values())

    def _fill(self, n: int, rank_max: int | None) -> None:
        """Make the front hold the `n` smallest pairs (or all, or all up to `rank_max`), without discarded ones."""
        if self._tail:
            self._absorb_tail()
        self._refill(n, rank_max)
        # Doubled each time, since discarded pairs are often neighbours: the front is copied only a few times.
        window = n
        while self._gone and self._drop_gone(window):
            self._refill(n, rank_max)
            window *= 2

    def _refill(self, n: int, rank_max: int | None) -> None:
        while len(self._front.rank) < n and self._runs:
            if rank_max is not None and min(int(run.rank[0]) for run in self._runs) > rank_max:
                break
            block = self._next_block()
            if len(self._front.rank):
                block = Pairs(*(np.concatenate(both) for both in zip(self._front, block, strict=True)))
            self._front = block

    def _drop_gone(self, window: int) -> bool:
        """Drop discarded pairs from the first `window` pairs of the front; return whether there were any."""
        head = self._front.offset[:window]
        dead = members(self._gone, head)
        if not dead.any():
            return False
        self._gone -= bitmap_of(head[dead])
        alive = np.ones(len(self._front.rank), np.bool_)
        alive[: len(head)] = ~dead
        self._front = Pairs(self._front.rank[alive], self._front.offset[alive])
        self._size -= len(alive) - len(self._front.rank)
        return True

    def _absorb_tail(self) -> None:
        """Sort the tail: pairs that rank before the end of the front are merged into it, the rest becomes a run."""
        new = self._sorted_tail()
        if not self._runs and len(self._front.rank) + len(new.rank) <= SHORT_MAX:
            self._front = _joined(self._front, new)
            return
        if len(self._front.rank):
            bound = (int(self._front.rank[-1]), int(self._front.offset[-1]))
            early = count_up_to(new, bound)
            if early:
                self._front = _merge(self._front, Pairs(new.rank[:early], new.offset[:early]))
                self._shorten_front()
            new = Pairs(new.rank[early:], new.offset[early:])
        self._add_run(new)

    def _shorten_front(self) -> None:
        """Move most of a long front back to the runs: it would grow with every smaller rank, and slow down merges."""
        if len(self._front.rank) > 4 * BLOCK:
            self._add_run(Pairs(self._front.rank[BLOCK:].copy(), self._front.offset[BLOCK:].copy()))
            self._front = Pairs(self._front.rank[:BLOCK], self._front.offset[:BLOCK])

    def _sort_tail(self) -> None:
        if len(self._front.rank):
            self._absorb_tail()
        else:
            self._add_run(self._sorted_tail())

    def _sorted_tail(self) -> Pairs:
        if len(self._tail) == 1:
            only = self._tail[0]
            new = sort_pairs(only.rank, only.offset)
        else:
            parts = self._tail
            new = sort_pairs(np.concatenate([p.rank for p in parts]), np.concatenate([p.offset for p in parts]))
        self._tail.clear()
        self._tail_size = 0
        return new

    def _add_run(self, run: Pairs) -> None:
        """Add a run. The last few runs of like size are merged, so that each pair moves O(log n) times."""
        if len(run.rank) == 0:
            return
        self._runs.append(run)
        while len(self._runs) >= MERGE_FAN:
            last = self._runs[-MERGE_FAN:]
            total = sum(len(r.rank) for r in last)
            if len(last[0].rank) * MERGE_FAN > total * 2 or total > RUN_MAX:
                return
            merged = sort_pairs(np.concatenate([r.rank for r in last]), np.concatenate([r.offset for r in last]))
            del self._runs[-MERGE_FAN:]
            self._runs.append(merged)

    def _next_block(self) -> Pairs:
        """Remove and return, sorted, all pairs up to a bound that covers at least one block of one run.

        The first pairs of each run are considered. The bound is the smallest of their last pairs, so that no pair below
        it is missed.
        """
        step = max(64, BLOCK // len(self._runs))
        bounds = [(int(run.rank[step - 1]), int(run.offset[step - 1])) for run in self._runs if len(run.rank) > step]
        heads: list[Pairs] = []
        rest: list[Pairs] = []
        for run in self._runs:
            stop = count_up_to(run, min(bounds)) if bounds else len(run.rank)
            heads.append(Pairs(run.rank[:stop], run.offset[:stop]))
            if stop < len(run.rank):
                rest.append(Pairs(run.rank[stop:], run.offset[stop:]))
        _trim_one(rest)
        self._runs = rest
        return sort_pairs(np.concatenate([h.rank for h in heads]), np.concatenate([h.offset for h in heads]))

    def _sweep(self) -> None:
        """Drop discarded pairs everywhere, when they are many or when an exact count is needed."""
        self._front = next(self._kept([self._front]), NOTHING)
        self._runs = list(self._kept(self._runs))
        self._tail = list(self._kept(self._tail))
        self._tail_size = sum(len(pairs.rank) for pairs in self._tail)
        self._size = len(self._front.rank) + sum(len(run.rank) for run in self._runs) + self._tail_size
        self._gone = BitMap64()

    def _kept(self, many: list[Pairs]) -> Iterator[Pairs]:
        for pairs in many:
            alive = ~members(self._gone, pairs.offset)
            if alive.any():
                yield Pairs(pairs.rank[alive], pairs.offset[alive])


def _trim_one(runs: list[Pairs]) -> None:
    """Copy the run that keeps most consumed pairs alive, if they are a fifth of it, so that memory follows the backlog.

    One run a refill: all of them at once would be a pause of tens of milliseconds at ten million messages.
    """
    slack = [(len(run.rank.base) / len(run.rank) if isinstance(run.rank.base, np.ndarray) else 1.0) for run in runs]
    most = max(range(len(runs)), key=slack.__getitem__, default=-1)
    if most >= 0 and slack[most] > SLACK:
        runs[most] = Pairs(runs[most].rank.copy(), runs[most].offset.copy())
