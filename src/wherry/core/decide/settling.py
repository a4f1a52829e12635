"""The end of a lease: ack, nack with back-off, dead letter, or the deadline."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from wherry.core.decide.leasing import held
from wherry.core.decide.retry import delays_ms, used_up
from wherry.core.index.offsets import distinct
from wherry.core.state.lease import Lease
from wherry.core.state.state import State, SubscriptionState, TopicState
from wherry.model import check, ops
from wherry.model.catalog.subscription import LEASE_MS_MAX
from wherry.model.errors import InvalidInput, LimitReached, StaleLease
from wherry.model.limits import ERROR_CHARS_MAX, TIME_MS_MAX
from wherry.model.ops import AnyOp, to_ranges

Int64: TypeAlias = npt.NDArray[np.int64]
Entropy: TypeAlias = Callable[[int], npt.NDArray[np.float64]]
"""So many numbers in 0..1: randomness is an argument."""


def rows_of(lease: Lease, offsets: Int64 | None) -> Int64 | None:
    """Rows of the lease for these offsets; None for all of them. `StaleLease` if it does not hold one of them."""
    if offsets is None:
        return None
    if len(offsets) == 0:
        raise InvalidInput("offsets", [], "at least one offset, or None for the whole lease")
    order = np.argsort(lease.offset, kind="stable")
    place = np.minimum(np.searchsorted(lease.offset, offsets, sorter=order), len(order) - 1)
    rows = order[place]
    wrong = lease.offset[rows] != offsets
    if wrong.any():
        raise StaleLease(lease.token, f"does not hold offset {int(offsets[wrong][0])}")
    return distinct(rows)


def columns_of(lease: Lease, rows: Int64 | None) -> tuple[Int64, Int64]:
    """Offsets (sorted) and ranks of some rows of a lease."""
    picked = slice(None) if rows is None else rows
    offset, rank = lease.offset[picked], lease.rank[picked]
    if len(offset) > 1 and not bool((offset[1:] > offset[:-1]).all()):
        order = np.argsort(offset, kind="stable")
        offset, rank = offset[order], rank[order]
    return offset, rank


class Ending:
    """What a settle of several leases will take out of them, once its entry is written: all of it or nothing."""

    __slots__ = ("_dead", "_taken")

    def __init__(self) -> None:
        self._taken: list[tuple[Lease, Int64 | None]] = []
        self._dead: dict[int, int] = {}

    def add(self, lease: Lease, rows: Int64 | None) -> tuple[Int64, Int64]:
        """Offsets and ranks that will leave a lease."""
        self._taken.append((lease, rows))
        return columns_of(lease, rows)

    def dead_after(self, topic: TopicState, more: int) -> int:
        """Dead letters of a topic with those decided here so far, and so many more."""
        return topic.dead + self._dead.get(topic.number, 0) + more

    def bury(self, topic: TopicState, count: int) -> None:
        """So many more dead letters are decided."""
        self._dead[topic.number] = self._dead.get(topic.number, 0) + count

    def carry_out(self, state: State) -> None:
        """The entry is written: the rows leave their leases."""
        for lease, rows in self._taken:
            if state.leases.get(lease.token) is lease:
                state.take_out(lease, rows)


def ack(state: State, ending: Ending, token: int, offsets: Int64 | None) -> list[AnyOp]:
    """Messages are done."""
    lease = held(state, token)
    offset, _ = ending.add(lease, rows_of(lease, offsets))
    return [ops.Settle(lease.subscription, lease.partition, to_ranges(offset), "acked")]


@dataclass(frozen=True, slots=True)
class Failure:
    """How a delivery failed: why, when, how long until it may come back (None: by the policy), and chance."""

    error: str
    now_ms: int
    entropy: Entropy
    delay_ms: int | None = None

    def checked(self) -> Failure:
        """This failure with its text cut to what is kept, or `InvalidInput`."""
        check.optional_integer("delay_ms", self.delay_ms, 0, LEASE_MS_MAX)
        return replace(self, error=check.text("error", self.error)[:ERROR_CHARS_MAX])


def nack(state: State, ending: Ending, token: int, offsets: Int64 | None, failure: Failure) -> list[AnyOp]:
    """Messages failed: they come back by the retry policy (or after a delay), or become dead letters."""
    failure = failure.checked()
    lease = held(state, token)
    return failed(state, ending, lease, rows_of(lease, offsets), failure)


def failed(state: State, ending: Ending, lease: Lease, rows: Int64 | None, failure: Failure) -> list[AnyOp]:
    """One more failed attempt for rows of a lease."""
    subscription = state.subscriptions[lease.subscription]
    policy, topic = subscription.config.retry, subscription.topic
    offset, rank = ending.add(lease, rows)
    reader = subscription.readers[lease.partition]
    attempts = reader.attempts(offset) + 1
    done = used_up(policy, attempts)
    dying = int(done.sum())
    if subscription.config.durable and ending.dead_after(topic, dying) > topic.config.dead_messages_max:
        done[:] = False  # the dead letters are full: it stays in retry
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


def dead_letter(
    state: State, ending: Ending, token: int, offsets: Int64 | None, reason: str, error: str
) -> list[AnyOp]:
    """The consumer gives up on messages: dead letters at once."""
    reason = check.text("reason", reason)[:ERROR_CHARS_MAX]
    error = check.text("error", error)[:ERROR_CHARS_MAX]
    lease = held(state, token)
    subscription = state.subscriptions[lease.subscription]
    topic = subscription.topic
    offset, rank = ending.add(lease, rows_of(lease, offsets))
    total = ending.dead_after(topic, len(offset))
    if subscription.config.durable and total > topic.config.dead_messages_max:
        raise LimitReached("dead letters of the topic", topic.config.dead_messages_max, total)
    ending.bury(topic, len(offset))
    return [_bury(state, lease, offset, rank, reason, error)]


def _bury(state: State, lease: Lease, offset: Int64, rank: Int64, reason: str, error: str) -> AnyOp:
    """A dead letter; of an ephemeral subscription nothing remains, so there the message is let go."""
    subscription = state.subscriptions[lease.subscription]
    if not subscription.config.durable:
        return ops.Settle(lease.subscription, lease.partition, to_ranges(offset), "discarded")
    topic = subscription.topic.number
    return ops.Bury(topic, subscription.number, lease.partition, offset, rank, reason, error, failed=True)


def purge(subscription: SubscriptionState, ends: Mapping[int, int], limit: int, now_ms: int) -> tuple[list[AnyOp], int]:
    """A step of settling what is ready, at most `limit` messages, and how many these are; nobody holds them.

    `ends` are partitions, and the offset in each before which a message is meant: what came later may be more urgent.
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


def release(state: State, token: int, offsets: Int64 | None) -> None:
    """The consumer hands messages back untouched: they wait again, no attempt counted. Volatile."""
    lease = held(state, token)
    rows = rows_of(lease, offsets)
    subscription = state.subscriptions[lease.subscription]
    offset, rank = columns_of(lease, rows)
    state.take_out(lease, rows)
    subscription.readers[lease.partition].give_back(rank, offset)
    state.stir(subscription, lease.partition)


def take_back(state: State, token: int) -> None:
    """Messages never reached the consumer that was to get them: they wait again, and it keeps its credit. Volatile."""
    lease = held(state, token)
    consumer = state.subscriptions[lease.subscription].consumers.get(lease.consumer)
    if consumer is not None:
        consumer.credit += len(lease.offset)
    release(state, token, None)
