"""Producers, consumers and their messages, for callers without an event loop."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, Generic, TypeVar

import pyarrow as pa

from wherry.client.batch import Batch, Leased, View
from wherry.client.consumer import Consumer
from wherry.client.producer import OUTSIDE, Producer, as_bytes, fields_of
from wherry.client.sync.portal import Portal, waits
from wherry.model.errors import Closed

T = TypeVar("T")

CHUNK = 500
HAND_OVER_S = 0.005
"""Messages that are passed to the event loop together, and how long one waits for others."""


class SyncEnd(Generic[T]):
    """Stands for an async object that lives on the client's event loop."""

    def __init__(self, portal: Portal, other: T) -> None:
        self.portal = portal
        self.other = other


class SyncBatch(SyncEnd[Batch]):
    """Messages on lease: see `Batch`."""

    def __init__(self, portal: Portal, other: Batch, later: Callable[[Leased], None] | None = None) -> None:
        super().__init__(portal, other)
        self._later = later or Leased.ack_later  # which raises: a pulled message is acked at once

    def __len__(self) -> int:
        return len(self.other)

    def __iter__(self) -> Iterator[SyncLeased]:
        return iter(self.messages())

    @property
    def data(self) -> pa.RecordBatch:
        """Return the messages in columns."""
        return self.other.data

    def payloads(self) -> list[bytes]:
        """Return the payloads alone."""
        return self.other.payloads()

    def messages(self) -> list[SyncLeased]:
        """Return the messages one by one."""
        return [SyncLeased(self.portal, message, self._later) for message in self.other.messages()]

    def ack_later(self) -> None:
        """Ack all messages soon, together with others."""
        self.portal.run(_made(self.other.ack_later))

    ack = waits(Batch.ack)
    nack = waits(Batch.nack)
    dead_letter = waits(Batch.dead_letter)
    release = waits(Batch.release)
    renew = waits(Batch.renew)
    stage_ack = waits(Batch.stage_ack)


class SyncLeased(View):
    """One message on lease: see `Leased`."""

    __slots__ = ("_later", "other", "portal")

    def __init__(self, portal: Portal, other: Leased, later: Callable[[Leased], None]) -> None:
        super().__init__(other.batch, other.row, other.payload)
        self.portal = portal
        self.other = other
        self._later = later

    def ack_later(self) -> None:
        """Ack it soon, together with others."""
        self._later(self.other)

    ack = waits(Leased.ack)
    nack = waits(Leased.nack)
    dead_letter = waits(Leased.dead_letter)
    release = waits(Leased.release)


class SyncConsumer(SyncEnd[Consumer]):
    """A consumer of a subscription: see `Consumer`."""

    def __init__(self, portal: Portal, make: Callable[[], Consumer], *, auto: bool) -> None:
        super().__init__(portal, portal.run(_made(make)))
        self._auto = auto
        self._rest: Iterator[SyncLeased] = iter(())
        self._done: list[Leased] = []
        self._lock = threading.Lock()

    def __enter__(self) -> SyncConsumer:
        self.portal.run(self.other.__aenter__())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.portal.soon(self._hand_over)
        self.portal.run(self.other.close(fault))

    def __iter__(self) -> Iterator[SyncLeased]:
        """Yield messages one by one, for ever."""
        while True:
            for message in self._rest:
                if message.batch.lost is None:
                    yield message
                    if self._auto and message.batch.acks is not None:
                        message.ack_later()
            self.portal.soon(self._hand_over)
            batch = SyncBatch(self.portal, self.portal.run(self.other.next_batch()), self._ack_later)
            self._rest = self.other.read(batch.other, batch.messages())

    def consume_batches(self) -> Iterator[SyncBatch]:
        """Yield batches of messages in columns, for ever."""
        batches = self.other.consume_batches()
        while True:
            yield SyncBatch(self.portal, self.portal.run(_first(batches)), self._ack_later)

    def flush(self) -> None:
        """Wait until every ack so far is durable, or was refused."""
        self.portal.soon(self._hand_over)
        self.portal.run(self.other.flush())

    def _ack_later(self, message: Leased) -> None:
        with self._lock:
            self._done.append(message)
            count = len(self._done)
        if count == 1:
            self.portal.later(HAND_OVER_S, self._hand_over)
        elif count % CHUNK == 0:
            self.portal.soon(self._hand_over)

    def _hand_over(self) -> None:
        with self._lock:
            done, self._done = self._done, []
        for message in done:
            message.ack_later()


class SyncProducer(SyncEnd[Producer]):
    """Publishes messages one by one: see `Producer`. Refusals are raised by `flush`, and at the end."""

    def __init__(self, portal: Portal, make: Callable[[], Producer]) -> None:
        super().__init__(portal, portal.run(_made(make)))
        self._pending: list[tuple[bytes, dict[str, Any]]] = []
        self._lock = threading.Lock()
        self._order = asyncio.Lock()
        self._fault: Exception | None = None
        self._closed = True  # until it is entered

    def __enter__(self) -> SyncProducer:
        self.portal.run(self.other.__aenter__())
        self._closed = False
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            self._closed = True
        try:
            self.flush()
        except Exception:
            if fault is None:
                raise
        finally:
            self.portal.run(self.other.__aexit__(kind, fault, trace))

    def publish(
        self,
        payload: bytes | str,
        *,
        id: str | None = None,  # noqa: A002  the word of the message's field
        key: str | None = None,
        priority: int | None = None,
        due_ms: int | None = None,
        expires_ms: int | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        """Send a message; wait only while the buffer is full. Fields as in `Producer.publish`."""
        message = (as_bytes(payload), fields_of(id, key, priority, due_ms, expires_ms, headers))
        with self._lock:
            if self._closed:
                raise Closed(OUTSIDE)
            self._pending.append(message)
            count = len(self._pending)
        if count >= CHUNK:
            self.portal.run(self._hand_over())
        elif count == 1:
            self.portal.soon(self._hand_over_soon)

    def flush(self) -> None:
        """Wait until everything published so far is stored; raise the first refusal."""
        self.portal.run(self._hand_over())
        self.portal.run(self.other.flush())
        fault, self._fault = self._fault, None
        if fault is not None:
            raise fault

    def _hand_over_soon(self) -> None:
        self._task = asyncio.ensure_future(self._hand_over())

    async def _hand_over(self) -> None:
        async with self._order:
            with self._lock:
                pending, self._pending = deque(self._pending), []
            try:
                while pending:
                    try:
                        await self.other.wait_for_room()
                        self.other.put(*pending[0])
                    except Exception as fault:  # of this message: those behind it are sent
                        self._fault = self._fault or fault
                    pending.popleft()
            finally:
                if pending:  # the caller was interrupted: what was not taken stays, and is sent without it
                    with self._lock:
                        self._pending[:0] = pending
                    asyncio.get_running_loop().call_soon(self._hand_over_soon)


async def _made(make: Callable[[], T]) -> T:
    return make()


async def _first(batches: Any) -> Any:
    return await anext(batches)
