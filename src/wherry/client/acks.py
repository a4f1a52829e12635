"""Acks of a consumer: rows that are done are collected, and sent as ranges, one request at a time.

While a request is under way the next one grows, so that a busy consumer sends few large ones by itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from functools import partial

from wherry.client.batch import Batch, BatchRequests, Int64, Leased
from wherry.client.link.backoff import Backoff
from wherry.client.link.errors import retry_after_s, returns
from wherry.model.errors import Closed, StaleLease, WherryError

Faults = dict[Batch, WherryError]

UNANSWERED = "the consumer was closed before the broker answered"
Work = list[tuple[Batch, Int64]]
"""Batches, and the rows of each that were claimed."""


class AckSender:
    """The acks of one consumer."""

    def __init__(self, linger_s: float, patience_s: float) -> None:
        self._linger_s = linger_s
        self._patience_s = patience_s
        self._loop = asyncio.get_running_loop()
        self._dirty: dict[Batch, None] = {}
        self._answered: asyncio.Future[Faults] = self._loop.create_future()
        self._timer: asyncio.TimerHandle | None = None
        self._sending: asyncio.Task[None] | None = None
        self._alone: set[asyncio.Future[None]] = set()
        """Acks of single messages that no caller waits for, and that the broker has not answered."""
        self.stale = 0
        """Acks that came too late: those messages were delivered again, or will be."""

    def note(self, batch: Batch) -> None:
        """Note that rows of a batch are done: their acks are sent within the linger, at once with the last row."""
        self._dirty[batch] = None
        if batch.done_all or len(batch.done) >= batch.open:
            self._begin()
        elif self._timer is None and self._sending is None:
            self._timer = self._loop.call_later(self._linger_s, self._begin)

    def send_alone(self, message: Leased, answer: asyncio.Future[None]) -> None:
        """Follow an ack that was sent by itself: `flush` waits for it; where the broker was busy it is sent again."""
        self._alone.add(answer)
        answer.add_done_callback(partial(self._sent_alone, message))

    def _sent_alone(self, message: Leased, answer: asyncio.Future[None]) -> None:
        self._alone.discard(answer)
        fault = answer.exception()  # a stale lease is counted already, and no caller is there to get the error
        if fault is not None and returns(fault):
            message.batch.done.append(message.row)
            self.note(message.batch)

    async def sent(self, batch: Batch) -> None:
        """Wait until the rows that are done now are durable; raise `StaleLease` if their ack came too late."""
        self._dirty[batch] = None
        answered = self._answered
        self._begin()
        fault = (await asyncio.shield(answered)).get(batch)
        if fault is not None:
            raise fault

    async def flush(self) -> None:
        """Wait until all rows that are done are durable, or were refused."""
        self._begin()
        while self._sending is not None or self._alone:
            await asyncio.wait([self._sending] if self._sending is not None else self._alone)
            self._begin()

    async def stop(self) -> None:
        """Give up acks that could not be sent; callers that wait for them get `Closed`."""
        if self._sending is not None:
            self._sending.cancel()
            await asyncio.wait([self._sending])
        batches, self._dirty = self._dirty, {}
        self._answered.set_result(dict.fromkeys(batches, Closed(UNANSWERED)))
        self._answered = self._loop.create_future()

    def _begin(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._sending is None and self._dirty:
            self._sending = self._loop.create_task(self._send_all())

    async def _send_all(self) -> None:
        """Send acks until none is left."""
        try:
            while self._dirty:
                answered, self._answered = self._answered, self._loop.create_future()
                batches, self._dirty = list(self._dirty), {}
                try:
                    faults = await self._send(batches)
                except asyncio.CancelledError:
                    answered.set_result(dict.fromkeys(batches, Closed(UNANSWERED)))
                    raise
                except Exception as fault:  # a fault of the client must not leave a caller waiting
                    faults = dict.fromkeys(batches, WherryError(f"a fault of the client: {fault!r}"))
                answered.set_result(faults)
        finally:
            self._sending = None

    async def _send(self, batches: Iterable[Batch]) -> Faults:
        """Settle the rows of these batches that are done; return the batches that failed, each with its error."""
        work: Work = []
        faults: Faults = {}
        for batch in batches:
            done, batch.done = None if batch.done_all else batch.done, []
            if batch.lost is not None:
                faults[batch] = batch.lost
                self.stale += len(batch if done is None else done)
            elif done != [] and (rows := batch.claim(done)) is not None:
                work.append((batch, rows))
        for group in _by_requests(work):
            faults |= await self._settle("ack", group)
        return faults

    async def fail(self, work: Work, error: str) -> None:
        """Count a failed attempt for rows that were claimed, if the broker can be reached."""
        for group in _by_requests(work):
            await self._settle("nack", group, error=error)

    async def _settle(self, verb: str, work: Work, **fields: object) -> Faults:
        """Settle claimed rows of these batches in one call; return the batches that failed, each with its error."""
        fault = await self._send_call(verb, work, **fields) if work else None
        if fault is None:
            for batch, rows in work:
                batch.end(len(rows))
            return {}
        if (
            isinstance(fault, StaleLease) and len(work) > 1
        ):  # one stale lease refuses the whole call: settle each batch by itself
            alone = [await self._settle(verb, [each], **fields) for each in work]
            return {batch: why for faults in alone for batch, why in faults.items()}
        for batch, rows in work:
            self._failed(batch, rows, fault)
        return {batch: fault for batch, _ in work}

    def _failed(self, batch: Batch, rows: Int64, fault: WherryError) -> None:
        if isinstance(fault, StaleLease):
            self.stale += len(rows)
            batch.lose(fault)
        else:
            batch.unclaim(rows)

    async def _send_call(self, verb: str, work: Work, **fields: object) -> WherryError | None:
        """Send one call, again while the broker is away, for no longer than leases last; return its error, if any."""
        requests = work[0][0].requests
        parts = [part for batch, rows in work for part in batch.parts(rows)]
        backoff, until = Backoff(), self._loop.time() + self._patience_s
        while True:
            try:
                await requests.settle(verb, parts, **fields)
            except WherryError as fault:
                left_s = until - self._loop.time()
                if not returns(fault) or left_s < 0:
                    return fault
                await backoff.pause(min(retry_after_s(fault), left_s))
            else:
                return None


def _by_requests(work: Work) -> list[Work]:
    """Return the batches apart that are settled over different streams: a consumer that joined again has some."""
    groups: dict[BatchRequests, Work] = {}
    for each in work:
        groups.setdefault(each[0].requests, []).append(each)
    return list(groups.values())
