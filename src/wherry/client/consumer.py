"""Consumers: get messages ahead of the reader, renew leases while messages are held, send acks together.

    source ──► ready batches ──► async for ──► held by the caller ──► ack, nack, dead_letter ──► room for more
               └────────── at most buffer_messages not settled, leases renewed ──────────┘

Over the native wire the source is a stream that the broker pushes to (`native/pushing`), else it pulls (`pulling`).

When an error leaves the `async with`, messages that the reader got and did not settle count a failed attempt. Messages
that the reader did not get are given back without one, and so are all of them after a `break` or a plain `close`.

Delivery is at least once. A lease is lost when this process is stopped for longer than the lease lasts, when the broker
restarts, or when the connection of a stream breaks: then an ack raises `StaleLease`, nothing was settled by it, and the
message comes again. An ack whose answer was lost may have been carried out all the same: over HTTP it is sent again,
which ends as `StaleLease` too if the first had arrived.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from operator import length_hint
from types import TracebackType
from typing import TYPE_CHECKING, TypeVar, Unpack

from wherry.client.acks import AckSender, Work
from wherry.client.batch import Batch, BatchRequests, Leased
from wherry.client.link.errors import returns
from wherry.client.native.pushing import PushSource
from wherry.client.options import ConsumerOptions, consumer_options
from wherry.client.pulling import PullSource
from wherry.model.errors import Closed, NotFound, StaleLease, WherryError, error_text, may_be_message_fault

if TYPE_CHECKING:
    from wherry.client.client import Client

T = TypeVar("T")

FIRST_PULL = 16
QUICK_S, SLOW_S = 0.1, 1.0
"""How far a consumer gets ahead: a step begins small. It doubles while the reader is done with one in less than
`QUICK_S`, and is halved when that takes longer than `SLOW_S`: a slow reader does not hold what others could handle."""

RENEWALS_A_LEASE = 3

LEAVE_S = 3.0
"""For the last acks and the failed attempts of a worker that fails: it does not wait longer for an absent broker."""


class Consumer:
    """A consumer of a subscription; made by `Client.consumer`, used in `async with`."""

    def __init__(self, client: Client, topic: str, subscription: str, **options: Unpack[ConsumerOptions]) -> None:
        chosen = consumer_options(options)
        self._called = chosen.get("name", "python")
        self.take_name()
        self._client = client
        self._requests = client.subscription_requests(topic, subscription)
        self._auto = chosen["ack"] == "auto"
        self._pull_messages = chosen["pull_messages"]
        self.pull_bytes, self.buffer_messages = chosen["pull_bytes"], chosen["buffer_messages"]
        self._ack_linger_s = chosen["ack_linger_ms"] / 1000
        self._renews = chosen["renew"]
        self._ready: deque[Batch] = deque()
        self._held: dict[Batch, None] = {}
        self._held_messages = 0
        self._rest: Iterator[Leased] = iter(())
        self._split: tuple[Batch, Iterator[object]] | None = None
        """The batch that is read message by message, and its messages that are not read yet."""
        self._readers: list[asyncio.Future[None]] = []
        """Callers that wait for a batch."""
        self._fault: Exception | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._source: PullSource | PushSource | None = None
        self._pull_if_wanted: Callable[[], object] = bool
        """Lets the source look whether to get more; nothing until there is one."""
        self.is_reading = False
        """Whether the reader waits for a batch, and none is there."""
        self.ahead = 0
        """Messages that the reader has not taken."""
        self.step = min(FIRST_PULL, self._pull_messages)
        self._handed, self._took_s, self._handed_at = 0, 0.0, time.monotonic()

    async def __aenter__(self) -> Consumer:
        config = await self._client.subscription(self._requests.topic, self._requests.subscription)
        self.acked = config.acks
        self._lease_s = config.lease_ms / 1000
        self._acks = AckSender(self._ack_linger_s, self._lease_s)
        self._tasks = [asyncio.create_task(self._get(), name=f"wherry get {self.name}")]
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
        self.fail(self._fault or Closed("this consumer is closed"))
        self._pull_if_wanted = bool  # no more credit
        if fault is None:
            await self._acks.flush()
            await self._leave()
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(LEAVE_S):
                await self._acks.flush()
                failing = self._acks.fail(self._claim_shown() if has_failed else [], error_text(fault))
                if isinstance(self._source, PushSource):
                    # Frames are carried out in order: a message that comes again at once is not pushed here in between.
                    await asyncio.gather(failing, self._leave())
                else:
                    await failing
                    await self._leave()
        await self._acks.stop()

    async def _leave(self) -> None:
        with suppress(WherryError):  # it never joined, or the broker is away: the leases end by themselves
            if self._source is not None:
                await self._source.leave()

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
        auto = self._auto and self.acked
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
            if self._auto and self.acked and batch.open and batch.lost is None:
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
                count = batch.count
                self.ahead -= count
                self._handed += count
                self._handed_at = time.monotonic()
                if not self.acked:  # settled with the pull: it counts only while it waits here
                    self._settled(batch, count)
                else:
                    self._pull_if_wanted()
                if batch.lost is None:
                    return batch
            if self._fault is not None:
                raise self._fault
            await self._wait()

    async def _wait(self) -> None:
        """Wait until a batch comes, or the consumer has failed."""
        reader = asyncio.get_running_loop().create_future()
        self._readers.append(reader)
        self.is_reading = True
        self._pull_if_wanted()
        try:
            await reader
        except asyncio.CancelledError:
            if reader in self._readers:
                self._readers.remove(reader)
            self.is_reading = bool(self._readers)
            raise

    def _wake(self) -> None:
        readers, self._readers, self.is_reading = self._readers, [], False
        for reader in readers:
            if not reader.done():
                reader.set_result(None)

    def _keep_pace(self) -> None:
        """Set the size of the next steps by the time that the reader took for the last one."""
        self._took_s += time.monotonic() - self._handed_at
        if self._took_s > SLOW_S:
            self.step = max(min(FIRST_PULL, self._pull_messages), self.step // 2)
        elif self._handed < self.step:
            return
        elif self._took_s < QUICK_S:
            self.step = min(2 * self.step, self._pull_messages)
        self._handed, self._took_s = 0, 0.0

    # ----------------------------------------------------------------------------------------------------- background

    async def _get(self) -> None:
        """Get messages the way that the broker speaks; the other way when that changed."""
        native = self._client.native
        while self._fault is None:
            if native is not None and not native.is_refused:
                self._source = PushSource(self, self._requests, native)
            else:
                self._source = PullSource(self, self._requests)
            self._pull_if_wanted = self._source.pull_if_wanted
            await self._source.run()

    def take_name(self) -> None:
        """Take a new name at the broker, which may still know the consumer of a connection that is lost by the old."""
        self.name = f"{self._called}-{secrets.token_hex(6)}"

    @property
    def room(self) -> int:
        """How many messages more the buffer can hold."""
        return self.buffer_messages - self._held_messages

    def fail(self, fault: Exception) -> None:
        """Let the reader know that no more messages come, once it has those that are there."""
        self._fault = fault
        self._wake()

    async def may_rejoin(self, fault: Exception) -> bool:
        """Return whether this consumer was sent away from a subscription that still exists: then it joins again."""
        if not isinstance(fault, NotFound):
            return False
        try:
            found = await self._client.subscription(self._requests.topic, self._requests.subscription)
        except Exception as why:
            return returns(why)
        await self._renew_each(list(self._held))  # what it held waits again at the broker: it is not handed out here
        return found.acks == self.acked  # else it is another subscription by now

    def take(self, batch: Batch) -> None:
        """Take a batch for the reader."""
        if self.acked:
            batch.acks, batch.on_end = self._acks, self._settled
            self._held[batch] = None
        count = batch.count
        self._held_messages += count
        self.ahead += count
        self._ready.append(batch)
        if self._readers:
            self._wake()

    def _settled(self, batch: Batch, count: int) -> None:
        self._held_messages -= count
        if not batch.open:
            self._held.pop(batch, None)
        self._pull_if_wanted()

    def holds(self, source: BatchRequests) -> bool:
        """Return whether messages of this stream are not settled yet."""
        return any(batch.requests is source for batch in self._held)

    def drop_unread(self, source: BatchRequests, fault: StaleLease) -> None:
        """Drop the batches of this stream that the reader has not taken: the broker will hand them out again."""
        for batch in [each for each in self._ready if each.requests is source]:
            self._ready.remove(batch)
            self.ahead -= len(batch)
            batch.lose(fault)

    def lose(self, source: BatchRequests, fault: StaleLease) -> None:
        """Note that all leases of this stream are gone."""
        self.drop_unread(source, fault)
        for batch in [each for each in self._held if each.requests is source]:
            batch.lose(fault)

    async def _renew(self) -> None:
        """Renew the leases of all messages that are held, several times in each lease."""
        while True:
            await asyncio.sleep(self._lease_s / RENEWALS_A_LEASE)
            held = list(self._held)
            try:
                for requests in {batch.requests: None for batch in held}:
                    leases = [lease for batch in held if batch.requests is requests for lease in batch.leases()]
                    await requests.settle("renew", leases)
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
