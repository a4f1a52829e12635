"""How a consumer gets its messages over the native wire: the broker pushes them, by credit.

Credit and messages that the reader has not taken are never more than one step together, and never more than the buffer
has room for. More is granted when half of that is used up, or when the reader waits: a CREDIT for each message would
double the frames.

A stream ends with its connection, and the leases of its messages end with it: those messages come again. The consumer
joins again by itself.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from wherry.client.batch import Batch
from wherry.client.link.backoff import Backoff
from wherry.client.link.errors import retry_after_s, returns
from wherry.client.native.stream import ClientStream
from wherry.client.requests import SubscriptionRequests
from wherry.model.errors import StaleLease
from wherry.wire.native.codec.documents import SubscribeTerms

if TYPE_CHECKING:
    from wherry.client.consumer import Consumer
    from wherry.client.native.transport import NativeTransport

MOVE_S = 1.5
"""After a GOODBYE of the broker, the reader has so long to settle what it holds: the broker waits 2 s for a client."""

FLAPPING_S = 1.0
"""A stream that ended sooner than this is opened again with a growing pause."""


class PushSource:
    """Keeps a stream open for one consumer."""

    def __init__(self, consumer: Consumer, requests: SubscriptionRequests, transport: NativeTransport) -> None:
        self._consumer, self._requests, self._transport = consumer, requests, transport
        self._stream: ClientStream | None = None
        self._leaving: list[ClientStream] = []
        """Streams that a broker left which drains, and of which the reader still holds messages."""
        self._loop = asyncio.get_running_loop()
        self._mean_bytes = 1
        """Of a message, as far as the last delivery shows: large messages get less credit."""

    def pull_if_wanted(self) -> None:
        """Grant credit if it is due: the reader took a batch, waits for one, or has settled some."""
        stream, consumer = self._stream, self._consumer
        if self._leaving:
            self._finish()
        if stream is None or stream.left.done():
            return
        credit, step = stream.credit, consumer.step
        if 2 * credit > step:
            return
        step = min(step, consumer.pull_bytes // self._mean_bytes or 1)
        more = min(step - consumer.ahead, consumer.room) - credit
        if more > 0 and (2 * more >= min(step, consumer.buffer_messages) or (consumer.is_reading and not credit)):
            stream.grant(more)

    async def run(self) -> None:
        """Open a stream, again whenever it ends; return if the broker speaks HTTP only by now."""
        consumer, backoff = self._consumer, Backoff()
        while True:
            began = self._loop.time()
            try:
                stream = await self._open()
                if stream is None:
                    return
                self.pull_if_wanted()
                await asyncio.wait([stream.left])  # which stays as it is when this task is cancelled
                fault = stream.ended.result() if stream.is_over else None
                if fault is not None:
                    raise fault
            except Exception as fault:  # of any kind: the reader must not wait for ever
                if self._transport.is_closed or not (returns(fault) or await consumer.may_rejoin(fault)):
                    consumer.fail(fault)
                    return
                if self._loop.time() - began >= FLAPPING_S:
                    backoff.reset()
                await backoff.pause(retry_after_s(fault))

    async def _open(self) -> ClientStream | None:
        session = await self._transport.ready()
        if session is None:
            return None
        consumer, requests = self._consumer, self._requests
        if self._stream is not None:
            consumer.take_name()
        stream = ClientStream(session, requests, self._take)
        stream.left.add_done_callback(lambda _: self._left(stream))
        stream.ended.add_done_callback(lambda _: self._ended(stream))
        terms = SubscribeTerms(
            topic=requests.topic,
            subscription=requests.subscription,
            consumer=consumer.name,
            credit=max(0, min(consumer.step - consumer.ahead, consumer.room)),
        )
        stream.subscribe(terms)
        self._stream = stream
        await stream.opened
        return stream

    def _take(self, batch: Batch, size: int) -> None:
        self._mean_bytes = size // batch.count + 1
        self._consumer.take(batch)

    def _left(self, stream: ClientStream) -> None:
        """Drop what the reader has not taken, since the broker hands it out again; wait for what the reader holds."""
        if not stream.is_over:
            self._consumer.drop_unread(stream, StaleLease(0, "the broker is closing"))
            self._leaving.append(stream)
            self._loop.call_later(MOVE_S, stream.finish)
            self._finish()

    def _finish(self) -> None:
        """End streams that the broker left once the reader holds nothing of them."""
        for stream in list(self._leaving):
            if stream.is_over or not self._consumer.holds(stream):
                self._leaving.remove(stream)
                stream.finish()

    def _ended(self, stream: ClientStream) -> None:
        """Note that the leases of a stream are gone."""
        self._consumer.lose(stream, StaleLease(0, stream.why))

    async def leave(self) -> None:
        """Cancel the stream: messages still held wait again, and no attempt is counted."""
        for stream in self._leaving:
            stream.finish()
        if self._stream is not None:
            await self._stream.cancel()
