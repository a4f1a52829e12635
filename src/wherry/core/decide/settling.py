"""Decide the end of a lease: ack, nack with a back-off, dead letter, expiry, release."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from wherry.core.index.offsets import distinct
from wherry.core.state.lease import Lease, LeasedFew, LeasedRun, Rows
from wherry.core.state.state import State, SubscriptionState, TopicState
from wherry.model import check, ops
from wherry.model.calls.lease import OffsetRanges
from wherry.model.catalog.retry import delays_ms, used_up
from wherry.model.catalog.subscription import LEASE_MS_MAX
from wherry.model.errors import InvalidInput, LimitReached, StaleLease
from wherry.model.limits import ERROR_CHARS_MAX, TIME_MS_MAX
from wherry.model.ops import AnyOp, from_ranges, to_ranges

Int64: TypeAlias = npt.NDArray[np.int64]
Mask: TypeAlias = npt.NDArray[np.bool_]
Entropy: TypeAlias = Callable[[int], npt.NDArray[np.float64]]
"""Returns as many random numbers in 0..1 as asked for. Randomness is an argument, so that a run can be repeated."""

FEW_RANGES = 256
"""Up to so many edges of ranges are joined one by one, which costs less than a dozen numpy calls."""


def rows_of(lease: Lease, offsets: Int64 | OffsetRanges | None) -> Rows | None:
    """Return the rows of a lease with these offsets (None: all rows); raise `StaleLease` if it lacks one of them."""
    if offsets is None:
        return None
    if isinstance(offsets, OffsetRanges):
        first, stop = offsets.ranges[0]
        is_one = len(offsets.ranges) == 1
        if (stop - first if is_one else len(offsets)) > len(lease):
            raise StaleLease(lease.token, f"does not hold {len(offsets)} messages")
        if is_one and lease.run is not None:
            return _rows_of_run(lease, lease.run, first, stop - 1)
        if is_one and lease.few is not None:
            return _rows_of_few(lease, lease.few, range(first, stop))
        offsets = from_ranges(np.array(offsets.ranges, np.int64).ravel())
    if len(offsets) == 0:
        raise InvalidInput("offsets", [], "at least one offset, or None for the whole lease")
    if lease.few is not None:
        return _rows_of_few(lease, lease.few, offsets.tolist())
    first, last = int(offsets[0]), int(offsets[-1])
    if lease.run is not None and last - first == len(offsets) - 1 and _is_ascending(offsets):
        return _rows_of_run(lease, lease.run, first, last)
    order = None if _is_ascending(lease.offset) else np.argsort(lease.offset, kind="stable")
    index = np.minimum(np.searchsorted(lease.offset, offsets, sorter=order), len(lease.offset) - 1)
    rows: Int64 = index if order is None else order[index]
    wrong = lease.offset[rows] != offsets
    if wrong.any():
        raise _not_held(lease, int(offsets[wrong][0]))
    return rows if _is_ascending(rows) else distinct(rows)


def _rows_of_run(lease: Lease, run: LeasedRun, first: int, last: int) -> range | None:
    if first < run.first or last >= run.stop:
        raise _not_held(lease, first if first < run.first or first >= run.stop else run.stop)
    if first == run.first and last == run.stop - 1:
        return None
    return range(first - run.first, last + 1 - run.first)


def _rows_of_few(lease: Lease, few: LeasedFew, offsets: Sequence[int]) -> list[int] | None:
    rows = dict.fromkeys(few.offsets.index(each) for each in offsets if each in few.offsets)
    if len(rows) < len(offsets):
        for each in offsets:
            if each not in few.offsets:
                raise _not_held(lease, each)
    return None if len(rows) == len(lease) else sorted(rows)


def _not_held(lease: Lease, offset: int) -> StaleLease:
    return StaleLease(lease.token, f"does not hold offset {offset}")


def _settled_now(lease: Lease) -> StaleLease:
    return StaleLease(lease.token, "was settled, or a part of it, in this very moment")


def _is_ascending(column: Int64) -> bool:
    """Return whether no sort is needed: most leases are in the order of offsets, except with retries or priorities."""
    return len(column) < 2 or bool((column[1:] > column[:-1]).all())


def columns_of(lease: Lease, rows: Rows | None) -> tuple[Int64, Int64]:
    """Return the offsets (sorted) and ranks of some rows of a lease."""
    picked = slice(None) if rows is None else rows
    offset, rank = lease.offset[picked], lease.rank[picked]
    if not _is_ascending(offset):
        order = np.argsort(offset, kind="stable")
        offset, rank = offset[order], rank[order]
    return offset, rank


class Ending:
    """What one or several settles will take out of leases, once their entry is written: all of it or nothing."""

    __slots__ = ("_added", "_dead", "_few", "_runs", "_taken")

    def __init__(self) -> None:
        self._taken: dict[int, tuple[Lease, Mask]] = {}
        """By token: a lease, and which of its rows leave it."""
        self._runs: dict[int, tuple[Lease, range]] = {}
        """By token: a lease whose rows leave it one behind the other, which needs no mask. It is not in `_taken`."""
        self._few: dict[int, tuple[Lease, dict[int, None]]] = {}
        """By token: a lease over a few messages, and which of its rows leave it. It is not in `_taken`."""
        self._added: list[tuple[int, Rows | slice]] = []
        """What was added, in order: the token and the rows."""
        self._dead: dict[int, int] = {}

    def add_run(self, lease: Lease, rows: range | None) -> bool:
        """Note that rows (None: all) of a run will leave their lease; return False, with no change, if it needs a mask.

        It does not if they follow the rows that left before, as they do when a consumer acks in the order of delivery.
        """
        if lease.run is None or lease.token in self._taken:
            return False
        rows = rows or range(len(lease))
        _, before = self._runs.get(lease.token, (lease, rows[:0]))
        if before.stop != rows.start:
            return False
        self._runs[lease.token] = lease, range(before.start, rows.stop)
        self._added.append((lease.token, rows))
        return True

    def add_few(self, lease: Lease, few: LeasedFew, rows: list[int] | None) -> list[int] | None:
        """Return the offsets (sorted) of rows (None: all) that will leave a lease; None if it needs a mask by now.

        Raises `StaleLease` if an earlier settle takes one of them.
        """
        if lease.token in self._taken:
            return None
        taken = self._few.setdefault(lease.token, (lease, {}))[1]
        rows = list(range(len(few.offsets))) if rows is None else rows
        if not taken.keys().isdisjoint(rows):
            raise _settled_now(lease)
        taken.update(dict.fromkeys(rows))
        self._added.append((lease.token, rows))
        return sorted(few.offsets[row] for row in rows)

    def add(self, lease: Lease, rows: Rows | None) -> tuple[Int64, Int64]:
        """Return offsets and ranks that will leave a lease; `StaleLease` if an earlier settle takes one of them."""
        taken = self._mask(lease)
        picked = slice(None) if rows is None else rows
        if taken[picked].any():
            raise _settled_now(lease)
        taken[picked] = True
        self._added.append((lease.token, picked))
        return columns_of(lease, rows)

    def _mask(self, lease: Lease) -> Mask:
        found = self._taken.get(lease.token)
        if found is None:
            found = self._taken[lease.token] = (lease, np.zeros(len(lease), np.bool_))
            _, run = self._runs.pop(lease.token, (lease, range(0)))
            found[1][run.start : run.stop] = True
            _, few = self._few.pop(lease.token, (lease, {}))
            found[1][list(few)] = True
        return found[1]

    def mark(self) -> tuple[int, dict[int, int]]:
        """Return where this call begins, for `undo`."""
        return len(self._added), dict(self._dead)

    def undo(self, mark: tuple[int, dict[int, int]]) -> None:
        """Forget what was added since a mark: the call that added it was refused."""
        count, self._dead = mark
        for token, rows in reversed(self._added[count:]):
            if token in self._taken:
                self._taken[token][1][rows] = False
            elif token in self._few:
                assert isinstance(rows, list)
                for row in rows:
                    del self._few[token][1][row]
            else:
                assert isinstance(rows, range)
                lease, run = self._runs.pop(token)
                if rows.start > run.start:
                    self._runs[token] = lease, range(run.start, rows.start)
        del self._added[count:]

    def dead_after(self, topic: TopicState, more: int) -> int:
        """Return how many dead letters a topic has with those decided here so far, and so many more."""
        return topic.dead + self._dead.get(topic.number, 0) + more

    def bury(self, topic: TopicState, count: int) -> None:
        """Note that so many more dead letters are decided."""
        self._dead[topic.number] = self._dead.get(topic.number, 0) + count

    def carry_out(self, state: State) -> None:
        """Take the rows out of their leases: the entry is written."""
        for lease, rows in self._runs.values():
            if state.leases.get(lease.token) is lease:
                state.take_out(lease, None if len(rows) == len(lease) else rows)
        for lease, few in self._few.values():
            if few and state.leases.get(lease.token) is lease:
                state.take_out(lease, None if len(few) == len(lease) else sorted(few))
        for lease, taken in self._taken.values():
            if state.leases.get(lease.token) is lease and taken.any():
                state.take_out(lease, None if taken.all() else np.flatnonzero(taken))


def joined_acks(steps: list[AnyOp]) -> list[AnyOp]:
    """Join acks of one subscription and partition, as different calls decided them, into one operation each."""
    acked: dict[tuple[int, int], list[Int64]] = {}
    others: list[AnyOp] = []
    for op in steps:
        if type(op) is ops.Settle and op.outcome == "acked":
            acked.setdefault((op.subscription, op.partition), []).append(op.ranges)
        else:
            others.append(op)
    for (subscription, partition), ranges in acked.items():
        joined = ranges[0] if len(ranges) == 1 else _joined(ranges)
        others.append(ops.Settle(subscription, partition, joined, "acked"))
    return others


def _joined(ranges: list[Int64]) -> Int64:
    """Return distinct ranges of several operations as those of one, ascending."""
    if sum(map(len, ranges)) > FEW_RANGES:
        return to_ranges(np.sort(np.concatenate([from_ranges(each) for each in ranges])))
    edges = chain.from_iterable(each.tolist() for each in ranges)
    return _merged(sorted(zip(edges, edges, strict=True)))  # the same iterator twice: pairs


def _ranges(offsets: list[int]) -> Int64:
    """Return a few offsets, ascending, as ranges."""
    return _merged((offset, offset + 1) for offset in offsets)


def _merged(ranges: Iterable[tuple[int, int]]) -> Int64:
    merged: list[int] = []
    for start, stop in ranges:
        if merged and merged[-1] == start:
            merged[-1] = stop
        else:
            merged += (start, stop)
    return np.array(merged, np.int64)


def ack(ending: Ending, lease: Lease, rows: Rows | None) -> list[AnyOp]:
    """Decide that messages are done."""
    run = lease.run
    if run is not None and (rows is None or isinstance(rows, range)) and ending.add_run(lease, rows):
        edges = run[:2] if rows is None else (run.first + rows.start, run.first + rows.stop)
        return [ops.Settle(lease.subscription, lease.partition, np.array(edges, np.int64), "acked")]
    few = lease.few
    if few is not None and (rows is None or isinstance(rows, list)):
        offsets = ending.add_few(lease, few, rows)
        if offsets is not None:
            return [ops.Settle(lease.subscription, lease.partition, _ranges(offsets), "acked")]
    offset, _ = ending.add(lease, rows)
    return [ops.Settle(lease.subscription, lease.partition, to_ranges(offset), "acked")]


@dataclass(frozen=True, slots=True)
class Failure:
    """How a delivery failed: error, time, delay before the next attempt (None: by the policy), random numbers."""

    error: str
    now_ms: int
    entropy: Entropy
    delay_ms: int | None = None

    def checked(self) -> Failure:
        """Return this failure with its text cut to what is stored, or raise `InvalidInput`."""
        check.optional_integer("delay_ms", self.delay_ms, 0, LEASE_MS_MAX)
        return replace(self, error=check.text("error", self.error)[:ERROR_CHARS_MAX])


def failed(state: State, ending: Ending, lease: Lease, rows: Rows | None, failure: Failure) -> list[AnyOp]:
    """Return the operations for one more failed attempt of rows of a lease."""
    subscription = state.subscriptions[lease.subscription]
    policy, topic = subscription.config.retry, subscription.topic
    offset, rank = ending.add(lease, rows)
    reader = subscription.readers[lease.partition]
    attempts = reader.attempts(offset) + 1
    done = used_up(policy, attempts)
    dying = int(done.sum())
    if subscription.config.durable and ending.dead_after(topic, dying) > topic.config.dead_messages_max:
        done[:] = False  # no room among the dead letters: the message keeps being retried
    result: list[AnyOp] = []
    if done.any():
        ending.bury(topic, dying)
        reason = f"{policy.attempts} failed deliveries"
        result.append(_bury(state, lease, offset[done], rank[done], reason, failure.error))
    again = ~done
    if again.any():
        delays = delays_ms(policy, attempts[again], failure.entropy(int(again.sum())))
        if failure.delay_ms is not None:
            delays[:] = failure.delay_ms
        until = np.minimum(failure.now_ms + delays, TIME_MS_MAX)
        hashes = reader.key_hashes(offset[again])
        number, at = subscription.number, lease.partition
        result.append(ops.Fail(number, at, offset[again], rank[again], hashes, until, failure.error))
    return result


@dataclass(frozen=True, slots=True)
class Rejection:
    """Why a consumer gives up on messages."""

    reason: str
    error: str

    def checked(self) -> Rejection:
        """Return this rejection with its texts cut to what is kept, or raise `InvalidInput`."""
        reason, error = check.text("reason", self.reason), check.text("error", self.error)
        return Rejection(reason[:ERROR_CHARS_MAX], error[:ERROR_CHARS_MAX])


def dead_letter(state: State, ending: Ending, lease: Lease, rows: Rows | None, rejection: Rejection) -> list[AnyOp]:
    """Decide that messages are dead letters at once: the consumer gives up on them."""
    subscription = state.subscriptions[lease.subscription]
    topic = subscription.topic
    offset, rank = ending.add(lease, rows)
    total = ending.dead_after(topic, len(offset))
    if subscription.config.durable and total > topic.config.dead_messages_max:
        raise LimitReached("dead letters of the topic", topic.config.dead_messages_max, total)
    ending.bury(topic, len(offset))
    return [_bury(state, lease, offset, rank, rejection.reason, rejection.error)]


def _bury(state: State, lease: Lease, offset: Int64, rank: Int64, reason: str, error: str) -> AnyOp:
    """Return the operation that buries messages. Of an ephemeral subscription nothing is kept: they are settled."""
    subscription = state.subscriptions[lease.subscription]
    if not subscription.config.durable:
        return ops.Settle(lease.subscription, lease.partition, to_ranges(offset), "discarded")
    topic = subscription.topic.number
    return ops.Bury(topic, subscription.number, lease.partition, offset, rank, reason, error, failed=True)


def purge(subscription: SubscriptionState, ends: Mapping[int, int], limit: int, now_ms: int) -> tuple[list[AnyOp], int]:
    """Decide to settle up to `limit` messages that are ready and not leased; return the operations and their number.

    `ends` gives for each partition the offset below which messages are meant: later messages may rank before older
    ones.
    """
    steps: list[AnyOp] = []
    left = limit
    for number, reader in subscription.readers.items():
        end = ends.get(number, 0)
        reader.wake(now_ms)
        later = subscription.topic.partitions[number].next_offset - end
        offset = reader.waiting.peek(left + later, now_ms).offset if left else np.empty(0, np.int64)
        offset = np.sort(offset[offset < end][:left])
        left -= len(offset)
        if len(offset):
            steps.append(ops.Settle(subscription.number, number, to_ranges(offset), "discarded"))
    return steps, limit - left


def release(state: State, lease: Lease, rows: Rows | None) -> None:
    """Let messages wait again that the consumer hands back untouched; no attempt is counted. Volatile."""
    subscription = state.subscriptions[lease.subscription]
    offset, rank = columns_of(lease, rows)
    state.take_out(lease, rows)
    subscription.readers[lease.partition].give_back(rank, offset)
    state.mark_nonempty(subscription, lease.partition)


def take_back(state: State, lease: Lease) -> None:
    """Let messages wait again that never reached their consumer, which keeps its credit. Volatile."""
    consumer = state.subscriptions[lease.subscription].consumers.get(lease.consumer)
    if consumer is not None:
        consumer.credit += len(lease)
    release(state, lease, None)
