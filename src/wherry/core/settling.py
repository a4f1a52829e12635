"""The end of a lease: ack, nack with back-off, dead letter, or the deadline."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from wherry.core.lease import Lease
from wherry.core.leasing import held
from wherry.core.retry import delays_ms, used_up
from wherry.core.state import TEXT_CHARS_MAX, State
from wherry.model import check, ops
from wherry.model.errors import InvalidInput, LimitReached, StaleLease
from wherry.model.limits import TIME_MS_MAX
from wherry.model.ops import AnyOp, to_ranges
from wherry.model.subscription import LEASE_MS_MAX

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
    return np.unique(rows)


def take_out(state: State, lease: Lease, rows: Int64 | None) -> tuple[Int64, Int64]:
    """Offsets (sorted) and ranks of some rows, which leave the lease and the consumer's buffer."""
    subscription = state.subscriptions[lease.subscription]
    consumer = subscription.consumers.get(lease.consumer)
    picked = slice(None) if rows is None else rows
    offset, rank, size = lease.offset[picked], lease.rank[picked], lease.size[picked]
    if consumer is not None:
        consumer.out_messages -= len(offset)
        consumer.out_bytes -= int(size.sum())
    if rows is None or len(rows) == len(lease.offset):
        state.leases.end(lease)
    else:
        keep = np.ones(len(lease.offset), np.bool_)
        keep[rows] = False
        lease.offset, lease.rank, lease.size = lease.offset[keep], lease.rank[keep], lease.size[keep]
    if len(offset) > 1 and not bool((offset[1:] > offset[:-1]).all()):
        order = np.argsort(offset, kind="stable")
        offset, rank = offset[order], rank[order]
    return offset, rank


def ack(state: State, token: int, offsets: Int64 | None) -> list[AnyOp]:
    """Messages are done."""
    lease = held(state, token)
    offset, _ = take_out(state, lease, rows_of(lease, offsets))
    return [ops.Settle(lease.subscription, lease.partition, to_ranges(offset), "acked")]


def nack(
    state: State, token: int, offsets: Int64 | None, delay_ms: int | None, error: str, now_ms: int, entropy: Entropy
) -> list[AnyOp]:
    """Messages failed: they come back by the retry policy (or after `delay_ms`), or become dead letters."""
    check.optional_integer("delay_ms", delay_ms, 0, LEASE_MS_MAX)
    error = check.text("error", error)[:TEXT_CHARS_MAX]
    lease = held(state, token)
    rows = rows_of(lease, offsets)
    return failed(state, lease, rows, delay_ms, error, now_ms, entropy)


def failed(
    state: State, lease: Lease, rows: Int64 | None, delay_ms: int | None, error: str, now_ms: int, entropy: Entropy
) -> list[AnyOp]:
    """One more failed attempt for rows of a lease."""
    subscription = state.subscriptions[lease.subscription]
    policy, topic = subscription.config.retry, subscription.topic
    offset, rank = take_out(state, lease, rows)
    reader = subscription.readers[lease.partition]
    attempts = reader.attempts(offset) + 1
    done = used_up(policy, attempts)
    if subscription.config.durable and topic.dead + int(done.sum()) > topic.config.dead_messages_max:
        done[:] = False  # the dead letters are full: it stays in retry
    result: list[AnyOp] = []
    if done.any():
        reason = f"{policy.attempts} failed deliveries"
        result.append(_bury(state, lease, offset[done], rank[done], reason, error))
    again = ~done
    if again.any():
        delays = delays_ms(policy, attempts[again], entropy(int(again.sum())))
        if delay_ms is not None:
            delays[:] = delay_ms
        until = np.minimum(now_ms + delays, TIME_MS_MAX)
        hashes = reader.key_hashes(offset[again])
        result.append(ops.Fail(subscription.number, lease.partition, offset[again], rank[again], hashes, until, error))
    return result


def dead_letter(state: State, token: int, offsets: Int64 | None, reason: str, error: str) -> list[AnyOp]:
    """The consumer gives up on messages: dead letters at once."""
    reason = check.text("reason", reason)[:TEXT_CHARS_MAX]
    error = check.text("error", error)[:TEXT_CHARS_MAX]
    lease = held(state, token)
    rows = rows_of(lease, offsets)
    subscription = state.subscriptions[lease.subscription]
    topic = subscription.topic
    count = len(lease.offset) if rows is None else len(rows)
    if subscription.config.durable and topic.dead + count > topic.config.dead_messages_max:
        raise LimitReached("dead letters of the topic", topic.config.dead_messages_max, topic.dead + count)
    offset, rank = take_out(state, lease, rows)
    return [_bury(state, lease, offset, rank, reason, error)]


def _bury(state: State, lease: Lease, offset: Int64, rank: Int64, reason: str, error: str) -> AnyOp:
    """A dead letter; of an ephemeral subscription nothing remains, so there the message is let go."""
    subscription = state.subscriptions[lease.subscription]
    if not subscription.config.durable:
        return ops.Settle(lease.subscription, lease.partition, to_ranges(offset), "discarded")
    topic = subscription.topic.number
    return ops.Bury(topic, subscription.number, lease.partition, offset, rank, reason, error, failed=True)


def release(state: State, token: int, offsets: Int64 | None) -> None:
    """The consumer hands messages back untouched: they wait again, no attempt counted. Volatile."""
    lease = held(state, token)
    rows = rows_of(lease, offsets)
    reader = state.subscriptions[lease.subscription].readers[lease.partition]
    offset, rank = take_out(state, lease, rows)
    reader.give_back(rank, offset)
