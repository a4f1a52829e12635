"""One partition: its next offset, its batches, and the state of its messages over all subscriptions together.

Two sets of offsets grow from the front. A message is **finished** when no durable subscription waits for it any more
(it is settled or dead): it no longer counts against the bounds of the topic. It is **released** when its body is not
needed either: it is no dead letter, and retention does not keep it. `live` and `waiting` in the directory count, by
batch, what is not released and what is not finished.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
from pyroaring import BitMap64

from wherry.core.index.directory import Directory
from wherry.core.index.offsets import OffsetSet, bitmap_of, members
from wherry.core.index.runs import TAIL_MAX, SortedRuns
from wherry.core.index.table import OffsetTable
from wherry.core.state.reader import DEAD, Reader

Int64: TypeAlias = npt.NDArray[np.int64]

ENDS = ("why", "replacement")
ENDS_MAX = 65_536
"""Records of how messages ended, kept for each partition, for messages that ended otherwise than by being settled."""


LOST_SPAN = 1 << 26
"""Offsets back from the end for which lost transient messages can be distinguished from settled ones."""


class Freed(NamedTuple):
    """What a step freed of the topic's bounds."""

    messages: int
    bytes: int
    dead: int = 0
    """Dead letters that were removed with it."""


class Partition:
    """Messages of one partition."""

    __slots__ = (
        "dead",
        "directory",
        "emptied",
        "ends",
        "ends_unknown_below",
        "ephemeral",
        "expiry",
        "expiry_exempt",
        "finished",
        "has_due",
        "lost",
        "next_offset",
        "number",
        "overdue",
        "readers",
        "released",
        "reserved",
        "transient",
        "versions",
    )

    def __init__(self, number: int) -> None:
        self.number = number
        self.next_offset = 0
        self.reserved = 0
        self.has_due = False
        """Whether a message with a due time was ever here: then a late subscription must read each body."""
        self.directory = Directory()
        self.finished = OffsetSet()
        self.released = OffsetSet()
        self.readers: dict[int, Reader] = {}
        self.ephemeral: dict[int, Reader] = {}
        self.dead = OffsetTable(DEAD)
        self.expiry = SortedRuns()
        self.expiry_exempt = BitMap64()
        """Messages that were redriven: they do not expire a second time."""
        self.overdue = np.empty(0, np.int64)
        """Messages that expired while a subscription held them, on lease or in its backlog. They wait for no other
        subscription, and are removed when none holds them any more."""
        self.versions = OffsetTable(("version",))
        self.ends = OffsetTable(ENDS)
        """How messages ended that were not simply settled: a fate, and the offset of the message that replaced each."""
        self.ends_unknown_below = 0
        """How a message below this offset ended is unknown if the message is gone and has no row in `ends`."""
        self.lost = BitMap64()
        """Offsets of transient messages that were lost in a restart. How they ended is unknown."""
        self.transient = BitMap64()
        """Messages that were never journaled, so no journaled operation may name them. Empty after a restart."""
        self.emptied: list[tuple[int, int]] = []
        """Base and end of batches that no durable subscription needs; the shell drops their bodies."""

    def kept(self, offset: Int64) -> Int64:
        """Return the messages whose bodies are still here."""
        return offset[~self.released.contains(offset)]

    def present(self, offset: Int64) -> Int64:
        """Return the messages that are still here and are not dead letters of no subscription."""
        offset = self.kept(offset)
        return offset[~self.dead.has(offset)] if len(self.dead) else offset

    def skip_to(self, base: int) -> None:
        """Skip offsets up to `base`: they belonged to transient messages that are gone."""
        gap = base - self.next_offset
        if gap <= 0:
            return
        for reader in (*self.readers.values(), *self.ephemeral.values()):
            reader.pass_over(self.next_offset, gap)
        self.finished.add_range(self.next_offset, base)
        self.released.add_range(self.next_offset, base)
        self.lost.add_range(self.next_offset, base)
        self.next_offset = base
        self._forget_lost()

    def append(self, base: int, count: int, size: int, published_us: int) -> None:
        """Append a published batch."""
        self.directory.append(base, count, size, published_us)
        self.next_offset = base + count

    def extend(self, base: Int64, count: Int64, size: Int64, published_us: Int64) -> None:
        """Append published batches, at least one, in this order."""
        self.directory.extend(base, count, size, published_us)
        self.next_offset = int(base[-1] + count[-1])

    def settled(self, offset: Int64) -> Freed:
        """Finish and release messages that a subscription settled and no other durable subscription needs."""
        freed = self.finish(offset)
        if len(self.dead):
            offset = offset[~self.dead.has(offset)]
        for reader in self.readers.values():
            if not reader.settled.covers(offset):
                offset = offset[reader.settled.contains(offset)]
        self.release(offset)
        return freed

    def settled_run(self, first: int, stop: int) -> Freed | None:
        """Do as `settled` does for consecutive messages, without arrays; None, with no change, if it cannot.

        It cannot where a message may be in another state: a dead letter, or not settled by another subscription.
        """
        if len(self.dead) or not self.finished.has_none_of(first, stop) or not self.released.has_none_of(first, stop):
            return None
        if len(self.readers) > 1 and not all(each.settled.has_run(first, stop) for each in self.readers.values()):
            return None
        size, emptied = self.directory.end_run(first, stop)
        self.finished.add_range(first, stop)
        self.released.add_range(first, stop)
        self.emptied += emptied
        if len(self.expiry):
            self._sweep_expiry()
        if len(self.versions):
            self.versions.remove(np.arange(first, stop, dtype=np.int64))
        if self.transient:
            self.transient.remove_range(first, stop)
        if self.expiry_exempt:
            self.expiry_exempt.remove_range(first, stop)
        return Freed(stop - first, size)

    def settled_set(self, some: BitMap64, offset: Int64) -> Freed | None:
        """Do as `settled_run` for messages in any places, given as a bitmap and as an array (sorted)."""
        if len(self.dead) or not self.finished.has_no_one_of(some) or not self.released.has_no_one_of(some):
            return None
        if len(self.readers) > 1 and not all(each.settled.has_all_of(some) for each in self.readers.values()):
            return None
        size = self.directory.finish(offset)
        self.finished.add_set(some)
        self.released.add_set(some)
        self.emptied += self.directory.release(offset)
        if len(self.expiry):
            self._sweep_expiry()
        if len(self.versions):
            self.versions.remove(offset)
        self.transient -= some
        self.expiry_exempt -= some
        return Freed(len(offset), size)

    def finish(self, offset: Int64) -> Freed:
        """Finish the messages that every durable subscription has settled or buried: they leave the topic's bounds."""
        for reader in self.readers.values():
            if reader.settled.covers(offset):
                continue
            done = reader.settled.contains(offset)
            if len(reader.dead) and not done.all():
                done |= reader.dead.has(offset)
            offset = offset if done.all() else offset[done]
        return self._finish(offset)

    def _finish(self, offset: Int64) -> Freed:
        if self.finished.above or (len(offset) and int(offset[0]) < self.finished.floor):
            offset = offset[~self.finished.contains(offset)]
        if len(offset) == 0:
            return Freed(0, 0)
        self.finished.add(offset)
        if len(self.expiry):
            self._sweep_expiry()
        return Freed(len(offset), self.directory.finish(offset))

    def _sweep_expiry(self) -> None:
        """Remove expiry times of finished messages when they are most of the index, so that memory follows the backlog.

        They are not needed again: a message that a redrive brings back does not expire.
        """
        if len(self.expiry) > 2 * (self.next_offset - len(self.finished)) + TAIL_MAX:
            offset = self.expiry.columns().offset
            self.expiry.discard(offset[self.finished.contains(offset)])

    def unfinish(self, offset: Int64) -> Freed:
        """Put dead letters back among the unfinished messages; return what they take from the bounds."""
        again = offset[self.finished.contains(offset)]
        if len(again) == 0:
            return Freed(0, 0)
        self.finished.remove(again)
        return Freed(len(again), self.directory.unfinish(again))

    def release(self, offset: Int64) -> None:
        """Release messages: their bodies are not needed any more."""
        if self.released.above or (len(offset) and int(offset[0]) < self.released.floor):
            offset = offset[~self.released.contains(offset)]
        if len(offset) == 0:
            return
        self.released.add(offset)
        self.emptied += self.directory.release(offset)
        if len(self.versions):
            self.versions.remove(offset)
        if self.transient:
            self.transient -= bitmap_of(offset)
        if self.expiry_exempt:
            self.expiry_exempt -= bitmap_of(offset)

    def unwanted(self, offset: Int64) -> Int64:
        """Return the messages that are finished and are no subscription's dead letter."""
        offset = offset[self.finished.contains(offset)]
        for reader in self.readers.values():
            offset = offset[reader.settled.contains(offset)]
        return offset

    def remove(self, offset: Int64) -> Freed:
        """Remove messages from every subscription that waits for them.

        Dead letters stay until a client discards them.
        """
        alive = ~self.dead.has(offset)
        for reader in (*self.readers.values(), *self.ephemeral.values()):
            dead = reader.dead.has(offset)
            reader.settle(offset[~dead])
            alive &= ~dead
        freed = self._finish(offset)
        self.release(offset[alive])
        return freed

    def forget(self, offset: Int64) -> Freed:
        """Remove transient messages that a restart lost, dead letters included."""
        tables = [self.dead, *(reader.dead for reader in self.readers.values())]
        dead = sum(int(table.has(offset).sum()) for table in tables)
        self.dead.remove(offset)
        self.lost |= bitmap_of(offset)
        for reader in self.readers.values():
            reader.settle(offset)  # removes the subscription's own dead letters as well
        freed = self._finish(offset)
        self.release(offset)
        return freed._replace(dead=dead)

    def end(self, offset: Int64, why: int, replacement: int = -1) -> None:
        """Record how messages (sorted) ended; of too many, only those with the highest offsets."""
        kept = offset[-ENDS_MAX:]
        if len(kept) < len(offset):
            self.ends_unknown_below = max(self.ends_unknown_below, int(kept[0]))
        self.ends.put(kept, why=why, replacement=replacement)
        if len(self.ends) > ENDS_MAX:  # drops an eighth more than necessary, so that it happens rarely
            low = self.ends.offsets()[: len(self.ends) - ENDS_MAX * 7 // 8]
            self.ends.remove(low)
            self.ends_unknown_below = max(self.ends_unknown_below, int(low[-1]) + 1)

    def has_no_end(self, offset: Int64) -> bool:
        """Return True if no message (sorted) is a dead letter or has a record of its end, False if one may."""
        if len(self.dead) or any(len(reader.dead) for reader in self.readers.values()):
            return False
        return len(offset) == 0 or self.ends.ends_before(int(offset[0]))

    def _forget_lost(self) -> None:
        """Bound the memory for lost messages: a bit for each of the last `LOST_SPAN` offsets."""
        low = self.next_offset - LOST_SPAN
        if self.lost and int(self.lost.min()) < low:
            self.lost.remove_range(0, low)
            self.ends_unknown_below = max(self.ends_unknown_below, low)

    def leased(self, offset: Int64) -> npt.NDArray[np.bool_]:
        """Return which messages a durable subscription has leased. Ephemeral leases never hold up the topic."""
        return _leased_by(self.readers, offset)

    def in_backlog(self, offset: Int64) -> npt.NDArray[np.bool_]:
        """Return which messages are in the backlog of a new durable subscription, not yet in its order."""
        out = np.zeros(len(offset), np.bool_)
        for reader in self.readers.values():
            if reader.backlog is not None:
                out |= reader.in_backlog(offset)
        return out

    def leased_by_anyone(self, offset: Int64) -> npt.NDArray[np.bool_]:
        """Return which messages are leased, by durable or ephemeral subscriptions."""
        return self.leased(offset) | _leased_by(self.ephemeral, offset)

    def droppable(self) -> list[int]:
        """Return the bases of emptied batches that no ephemeral subscription still has to read, and forget them."""
        if not self.emptied:
            return []
        emptied, self.emptied = self.emptied, []
        if not self.ephemeral:
            return [base for base, _ in emptied]
        low = min(reader.settled.floor for reader in self.ephemeral.values())
        self.emptied = [batch for batch in emptied if batch[1] > low]
        return [base for base, end in emptied if end <= low]

    def version(self, offset: int) -> int:
        """Return the version of a message: how often it was amended, plus one."""
        return int(self.versions.get(np.array([offset], np.int64), "version", 1)[0])


def _leased_by(readers: dict[int, Reader], offset: Int64) -> npt.NDArray[np.bool_]:
    out = np.zeros(len(offset), np.bool_)
    for reader in readers.values():
        out |= members(reader.leased, offset)
    return out
