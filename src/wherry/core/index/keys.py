"""Order per key with many consumers: a message is not leased while an earlier message of its key is leased.

A gate in front of the plain waiting order. A key is **busy** while a message with it is leased or delayed after a
failure. Messages that were read past the gate are **parked** until they are leased; those of a busy key stay parked. At
most `PARKED_MAX` messages are parked, so one slow key stops the look-ahead instead of filling the memory.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from wherry.core.index.runs import NOTHING, Pairs, count_up_to
from wherry.core.index.table import OffsetTable
from wherry.core.index.waiting import Cut, Waiting

Int64: TypeAlias = npt.NDArray[np.int64]
Mask: TypeAlias = npt.NDArray[np.bool_]
Hashes: TypeAlias = Callable[[Int64], Int64]
"""Returns key hashes of offsets; 0 for a message without a key, which waits for no other. May raise `Cold`."""

PARKED_MAX = 16_384
WINDOW = 1_024

_NONE = np.empty(0, np.int64)


class Busy:
    """A sorted multiset of the hashes of busy keys."""

    __slots__ = ("_hashes",)

    def __init__(self) -> None:
        self._hashes = _NONE

    def __len__(self) -> int:
        return len(self._hashes)

    def add(self, hashes: Int64) -> None:
        """Add one message to each of these keys."""
        hashes = np.sort(hashes[hashes != 0])
        self._hashes = np.insert(self._hashes, np.searchsorted(self._hashes, hashes), hashes)

    def remove(self, hashes: Int64) -> None:
        """Remove one message from each of these keys; keys that are not busy are ignored."""
        hashes = np.sort(hashes[hashes != 0])
        if len(hashes) == 0 or len(self._hashes) == 0:
            return
        nth = np.arange(len(hashes)) - np.searchsorted(hashes, hashes, "left")
        index = np.searchsorted(self._hashes, hashes, "left") + nth
        real = index < len(self._hashes)
        real[real] &= self._hashes[index[real]] == hashes[real]
        self._hashes = np.delete(self._hashes, index[real])

    def has(self, hashes: Int64) -> Mask:
        """Return which keys are busy."""
        return _in_sorted(self._hashes, hashes)


def _in_sorted(known: Int64, hashes: Int64) -> Mask:
    if len(known) == 0:
        return np.zeros(len(hashes), np.bool_)
    index = np.minimum(np.searchsorted(known, hashes), len(known) - 1)
    found: Mask = known[index] == hashes
    return found


class KeyGate:
    """`Waiting` behind a gate that admits one delivery at a time for each key."""

    __slots__ = ("_behind", "_busy", "_hash", "_hashes_of", "_offset", "_out", "_rank")

    def __init__(self, behind: Waiting, hashes_of: Hashes) -> None:
        self._behind = behind
        self._hashes_of = hashes_of
        self._busy = Busy()
        self._out = OffsetTable(("hash",))
        self._rank, self._offset, self._hash = _NONE, _NONE, _NONE

    def admit(self, base: int, count: int, rank: Int64) -> None:
        """See `Waiting`."""
        self._behind.admit(base, count, rank)

    def put_back(self, rank: Int64, offset: Int64) -> None:
        """See `Waiting`. Messages that held their keys come before later messages of these keys."""
        out = self._out.has(offset)
        if out.any():
            hashes = self._out.get(offset[out], "hash", 0)
            self.let_go(offset[out])
            self._park(rank[out], offset[out], hashes)
        self._behind.put_back(rank[~out], offset[~out])

    def claim(self, offset: Int64) -> None:
        """See `Waiting`."""
        self._behind.claim(offset)

    def discard(self, offset: Int64) -> None:
        """See `Waiting`."""
        parked = np.isin(self._offset, offset)
        if parked.any():
            offset = offset[~np.isin(offset, self._offset[parked])]
            self._keep(~parked)
        if len(offset):
            self._behind.discard(offset)

    def peek(self, n: int, now_ms: int) -> Pairs:
        """See `Waiting`."""
        self._look_ahead(n, now_ms)
        free = self._free()[:n]
        return Pairs(self._rank[free], self._offset[free])

    def pick(self, n: int, now_ms: int, cut: Cut) -> Pairs:
        """See `Waiting`."""
        self._look_ahead(n, now_ms)
        free = self._free()[:n]
        free = free[: cut(self._offset[free])]
        pairs = Pairs(self._rank[free], self._offset[free])
        self.hold(pairs.offset, self._hash[free])
        keep = np.ones(len(self._rank), np.bool_)
        keep[free] = False
        self._keep(keep)
        return pairs

    def hold(self, offset: Int64, hashes: Int64) -> None:
        """Let messages hold their keys. Messages that already do are left as they are."""
        new = ~self._out.has(offset)
        self._out.put(offset[new], hash=hashes[new])
        self._busy.add(hashes[new])

    def let_go(self, offset: Int64) -> None:
        """Let messages no longer hold their keys."""
        out = offset[self._out.has(offset)]
        self._busy.remove(self._out.get(out, "hash", 0))
        self._out.remove(out)

    def hashes(self, offset: Int64) -> Int64:
        """Return the key hashes of messages that hold their keys."""
        return self._out.get(offset, "hash", 0)

    def ready(self, now_ms: int) -> int:
        """See `Waiting`. Counts parked messages too, because they only wait for their key."""
        return len(self._rank) + self._behind.ready(now_ms)

    def next_at_ms(self, now_ms: int) -> int | None:
        """See `Waiting`."""
        return self._behind.next_at_ms(now_ms)

    def parts(self) -> list[Pairs]:
        """See `Waiting`."""
        return [*self._behind.parts(), Pairs(self._rank, self._offset)]

    def columns(self) -> Pairs:
        """See `Waiting`."""
        rank, offset = self._behind.columns()
        return Pairs(np.concatenate((rank, self._rank)), np.concatenate((offset, self._offset)))

    def offsets(self) -> Int64:
        """See `Waiting`."""
        return np.concatenate((self._behind.offsets(), self._offset))

    def _free(self) -> Int64:
        return np.flatnonzero(~self._busy.has(self._hash)).astype(np.int64)

    def _look_ahead(self, n: int, now_ms: int) -> None:
        """Move messages from behind the gate to the parked ones until the first `n` with a free key are parked.

        It does not suffice that `n` such messages are parked: a message with a smaller rank may have arrived behind the
        gate.
        """
        while len(self._rank) < PARKED_MAX:
            free = self._free()
            seen = self._behind.peek(1 if len(free) >= n else min(max(n, WINDOW), PARKED_MAX - len(self._rank)), now_ms)
            if len(free) >= n:
                last = free[n - 1]
                seen = seen if count_up_to(seen, (int(self._rank[last]), int(self._offset[last]))) else NOTHING
            if len(seen.rank) == 0:
                return
            hashes = self._hashes_of(seen.offset)
            self._behind.pick(len(seen.rank), now_ms, len)
            self._park(seen.rank, seen.offset, hashes)

    def _park(self, rank: Int64, offset: Int64, hashes: Int64) -> None:
        rank, offset = np.concatenate((self._rank, rank)), np.concatenate((self._offset, offset))
        order = np.lexsort((offset, rank))
        self._rank, self._offset = rank[order], offset[order]
        self._hash = np.concatenate((self._hash, hashes))[order]

    def _keep(self, mask: Mask) -> None:
        self._rank, self._offset, self._hash = self._rank[mask], self._offset[mask], self._hash[mask]
