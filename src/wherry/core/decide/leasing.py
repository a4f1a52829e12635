"""Decide joins and leaves of consumers, and what a pull leases to a consumer. Volatile: nothing here is journaled."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from wherry.core.index.runs import Pairs
from wherry.core.state.bodies import Cold
from wherry.core.state.lease import Lease, LeasedFew, LeasedRun
from wherry.core.state.state import ConsumerState, State, SubscriptionState
from wherry.model import check, limits
from wherry.model.catalog.subscription import BUFFER_MAX, LEASE_MS_MAX
from wherry.model.errors import AlreadyExists, LimitReached, NotFound, StaleLease
from wherry.model.row_batch import ROWS_MAX

Int64: TypeAlias = npt.NDArray[np.int64]

FEW_MAX = 48
"""Most messages at any offsets that a pull leases one by one: from about 64 on, arrays are cheaper."""

BUFFER_MESSAGES_DEFAULT = 65_536
BUFFER_BYTES_DEFAULT = 64 << 20


class Now(NamedTuple):
    """The time on two clocks.

    Due times and retries use the wall clock. Leases use a steady clock, which a change of the system time cannot move.
    """

    wall_us: int
    steady_ms: int

    @property
    def wall_ms(self) -> int:
        """Wall clock time in Unix milliseconds."""
        return self.wall_us // 1000


def join(
    subscription: SubscriptionState,
    consumer: str,
    buffer_messages: int | None,
    buffer_bytes: int | None,
    seat: str | None = None,
) -> ConsumerState:
    """Add a consumer, with its buffer, to those that share a subscription.

    Consumers that give the same `seat` get the partitions of one consumer, and pull from them together. Each has a
    buffer of its own.
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
        joined.seat = f"seat {seat}"  # a consumer id has no space, so a seat name cannot equal one
    # Consumers that join for a single pull also begin at different partitions.
    joined.first_partition = subscription.rotation
    subscription.rotation += 1
    subscription.consumers[consumer] = joined
    subscription.seat(joined)
    return joined


def leave(state: State, subscription: SubscriptionState, consumer: str) -> None:
    """Remove a consumer. The messages that it held wait again, and no attempt is counted."""
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
    for number in moving:  # the consumer that owns them now may already be waiting for messages
        state.mark_nonempty(subscription, number)


@dataclass(slots=True)
class PullBudget:
    """How much one pull may still lease. The first message alone may have up to `first_bytes`."""

    messages: int
    bytes: int
    first_bytes: int

    def fitting(self, sizes: Int64) -> int:
        """Return how many messages with these sizes fit, taken in order."""
        if int(sizes.sum()) <= self.bytes:
            return len(sizes)
        fit = int(np.searchsorted(np.cumsum(sizes), self.bytes, "right"))
        return 1 if fit == 0 and len(sizes) and sizes[0] <= self.first_bytes else fit

    def spend_few(self, sizes: list[int]) -> int:
        """Subtract a few leased messages from the budget, and return their bytes."""
        spent = sum(sizes)
        self.messages -= len(sizes)
        self.bytes -= spent
        self.first_bytes = 0
        return spent

    def spend(self, sizes: Int64) -> int:
        """Subtract leased messages from the budget, and return their bytes."""
        spent = int(sizes.sum())
        self.messages -= len(sizes)
        self.bytes -= spent
        self.first_bytes = 0
        return spent


def lease(
    state: State, subscription: SubscriptionState, consumer: ConsumerState, messages: int, size: int, now: Now
) -> list[Lease]:
    """Lease messages to a consumer in order, up to a number and a size, within the consumer's buffer and credit.

    Raises `Cold` when bodies must be loaded first; nothing is leased then.
    """
    alone = _planned(state, subscription, consumer, messages, size, now)
    if alone is not None:
        return [alone]
    room = consumer.buffer_bytes - consumer.unsettled_bytes
    budget = PullBudget(
        min(messages, consumer.buffer_messages - consumer.unsettled_messages, consumer.credit),
        min(size, room),
        # A consumer that holds nothing gets one message even if it is larger than its buffer: otherwise no consumer of
        # this buffer size would ever get it.
        first_bytes=room if consumer.unsettled_messages else BUFFER_MAX,
    )
    granted: list[Lease] = []
    if not consumer.has_room():
        return granted
    now_ms = now.wall_us // 1000
    if subscription.nonempty.times.may_be_due(now_ms):
        mark_due(state, subscription, now_ms)
    for partition, most in _turns(state, subscription, consumer, budget, now_ms):
        try:
            new = _lease_from(state, subscription, consumer, partition, (min(most, budget.messages), budget), now)
        except Cold:
            if granted:
                break
            raise
        _note_tried(subscription, partition, now_ms)
        if new is not None:
            granted.append(new)
        if budget.messages <= 0 or budget.bytes <= 0:
            break
    if granted:
        # Only now: a pull that stopped at `Cold` must begin at the same partition again.
        consumer.first_partition = granted[0].partition + 1
    return granted


def _planned(
    state: State, subscription: SubscriptionState, consumer: ConsumerState, messages: int, size: int, now: Now
) -> Lease | None:
    """Lease a few messages of a plain topic at consecutive offsets, in memory, as `lease` does; else return None.

    What `lease` looks for besides is nowhere in a plain topic, or a condition here.
    """
    plan, strategy = subscription.topic.plan, subscription.assignment
    if plan is None or not consumer.has_room() or not (strategy.helps or 0 in strategy.of(consumer.seat)):
        return None
    reader, number = subscription.readers[0], plan.topic.number
    if reader.delayed.members or subscription.nonempty.times.may_be_due(now.wall_us // 1000):
        return None
    most = min(messages, consumer.buffer_messages - consumer.unsettled_messages, consumer.credit)
    first, stop = reader.next_run(most)
    sizes = state.bodies.run_sizes(number, 0, first, stop) if first < stop <= first + ROWS_MAX else None
    if sizes is None:
        return None
    spent = sum(sizes)
    if spent > size or spent > consumer.buffer_bytes - consumer.unsettled_bytes:  # `lease` knows which of them fit
        return None
    reader.lease_run(first, stop)
    if reader.is_run_out():
        subscription.nonempty.remove(0)
    consumer.unsettled_messages += stop - first
    consumer.unsettled_bytes += spent
    consumer.credit -= stop - first
    consumer.first_partition = 1
    deadline_ms = now.steady_ms + subscription.config.lease_ms
    return state.leases.grant(subscription.number, consumer.id, 0, LeasedRun(first, stop, sizes), deadline_ms)


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
    if reader.delayed.members:
        reader.wake(now.wall_ms)
    some = _next_run(state, subscription, partition, count, budget)
    if some is not None:
        reader.lease_run(some.first, some.stop)
        return _granted(state, subscription, consumer, partition, some, budget, now)
    few = _next_few(state, subscription, partition, count, budget, now)
    if few is not None:
        reader.lease_few(few.offsets)
        return _granted(state, subscription, consumer, partition, few, budget, now)
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
    consumer.unsettled_messages += len(sizes)
    consumer.unsettled_bytes += budget.spend(sizes)
    consumer.credit -= len(sizes)
    deadline_ms = now.steady_ms + subscription.config.lease_ms
    columns = (pairs.offset, pairs.rank, sizes)
    return state.leases.grant(subscription.number, consumer.id, partition, columns, deadline_ms)


def _granted(
    state: State,
    subscription: SubscriptionState,
    consumer: ConsumerState,
    partition: int,
    some: LeasedRun | LeasedFew,
    budget: PullBudget,
    now: Now,
) -> Lease:
    """Return a lease over a few messages, which the reader has leased."""
    consumer.unsettled_messages += len(some.sizes)
    consumer.unsettled_bytes += budget.spend_few(some.sizes)
    consumer.credit -= len(some.sizes)
    deadline_ms = now.steady_ms + subscription.config.lease_ms
    return state.leases.grant(subscription.number, consumer.id, partition, some, deadline_ms)


def _next_run(
    state: State, subscription: SubscriptionState, partition: int, count: int, budget: PullBudget
) -> LeasedRun | None:
    """Return what a pull gets next if that is a few messages at consecutive offsets, in memory; else None."""
    first, stop = subscription.readers[partition].next_run(count)
    if not 0 < stop - first <= ROWS_MAX:
        return None
    topic = subscription.topic.number
    sizes = state.bodies.run_sizes(topic, partition, first, stop)
    if sizes is None and stop - first <= FEW_MAX:
        sizes = state.bodies.few_sizes(topic, partition, list(range(first, stop)))
    if sizes is None or sum(sizes) > budget.bytes:  # the general way knows which of them fit
        return None
    return LeasedRun(first, stop, sizes)


def _next_few(
    state: State, subscription: SubscriptionState, partition: int, count: int, budget: PullBudget, now: Now
) -> LeasedFew | None:
    """Return what a pull gets next in a ranked order if that is a few messages in memory; else None."""
    found = subscription.readers[partition].next_few(count, FEW_MAX, now.wall_ms)
    if found is None or not found[0]:
        return None
    sizes = state.bodies.few_sizes(subscription.topic.number, partition, found[0])
    if sizes is None or sum(sizes) > budget.bytes:  # the general way knows which of them fit
        return None
    return LeasedFew(*found, sizes)


def _turns(
    state: State, subscription: SubscriptionState, consumer: ConsumerState, budget: PullBudget, now_ms: int
) -> Iterator[tuple[int, int]]:
    """Yield the partitions to pull from, one after the other, with the largest number of messages to take from each."""
    own, before = _own_partitions(subscription, consumer), consumer.unsettled_messages
    if subscription.topic.config.order == "fifo" or len(own) == 1:
        for number in own:
            yield number, budget.messages
    else:
        yield from _counts_by_partition(state, subscription, own, budget, now_ms)
    if subscription.assignment.helps and consumer.unsettled_messages == before:
        for number in _most_lagging(subscription, now_ms):
            yield number, budget.messages
            if consumer.unsettled_messages != before:
                return


def _own_partitions(subscription: SubscriptionState, consumer: ConsumerState) -> list[int]:
    """Return the non-empty partitions of a consumer in the order in which a pull tries them."""
    if not subscription.assignment.rotates:
        return [number for number in subscription.assignment.of(consumer.seat) if number in subscription.nonempty]
    numbers = _nonempty_of(subscription, consumer.seat)
    first = bisect_left(numbers, consumer.first_partition % subscription.topic.config.partitions)
    return numbers[first:] + numbers[:first]


def _nonempty_of(subscription: SubscriptionState, seat: str) -> list[int]:
    """Return the partitions of a seat that are marked non-empty, ascending.

    Iterates over the shorter of the two lists: the partitions of the seat or the non-empty partitions.
    """
    own, nonempty = subscription.assignment.of(seat), subscription.nonempty
    if len(own) < len(nonempty):
        return sorted(number for number in own if number in nonempty)
    numbers = nonempty.numbers()
    if len(own) == subscription.topic.config.partitions:
        return numbers
    return [number for number in numbers if number in own]


def _counts_by_partition(
    state: State, subscription: SubscriptionState, numbers: list[int], budget: PullBudget, now_ms: int
) -> list[tuple[int, int]]:
    """Return, for ranked orders, how many of the messages with the smallest ranks are in each partition."""
    parts = _smallest(subscription, numbers, budget.messages, now_ms)
    if len(parts) < 2:  # what fits is found as for a topic of one partition
        return [(number, budget.messages) for number, _ in parts]
    owner = np.repeat(np.arange(len(parts)), [len(pairs.rank) for _, pairs in parts])
    order = np.argsort(np.concatenate([pairs.rank for _, pairs in parts]), kind="stable")[: budget.messages]
    sizes = np.full(len(owner), BUFFER_MAX + 1)  # a message of unknown size counts as too large
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
    """Return the partitions that hold the `count` smallest ranks, each with its first messages."""
    heads = []
    for number in numbers:
        reader = subscription.readers[number]
        reader.wake(now_ms)
        first = reader.waiting.peek(1, now_ms).rank
        if len(first):
            heads.append((int(first[0]), number))
        else:
            _note_tried(subscription, number, now_ms)
    parts: list[tuple[int, Pairs]] = []
    lowest: list[Int64] = []
    known, bound = 0, None
    for rank, number in sorted(heads):
        # `count` messages come before this partition; equal ranks go to the partition with the lower number
        if bound is not None and rank >= bound:
            break
        pairs = subscription.readers[number].waiting.peek(count, now_ms)
        parts.append((number, pairs))
        lowest.append(pairs.rank)
        known += len(pairs.rank)
        # Sorts rarely: with many short partitions a sort after each of them would be slow.
        if known >= (count if bound is None else 2 * count):
            lowest = [np.sort(np.concatenate(lowest))[:count]]
            known, bound = count, int(lowest[0][-1])
    return parts


def _most_lagging(subscription: SubscriptionState, now_ms: int) -> list[int]:
    """Return the non-empty partitions, the one with the most ready messages first."""
    lags = []
    for number in subscription.nonempty.numbers():
        reader = subscription.readers[number]
        reader.wake(now_ms)
        ready = reader.waiting.ready(now_ms)
        if ready:
            lags.append((-ready, number))
        else:
            _note_tried(subscription, number, now_ms)
    return [number for _, number in sorted(lags)]


def _note_tried(subscription: SubscriptionState, number: int, now_ms: int) -> None:
    """Unmark a partition that a pull tried if nothing is ready there, and note when that changes."""
    reader = subscription.readers[number]
    at_ms = reader.next_at_ms(now_ms) if reader.ranked or reader.delayed.members else None
    if at_ms is not None and at_ms > now_ms:
        subscription.nonempty.times.note(number, at_ms)
    if (at_ms is None or at_ms > now_ms) and reader.waiting.ready(now_ms) == 0:
        subscription.nonempty.remove(number)


def mark_due(state: State, subscription: SubscriptionState, now_ms: int) -> None:
    """Mark the partitions non-empty in which a delay or a due time has passed."""
    for number in subscription.nonempty.times.due(now_ms):
        state.mark_nonempty(subscription, number)


def offers(subscription: SubscriptionState, number: int, now_ms: int) -> bool:
    """Return whether a partition has a message to lease now.

    Returns True where that cannot be known without loading bodies.
    """
    if number not in subscription.nonempty:
        return False
    reader = subscription.readers[number]
    try:
        reader.wake(now_ms)
        return len(reader.waiting.peek(1, now_ms).offset) > 0
    except Cold:
        return True


def held_lease(state: State, token: int, consumer: str | None = None) -> Lease:
    """Return the lease of a token, or raise `StaleLease`: the fence against consumers whose lease has ended."""
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
    state.leases.renew(lease, now.steady_ms + (lease_ms or config.lease_ms))


def consumer_of(subscription: SubscriptionState, consumer: str) -> ConsumerState:
    """Return a connected consumer, or raise `NotFound`."""
    found = subscription.consumers.get(consumer)
    if found is None:
        raise NotFound("consumer", consumer)
    return found
