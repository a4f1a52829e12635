"""One stream of pushed messages: joins a subscription as a consumer, pulls by credit, writes DELIVER frames.

    joining ──► open ──► closed
                 │ ▲
                 ▼ │ a drain stops pulls; settles go on
               halted

One task pulls; it waits while the client has no credit or does not read. What comes while it waits in a pull is sent
without it (`take`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Protocol

from wherry.broker.port.consume import ConsumerPort, DeliveryPort
from wherry.broker.port.port import BrokerPort
from wherry.model import check
from wherry.model.catalog.subscription import BUFFER_MAX
from wherry.model.errors import WherryError
from wherry.wire.native.codec.documents import StreamTerms, SubscribeTerms, encode_cancel, encode_subscribed
from wherry.wire.native.codec.frames import Chunk
from wherry.wire.native.delivering import frames_of
from wherry.wire.native.settling import broker_fault

PUSH_MESSAGES, PUSH_ROWS, PUSH_BYTES = 4_000, 1_000, 1 << 20
"""Most messages that a stream pulls at a time: as columns, and as rows, which are written one by one, for a client that
does not read columns; and most bytes. One message may be larger."""

PUSHES_AT_ONCE = 4
"""Pushes of rows in one turn: after a push of few messages the next pull most likely waits."""

_log = logging.getLogger("wherry.native")


class StreamSession(Protocol):
    """A session, as its streams see it."""

    @property
    def reads_arrow(self) -> bool:
        """Whether the client reads Arrow."""

    def send(self, *chunks: Chunk) -> None:
        """Send a frame."""

    @property
    def has_room(self) -> bool:
        """Whether the client has read what it was sent."""

    async def room(self) -> None:
        """Wait until the client has read what it was sent."""

    def check_consume(self, topic: str) -> None:
        """Raise if the client may not consume from a topic, or no more."""

    async def create_subscription(self, terms: SubscribeTerms) -> None:
        """Create the subscription that a stream asks for; raise if it is refused."""

    def stream_ended(self, number: int, fault: WherryError | None) -> None:
        """Forget a stream; with a fault, send it to the client."""


class PushStream:
    """One stream of a session."""

    def __init__(self, broker: BrokerPort, session: StreamSession, number: int, terms: SubscribeTerms) -> None:
        self._broker, self._session, self.number, self.terms = broker, session, number, terms
        self.consumer: ConsumerPort | None = None
        self.delivered = 0
        """Messages that were pushed."""
        self._pushes = 0
        self._early_credit = terms.credit
        """What was granted before the consumer had joined."""
        self._has_credit = asyncio.Event()
        self._pulling: asyncio.Task[None] | None = None
        self._ended = self._is_halted = self._is_joined = False
        check.integer("credit", terms.credit, 0, BUFFER_MAX)

    @property
    def within(self) -> tuple[str, str]:
        """The topic and the subscription."""
        return self.terms.topic, self.terms.subscription

    def begin(self, spawn: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]) -> None:
        """Begin the task of the stream."""
        self._spawn = spawn
        self._pulling = spawn(self._run())

    def grant(self, messages: int) -> None:
        """Add credit."""
        if self._is_joined and self.consumer is not None:
            self.consumer.grant(messages)
            self._has_credit.set()
        else:
            self._early_credit = min(self._early_credit + messages, BUFFER_MAX)

    def halt(self) -> None:
        """Deliver no more, and keep what the client holds, which it may still settle."""
        self._is_halted = True
        if self._pulling is not None and self.consumer is not None:
            self._pulling.cancel()

    async def cancel(self) -> None:
        """End the stream on request of the client: what it holds waits again; answer with CANCEL.

        A stream that is ending already is answered by what ended it.
        """
        if not self._ended:
            await self.close()
            self._session.send(encode_cancel(self.number, stream=True))

    async def close(self, error: str = "") -> None:
        """End the stream; with an `error`, the messages that the client holds have failed by it."""
        if not self._ended:
            await self._end(None, error)

    async def fail(self, fault: WherryError) -> None:
        """End the stream with an error for the client, once what the error rests on is durable."""
        with suppress(WherryError):
            await self._broker.stored_so_far()
        if not self._ended:
            await self._end(fault, "")

    async def _end(self, fault: WherryError | None, error: str) -> None:
        self._ended = True
        if self._pulling is not None and self._pulling is not asyncio.current_task():
            self._pulling.cancel()
            await asyncio.wait([self._pulling])
        self._session.stream_ended(self.number, fault)
        if self.consumer is not None:
            with suppress(WherryError):  # the broker closes, and ends all leases itself
                await self.consumer.close(error)

    async def _run(self) -> None:
        try:
            await self._join()
            while not self._is_halted:
                await self._push()
        except asyncio.CancelledError:
            return  # the stream was halted or closed
        except WherryError as fault:
            await self.fail(fault)
        except Exception as fault:
            _log.exception("a stream failed")
            await self.fail(broker_fault(fault))

    async def _join(self) -> None:
        terms = self.terms
        self._session.check_consume(terms.topic)
        if terms.create is not None:
            await self._session.create_subscription(terms)
        consumer = await self._broker.consumer(
            terms.topic,
            terms.subscription,
            terms.consumer,
            buffer_messages=terms.buffer_messages,
            buffer_bytes=terms.buffer_bytes,
        )
        self.consumer = consumer
        await self._broker.stored_so_far()  # that there is such a subscription must not become untrue
        config = self._broker.subscription(terms.topic, terms.subscription)
        agreed = StreamTerms(consumer=consumer.id, lease_ms=config.lease_ms, acks=config.acks)
        self._session.send(encode_subscribed(self.number, agreed))
        self._is_joined, early = True, self._early_credit
        if early:
            self.grant(early)

    async def _push(self) -> None:
        """Pull messages and send them, once the client has credit and reads."""
        assert self.consumer is not None
        await self._has_credit.wait()
        await self._session.room()
        most = PUSH_MESSAGES if self._session.reads_arrow else PUSH_ROWS
        delivery = await self.consumer.pull(most, bytes_max=PUSH_BYTES, wait_ms=None, taker=self)
        if len(delivery):
            self._send(delivery)
        self._pushes += 1
        if delivery.rows is None or self._pushes % PUSHES_AT_ONCE == 0:
            await asyncio.sleep(0)  # a pull that finds messages does not wait: others have their turn

    def wanted(self) -> int:
        """See `Taker`: the credit is the bound."""
        return PUSH_MESSAGES

    def room(self) -> int:
        """See `Taker`."""
        return PUSH_MESSAGES if self._session.has_room and not (self._ended or self._is_halted) else 0

    def take(self, delivery: DeliveryPort) -> None:
        """See `Taker`: send messages that came while the task waits."""
        try:
            self._send(delivery)
        except WherryError as fault:
            self._fail_at_once(fault)
        except Exception as fault:
            _log.exception("a stream failed")
            self._fail_at_once(broker_fault(fault))

    def _fail_at_once(self, fault: WherryError) -> None:
        self._is_halted = True  # what was taken back is not taken again
        _ = self._spawn(self.fail(fault))

    def _send(self, delivery: DeliveryPort) -> None:
        try:
            self._session.check_consume(self.terms.topic)
        except WherryError:  # the key was deleted or changed while the pull waited
            delivery.take_back()
            raise
        self.delivered += len(delivery)
        self._session.send(*frames_of(self.number, delivery, arrow=self._session.reads_arrow))
