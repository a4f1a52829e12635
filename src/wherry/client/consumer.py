"""Consumers: pull messages ahead of the reader, renew leases while messages are held, send acks together.

    pull ──► ready batches ──► async for ──► held by the caller ──► ack, nack, dead_letter ──► room for the next pull
             └────────── at most buffer_messages not settled, leases renewed ──────────┘

When an error leaves the `async with`, messages that the reader got and did not settle count a failed attempt. Messages
that the reader did not get are given back without one, and so are all of them after a `break` or a plain `close`.

Delivery is at least once. A lease is lost when this process is stopped for longer than the lease lasts, or when the
broker restarts: then an ack raises `StaleLease`, nothing was settled by it, and the message comes again. An ack whose
answer was lost is sent again; if it had reached the broker, that too ends as `StaleLease`, though the message was
settled.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import deque
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from operator import length_hint
from types import TracebackType
from typing import TYPE_CHECKING, TypeVar, Unpack

from wherry.client.acks import AckSender, Work
from wherry.client.batch import Batch, Leased
from wherry.client.link.backoff import Backoff
from wherry.client.link.errors import retry_after_s, returns
from wherry.client.options import ConsumerOptions, consumer_options
from wherry.model.errors import Closed, NotFound, StaleLease, WherryError, error_text, may_be_message_fault

if TYPE_CHECKING:
    from wherry.client.client import Client

T = TypeVar("T")

FIRST_PULL = 16
QUICK_S, SLOW_S = 0.1, 1.0
"""Pulls begin small. Their size doubles while the reader is done with a batch in less than `QUICK_S`, and is halved
when it takes longer than `SLOW_S`: a slow reader does not hold messages that other consumers could handle."""

PULL_WAIT_MS = 20_000
RENEWALS_A_LEASE = 3

LEAVE_S = 3.0
"""For the last acks and the failed attempts of a worker that fails: it does not wait longer for an absent broker."""


class Consumer:
    """A consumer of a subscription; made by `Client.consumer`, used in `async with`."""

    def __init__(self, client: Client, topic: str, subscription: str, **options: Unpack[ConsumerOptions]) -> None:
        chosen = consumer_options(options)
        self.name = f"{chosen.get('name', 'python')}-{secrets.token_hex(6)}"
        self._client = client
        self._requests = client.subscription_requests(topic, subscription)
        self._auto = chosen["ack"] == "auto"
        self._pull_messages, self._pull_bytes = chosen["pull_messages"], chosen["pull_bytes"]
        self._buffer = chosen["buffer_messages"]
        self._ack_linger_s = chosen["ack_linger_ms"] / 1000
        self._renews = chosen["renew"]
        self._ready: deque[Batch] = deque()
        self._held: dict[Batch, None] = {}
        self._held_messages = 0
        self._rest: Iterator[Leased] = iter(())
        self._split: tuple[Batch, Iterator[object]] | None = None
        """The batch that is read message by message, and its messages that are not read yet."""
        self._wake_reader = asyncio.Event()
        self._wake_puller = asyncio.Event()
        self._fault: Exception | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._reading = False
        self._step = min(FIRST_PULL, self._pull_messages)
        self._handed, self._handed_at = 0, time.monotonic()

    async def __aenter__(self) -> Consumer:
        config = await self._client.subscription(self._requests.topic, self._requests.subscription)
        self._acked = config.acks
        self._lease_s = config.lease_ms / 1000
        self._acks = AckSender(self._requests, self._ack_linger_s, self._lease_s)
        self._tasks = [asyncio.create_task(self._pull(), name=f"wherry pull {self.name}")]
        if config.acks and self._renews:
            self._tasks.append(asyncio.create_task(self._renew(), name=f"wherry renew {self.name}"))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close(fault)

    async def close(self, fault: BaseException | None = None) -> None:
        """Send the acks that are due, and leave: messages still held wait again, and no attempt is counted.

        With the `fault` of the code that handled them, a failed attempt is counted for all messages that the reader got
        and did not settle. Not with a fault that only ends the work (a cancelled task, Ctrl-C), nor with the consumer's
        own, nor with one about the broker or the connection. A close with a fault waits `LEAVE_S` at most for a broker
        that is away.
        """
        if not self._tasks:
            return
        has_failed = may_be_message_fault(fault) and fault is not self._fault
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._fault = self._fault or Closed("this consumer is closed")
        self._wake_reader.set()
        if fault is None:
            await self._acks.flush()
            await self._leave()
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(LEAVE_S):
                await self._acks.flush()
                if has_failed:
                    await self._acks.fail(self._claim_shown(), error_text(fault))
                await self._leave()
        await self._acks.stop()

    async def _leave(self) -> None:
        with suppress(WherryError):  # it never pulled, or the broker is away: the leases end by themselves
            await self._requests.leave(self.name)

    def _claim_shown(self) -> Work:
        """Claim the messages that the reader got and has not settled: those of its batches that were read."""
        work: Work = []
        for batch in self._held:
            unread = length_hint(self._split[1]) if self._split is not None and self._split[0] is batch else 0
            if batch.lost is None and batch not in self._ready and unread < len(batch):
                rows = batch.claim(range(len(batch) - unread))
                if rows is not None:
                    work.append((batch, rows))
        return work

    @property
    def stale(self) -> int:
        """How many acks came after the end of their lease."""
        return self._acks.stale

    # ---------------------------------------------------------------------------------------------------------- read

    async def __aiter__(self) -> AsyncIterator[Leased]:
        """Yield messages one by one, for ever; after a `break` the next loop continues behind the last message."""
        auto = self._auto and self._acked
        while True:
            for message in self._rest:
                if message.batch.lost is None:
                    yield message
                    if auto:
                        message.ack_later()
            batch = await self.next_batch()
            self._rest = self.read(batch, batch.messages())

    def read(self, batch: Batch, messages: list[T]) -> Iterator[T]:
        """Read a batch message by message: messages not read yet when the reader fails are given back untouched."""
        rest = iter(messages)
        self._split = batch, rest
        return rest

    async def consume_batches(self) -> AsyncIterator[Batch]:
        """Yield batches of messages in columns, for ever; each batch is settled as a whole or by rows."""
        while True:
            batch = await self.next_batch()
            yield batch
            if self._auto and self._acked and batch.open and batch.lost is None:
                batch.ack_later()

    async def flush(self) -> None:
        """Wait until every ack so far is durable, or was refused."""
        await self._acks.flush()

    async def next_batch(self) -> Batch:
        """Return the next messages; wait for them."""
        self._keep_pace()
        while True:
            while self._ready:
                batch = self._ready.popleft()
                self._handed, self._handed_at = len(batch), time.monotonic()
                self._wake_puller.set()
                if not self._acked:  # settled with the pull: it counts only while it waits here
                    self._settled(batch, len(batch))
                if batch.lost is None:
                    return batch
            if self._fault is not None:
                raise self._fault
            self._wake_reader.clear()
            self._reading = True
            self._wake_puller.set()
            try:
                await self._wake_reader.wait()
            finally:
                self._reading = False

    def _keep_pace(self) -> None:
        """Set the size of the next pulls by the time that the reader took for the last batch."""
        took_s = time.monotonic() - self._handed_at
        if took_s > SLOW_S:
            self._step = max(min(FIRST_PULL, self._pull_messages), self._step // 2)
        elif took_s < QUICK_S and self._handed >= self._step:
            self._step = min(2 * self._step, self._pull_messages)

    # ----------------------------------------------------------------------------------------------------- background

    async def _pull(self) -> None:
        """Pull one step ahead of the reader while there is room; less than a step only while the reader waits."""
        backoff = Backoff()
        while True:
            room, ahead = self._buffer - self._held_messages, sum(map(len, self._ready))
            least = 1 if self._reading else min(self._step, max(1, self._buffer // 2))
            if room < least or ahead >= self._step:
                self._wake_puller.clear()
                await self._wake_puller.wait()
                continue
            asked = min(room, self._step)
            try:
                batch = await self._requests.pull(asked, self._pull_bytes, PULL_WAIT_MS, self.name, acks=self._acked)
            except Exception as fault:  # of any kind: the reader must not wait for ever
                if not returns(fault) and not await self._may_rejoin(fault):
                    self._fault = fault
                    self._wake_reader.set()
                    return
                await backoff.pause(retry_after_s(fault))
                continue
            backoff.reset()
            if len(batch):
                self._take(batch)

    async def _may_rejoin(self, fault: Exception) -> bool:
        """Return whether this consumer was sent away from a subscription that still exists: its next pull joins it."""
        if not isinstance(fault, NotFound):
            return False
        try:
            found = await self._client.subscription(self._requests.topic, self._requests.subscription)
        except Exception as why:
            return returns(why)
        await self._renew_each(list(self._held))  # what it held waits again at the broker: it is not handed out here
        return found.acks == self._acked  # else it is another subscription by now

    def _take(self, batch: Batch) -> None:
        if self._acked:
            batch.acks, batch.on_end = self._acks, self._settled
            self._held[batch] = None
        self._held_messages += len(batch)
        self._ready.append(batch)
        self._reading = False  # it has a batch now, though it has not run yet
        self._wake_reader.set()

    def _settled(self, batch: Batch, count: int) -> None:
        self._held_messages -= count
        if not batch.open:
            self._held.pop(batch, None)
        self._wake_puller.set()

    async def _renew(self) -> None:
        """Renew the leases of all messages that are held, several times in each lease."""
        while True:
            await asyncio.sleep(self._lease_s / RENEWALS_A_LEASE)
            held = list(self._held)
            try:
                if held:
                    await self._requests.settle("renew", [lease for batch in held for lease in batch.leases()])
            except StaleLease:
                await self._renew_each(held)
            except WherryError:
                continue  # the broker is away: try again in the next round

    async def _renew_each(self, held: list[Batch]) -> None:
        """Renew each lease by itself, since one of them has ended, which refuses the call for all."""
        for batch in held:
            try:
                if batch.open:
                    await batch.renew()
            except StaleLease as fault:
                if batch.unclaimed():  # else it is being settled, which ends a lease too
                    batch.lose(fault)
            except WherryError:
                return
