"""Consumers and what they are handed: pull, then settle each delivery."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from wherry.broker.shard import Shard
from wherry.core import leasing, settling, staging
from wherry.core.bodies import Cold
from wherry.core.lease import Lease
from wherry.core.state import Consumer as ConsumerState
from wherry.core.state import SubscriptionState, TopicState
from wherry.core.volatile import separate
from wherry.model import check, ops
from wherry.model.errors import InvalidInput
from wherry.model.limits import TIME_MS_MAX
from wherry.model.ops import AnyOp, to_ranges
from wherry.model.schema import DELIVERED
from wherry.model.subscription import BUFFER_MAX

Int64: TypeAlias = npt.NDArray[np.int64]
Rows: TypeAlias = Sequence[int] | Int64 | None
"""Which messages of a delivery: row numbers, or None for all of them."""

PULL_MESSAGES_MAX = 65_536
PULL_BYTES_DEFAULT = 16 << 20


@dataclass(frozen=True, slots=True)
class Received:
    """One message of a delivery. Times are Unix milliseconds."""

    payload: bytes
    id: str
    key: str | None
    priority: int
    due_ms: int | None
    headers: dict[str, str]
    partition: int
    offset: int
    attempt: int


class Delivery:
    """Messages on lease: an Arrow batch, and the ways to settle it, whole or by rows."""

    def __init__(self, shard: Shard, topic: TopicState, batch: pa.RecordBatch, leases: list[Lease]) -> None:
        self._shard = shard
        self._topic = topic
        self.batch = batch
        self.tokens = [lease.token for lease in leases]
        self._offsets = batch.column("offset").to_numpy()
        counts = [len(lease.offset) for lease in leases]
        self._starts = np.concatenate(([0], np.cumsum(counts))).astype(np.int64)

    def __len__(self) -> int:
        return int(self.batch.num_rows)

    def __iter__(self) -> Iterator[Received]:
        return iter(self.messages())

    def messages(self) -> list[Received]:
        """The messages one by one, for callers that want them so."""
        rows = self.batch.drop_columns(["published", "envelope", "blob", "mac", "expires"]).to_pylist()
        return [
            Received(
                row["payload"],
                row["id"] or f"{row['partition']}-{row['offset']}",
                row["key"],
                row["priority"],
                None if row["due"] is None else int(row["due"].timestamp() * 1000),
                dict(row["headers"] or ()),
                row["partition"],
                row["offset"],
                row["attempt"],
            )
            for row in rows
        ]

    def payloads(self) -> list[bytes]:
        """The bodies alone."""
        return self.batch.column("payload").to_pylist()

    def _by_lease(self, rows: Rows) -> list[tuple[int, Int64 | None]]:
        """Tokens, with the offsets meant under each (None for all)."""
        if rows is None:
            return [(token, None) for token in self.tokens]
        try:
            wanted = np.unique(np.asarray(rows, np.int64))
        except (TypeError, ValueError, OverflowError):
            raise InvalidInput("rows", rows, "row numbers of this delivery") from None
        if len(wanted) == 0 or wanted[0] < 0 or wanted[-1] >= len(self):
            raise InvalidInput("rows", rows, f"row numbers from 0 to {len(self) - 1}, at least one")
        result: list[tuple[int, Int64 | None]] = []
        for token, start, stop in zip(self.tokens, self._starts[:-1], self._starts[1:], strict=True):
            mine = wanted[(wanted >= start) & (wanted < stop)]
            if len(mine):
                result.append((token, self._offsets[mine]))
        return result

    async def ack(self, rows: Rows = None) -> None:
        """Done with these messages: durable on return. `StaleLease` if a lease is over; then nothing was settled."""
        await self._settle(rows, lambda token, offsets: settling.ack(self._shard.state, token, offsets))

    async def nack(self, rows: Rows = None, *, delay_ms: int | None = None, error: str = "") -> None:
        """These failed: they come back by the retry policy, or after `delay_ms`; or they are dead letters now."""
        shard = self._shard

        def step(token: int, offsets: Int64 | None) -> list[AnyOp]:
            now_ms = shard.now().wall_ms
            return settling.nack(shard.state, token, offsets, delay_ms, error, now_ms, shard.clock.entropy)

        await self._settle(rows, step)

    async def dead_letter(self, rows: Rows = None, *, reason: str = "rejected", error: str = "") -> None:
        """Give up on these at once."""
        state = self._shard.state
        await self._settle(rows, lambda token, offsets: settling.dead_letter(state, token, offsets, reason, error))

    async def release(self, rows: Rows = None) -> None:
        """Hand these back untouched: they wait again, no attempt counted."""
        parts = self._by_lease(rows)
        self._check(parts)
        for token, offsets in parts:
            settling.release(self._shard.state, token, offsets)
        self._wake()

    async def renew(self, lease_ms: int | None = None) -> None:
        """More time for long work."""
        now = self._shard.now()
        self._shard.upkeep(now)
        for token in self.tokens:
            leasing.held(self._shard.state, token)
        for token in self.tokens:
            leasing.renew(self._shard.state, token, lease_ms, now)

    async def stage_ack(self, key: str, rows: Rows = None) -> None:
        """Ack when the stage `key` is committed; the lease must still hold then."""
        shard = self._shard
        await shard.admit_settle(1)
        now = shard.now()
        shard.upkeep(now)
        parts = self._by_lease(rows)
        self._check(parts)
        position = 0
        for token, offsets in parts:
            entries = staging.stage_settle(shard.state, key, token, offsets, now.wall_us)
            if entries:
                position = shard.commit(entries)
                staging.note_settle(shard.state, key, token, offsets)
        await shard.committer.wait(position)

    async def _settle(self, rows: Rows, step: SettleStep) -> None:
        shard = self._shard
        parts = self._by_lease(rows)
        await shard.admit_settle(len(self))
        now = shard.now()
        shard.upkeep(now)
        self._check(parts)
        steps = [op for token, offsets in parts for op in step(token, offsets)]
        position = shard.commit(separate(shard.state, now.wall_us, steps))
        self._wake()
        await shard.committer.wait(position)

    def _check(self, parts: list[tuple[int, Int64 | None]]) -> None:
        """All leases hold all of it, before any is touched: a settle is all or nothing."""
        self._shard.committer.check()
        for token, offsets in parts:
            settling.rows_of(leasing.held(self._shard.state, token), offsets)

    def _wake(self) -> None:
        """Buffers have room and keys are free again: those who wait may find something."""
        self._shard.wake(self._topic)


class SettleStep(Protocol):
    """How one lease of a delivery is settled."""

    def __call__(self, token: int, offsets: Int64 | None) -> list[AnyOp]: ...


class Consumer:
    """One of those who share a subscription; leave it by `close` or the end of its `async with`."""

    def __init__(self, shard: Shard, subscription: SubscriptionState, state: ConsumerState) -> None:
        self._shard = shard
        self._subscription = subscription
        self._state = state

    @property
    def id(self) -> str:
        """As it was named."""
        return self._state.id

    @property
    def partitions(self) -> list[int]:
        """Partitions assigned to it now, most preferred first."""
        return list(self._subscription.assignment.of(self.id))

    async def __aenter__(self) -> Consumer:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Leave: what it held waits again, no attempt counted. The last one takes an ephemeral subscription along."""
        shard, subscription = self._shard, self._subscription
        if shard.committer.failure is not None or subscription.number not in shard.state.subscriptions:
            return
        leasing.leave(shard.state, subscription, self.id)
        if not subscription.config.durable and not subscription.consumers:
            shard.remove_subscription(subscription, "")
        shard.wake(subscription.topic)

    def grant(self, messages: int) -> None:
        """Credit for push: from the first call on, no more is handed over than was granted."""
        check.integer("messages", messages, 1, BUFFER_MAX)
        state = self._state
        state.credit = messages if state.credit > BUFFER_MAX else state.credit + messages
        self._shard.wake(self._subscription.topic)

    async def pull(
        self, messages: int = 1_000, *, bytes_max: int = PULL_BYTES_DEFAULT, wait_ms: int | None = 0
    ) -> Delivery:
        """Up to so many messages and bytes, in order; empty when none came within `wait_ms` (None: wait for ever).

        The first message is handed over even if it alone is above `bytes_max`.
        """
        check.integer("messages", messages, 1, PULL_MESSAGES_MAX)
        check.integer("bytes_max", bytes_max, 1, BUFFER_MAX)
        check.optional_integer("wait_ms", wait_ms, 0, TIME_MS_MAX)
        shard, subscription = self._shard, self._subscription
        until_ms = None if wait_ms is None else shard.clock.steady_ms() + wait_ms
        while True:
            shard.committer.check()
            shard.check_subscription(subscription)
            now = shard.now()
            shard.upkeep(now)
            leasing.consumer_of(subscription, self.id)
            try:
                leases = leasing.lease(shard.state, subscription, self._state, messages, bytes_max, now)
            except Cold as cold:
                await shard.store.load(cold)
                continue
            if leases:
                return await self._handed(leases)
            left_ms = None if until_ms is None else until_ms - now.steady_ms
            if left_ms is not None and left_ms <= 0:
                return Delivery(shard, subscription.topic, pa.RecordBatch.from_pylist([], DELIVERED), [])
            await shard.changed(subscription.topic, self._wait_ms(left_ms, now.wall_ms))

    def _wait_ms(self, left_ms: int | None, now_ms: int) -> int | None:
        """How long nothing can happen by itself: until the next due time at most."""
        times = [reader.next_at_ms(now_ms) for reader in self._subscription.readers.values()]
        waits = [max(1, at - now_ms) for at in times if at is not None and at > now_ms]
        if left_ms is not None:
            waits.append(left_ms)
        return min(waits) if waits else None

    async def _handed(self, leases: list[Lease]) -> Delivery:
        shard, subscription = self._shard, self._subscription
        batches, gate = [], 0
        for lease in leases:
            attempts = subscription.readers[lease.partition].attempts(lease.offset) + 1
            batch, position = shard.store.deliver(subscription.topic.number, lease.partition, lease.offset, attempts)
            batches.append(batch)
            gate = max(gate, position)
        batch = pa.concat_batches(batches) if len(batches) > 1 else batches[0]
        delivery = Delivery(shard, subscription.topic, batch, leases)
        if not subscription.config.acks:
            gate = max(gate, self._settle_at_once(leases))
        try:
            await shard.committer.wait(gate)
        except asyncio.CancelledError:
            self._take_back(leases)
            raise
        return delivery

    def _take_back(self, leases: list[Lease]) -> None:
        """Whoever pulled is gone before the messages reached it."""
        for lease in leases:
            if self._shard.state.leases.get(lease.token) is lease:
                settling.release(self._shard.state, lease.token, None)
        self._shard.wake(self._subscription.topic)

    def _settle_at_once(self, leases: list[Lease]) -> int:
        """At most once: handed over is settled, durably, before the consumer sees it."""
        shard = self._shard
        steps: list[AnyOp] = []
        for lease in leases:
            offset, _ = settling.take_out(shard.state, lease, None)
            steps.append(ops.Settle(lease.subscription, lease.partition, to_ranges(offset), "acked"))
        return shard.commit(separate(shard.state, shard.now().wall_us, steps))

    async def stream(self, messages: int = 1_000, *, bytes_max: int = PULL_BYTES_DEFAULT) -> AsyncIterator[Delivery]:
        """Deliveries as they come, for ever: push, bounded by the buffer and by the credit granted."""
        while True:
            yield await self.pull(messages, bytes_max=bytes_max, wait_ms=None)
