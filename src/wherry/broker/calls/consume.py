"""Consume: join a subscription; settle leases by token, for clients in other processes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from wherry.broker.calls.calls import BrokerCalls
from wherry.broker.calls.consumer import Consumer
from wherry.broker.calls.settle import Settler
from wherry.core.decide import leasing
from wherry.core.state.state import SubscriptionState
from wherry.model import check
from wherry.model.errors import NotFound

Int64: TypeAlias = npt.NDArray[np.int64]


class ConsumeCalls(BrokerCalls):
    """The calls of consumers."""

    _settler: Settler
    _named: Counter[str]

    async def consumer(
        self,
        topic: str,
        subscription: str,
        consumer_id: str | None = None,
        *,
        buffer_messages: int | None = None,
        buffer_bytes: int | None = None,
        seat: str | None = None,
    ) -> Consumer:
        """Join a subscription. The buffer is the most that this consumer will ever hold unsettled.

        Consumers with the same `seat` share partitions as if they were one, which suits many short-lived consumers. A
        consumer without a `consumer_id` gets a name that is free.
        """
        self.shard.committer.check()
        state = self.shard.state.subscription(topic, subscription)
        name = self._free_name(state, seat or "consumer") if consumer_id is None else consumer_id
        joined_as = leasing.join(state, name, buffer_messages, buffer_bytes, seat)
        return Consumer(self.shard, self._settler, state, joined_as)

    def _free_name(self, subscription: SubscriptionState, prefix: str) -> str:
        """Return the next default name that no consumer chose for itself."""
        while True:
            self._named[prefix] += 1
            name = f"{prefix}-{self._named[prefix]}"
            if name not in subscription.consumers:
                return name

    def internal_consumer(self, number: int, consumer_id: str) -> Consumer:
        """Join the subscription of a number for the broker itself: clients may not remove this consumer."""
        state = self.shard.state.subscriptions.get(number)
        if state is None:
            raise NotFound("subscription", str(number))
        joined_as = leasing.join(state, consumer_id, None, None)
        joined_as.is_internal = True
        return Consumer(self.shard, self._settler, state, joined_as)

    async def leave(self, topic: str, subscription: str, consumer_id: str) -> None:
        """Remove a consumer by its name, or raise `NotFound`: what it held waits again, no attempt counted."""
        state = self.shard.state.subscription(topic, subscription)
        joined_as = state.consumers.get(consumer_id)
        if joined_as is None:
            raise NotFound("consumer", consumer_id)
        await Consumer(self.shard, self._settler, state, joined_as).close()

    @property
    def settler(self) -> Settler:
        """Return the settler, which settles parts of leases by their tokens, many in one call."""
        return self._settler

    async def ack(self, token: int, offsets: Sequence[int] | None = None) -> None:
        """Ack messages of a lease; `StaleLease` if it does not hold them any more."""
        await self._settler.ack([(token, _offsets(offsets))])

    async def nack(
        self, token: int, offsets: Sequence[int] | None = None, *, delay_ms: int | None = None, error: str = ""
    ) -> None:
        """Nack messages of a lease: they come back by the retry policy, or after `delay_ms`."""
        await self._settler.nack([(token, _offsets(offsets))], delay_ms, error)

    async def dead_letter(
        self, token: int, offsets: Sequence[int] | None = None, *, reason: str = "rejected", error: str = ""
    ) -> None:
        """Make messages of a lease dead letters at once."""
        await self._settler.dead_letter([(token, _offsets(offsets))], reason, error)

    async def release(self, token: int, offsets: Sequence[int] | None = None) -> None:
        """Hand messages of a lease back untouched: they wait again, no attempt counted."""
        self._settler.release([(token, _offsets(offsets))])

    async def renew(self, token: int, lease_ms: int | None = None) -> None:
        """Give a lease more time."""
        self._settler.renew([token], lease_ms)

    async def purge(self, topic: str, subscription: str) -> int:
        """Settle what is ready in a subscription, unread; return how many. What is on lease or scheduled stays."""
        return await self._settler.purge(topic, subscription)

    async def stage_ack(self, key: str, token: int, offsets: Sequence[int] | None = None) -> None:
        """Ack when the stage `key` is committed; the lease must still hold then."""
        await self._settler.stage_ack(key, [(token, _offsets(offsets))])


def _offsets(given: Sequence[int] | None) -> Int64 | None:
    if given is None:
        return None
    return check.whole_numbers("offsets", given, "at least one offset, or None for the whole lease")
