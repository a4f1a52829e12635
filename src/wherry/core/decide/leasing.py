"""Consumers come and go, and are handed messages. All volatile: nothing here is journaled."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from wherry.core.index.runs import Pairs
from wherry.core.state.bodies import Cold
from wherry.core.state.lease import Lease
from wherry.core.state.state import ConsumerState, State, SubscriptionState
from wherry.model import check, limits
from wherry.model.catalog.subscription import BUFFER_MAX, LEASE_MS_MAX
from wherry.model.errors import AlreadyExists, LimitReached, NotFound, StaleLease

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
    subscription: SubscriptionState,
    consumer: str,
    buffer_messages: int | None,
    buffer_bytes: int | None,
    seat: str | None = None,
) -> ConsumerState:
    """A consumer declares its buffer and shares the subscription from now on.

    Those with the same `seat` have its partitions together, as one consumer would; each has a buffer of its own.
    """
    check.graphic("consumer", consumer, limits.CONSUMER_ID_CHARS_MAX)
    check.optional_integer("buffer_messages", buffer_messages, 1, BUFFER_MAX)
    check.optional_integer("buffer_bytes", buffer_bytes, 1, BUFFER_MAX)
    if consumer in subscription.consumers:
        raise AlreadyExists("consumer", consumer, "it is connected to this subscription")
    count = len(subscription.consumers) + 1
    if count > limits.CONSUMERS_PER_SUBSCRIPTION_MAX:
        raise LimitReached("consumers of the subscription", limits.CONSUMERS_PER_SUBSCRIPTION_MAX, count)
    joined = ConsumerState(consumer, buffer_messages or BUFFER_MESSAGES_DEFAULT, buffer_bytes or BUFFER_BYTES_DEFAULT)
    if seat is not None:
        joined.seat = f"seat {seat}"  # the name of a consumer has no space
    joined.turn = subscription.turn  # those who come for one pull only begin at different partitions too
    subscription.turn += 1
    subscription.consumers[consumer] = joined
    subscription.seat(joined)
    return joined


def leave(state: State, subscription: SubscriptionState, consumer: str) -> None:
    """A consumer goes; what it held waits again, with no attempt counted."""
    left = subscription.consumers.pop(consumer, None)
    if left is None:
        return
    moving = _nonempty_of(subscription, left.seat)
    subscription.unseat(left)
    for lease in state.leases.of_consumer(subscription.number, consumer):
        subscription.readers[lease.partition].give_back(lease.rank, lease.offset)
        state.leases.end(lease)
        state.mark_nonempty(subscription, lease.partition)
    state.mark_room(subscription, consumer)
    for number in moving:  # whoever has them now may wait already
        state.mark_nonempty(subscription, number)


@dataclass(slots=True)
class PullBudget:
    """How much one pull may still hand out. The first message may be as large as `first_bytes`."""

    messages: int
    bytes: int
    first_bytes: int

    def fitting(self, sizes: Int64) -> int:
        """How many of these fit, in order."""
        if int(sizes.sum()) <= self.bytes:
            return len(sizes)
        fit = int(np.searchsorted(np.cumsum(sizes), self.bytes, "right"))
        return 1 if fit == 0 and len(sizes) and sizes[0] <= self.first_bytes else fit

    def spend(self, sizes: Int64) -> int:
        """Some were handed out; their bytes."""
        spent = int(sizes.sum())
        self.messages -= len(sizes)
        self.bytes -= spent
        self.first_bytes = 0
        return spent


def lease(
    state: State, subscription: SubscriptionState, consumer: ConsumerState, messages: int, size: int, now: Now
) -> list[Lease]:
    """Hand out messages in order, up to a number and to a size, and never beyond the consumer's buffer or credit.

    Raises `Cold` when bodies must be loaded first; then nothing was handed out.
    """
    room = consumer.buffer_bytes - consumer.out_bytes
    budget = PullBudget(
        min(messages, consumer.buffer_messages - consumer.out_messages, consumer.credit),
        min(size, room),
        # One message above the buffer is handed to a consumer that holds nothing: else nobody would ever get it.
        first_bytes=room if consumer.out_messages else BUFFER_MAX,
    )
    granted: list[Lease] = []
    if not consumer.has_room():
        return granted
    mark_due(state, subscription, now.wall_ms)
    for partition, quota in _turns(state, subscription, consumer, budget, now.wall_ms):
        try:
            new = _lease_from(state, subscription, consumer, partition, (min(quota, budget.messages), budget), now)
        except Cold:
            if granted:
                break
            raise
        _note_look(subscription, partition, now.wall_ms)
        if new is not None:
            granted.append(new)
        if budget.messages <= 0 or budget.bytes <= 0:
            break
    if granted:
        consumer.turn = granted[0].partition + 1  # not before: a pull that had to load begins where it did
    return granted


def _lease_from(
    state: State,
    subscription: SubscriptionState,
    consumer: ConsumerState,
    partition: int,
    limit: tuple[int, PullBudget],
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

    reader.wake(now.wall_ms)
    pairs = reader.lease(count, now.wall_ms, cut)
    if len(pairs.offset) == 0:
        return None
    sizes = sizes[: len(pairs.offset)]
    consumer.out_messages += len(sizes)
    consumer.out_bytes += budget.spend(sizes)
    consumer.credit -= len(sizes)
    deadline_ms = now.steady_ms + subscription.config.lease_ms
    columns = (pairs.offset, pairs.rank, sizes)
    return state.leases.grant(subscription.number, consumer.id, partition, columns, deadline_ms)


def _turns(
    state: State, subscription: SubscriptionState, consumer: ConsumerState, budget: PullBudget, now_ms: int
) -> Iterator[tuple[int, int]]:
    """Partitions to pull from in turn, and at most how much from each."""
    own, before = _own(subscription, consumer), consumer.out_messages
    if subscription.topic.config.order == "fifo" or len(own) == 1:
        yield from ((number, budget.messages) for number in own)
    else:
        yield from _quotas(state, subscription, own, budget, now_ms)
    if subscription.assignment.helps and consumer.out_messages == before:
        for number in _most_lagging(subscription, now_ms):
            yield number, budget.messages
            if consumer.out_messages != before:
                return


def _own(subscription: SubscriptionState, consumer: ConsumerState) -> list[int]:
    """Partitions of a consumer in which something may be ready, in the order to look."""
    if not subscription.assignment.rotates:
        return [number for number in subscription.assignment.of(consumer.seat) if number in subscription.nonempty]
    numbers = _nonempty_of(subscription, consumer.seat)
    first = bisect_left(numbers, consumer.turn % subscription.topic.config.partitions)
    return numbers[first:] + numbers[:first]


def _nonempty_of(subscription: SubscriptionState, seat: str) -> list[int]:
    """Partitions of a seat in which something may be ready, ascending; costs the fewer of its own and of those."""
    own, nonempty = subscription.assignment.of(seat), subscription.nonempty
    if len(own) < len(nonempty):
        return sorted(number for number in own if number in nonempty)
    everything = len(own) == subscription.topic.config.partitions
    return [number for number in nonempty.numbers() if everything or number in own]


def _quotas(
    state: State, subscription: SubscriptionState, numbers: list[int], budget: PullBudget, now_ms: int
) -> list[tuple[int, int]]:
    """For ranked orders: of the smallest ranks of all partitions that fit the budget, how many lie in each of them."""
    parts = _smallest(subscription, numbers, budget.messages, now_ms)
    if not parts:
        return []
    owner = np.repeat(np.arange(len(parts)), [len(pairs.rank) for _, pairs in parts])
    order = np.argsort(np.concatenate([pairs.rank for _, pairs in parts]), kind="stable")[: budget.messages]
    sizes = np.full(len(owner), BUFFER_MAX + 1)  # what cannot be told fits nowhere
    starts = np.searchsorted(owner, np.arange(len(parts)))
    for (number, pairs), start, count in zip(
        parts, starts, np.bincount(owner[order], minlength=len(parts)), strict=True
    ):
        if count:
            known = state.bodies.sizes(subscription.topic.number, number, pairs.offset[:count], share=len(parts))
            sizes[start : start + len(known)] = known
    taken = np.bincount(owner[order[: budget.fitting(sizes[order])]], minlength=len(parts)).tolist()
    return [(number, count) for (number, _), count in zip(parts, taken, strict=True) if count]


def _smallest(subscription: SubscriptionState, numbers: list[int], count: int, now_ms: int) -> list[tuple[int, Pairs]]:
    """Partitions by the rank of their first message, as many as hold the `count` smallest ranks, with their first."""
    heads = []
    for number in numbers:
        reader = subscription.readers[number]
        reader.wake(now_ms)
        first = reader.waiting.peek(1, now_ms).rank
        if len(first):
            heads.append((int(first[0]), number))
        else:
            _note_look(subscription, number, now_ms)
    parts: list[tuple[int, Pairs]] = []
    lowest: list[Int64] = []
    known, bound = 0, None
    for rank, number in sorted(heads):
        if bound is not None and rank >= bound:  # `count` messages come before it; ties go to the partition before
            break
        pairs = subscription.readers[number].waiting.peek(count, now_ms)
        parts.append((number, pairs))
        lowest.append(pairs.rank)
        known += len(pairs.rank)
        if known >= (count if bound is None else 2 * count):  # seldom: else many short partitions cost a sort each
            lowest = [np.sort(np.concatenate(lowest))[:count]]
            known, bound = count, int(lowest[0][-1])
    return parts


def _most_lagging(subscription: SubscriptionState, now_ms: int) -> list[int]:
    """Partitions by how much is ready in them, most first."""
    lags = []
    for number in subscription.nonempty.numbers():
        reader = subscription.readers[number]
        reader.wake(now_ms)
        ready = reader.waiting.ready(now_ms)
        if ready:
            lags.append((-ready, number))
        else:
            _note_look(subscription, number, now_ms)
    return [number for _, number in sorted(lags)]


def _note_look(subscription: SubscriptionState, number: int, now_ms: int) -> None:
    """After a look into a partition: it rests if nothing waits there, until a time if something will."""
    reader = subscription.readers[number]
    at_ms = reader.next_at_ms(now_ms)
    if at_ms is not None and at_ms > now_ms:
        subscription.nonempty.times.note(number, at_ms)
    if (at_ms is None or at_ms > now_ms) and reader.waiting.ready(now_ms) == 0:
        subscription.nonempty.remove(number)


def mark_due(state: State, subscription: SubscriptionState, now_ms: int) -> None:
    """Partitions in which a message waited for a time that has come."""
    for number in subscription.nonempty.times.due(now_ms):
        state.mark_nonempty(subscription, number)


def offers(subscription: SubscriptionState, number: int, now_ms: int) -> bool:
    """Whether a partition has a message to hand out right now, as far as that can be told without loading bodies."""
    if number not in subscription.nonempty:
        return False
    reader = subscription.readers[number]
    try:
        reader.wake(now_ms)
        return len(reader.waiting.peek(1, now_ms).offset) > 0
    except Cold:
        return True


def held(state: State, token: int, consumer: str | None = None) -> Lease:
    """The lease of a token, or `StaleLease`: the fence."""
    check.integer("token", token, 0, (1 << 63) - 1)
    lease = state.leases.get(token)
    if lease is None:
        raise StaleLease(token, "is over: it expired, was settled, or belongs to an earlier run of the broker")
    if consumer is not None and lease.consumer != consumer:
        raise StaleLease(token, f"belongs to consumer {lease.consumer!r}, not {consumer!r}")
    return lease


def renew(state: State, lease: Lease, lease_ms: int | None, now: Now) -> None:
    """Give a lease a new deadline, for long work."""
    check.optional_integer("lease_ms", lease_ms, 1, LEASE_MS_MAX)
    config = state.subscriptions[lease.subscription].config
    state.leases.extend(lease, now.steady_ms + (lease_ms or config.lease_ms))


def consumer_of(subscription: SubscriptionState, consumer: str) -> ConsumerState:
    """A connected consumer, or `NotFound`."""
    found = subscription.consumers.get(consumer)
    if found is None:
        raise NotFound("consumer", consumer)
    return found
