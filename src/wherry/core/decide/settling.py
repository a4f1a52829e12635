"""Decide the end of a lease: ack, nack with a back-off, dead letter, expiry, release."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from wherry.core.index.offsets import distinct
from wherry.core.state.lease import Lease
from wherry.core.state.state import State, SubscriptionState, TopicState
from wherry.model import check, ops
from wherry.model.catalog.retry import delays_ms, used_up
from wherry.model.catalog.subscription import LEASE_MS_MAX
from wherry.model.errors import InvalidInput, LimitReached, StaleLease
from wherry.model.limits import ERROR_CHARS_MAX, TIME_MS_MAX
from wherry.model.ops import AnyOp, from_ranges, to_ranges

Int64: TypeAlias = npt.NDArray[np.int64]
Mask: TypeAlias = npt.NDArray[np.bool_]
Entropy: TypeAlias = Callable[[int], npt.NDArray[np.float64]]
"""Returns as many random numbers in 0..1 as asked for. Randomness is an argument, so that a run can be repeated."""


def rows_of(lease: Lease, offsets: Int64 | None) -> Int64 | None:
    """Return the rows of a lease with these offsets (None: all rows); raise `StaleLease` if it lacks one of them."""
    if offsets is None:
        return None
    if len(offsets) == 0:
        raise InvalidInput("offsets", [], "at least one offset, or None for the whole lease")
    if len(offsets) == len(lease) == 1 and lease.run is not None and offsets[0] == lease.run.first:
        return None
    order = None if _is_ascending(lease.offset) else np.argsort(lease.offset, kind="stable")
    index = np.minimum(np.searchsorted(lease.offset, offsets, sorter=order), len(lease.offset) - 1)
    rows: Int64 = index if order is None else order[index]
    wrong = lease.offset[rows] != offsets
    if wrong.any():
        raise StaleLease(lease.token, f"does not hold offset {int(offsets[wrong][0])}")
    return rows if _is_ascending(rows) else distinct(rows)


def _is_ascending(column: Int64) -> bool:
    """Return whether no sort is needed: most leases are in the order of offsets, except with retries or priorities."""
    return len(column) < 2 or bool((column[1:] > column[:-1]).all())


def columns_of(lease: Lease, rows: Int64 | None) -> tuple[Int64, Int64]:
    """Return the offsets (sorted) and ranks of some rows of a lease."""
    picked = slice(None) if rows is None else rows
    offset, rank = lease.offset[picked], lease.rank[picked]
    if not _is_ascending(offset):
        order = np.argsort(offset, kind="stable")
        offset, rank = offset[order], rank[order]
    return offset, rank


class Ending:
    """What one or several settles will take out of leases, once their entry is written: all of it or nothing."""

    __slots__ = ("_added", "_dead", "_taken", "_whole")

    def __init__(self) -> None:
        self._taken: dict[int, tuple[Lease, Mask]] = {}
        self._added: list[tuple[Mask, slice | Int64]] = []
        self._whole: dict[int, Lease] = {}
        """Runs that leave their leases as they are, which needs no mask."""
        self._dead: dict[int, int] = {}

    def add_run(self, lease: Lease) -> None:
        """Note that a whole lease over a run will end; `StaleLease` if an earlier settle takes something of it."""
        if lease.token in self._whole or lease.token in self._taken:
            raise StaleLease(lease.token, "was settled, or a part of it, in this very moment")
        self._whole[lease.token] = lease

    def add(self, lease: Lease, rows: Int64 | None) -> tuple[Int64, Int64]:
        """Return offsets and ranks that will leave a lease; `StaleLease` if an earlier settle takes one of them."""
        if lease.token in self._whole:
            raise StaleLease(lease.token, "was settled, or a part of it, in this very moment")
        found = self._taken.get(lease.token)
        if found is None:
            found = self._taken[lease.token] = (lease, np.zeros(len(lease), np.bool_))
        _, taken = found
        picked = slice(None) if rows is None else rows
        if taken[picked].any():
            raise StaleLease(lease.token, "was settled, or a part of it, in this very moment")
        taken[picked] = True
        self._added.append((taken, picked))
        return columns_of(lease, rows)

    def mark(self) -> tuple[int, int, dict[int, int]]:
        """Return where this call begins, for `undo`."""
        return len(self._added), len(self._whole), dict(self._dead)

    def undo(self, mark: tuple[int, int, dict[int, int]]) -> None:
        """Forget what was added since a mark: the call that added it was refused."""
        count, whole, self._dead = mark
        while len(self._whole) > whole:
            self._whole.popitem()
        for taken, picked in self._added[count:]:
            taken[picked] = False
        del self._added[count:]

    def dead_after(self, topic: TopicState, more: int) -> int:
        """Return how many dead letters a topic has with those decided here so far, and so many more."""
        return topic.dead + self._dead.get(topic.number, 0) + more

    def bury(self, topic: TopicState, count: int) -> None:
        """Note that so many more dead letters are decided."""
        self._dead[topic.number] = self._dead.get(topic.number, 0) + count

    def carry_out(self, state: State) -> None:
        """Take the rows out of their leases: the entry is written."""
        for lease in self._whole.values():
            if state.leases.get(lease.token) is lease:
                state.take_out(lease, None)
        for lease, taken in self._taken.values():
            if state.leases.get(lease.token) is lease and taken.any():
                state.take_out(lease, None if taken.all() else np.flatnonzero(taken))


def joined_acks(steps: list[AnyOp]) -> list[AnyOp]:
    """Join acks of one subscription and partition, as different calls decided them, into one operation each."""
    acked: dict[tuple[int, int], list[ops.Settle]] = {}
    others: list[AnyOp] = []
    for op in steps:
        if type(op) is ops.Settle and op.outcome == "acked":
            acked.setdefault((op.subscription, op.partition), []).append(op)
        else:
            others.append(op)
    for (subscription, partition), found in acked.items():
        ranges = found[0].ranges
        if len(found) > 1:
            ranges = to_ranges(np.sort(np.concatenate([from_ranges(op.ranges) for op in found])))
        others.append(ops.Settle(subscription, partition, ranges, "acked"))
    return others


def ack(ending: Ending, lease: Lease, rows: Int64 | None) -> list[AnyOp]:
    """Decide that messages are done."""
    if rows is None and lease.run is not None:
        ending.add_run(lease)
        return [ops.Settle(lease.subscription, lease.partition, np.array(lease.run[:2], np.int64), "acked")]
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


def failed(state: State, ending: Ending, lease: Lease, rows: Int64 | None, failure: Failure) -> list[AnyOp]:
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


def dead_letter(state: State, ending: Ending, lease: Lease, rows: Int64 | None, rejection: Rejection) -> list[AnyOp]:
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


def release(state: State, lease: Lease, rows: Int64 | None) -> None:
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
