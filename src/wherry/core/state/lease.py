"""Leases: which consumer holds which messages until when. Volatile: a restart ends all of them."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from itertools import chain
from operator import attrgetter
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

Int64: TypeAlias = npt.NDArray[np.int64]

HEAP_SLACK = 64

EPOCH_SHIFT = 40
"""A token is the epoch and a counter, so the tokens of a later owner of the shard are always higher."""


class LeasedRun(NamedTuple):
    """A few messages of a fifo at consecutive offsets, which are their ranks too; and the bytes of each."""

    first: int
    stop: int
    sizes: list[int]


class LeasedFew(NamedTuple):
    """A few messages at any offsets, in the order of their ranks: offset, rank and bytes of each."""

    offsets: list[int]
    ranks: list[int]
    sizes: list[int]

    def without(self, rows: Sequence[int]) -> LeasedFew:
        """Return the messages that are not in some rows."""
        gone = set(rows)
        kept = [row for row in range(len(self.offsets)) if row not in gone]
        return LeasedFew(*([column[row] for row in kept] for column in self))


Columns: TypeAlias = tuple[Int64, Int64, Int64]
"""Offset, rank and size of each message."""

Rows: TypeAlias = Int64 | range | list[int]
"""Some messages of a lease by their index, ascending; those of a run may be a range, and few may be a list."""


class Lease:
    """Messages of one partition, leased to one consumer by one pull. Rows leave it as they are settled.

    A few messages are kept as a run or as lists, which costs no array; the columns are made when they are asked for.
    """

    __slots__ = ("_columns", "consumer", "deadline_ms", "few", "partition", "run", "subscription", "token")

    def __init__(
        self,
        token: int,
        subscription: int,
        consumer: str,
        partition: int,
        messages: Columns | LeasedRun | LeasedFew,
        deadline_ms: int,
    ) -> None:
        self.token, self.subscription, self.consumer, self.partition = token, subscription, consumer, partition
        self.deadline_ms = deadline_ms
        self.run: LeasedRun | None = messages if isinstance(messages, LeasedRun) else None
        self.few: LeasedFew | None = messages if isinstance(messages, LeasedFew) else None
        self._columns: Columns | None = None if isinstance(messages, LeasedRun | LeasedFew) else messages

    def __len__(self) -> int:
        run = self.run
        if run is not None:
            return run.stop - run.first
        return len(self.offset) if self.few is None else len(self.few.offsets)

    @property
    def bytes(self) -> int:
        """The bytes of all its messages."""
        some = self.run or self.few
        return sum(some.sizes) if some is not None else int(self.size.sum())

    @property
    def offset(self) -> Int64:
        """The offset of each message."""
        return self._as_columns()[0]

    @property
    def rank(self) -> Int64:
        """The rank of each message."""
        return self._as_columns()[1]

    @property
    def size(self) -> Int64:
        """The bytes of each message."""
        return self._as_columns()[2]

    def bytes_of(self, rows: Rows) -> int:
        """Return the bytes of some messages."""
        if self.run is not None and isinstance(rows, range):
            return sum(self.run.sizes[rows.start : rows.stop])
        if self.few is not None:
            sizes = self.few.sizes
            return sum(sizes[row] for row in rows)
        return int(self.size[rows].sum())

    def let_go(self, rows: Rows) -> None:
        """Remove some messages. A run stays a run if they are at one of its ends."""
        run = self.run
        if run is not None and isinstance(rows, range) and (rows.start == 0 or rows.stop == len(run.sizes)):
            first, stop = (rows.stop, len(run.sizes)) if rows.start == 0 else (0, rows.start)
            self.run, self._columns = LeasedRun(run.first + first, run.first + stop, run.sizes[first:stop]), None
            return
        if self.few is not None:
            self.few, self._columns = self.few.without(list(rows)), None
            return
        kept = np.ones(len(self), np.bool_)
        kept[rows] = False
        offset, rank, size = self._as_columns()
        self.run, self._columns = None, (offset[kept], rank[kept], size[kept])

    def _as_columns(self) -> Columns:
        if self._columns is None and self.few is not None:
            self._columns = tuple(np.array(column, np.int64) for column in self.few)  # type: ignore[assignment]
        if self._columns is None:
            assert self.run is not None
            offset = np.arange(self.run.first, self.run.stop, dtype=np.int64)
            self._columns = (offset, offset, np.array(self.run.sizes, np.int64))
        return self._columns


class Leases:
    """All leases of a shard, by fencing token, by deadline and by consumer."""

    __slots__ = ("_by_token", "_deadlines", "_held", "_next")

    def __init__(self, epoch: int) -> None:
        self._next = epoch << EPOCH_SHIFT
        self._by_token: dict[int, Lease] = {}
        self._deadlines: list[tuple[int, int]] = []
        self._held: dict[int, dict[str, dict[int, Lease]]] = {}
        """By subscription, consumer and token; no inner dict is empty."""

    def __len__(self) -> int:
        return len(self._by_token)

    def grant(
        self,
        subscription: int,
        consumer: str,
        partition: int,
        messages: Columns | LeasedRun | LeasedFew,
        deadline_ms: int,
    ) -> Lease:
        """Return a new lease over messages."""
        self._next += 1
        lease = Lease(self._next, subscription, consumer, partition, messages, deadline_ms)
        self._by_token[lease.token] = lease
        self._held.setdefault(subscription, {}).setdefault(consumer, {})[lease.token] = lease
        heapq.heappush(self._deadlines, (deadline_ms, lease.token))
        return lease

    def all(self) -> list[Lease]:
        """Return every lease."""
        return list(self._by_token.values())

    def get(self, token: int) -> Lease | None:
        """Return the lease of a token if it still holds a message."""
        return self._by_token.get(token)

    def renew(self, lease: Lease, deadline_ms: int) -> None:
        """Set a new deadline. The old one stays in the heap and is skipped when it comes up, or dropped with many."""
        if deadline_ms != lease.deadline_ms:
            lease.deadline_ms = deadline_ms
            heapq.heappush(self._deadlines, (deadline_ms, lease.token))
            self._drop_many_stale()

    def end(self, lease: Lease) -> None:
        """End a lease."""
        if self._by_token.pop(lease.token, None) is not None:
            self._forget_holder(lease)
        self._drop_many_stale()

    def _drop_many_stale(self) -> None:
        """Make the heap anew once most of it is deadlines of leases that have ended or were renewed."""
        if len(self._deadlines) > 2 * len(self._by_token) + HEAP_SLACK:
            self._deadlines = [(each.deadline_ms, each.token) for each in self._by_token.values()]
            heapq.heapify(self._deadlines)

    def _forget_holder(self, lease: Lease) -> None:
        consumers = self._held[lease.subscription]
        mine = consumers[lease.consumer]
        del mine[lease.token]
        if not mine:
            del consumers[lease.consumer]
        if not consumers:
            del self._held[lease.subscription]

    def may_end(self, now_ms: int) -> bool:
        """Return False if no deadline has passed; True if one may have: without a look past those of ended leases."""
        return bool(self._deadlines) and self._deadlines[0][0] <= now_ms

    def expired(self, now_ms: int) -> Lease | None:
        """Return the lease whose deadline passed first, if one has. It is returned again until `end`."""
        self._drop_stale()
        if not self._deadlines or self._deadlines[0][0] > now_ms:
            return None
        return self._by_token[self._deadlines[0][1]]

    def next_deadline_ms(self) -> int | None:
        """Return when the next lease expires."""
        self._drop_stale()
        return self._deadlines[0][0] if self._deadlines else None

    def _drop_stale(self) -> None:
        """Drop deadlines of leases that have ended or were renewed."""
        while self._deadlines:
            deadline_ms, token = self._deadlines[0]
            lease = self._by_token.get(token)
            if lease is not None and lease.deadline_ms == deadline_ms:
                return
            heapq.heappop(self._deadlines)

    def of_consumer(self, subscription: int, consumer: str) -> list[Lease]:
        """Return the leases of one consumer, oldest first."""
        return list(self._held.get(subscription, {}).get(consumer, {}).values())

    def of_subscription(self, subscription: int) -> list[Lease]:
        """Return the leases of all consumers of a subscription, oldest first."""
        held = chain.from_iterable(mine.values() for mine in self._held.get(subscription, {}).values())
        return sorted(held, key=attrgetter("token"))
