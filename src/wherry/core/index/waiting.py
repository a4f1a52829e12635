"""The waiting messages of one reader: in order of arrival (a cursor), by rank, or until a time.

The classes here hold offsets only. Which messages are leased, settled or dead is known to the reader.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
from pyroaring import BitMap64

from wherry.core.index.offsets import (
    OffsetSet,
    bitmap_of,
    distinct,
    members,
    offsets_of,
)
from wherry.core.index.runs import (
    NOTHING,
    TAIL_MAX,
    Pairs,
    SortedRuns,
)
from wherry.core.index.table import OffsetTable

Int64: TypeAlias = npt.NDArray[np.int64]
Cut: TypeAlias = Callable[[Int64], int]
"""Returns how many of the candidates, in order, fit a budget of bytes. May raise `Cold`; then nothing was moved."""


NO_RANKS = np.empty(0, np.int64)
"""In the order of arrival the offset is the rank, so nothing reads this."""

_NONE = NO_RANKS


class Waiting(Protocol):
    """Messages that a reader may lease."""

    def admit(self, base: int, count: int, rank: Int64) -> None:
        """Add messages `base .. base+count`."""

    def put_back(self, rank: Int64, offset: Int64) -> None:
        """Add messages again with the rank that they had."""

    def claim(self, offset: Int64) -> None:
        """Take out messages that were just admitted: they are kept elsewhere until `put_back`."""

    def discard(self, offset: Int64) -> None:
        """Remove waiting messages without leasing them."""

    def peek(self, n: int, now_ms: int) -> Pairs:
        """Return the first `n` messages that may be leased now."""

    def pick(self, n: int, now_ms: int, cut: Cut) -> Pairs:
        """Remove and return the first `n` messages, or as many of them as `cut` allows."""

    def ready(self, now_ms: int) -> int:
        """Return how many messages may be leased now."""

    def next_at_ms(self, now_ms: int) -> int | None:
        """Return when the next message that waits for a time may be leased."""

    def parts(self) -> list[Pairs]:
        """Return what a checkpoint needs to restore every waiting message, in arrays that are never modified."""

    def columns(self) -> Pairs:
        """Return the same as a copy."""

    def offsets(self) -> Int64:
        """Return every waiting message, in no order: for audits."""


class Fifo:
    """Order of arrival: a cursor over the log, with no cost per waiting message.

    `_claimed` holds every offset that the cursor no longer returns. Messages that were put back are in `_back`, by the
    rank that they had.
    """

    __slots__ = ("_back", "_claimed", "_end")

    def __init__(self, start: int) -> None:
        self._claimed = OffsetSet(start)
        self._end = start
        self._back = SortedRuns()

    def admit(self, base: int, count: int, rank: Int64) -> None:
        """See `Waiting`. A gap before `base` is claimed, because there is no message in it."""
        if base > self._end:
            self._claimed.add_range(self._end, base)
        self._end = base + count

    def skip(self, base: int, count: int) -> None:
        """Claim `base .. base+count`, however many offsets that is."""
        self.admit(base, count, _NONE)
        self._claimed.add_range(base, base + count)

    def resume(self, claimed: OffsetSet, end: int) -> None:
        """Begin with everything below `end` waiting except `claimed`."""
        self._claimed, self._end = claimed, end

    def put_back(self, rank: Int64, offset: Int64) -> None:
        """See `Waiting`. Also takes messages that the cursor has not reached, which it then no longer returns."""
        self._claimed.add(offset[~self._claimed.contains(offset)])
        self._back.insert(rank, offset)

    def claim(self, offset: Int64) -> None:
        """See `Waiting`."""
        self._claimed.add(offset)

    def discard(self, offset: Int64) -> None:
        """See `Waiting`."""
        claimed = self._claimed.contains(offset)
        self._back.discard(offset[claimed])
        self._claimed.add(offset[~claimed])

    def peek(self, n: int, now_ms: int) -> Pairs:
        """See `Waiting`."""
        return self._first(n)[0]

    def pick(self, n: int, now_ms: int, cut: Cut) -> Pairs:
        """See `Waiting`."""
        pairs, from_back = self._first(n)
        keep = cut(pairs.offset)
        pairs = Pairs(pairs.rank[:keep], pairs.offset[:keep])
        if from_back is None:
            self._claimed.add(pairs.offset)
            return pairs
        from_back = from_back[:keep]
        self._back.drop_first(int(from_back.sum()))
        self._claimed.add(pairs.offset[~from_back])
        return pairs

    def next_run(self, n: int) -> tuple[int, int]:
        """Return the first `n` messages as consecutive offsets, first and stop; none unless they are such a run."""
        first = self._claimed.floor
        if self._claimed.above or len(self._back):
            return first, first
        return first, min(first + n, self._end)

    def is_empty(self) -> bool:
        """Return whether no message waits, after `claim_run`: nothing is behind the cursor then."""
        return self._claimed.floor >= self._end

    def claim_run(self, stop: int) -> None:
        """Take out the messages that `next_run` returned, up to `stop`."""
        self._claimed.floor = stop

    def discard_run(self, first: int, stop: int) -> bool:
        """Remove consecutive messages that the cursor has not reached; else return False, with no change."""
        if len(self._back) or not self._claimed.has_none_of(first, stop):
            return False
        self._claimed.add_range(first, stop)
        return True

    def _first(self, n: int) -> tuple[Pairs, npt.NDArray[np.bool_] | None]:
        """Return the first `n` messages, and which of them were put back (None: none)."""
        ahead = self._claimed.first_missing(n, self._end)
        back = self._back.peek(n) if len(self._back) else NOTHING
        if len(back.rank) == 0:
            return Pairs(ahead, ahead), None
        rank = np.concatenate((back.rank, ahead))
        order = np.argsort(rank, kind="stable")[:n]
        offset = np.concatenate((back.offset, ahead))[order]
        return Pairs(rank[order], offset), order < len(back.rank)

    def ready(self, now_ms: int) -> int:
        """See `Waiting`."""
        return len(self._back) + self._end - self._claimed.count_below(self._end)

    def next_at_ms(self, now_ms: int) -> int | None:
        """Return None: in a fifo no message waits for a time."""
        return None

    def parts(self) -> list[Pairs]:
        """Return nothing: a fifo is rebuilt from what is not settled, attempts_table or dead."""
        return []

    def columns(self) -> Pairs:
        """See `parts`."""
        return NOTHING

    def offsets(self) -> Int64:
        """See `Waiting`."""
        return np.concatenate((self._back.columns().offset, self._claimed.missing(0, self._end)))


class Ranked:
    """Order by priority, or by due time (`timed`): then no message is returned before the time of its rank."""

    __slots__ = ("_runs", "_timed")

    def __init__(self, *, timed: bool) -> None:
        self._runs = SortedRuns()
        self._timed = timed

    def admit(self, base: int, count: int, rank: Int64) -> None:
        """See `Waiting`."""
        self._runs.insert(rank, np.arange(base, base + count, dtype=np.int64))

    def put_back(self, rank: Int64, offset: Int64) -> None:
        """See `Waiting`."""
        self._runs.insert(rank, offset)

    def claim(self, offset: Int64) -> None:
        """See `Waiting`."""
        self._runs.discard(offset)

    def discard(self, offset: Int64) -> None:
        """See `Waiting`."""
        self._runs.discard(offset)

    def peek(self, n: int, now_ms: int) -> Pairs:
        """See `Waiting`."""
        return self._runs.peek(n, now_ms if self._timed else None)

    def pick(self, n: int, now_ms: int, cut: Cut) -> Pairs:
        """See `Waiting`."""
        pairs = self.peek(n, now_ms)
        keep = cut(pairs.offset)
        self._runs.drop_first(keep)
        return Pairs(pairs.rank[:keep], pairs.offset[:keep])

    def next_few(self, n: int, most: int, now_ms: int) -> tuple[list[int], list[int]] | None:
        """Return offsets and ranks of the first `n` messages that may be leased now, if they are at most `most`."""
        pairs = self.peek(min(n, most + 1), now_ms)
        return (pairs.offset.tolist(), pairs.rank.tolist()) if len(pairs.offset) <= most else None

    def claim_first(self, n: int) -> None:
        """Take out the first messages, which `next_few` returned."""
        self._runs.drop_first(n)

    def ready(self, now_ms: int) -> int:
        """See `Waiting`."""
        if not self._timed:
            return len(self._runs)
        first = self._runs.first_rank()
        return 0 if first is None or first > now_ms else self._runs.count_to(now_ms)

    def next_at_ms(self, now_ms: int) -> int | None:
        """See `Waiting`."""
        return self._runs.first_rank() if self._timed else None

    def parts(self) -> list[Pairs]:
        """See `Waiting`."""
        return self._runs.parts()

    def columns(self) -> Pairs:
        """See `Waiting`."""
        return self._runs.columns()

    def offsets(self) -> Int64:
        """See `Waiting`."""
        return self._runs.columns().offset

    def bytes(self) -> int:
        """Return the memory of the index."""
        return self._runs.bytes()


class Delayed:
    """Messages that wait until a time and then get their place back: retries, and due times in any order.

    `_until` may hold outdated pairs of messages that were delayed again or removed. The table of the reader
    has the valid time; pairs that differ from it are skipped.
    """

    __slots__ = ("_attempts_table", "_until", "members")

    def __init__(self, attempts_table: OffsetTable) -> None:
        self._attempts_table = attempts_table
        self._until = SortedRuns()
        self.members = BitMap64()

    def __len__(self) -> int:
        return len(self.members)

    def add(self, until_ms: Int64, offset: Int64) -> None:
        """Hold messages until a time each, which must be in their rows in `attempts_table` too."""
        self._until.insert(until_ms, offset)
        self.members |= bitmap_of(offset)

    def discard(self, leaving: BitMap64) -> None:
        """Remove some members."""
        self.members -= leaving
        if len(self._until) > 2 * len(self.members) + TAIL_MAX:
            offset = offsets_of(self.members)
            self._until = SortedRuns()
            self._until.insert(self._attempts_table.get(offset, "until_ms", 0), offset)

    def due(self, now_ms: int) -> Int64:
        """Remove and return every message whose time has come, ascending by offset."""
        first = self._until.first_rank()
        if first is None or first > now_ms:
            return _NONE
        until, offset = self._until.take(self._until.count_to(now_ms), now_ms)
        true = members(self.members, offset) & (self._attempts_table.get(offset, "until_ms", -1) == until)
        offset = distinct(offset[true])
        self.members -= bitmap_of(offset)
        return offset

    def next_at_ms(self) -> int | None:
        """Return when the next message is due, or an earlier time."""
        return self._until.first_rank() if self.members else None
