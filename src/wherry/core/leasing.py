"""Consumers come and go, and are handed messages. All volatile: nothing here is journaled."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from wherry.core.bodies import Cold
from wherry.core.lease import Lease
from wherry.core.reader import Reader
from wherry.core.state import Consumer, State, SubscriptionState
from wherry.model import check, limits
from wherry.model.errors import AlreadyExists, LimitReached, NotFound, StaleLease
from wherry.model.subscription import BUFFER_MAX, LEASE_MS_MAX

Int64: TypeAlias = npt.NDArray[np.int64]

BUFFER_MESSAGES_DEFAULT = 65_536
BUFFER_BYTES_DEFAULT = 64 << 20


class Now(NamedTuple):
    """Two clocks. Due times and retries go by the wall clock; leases by a steady one, which nobody sets back."""

    wall_us: int
    steady_ms: int

    @property
    def wall_ms(self) -> int:
        """Unix milliseconds."""
        return self.wall_us // 1000


def join(
    subscription: SubscriptionState, consumer: str, buffer_messages: int | None, buffer_bytes: int | None
) -> Consumer:
    """A consumer declares its buffer and shares the subscription from now on."""
    check.graphic("consumer", consumer, limits.CONSUMER_ID_CHARS_MAX)
    check.optional_integer("buffer_messages", buffer_messages, 1, BUFFER_MAX)
    check.optional_integer("buffer_bytes", buffer_bytes, 1, BUFFER_MAX)
    if consumer in subscription.consumers:
        raise AlreadyExists("consumer", consumer, "it is connected to this subscription")
    count = len(subscription.consumers) + 1
    if count > limits.CONSUMERS_PER_SUBSCRIPTION_MAX:
        raise LimitReached("consumers of the subscription", limits.CONSUMERS_PER_SUBSCRIPTION_MAX, count)
    joined = Consumer(consumer, buffer_messages or BUFFER_MESSAGES_DEFAULT, buffer_bytes or BUFFER_BYTES_DEFAULT)
    joined.turn = subscription.turn  # those who come for one pull only begin at different partitions too
    subscription.turn += 1
    subscription.consumers[consumer] = joined
    subscription.assignment.join(consumer)
    return joined


def leave(state: State, subscription: SubscriptionState, consumer: str) -> None:
    """A consumer goes; what it held waits again, with no attempt counted."""
    if subscription.consumers.pop(consumer, None) is None:
        return
    subscription.assignment.leave(consumer)
    for lease in state.leases.of_consumer(subscription.number, consumer):
        subscription.readers[lease.partition].give_back(lease.rank, lease.offset)
        state.leases.end(lease)


@dataclass(slots=True)
class Budget:
    """How much one pull may still hand out. The first message may be as large as `first_bytes`."""

    messages: int
    bytes: int
    first_bytes: int

    def fitting(self, sizes: Int64) -> int:
        """How many of these fit, in order."""
        fit = int(np.searchsorted(np.cumsum(sizes), self.bytes, "right"))
        return 1 if fit == 0 and len(sizes) and sizes[0] <= self.first_bytes else fit

    def spend(self, sizes: Int64) -> None:
        """Some were handed out."""
        self.messages -= len(sizes)
        self.bytes -= int(sizes.sum())
        self.first_bytes = 0


def lease(
    state: State, subscription: SubscriptionState, consumer: Consumer, messages: int, size: int, now: Now
) -> list[Lease]:
    """Hand out messages in order, up to a number and to a size, and never beyond the consumer's buffer or credit.

    Raises `Cold` when bodies must be loaded first; then nothing was handed out.
    """
    room = consumer.buffer_bytes - consumer.out_bytes
    budget = Budget(
        min(messages, consumer.buffer_messages - consumer.out_messages, consumer.credit),
        min(size, room),
        # One message above the buffer is handed to a consumer that holds nothing: else nobody would ever get it.
        first_bytes=room if consumer.out_messages else BUFFER_MAX,
    )
    granted: list[Lease] = []
    if budget.messages <= 0 or budget.bytes <= 0:
        return granted
    for partition, quota in _turns(subscription, consumer, budget.messages, now.wall_ms):
        try:
            new = _lease_from(state, subscription, consumer, partition, (min(quota, budget.messages), budget), now)
        except Cold:
            if granted:
                break
            raise
        if new is not None:
            granted.append(new)
        if budget.messages <= 0 or budget.bytes <= 0:
            break
    return granted


def _lease_from(
    state: State,
    subscription: SubscriptionState,
    consumer: Consumer,
    partition: int,
    limit: tuple[int, Budget],
    now: Now,
) -> Lease | None:
    reader = subscription.readers[partition]
    count, budget = limit
    sizes = np.empty(0, np.int64)

    def cut(offsets: Int64) -> int:
        nonlocal sizes
        if len(offsets) == 0:
            return 0
        sizes = state.bodies.sizes(subscription.topic.number, partition, offsets)
        return budget.fitting(sizes)

    pairs = reader.lease(count, now.wall_ms, cut)
    if len(pairs.offset) == 0:
        return None
    sizes = sizes[: len(pairs.offset)]
    budget.spend(sizes)
    consumer.out_messages += len(sizes)
    consumer.out_bytes += int(sizes.sum())
    consumer.credit -= len(sizes)
    deadline_ms = now.steady_ms + subscription.config.lease_ms
    columns = (pairs.offset, pairs.rank, sizes)
    return state.leases.grant(subscription.number, consumer.id, partition, columns, deadline_ms)


def _turns(subscription: SubscriptionState, consumer: Consumer, count: int, now_ms: int) -> Iterator[tuple[int, int]]:
    """Partitions to pull from in turn, and at most how much from each."""
    own = [number for number in subscription.assignment.of(consumer.id) if number in subscription.readers]
    for number in own:
        subscription.readers[number].wake(now_ms)
    if subscription.topic.config.order == "fifo" or len(own) == 1:
        turn = consumer.turn % max(len(own), 1) if subscription.assignment.rotates else 0
        consumer.turn += 1
        yielded = [(number, count) for number in (*own[turn:], *own[:turn])]
    else:
        yielded = _quotas([(number, subscription.readers[number]) for number in own], count, now_ms)
    before = consumer.out_messages
    yield from yielded
    if consumer.out_messages == before and subscription.assignment.helps:
        lagging = _most_lagging(subscription, now_ms)
        if lagging is not None:
            yield lagging, count


def _quotas(readers: list[tuple[int, Reader]], count: int, now_ms: int) -> list[tuple[int, int]]:
    """For ranked orders: how many of the `count` smallest ranks lie in each partition, smallest head first."""
    heads = [(number, reader.waiting.peek(count, now_ms).rank) for number, reader in readers]
    heads = [(number, rank) for number, rank in heads if len(rank)]
    if not heads:
        return []
    heads.sort(key=lambda head: (int(head[1][0]), head[0]))
    owner = np.repeat(np.arange(len(heads)), [len(rank) for _, rank in heads])
    order = np.argsort(np.concatenate([rank for _, rank in heads]), kind="stable")[:count]
    taken = np.bincount(owner[order], minlength=len(heads))
    return [(number, int(taken[index])) for index, (number, _) in enumerate(heads) if taken[index]]


def _most_lagging(subscription: SubscriptionState, now_ms: int) -> int | None:
    best, most = None, 0
    for number, reader in subscription.readers.items():
        reader.wake(now_ms)
        ready = reader.waiting.ready(now_ms)
        if ready > most:
            best, most = number, ready
    return best


def held(state: State, token: int, consumer: str | None = None) -> Lease:
    """The lease of a token, or `StaleLease`: the fence."""
    check.integer("token", token, 0, (1 << 63) - 1)
    lease = state.leases.get(token)
    if lease is None:
        raise StaleLease(token, "is over: it expired, was settled, or belongs to an earlier run of the broker")
    if consumer is not None and lease.consumer != consumer:
        raise StaleLease(token, f"belongs to consumer {lease.consumer!r}, not {consumer!r}")
    return lease


def renew(state: State, token: int, lease_ms: int | None, now: Now) -> None:
    """A new deadline for long work."""
    lease = held(state, token)
    check.optional_integer("lease_ms", lease_ms, 1, LEASE_MS_MAX)
    config = state.subscriptions[lease.subscription].config
    state.leases.extend(lease, now.steady_ms + (lease_ms or config.lease_ms))


def consumer_of(subscription: SubscriptionState, consumer: str) -> Consumer:
    """A connected consumer, or `NotFound`."""
    found = subscription.consumers.get(consumer)
    if found is None:
        raise NotFound("consumer", consumer)
    return found
