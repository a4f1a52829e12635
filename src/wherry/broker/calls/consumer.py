"""Consumers and deliveries: pull, then settle each delivery."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import suppress
from functools import cached_property, partial
from time import perf_counter
from types import TracebackType
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from wherry.broker.calls.settle import Settler
from wherry.broker.commit.shard import Shard
from wherry.broker.port.consume import Taker
from wherry.broker.waiting.waiters import WakeUp
from wherry.core.decide import leasing, settling
from wherry.core.decide.volatile import separate
from wherry.core.index.offsets import distinct
from wherry.core.state.bodies import Cold, together
from wherry.core.state.lease import Lease
from wherry.core.state.state import ConsumerState, SubscriptionState
from wherry.model import check, ops
from wherry.model.calls.lease import (
    PULL_BYTES_DEFAULT,
    PULL_MESSAGES_MAX,
    DeliveredRow,
    LeasePart,
    Received,
)
from wherry.model.catalog.subscription import BUFFER_MAX
from wherry.model.errors import InvalidInput, NotFound, WherryError, error_text, may_be_message_fault
from wherry.model.limits import TIME_MS_MAX
from wherry.model.ops import AnyOp, to_ranges
from wherry.model.row_batch import columns_of_rows, delivered_row
from wherry.model.schema import completed

Int64: TypeAlias = npt.NDArray[np.int64]
Rows: TypeAlias = Sequence[int] | Int64 | None
"""Which messages of a delivery: row numbers, or None for all of them."""


class Delivery:
    """Messages on lease, and the ways to settle them, whole or by rows.

    A few messages are kept as values (`rows`); their columns are made when they are asked for.
    """

    def __init__(
        self,
        settler: Settler,
        messages: pa.RecordBatch | list[DeliveredRow],
        leases: list[Lease],
        lease_of_row: Int64 | None = None,
    ) -> None:
        self._settler = settler
        self.rows: list[DeliveredRow] | None = messages if isinstance(messages, list) else None
        """The messages as values, if they were published and leased so; then all of them are of one lease."""
        self._present: pa.RecordBatch | None = None if isinstance(messages, list) else messages
        self.tokens = [lease.token for lease in leases]
        """Fencing tokens, one for each partition that the messages came from."""
        self._lease_of_row = lease_of_row
        """The number of the lease of each row; None if there is one lease."""

    @property
    def present(self) -> pa.RecordBatch:
        """The messages, without some of the columns that are empty."""
        if self._present is None:
            assert self.rows is not None
            self._present = columns_of_rows(self.rows)
        return self._present

    @cached_property
    def batch(self) -> pa.RecordBatch:
        """The messages, with all columns."""
        return completed(self.present)

    def __len__(self) -> int:
        return len(self.rows) if self.rows is not None else int(self.present.num_rows)

    def __iter__(self) -> Iterator[Received]:
        return iter(self.messages())

    def messages(self) -> list[Received]:
        """Return the messages one by one."""
        if self.rows is not None:
            return [row.received() for row in self.rows]
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
        """Return the payloads alone."""
        return self.batch.column("payload").to_pylist()

    def token_of(self, row: int) -> int:
        """Return the fencing token of one message."""
        return self.tokens[0 if self._lease_of_row is None else int(self._lease_of_row[row])]

    def lease_column(self) -> Int64:
        """Return the fencing token of each message."""
        if self._lease_of_row is None:
            return np.full(len(self), self.tokens[0] if self.tokens else 0, np.int64)
        return np.array(self.tokens, np.int64)[self._lease_of_row]

    def offsets(self) -> Int64:
        """Return the offset of each message."""
        if self.rows is not None:
            return np.array([row.offset for row in self.rows], np.int64)
        return self.present.column("offset").to_numpy()

    def take_back(self) -> None:
        """Take back messages whose client disconnected before it got them: they wait again, no attempt counted."""
        self._settler.take_back(self.tokens)

    def parts(self, rows: Rows = None) -> list[LeasePart]:
        """Return the tokens of these rows, each with its offsets (None: the whole lease)."""
        if rows is None:
            return [(token, None) for token in self.tokens]
        allowed = f"row numbers from 0 to {len(self) - 1}, at least one"
        wanted = check.whole_numbers("rows", rows, allowed)
        if wanted[0] < 0 or wanted[-1] >= len(self):
            raise InvalidInput("rows", rows, allowed)
        if len(wanted) == len(self):
            return [(token, None) for token in self.tokens]
        offsets = self.offsets()[wanted]
        if self._lease_of_row is None:
            return [(self.tokens[0], offsets)]
        of_lease = self._lease_of_row[wanted]
        return [(self.tokens[number], offsets[of_lease == number]) for number in distinct(of_lease).tolist()]

    async def ack(self, rows: Rows = None) -> None:
        """Ack these messages; durable on return. Raise `StaleLease` if a lease has ended; then nothing was settled."""
        await self._settler.ack(self.parts(rows))

    async def nack(self, rows: Rows = None, *, delay_ms: int | None = None, error: str = "") -> None:
        """Nack these messages: they come back by the retry policy or after `delay_ms`, or become dead letters."""
        await self._settler.nack(self.parts(rows), delay_ms, error)

    async def dead_letter(self, rows: Rows = None, *, reason: str = "rejected", error: str = "") -> None:
        """Make these messages dead letters at once."""
        await self._settler.dead_letter(self.parts(rows), reason, error)

    async def release(self, rows: Rows = None) -> None:
        """Hand these messages back untouched: they wait again, no attempt counted."""
        self._settler.release(self.parts(rows))

    async def renew(self, lease_ms: int | None = None) -> None:
        """Renew the leases, for work that takes long."""
        self._settler.renew(self.tokens, lease_ms)

    async def stage_ack(self, key: str, rows: Rows = None) -> None:
        """Ack these messages when the stage `key` is committed; their leases must still hold then."""
        await self._settler.stage_ack(key, self.parts(rows))


class Consumer:
    """One consumer of a subscription; it leaves by `close`, or at the end of its `async with`."""

    __slots__ = ("_settler", "_shard", "_state", "_subscription")  # there may be a million of them

    def __init__(self, shard: Shard, settler: Settler, subscription: SubscriptionState, state: ConsumerState) -> None:
        self._shard = shard
        self._settler = settler
        self._subscription = subscription
        self._state = state

    @property
    def id(self) -> str:
        """The name of this consumer in its subscription."""
        return self._state.id

    @property
    def unsettled_messages(self) -> int:
        """How many messages this consumer holds unsettled."""
        return self._state.unsettled_messages

    def is_joined(self) -> bool:
        """Return whether this consumer still belongs to its subscription, and the subscription still exists."""
        known = self._shard.state.subscriptions.get(self._subscription.number)
        return known is self._subscription and known.consumers.get(self.id) is self._state

    def is_last_of_ephemeral(self) -> bool:
        """Return whether closing this consumer would delete its subscription, an ephemeral one."""
        return not self._subscription.config.durable and len(self._subscription.consumers) == 1

    @property
    def partitions(self) -> list[int]:
        """The partitions assigned to this consumer now, most preferred first."""
        return list(self._subscription.assignment.of(self._state.seat))

    async def __aenter__(self) -> Consumer:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close(error_text(fault) if fault is not None and may_be_message_fault(fault) else "")

    async def close(self, error: str = "") -> None:
        """Leave the subscription: what this consumer held waits again, no attempt counted; with an `error`, as failed.

        An ephemeral subscription is deleted with its last consumer.
        """
        shard, subscription = self._shard, self._subscription
        if error and self.is_joined():
            await self._fail(error)
        if shard.committer.failure is not None or subscription.number not in shard.state.subscriptions:
            return
        if subscription.consumers.get(self.id) is not self._state:  # closed before; the id may be in use again
            return
        leasing.leave(shard.state, subscription, self.id)
        if not subscription.config.durable and not subscription.consumers:
            shard.remove_subscription(subscription, "")
        shard.wake()

    async def _fail(self, error: str) -> None:
        """Nack all that this consumer holds; messages whose nack cannot be stored wait again without a counted attempt.

        One call for all leases; if that fails, one call for each: a lease that has just ended must not keep the others
        from being counted.
        """
        shard, settler = self._shard, self._settler
        with suppress(WherryError):
            shard.upkeep(shard.now(), about=())
        held = shard.state.leases.of_consumer(self._subscription.number, self.id)
        parts: list[LeasePart] = [(lease.token, None) for lease in held]
        try:
            if parts:
                await settler.nack(parts, None, error)
        except WherryError:
            for part in parts if len(parts) > 1 else ():
                with suppress(WherryError):
                    await settler.nack([part], None, error)

    def grant(self, messages: int) -> None:
        """Add credit for push: from the first call on, no more is handed over than was granted; 2^40 at most."""
        check.integer("messages", messages, 1, BUFFER_MAX)
        state = self._state
        state.credit = messages if state.credit > BUFFER_MAX else min(state.credit + messages, BUFFER_MAX)
        self._shard.state.mark_room(self._subscription, state.id)
        self._shard.wake()

    async def pull(
        self,
        messages: int = 1_000,
        *,
        bytes_max: int = PULL_BYTES_DEFAULT,
        wait_ms: int | None = 0,
        taker: Taker | None = None,
    ) -> Delivery:
        """Return up to so many messages and bytes, in order; none if none came within `wait_ms` (None: no limit).

        The first message is handed over even if it alone is above `bytes_max`. While the call waits, a `taker` may get
        messages, as many at a time, and the call waits on: a stream of single messages then wakes no task. A call whose
        taker wants none any more ends when it is woken, and returns none.
        """
        check.integer("messages", messages, 1, PULL_MESSAGES_MAX)
        check.integer("bytes_max", bytes_max, 1, BUFFER_MAX)
        check.optional_integer("wait_ms", wait_ms, 0, TIME_MS_MAX)
        began = perf_counter()
        leases = await self._leased(messages, bytes_max, wait_ms, taker)
        if self._shard.metrics is not None:
            self._shard.metrics.pull.observe(perf_counter() - began)
        if not leases:
            return Delivery(self._settler, [], [])
        self._shard.wake_housekeeper_by(leases[0].deadline_ms)
        leased_us = self._shard.clock.wall_us()
        return self._counted(await self._handed(leases), leased_us)

    def _counted(self, delivery: Delivery, leased_us: int) -> Delivery:
        """Count a delivery in metrics and traces, and return it."""
        shard = self._shard
        if shard.metrics is not None:
            shard.metrics.delivered(self._subscription, delivery.rows or delivery.present, shard.clock.wall_us())
        if shard.tracing is not None:
            shard.tracing.delivered(self._subscription, delivery.present, leased_us)
        return delivery

    async def _leased(self, messages: int, bytes_max: int, wait_ms: int | None, taker: Taker | None) -> list[Lease]:
        """Lease messages; wait for a wake-up and try again until there are some or `wait_ms` has passed."""
        clock, waiters = self._shard.clock, self._shard.waiters
        until_ms = None if wait_ms is None else clock.steady_ms() + wait_ms
        missed: dict[int | str, int] = {}
        wake_up: WakeUp | None = None  # if this pull does not use it up, the next waiter must get it
        at_once: Callable[[WakeUp], bool] | None = None
        if taker is not None and self._subscription.config.acks:
            at_once = partial(self._hand_at_once, taker, messages, bytes_max, missed)
        try:
            while True:
                wanted = messages if taker is None else min(messages, taker.wanted())
                if wanted <= 0:
                    return []
                leases = await self._look(wanted, bytes_max)
                left_ms = None if until_ms is None else until_ms - clock.steady_ms()
                if leases or (left_ms is not None and left_ms <= 0):
                    return leases
                if wake_up is not None:
                    missed[wake_up.cause] = wake_up.event
                    waiters.missed(self._subscription, wake_up)
                    wake_up = None
                wake_up = await waiters.wait(self._subscription, self._state, left_ms, missed, at_once)
        finally:
            if wake_up is not None:
                waiters.pass_on(self._subscription, wake_up)
            waiters.wake()

    def _hand_at_once(
        self, taker: Taker, messages: int, bytes_max: int, missed: dict[int | str, int], wake_up: WakeUp
    ) -> bool:
        """Use a wake-up without the task of the pull; return False, with nothing leased, if that has to wait.

        While a sync is under way it does: what comes until its end goes out together.
        """
        shard, subscription = self._shard, self._subscription
        room = 0 if shard.committer.is_writing else taker.room()
        if room <= 0:
            return False
        try:
            leases = self._lease(min(messages, room), bytes_max)
        except Exception:
            # The task of the pull tries again, and loads or raises; other waiters of this turn are woken all the same.
            return False
        if not leases:
            missed[wake_up.cause] = wake_up.event
            shard.waiters.missed(subscription, wake_up)
            shard.waiters.wake()  # the look may have found that messages are due for others
            return True
        shard.wake_housekeeper_by(leases[0].deadline_ms)
        delivery, gate = self._as_rows(leases) or self._as_columns(leases)
        if gate > shard.committer.durable:  # they came by what was due before the lease, and are not on disk yet
            delivery.take_back()
            return False
        shard.handed(subscription.topic, leases)
        taker.take(self._counted(delivery, shard.clock.wall_us()))
        if len(subscription.nonempty):
            shard.waiters.pass_on(subscription, wake_up)
        return True

    async def _look(self, messages: int, bytes_max: int) -> list[Lease]:
        """Lease what is ready, once the bodies are in memory. Nothing is awaited after the decision."""
        shard = self._shard
        colds: list[Cold] = []
        while True:
            if not self._subscription.config.acks:  # it settles at once, which needs room in the journal
                shard.committer.check()
                await shard.admit_settle(messages)
            try:
                return self._lease(messages, bytes_max)
            except Cold as cold:
                colds = together(colds, cold)
                await shard.store.load(*colds)

    def _lease(self, messages: int, bytes_max: int) -> list[Lease]:
        """Lease what is ready; raise `Cold` if bodies have to be loaded first."""
        shard, subscription = self._shard, self._subscription
        shard.committer.check()
        shard.check_subscription(subscription)
        now = shard.now()
        shard.upkeep(now, (subscription.config.topic,))
        if leasing.consumer_of(subscription, self._state.id) is not self._state:
            raise NotFound("consumer", self.id)
        return leasing.lease(shard.state, subscription, self._state, messages, bytes_max, now)

    async def _handed(self, leases: list[Lease]) -> Delivery:
        delivery, gate = self._as_rows(leases) or self._as_columns(leases)
        shard, subscription = self._shard, self._subscription
        if not subscription.config.acks:
            gate = max(gate, self._settle_at_once(leases))
        try:
            await shard.committer.wait(gate)
        except asyncio.CancelledError:
            self._give_up(delivery)
            raise
        shard.handed(subscription.topic, leases)
        return delivery

    def _as_rows(self, leases: list[Lease]) -> tuple[Delivery, int] | None:
        """Return a lease over few messages as a delivery of rows, and the position that must be durable before."""
        (lease, *others), subscription = leases, self._subscription
        if others or lease.run is None:
            return None if others or lease.few is None else self._few_as_rows(lease, lease.few.offsets)
        number = lease.partition
        found = self._shard.store.run(subscription.topic.number, number, lease.run.first, lease.run.stop)
        if found is None:
            return self._few_as_rows(lease, list(range(lease.run.first, lease.run.stop)))
        reader, rows, offset, gate = subscription.readers[number], [], lease.run.first, 0
        tried = bool(len(reader.attempts_table))
        for batch, first, length, published_us, position in found:
            for at in range(first, first + length):
                attempt = 1 if not tried else 1 + int(reader.attempts(np.array([offset], np.int64))[0])
                rows.append(delivered_row(batch, at, offset, number, attempt, published_us))
                offset += 1
            gate = max(gate, position)
        return Delivery(self._settler, rows, leases), gate

    def _few_as_rows(self, lease: Lease, offsets: list[int]) -> tuple[Delivery, int] | None:
        number, subscription = lease.partition, self._subscription
        found = self._shard.store.few(subscription.topic.number, number, offsets)
        if found is None:
            return None
        reader, attempts = subscription.readers[number], [1] * len(found)
        if len(reader.attempts_table):
            attempts = (reader.attempts(np.array(offsets, np.int64)) + 1).tolist()
        rows = [
            each.row(offset, number, attempt) for each, offset, attempt in zip(found, offsets, attempts, strict=True)
        ]
        return Delivery(self._settler, rows, [lease]), max(each.gate for each in found)

    def _as_columns(self, leases: list[Lease]) -> tuple[Delivery, int]:
        """Return leases as a delivery of columns, and the position that must be durable before it is sent."""
        shard, subscription = self._shard, self._subscription
        batches, gate = [], 0
        for lease in leases:
            reader = subscription.readers[lease.partition]
            attempts = reader.attempts(lease.offset) + 1 if len(reader.attempts_table) else 1
            batch, position = shard.store.deliver(subscription.topic.number, lease.partition, lease.offset, attempts)
            batches.append(batch)
            gate = max(gate, position)
        batch, lease_of_row = _in_order(batches, leases, fifo=subscription.topic.config.order == "fifo")
        return Delivery(self._settler, batch, leases, lease_of_row), gate

    def _give_up(self, delivery: Delivery) -> None:
        """Take a delivery back: its client disconnected before it got the messages."""
        if self._subscription.config.acks:
            delivery.take_back()
        else:  # settled and lost, which is what at most once means; the credit for it was not used
            self._state.credit += len(delivery)
            self._shard.state.mark_room(self._subscription, self.id)
            self._shard.wake()

    def _settle_at_once(self, leases: list[Lease]) -> int:
        """Settle messages durably before the consumer gets them: at most once. Return the position to wait for."""
        shard = self._shard
        steps: list[AnyOp] = []
        for lease in leases:
            offset, _ = settling.columns_of(lease, None)
            steps.append(ops.Settle(lease.subscription, lease.partition, to_ranges(offset), "acked"))
        position = shard.commit(separate(shard.state, shard.now().wall_us, steps))
        for lease in leases:
            shard.state.take_out(lease, None)
        return position

    async def stream(self, messages: int = 1_000, *, bytes_max: int = PULL_BYTES_DEFAULT) -> AsyncIterator[Delivery]:
        """Yield deliveries for ever: push, bounded by the buffer and by the credit granted."""
        while True:
            yield await self.pull(messages, bytes_max=bytes_max, wait_ms=None)


def _in_order(batches: list[pa.RecordBatch], leases: list[Lease], *, fifo: bool) -> tuple[pa.RecordBatch, Int64 | None]:
    """Return the messages of several partitions by rank (fifo: by partition), and the lease number of each row."""
    if len(batches) == 1:
        return batches[0], None
    lease_of_row = np.repeat(np.arange(len(leases)), [len(lease.offset) for lease in leases])
    batch = pa.concat_batches(map(completed, batches))
    if fifo:
        return batch, lease_of_row
    order = np.argsort(np.concatenate([lease.rank for lease in leases]), kind="stable")
    return batch.take(pa.array(order)), lease_of_row[order]
