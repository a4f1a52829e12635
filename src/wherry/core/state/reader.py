"""The state of the messages of one partition for one subscription.

    waiting ──lease──► leased ──ack──► settled
       ▲                 │
       │              fail (nack, lease expired)
       │                 ▼
       ├──────────── delayed          attempts used up ──► dead ──redrive──► waiting
       └── due

A message is in exactly one of these states. Settled, delayed, dead and the attempts are durable: they change only by
operations, live and on replay alike. Leases are not durable: after a restart, leased messages wait again.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
from pyroaring import BitMap64

from wherry.core.index.keys import Hashes, KeyGate
from wherry.core.index.offsets import (
    OffsetSet,
    bitmap_of,
    distinct,
    members,
    offsets_of,
)
from wherry.core.index.runs import RUN_MAX, Pairs, sort_pairs
from wherry.core.index.table import OffsetTable
from wherry.core.index.waiting import (
    Cut,
    Delayed,
    Fifo,
    Ranked,
    Waiting,
)
from wherry.model.catalog.topic import Order

Int64: TypeAlias = npt.NDArray[np.int64]

ATTEMPTS = ("attempts", "first_ms", "last_ms", "until_ms", "rank", "hash", "error")
_NONE = np.empty(0, np.int64)

UNKNOWN_RANK = -1
"""The rank of a message that died while it waited: its body has the rank."""

DEAD = ("attempts", "first_ms", "last_ms", "dead_ms", "rank", "reason", "error")


class ReaderCounts(NamedTuple):
    """How many messages are in which state."""

    ready: int
    leased: int
    scheduled: int
    dead: int


class Reader:
    """The state of the messages of a partition for one subscription, from offset `start` on."""

    __slots__ = (
        "_order",
        "_ranked",
        "attempts_table",
        "backlog",
        "dead",
        "delayed",
        "fifo",
        "gate",
        "leased",
        "settled",
        "start",
        "waiting",
    )

    def __init__(self, order: Order, start: int, hashes_of: Hashes | None = None) -> None:
        self._order = order
        self.start = start
        self.settled = OffsetSet(start)
        self.backlog: tuple[int, int] | None = None
        """Offsets from..to that were published before this subscription and are not in its order yet."""
        self.leased = BitMap64()
        self.attempts_table = OffsetTable(ATTEMPTS)
        self.delayed = Delayed(self.attempts_table)
        self.dead = OffsetTable(DEAD)
        self.fifo = Fifo(start) if order == "fifo" else None
        self._ranked = None if order == "fifo" else Ranked(timed=order == "timeline")
        plain: Waiting = self.fifo or self._ranked  # type: ignore[assignment]  # one of them is there
        self.gate = KeyGate(plain, hashes_of) if hashes_of is not None else None
        self.waiting: Waiting = self.gate or plain

    @property
    def ranked(self) -> bool:
        """Whether messages wait by a rank that is not their offset."""
        return self._order != "fifo"

    def load(self, rank: Int64, offset: Int64, delayed: BitMap64, end: int) -> None:
        """Rebuild what follows from `settled`, `attempts_table`, `dead` and `backlog`, which a checkpoint filled."""
        held = self.attempts_table.offsets()
        if self.ranked:
            for start in range(0, len(rank), RUN_MAX):
                self.waiting.put_back(rank[start : start + RUN_MAX], offset[start : start + RUN_MAX])
        else:
            self._load_fifo(held, delayed, end)
        until = offsets_of(delayed)
        self.delayed.add(self.attempts_table.get(until, "until_ms", 0), until)
        if self.gate is not None:
            hashes = self.attempts_table.get(until, "hash", 0)
            self.gate.hold(until[hashes != 0], hashes[hashes != 0])

    def begin(self, end: int) -> None:
        """Let everything below `end` wait that is not settled, in a fifo."""
        assert self.fifo is not None
        self.fifo.resume(self.settled.copy(), end)

    def _load_fifo(self, held: Int64, delayed: BitMap64, end: int) -> None:
        claimed = self.settled.copy()
        claimed.add(distinct(np.concatenate((self.dead.offsets(), held))))
        if self.backlog is not None:
            claimed.add_range(*self.backlog)
        assert self.fifo is not None
        self.fifo.resume(claimed, end)
        again = held[~members(delayed, held)]
        self.waiting.put_back(self.attempts_table.get(again, "rank", 0), again)

    def admit(self, base: int, rank: Int64, due_ms: Int64 | None, now_ms: int) -> None:
        """Add new messages. In a timeline the due time is the rank; elsewhere a future due time delays the message."""
        self.waiting.admit(base, len(rank), rank)
        if due_ms is None:
            return
        later = np.flatnonzero(due_ms > now_ms)
        if len(later):
            self.waiting.claim(base + later)
            self._hold(base + later, rank[later], due_ms[later])

    def _hold(self, offset: Int64, rank: Int64, until_ms: Int64) -> None:
        self.attempts_table.put(
            offset, attempts=0, first_ms=0, last_ms=0, until_ms=until_ms, rank=rank, hash=0, error=0
        )
        self.delayed.add(until_ms, offset)

    def admit_late(self, offset: Int64, rank: Int64, due_ms: Int64, now_ms: int) -> None:
        """Put messages from before this subscription into its order."""
        later = due_ms > now_ms if self._order != "timeline" else np.zeros(len(offset), np.bool_)
        self.waiting.put_back(rank[~later], offset[~later])
        if later.any():
            self._hold(offset[later], rank[later], due_ms[later])

    def pass_over(self, base: int, count: int) -> None:
        """Count messages as settled that this subscription is not to get."""
        if self.fifo is not None:
            self.fifo.skip(base, count)
        self.settled.add_range(base, base + count)

    def wake(self, now_ms: int) -> None:
        """Let messages wait again whose delay is over."""
        if not self.delayed.members:
            return
        offset = self.delayed.due(now_ms)
        if len(offset):
            self.waiting.put_back(self.attempts_table.get(offset, "rank", 0), offset)

    def lease(self, n: int, now_ms: int, cut: Cut) -> Pairs:
        """Lease up to `n` messages in order."""
        pairs = self.waiting.pick(n, now_ms, cut)
        self.leased |= bitmap_of(pairs.offset)
        return pairs

    def next_run(self, n: int) -> tuple[int, int]:
        """Return the next `n` messages, or fewer, as consecutive offsets (first, stop); none where they are no run."""
        if self.fifo is None or self.gate is not None:
            return 0, 0
        return self.fifo.next_run(n)

    def lease_run(self, first: int, stop: int) -> None:
        """Lease messages that `next_run` returned."""
        assert self.fifo is not None
        self.fifo.claim_run(stop)
        self.leased.add_range(first, stop)

    def is_run_out(self) -> bool:
        """Return whether no message waits, after `lease_run`."""
        assert self.fifo is not None
        return self.fifo.is_empty()

    def next_few(self, n: int, most: int, now_ms: int) -> tuple[list[int], list[int]] | None:
        """Return offsets and ranks of the next `n` messages in a ranked order, if they are at most `most`."""
        if self._ranked is None or self.gate is not None:
            return None
        return self._ranked.next_few(n, most, now_ms)

    def lease_few(self, offsets: list[int]) -> None:
        """Lease messages that `next_few` returned."""
        assert self._ranked is not None
        self._ranked.claim_first(len(offsets))
        for offset in offsets:
            self.leased.add(offset)

    def settle_run(self, first: int, stop: int) -> bool:
        """Settle consecutive messages that are on lease and have no other state; else return False, with no change."""
        settled = self.settled
        if (
            self.gate is not None
            or len(self.attempts_table)
            or len(self.dead)
            or first < settled.floor
            or self.leased.range_cardinality(first, stop) != stop - first
        ):
            return False
        self.leased.remove_range(first, stop)
        settled.add_range(first, stop)
        return True

    def settle_waiting(self, first: int, stop: int) -> bool:
        """Settle consecutive messages that wait for the first time; else return False, with no change."""
        if (
            self.fifo is None
            or self.gate is not None
            or self.backlog is not None
            or len(self.attempts_table)
            or len(self.dead)
            or not self.settled.has_none_of(first, stop)
            or not self.fifo.discard_run(first, stop)
        ):
            return False
        self.settled.add_range(first, stop)
        return True

    def settle_set(self, some: BitMap64) -> bool:
        """Do as `settle_run` for messages in any places, at least one."""
        if (
            self.gate is not None
            or len(self.attempts_table)
            or len(self.dead)
            or some.min() < self.settled.floor
            or not some.issubset(self.leased)
        ):
            return False
        self.leased -= some
        self.settled.add_set(some)
        return True

    def give_back(self, rank: Int64, offset: Int64) -> None:
        """Let leased messages wait again, as if they had never been leased."""
        self.leased -= bitmap_of(offset)
        self.waiting.put_back(rank, offset)

    def key_hashes(self, offset: Int64) -> Int64:
        """Return the key hashes of leased messages in a subscription with key order; else an empty array."""
        return self.gate.hashes(offset) if self.gate is not None else _NONE

    def settle(self, offset: Int64) -> Int64:
        """Settle messages (sorted); return those that were not settled before."""
        if self.settled.above or (len(offset) and int(offset[0]) < self.settled.floor):
            offset = offset[~self.settled.contains(offset)]
        if len(offset) == 0:
            return offset
        self._withdraw(offset)
        self._leave(offset)
        if len(self.dead):
            self.dead.remove(offset)
        self.settled.add(offset)
        return offset

    def _leave(self, offset: Int64) -> None:
        if self.gate is not None:
            self.gate.let_go(offset)
        if len(self.attempts_table):
            self.attempts_table.remove(offset)

    def _withdraw(self, offset: Int64) -> None:
        """Take messages out of whatever state they are in."""
        rest = bitmap_of(offset)
        out = rest & self.leased
        if out:
            self.leased -= out
            rest -= out
        if rest and self.delayed.members:
            held = rest & self.delayed.members
            self.delayed.discard(held)
            rest -= held
        if rest and len(self.dead):
            at = offsets_of(rest)
            rest -= bitmap_of(at[self.dead.has(at)])
        if rest and self.backlog is not None:
            rest.remove_range(*self.backlog)
        if rest:
            self.waiting.discard(offsets_of(rest))

    def fail(self, offset: Int64, rank: Int64, hashes: Int64, until_ms: Int64, now_ms: int, error: int) -> None:
        """Record failed deliveries: one more attempt each; the messages are delayed until `until_ms`."""
        attempts, first_ms = self._tries(offset, now_ms)
        self._withdraw(offset)
        keyed = self.gate is not None and len(hashes) == len(offset)
        if self.gate is not None and keyed:
            self.gate.hold(offset, hashes)
        self.attempts_table.put(
            offset,
            attempts=attempts,
            first_ms=first_ms,
            last_ms=now_ms,
            until_ms=until_ms,
            rank=rank,
            hash=hashes if keyed else 0,
            error=error,
        )
        self.delayed.add(until_ms, offset)
        self.wake(now_ms)

    def _tries(self, offset: Int64, now_ms: int) -> tuple[Int64, Int64]:
        """Return the attempts including this one, and when the first attempt failed."""
        attempts = self.attempts_table.get(offset, "attempts", 0) + 1
        return attempts, np.where(attempts == 1, now_ms, self.attempts_table.get(offset, "first_ms", 0))

    def bury(self, offset: Int64, rank: Int64, now_ms: int, reason: int, error: int, *, failed: bool) -> None:
        """Make messages dead letters; `failed` counts one more failed delivery."""
        attempts, first_ms = self._tries(offset, now_ms)
        self._withdraw(offset)
        self._leave(offset)
        self.dead.put(
            offset,
            attempts=attempts if failed else attempts - 1,
            first_ms=first_ms,
            last_ms=now_ms,
            dead_ms=now_ms,
            rank=rank,
            reason=reason,
            error=error,
        )

    def ranks(self, offset: Int64) -> Int64:
        """Return the ranks of waiting messages where they are known without their bodies, else `UNKNOWN_RANK`."""
        return self.attempts_table.get(offset, "rank", offset if self._order == "fifo" else UNKNOWN_RANK)

    def redrive(self, offset: Int64, rank: Int64, due_ms: Int64, now_ms: int) -> None:
        """Let dead letters wait again, with no attempts counted."""
        self.dead.remove(offset)
        self.admit_late(offset, rank, due_ms, now_ms)
        if self._order == "fifo":  # an amended message is not ordered by its offset: the row keeps its rank
            moved = (rank != offset) & ~self.attempts_table.has(offset)
            zeros = dict.fromkeys(("attempts", "first_ms", "last_ms", "until_ms", "hash", "error"), 0)
            self.attempts_table.put(offset[moved], rank=rank[moved], **zeros)

    def replace(self, old: int, new: int, rank: int, due_ms: int | None, now_ms: int) -> None:
        """Put message `new` into the place of the waiting message `old`; settle `new` if `old` was settled."""
        if old in self.settled:
            self.pass_over(new, 1)
            return
        at_new, at_old = np.array([new], np.int64), np.array([old], np.int64)
        kept_rank = int(self.attempts_table.get(at_old, "rank", old)[0]) if self._order == "fifo" else rank
        self.settle(at_old)
        at_rank = np.array([kept_rank], np.int64)
        if self._order == "fifo":
            self.waiting.admit(new, 1, at_new)
            self.waiting.claim(at_new)
        # The row keeps the rank: in a fifo an amended message is not ordered by its offset.
        until = due_ms if due_ms is not None and due_ms > now_ms else 0
        self.attempts_table.put(
            at_new, attempts=0, first_ms=0, last_ms=0, until_ms=until, rank=kept_rank, hash=0, error=0
        )
        if until:
            self.delayed.add(np.array([until], np.int64), at_new)
        else:
            self.waiting.put_back(at_rank, at_new)

    def attempts(self, offset: Int64) -> Int64:
        """Return the failed deliveries of each message so far."""
        return self.attempts_table.get(offset, "attempts", 0)

    def state_of(self, offset: int, now_ms: int) -> str:
        """Return the state of one message: waiting, scheduled, leased, dead or settled."""
        at = np.array([offset], np.int64)
        if offset in self.settled:
            return "settled"
        if offset in self.leased:
            return "leased"
        if self.dead.has(at)[0]:
            return "dead"
        if offset in self.delayed.members and int(self.attempts_table.get(at, "until_ms", 0)[0]) > now_ms:
            return "scheduled"
        return "waiting"

    def in_backlog(self, offset: Int64) -> npt.NDArray[np.bool_]:
        """Return which messages are not yet in the order of this subscription, which is newer than they are."""
        if self.backlog is None:
            return np.zeros(len(offset), np.bool_)
        inside = (offset >= self.backlog[0]) & (offset < self.backlog[1])
        return inside & ~self.settled.contains(offset)

    def keeps_waiting(self, offset: Int64) -> npt.NDArray[np.bool_]:
        """Return which messages wait here, now or for a later time: not settled, dead, leased or in the backlog."""
        elsewhere = self.settled.contains(offset) | self.dead.has(offset) | members(self.leased, offset)
        return ~(elsewhere | self.in_backlog(offset))

    def counts(self, now_ms: int, end: int) -> ReaderCounts:
        """Return how many messages are in which state; `end` is the partition's next offset."""
        self.wake(now_ms)
        ready = self.waiting.ready(now_ms)
        unsettled = end - len(self.settled)
        leased, dead = len(self.leased), len(self.dead)
        pending = 0 if self.backlog is None else len(self.settled.missing(*self.backlog))
        return ReaderCounts(ready, leased, max(0, unsettled - ready - leased - dead - pending), dead)

    def waiting_offsets(self) -> Int64:
        """Return the messages that may be leased, now or at the time of their rank."""
        return np.sort(self.waiting.offsets())

    def scheduled(self, from_ms: int, to_ms: int) -> Pairs:
        """Return messages that wait for a time in `from_ms..to_ms`, as (time, offset), ascending."""
        offset = offsets_of(self.delayed.members)
        pairs = [Pairs(self.attempts_table.get(offset, "until_ms", 0), offset)]
        if self._order == "timeline":
            pairs.append(self.waiting.columns())
        rank, offset = (np.concatenate(column) for column in zip(*pairs, strict=True))
        wanted = (rank >= from_ms) & (rank < to_ms)
        return sort_pairs(rank[wanted], offset[wanted])

    def next_at_ms(self, now_ms: int) -> int | None:
        """Return when the next message that waits for a time may be leased."""
        times = [at for at in (self.delayed.next_at_ms(), self.waiting.next_at_ms(now_ms)) if at is not None]
        return min(times, default=None)
