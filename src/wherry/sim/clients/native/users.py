"""Clients of queues by the Python client: publishers over the native wire and over HTTP, consumers by credit.

They share queues with clients of AMQP and STOMP, and record what they did and received in the same way.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Literal, TypeAlias, TypeVar

import numpy as np

from wherry.client.batch import Batch, Leased, LeaseParts
from wherry.client.native.stream import ClientStream
from wherry.model.calls.publish import Published, PublishOptions
from wherry.model.errors import NotFound, StaleLease
from wherry.model.schema import Message
from wherry.queueing.names import SUBSCRIPTION
from wherry.sim.clients.links import NEVER, Gone, Refusal
from wherry.sim.clients.native.http_link import HttpLink
from wherry.sim.clients.native.link import NativeLink
from wherry.sim.clients.producers import name_of
from wherry.sim.clients.wire_users import WireUser
from wherry.sim.history import Got, Sent, Settled
from wherry.sim.wire_plan import JOBS, SOLO
from wherry.wire.native.codec.documents import SubscribeTerms

T = TypeVar("T")

PublisherLink: TypeAlias = NativeLink | HttpLink

Kind: TypeAlias = Literal["ack", "nack", "dead", "release"]
VERBS: dict[Kind, str] = {"ack": "ack", "nack": "nack", "dead": "dead-letter", "release": "release"}

BUFFER_BYTES = 1_200
"""Of consumers that bound the bytes that they hold: room for a few small messages."""


@dataclass
class ClientPublisher(WireUser[PublisherLink]):
    """A client that publishes one message or many: over the native wire as rows or Arrow, over HTTP as Arrow."""

    left: int = 0
    made: int = 0

    def link(self, name: str) -> PublisherLink:
        return NativeLink(self.world, name) if self.wire == "native" else HttpLink(self.world, name)

    def is_done(self) -> bool:
        return self.left <= 0

    async def work(self, link: PublisherLink) -> None:
        for _ in range(self.random.randint(1, 4)):
            if self.is_done():
                return
            self.left -= 1
            await asyncio.sleep(self.random.uniform(0, 0.5))
            await self._publish_some(link)

    async def _publish_some(self, link: PublisherLink) -> None:
        """Send some publishes without waiting in between, then wait for the answer to each."""
        under_way = []
        for _ in range(self.random.randint(1, 5)):
            await link.room()
            under_way.append(self._publish(link))
            if self.random.random() < 0.2:
                await asyncio.sleep(0)  # the next one is written in another turn
        for sents, waiting in under_way:
            await self._confirmed(link, sents, waiting)

    def _publish(self, link: PublisherLink) -> tuple[list[Sent], asyncio.Future[Published]]:
        queue, persistent = self.random.choice((JOBS, JOBS, SOLO)), self.random.random() < 0.85
        group, sents = self.world.next_group(), []
        for _ in range(self.random.choice((1, 1, 1, 2, 3, 8))):
            self.made += 1
            sents.append(self.sent(link.name, self.made, queue, group, "unknown", persistent=persistent))
        options = None if persistent else PublishOptions(persistent=False)
        waiting = link.publish(queue, self._messages(sents), options)
        waiting.add_done_callback(_noted)
        return sents, waiting

    def _messages(self, sents: list[Sent]) -> list[bytes | Message]:
        """Return messages as plain payloads, or some of them with headers."""
        bodies = [self.body(sent) if len(sents) < 3 else sent.name.encode() + b"." * 100 for sent in sents]
        if self.random.random() < 0.7:
            return [*bodies]
        return [Message(payload=body, headers={"of": "sim"}) for body in bodies]

    async def _confirmed(self, link: PublisherLink, sents: list[Sent], waiting: asyncio.Future[Published]) -> None:
        try:
            published = await link.answer(waiting, "a publish")
            if len(published) != len(sents):
                link.broken("confirmed_in_place", f"{len(sents)} were sent, {len(published)} are confirmed")
            for row, sent in enumerate(sents[: len(published)]):
                sent.outcome = "ok"
                sent.partition, sent.offset = int(published.partition[row]), int(published.offset[row])
        except Refusal:
            for sent in sents:
                sent.outcome = "refused"
        for sent in sents:
            sent.end = self.world.now()
            self.world.note("published", sent.name, sent.outcome, sent.offset)


@dataclass(eq=False)
class HeldMessage:
    """A message that a client holds."""

    name: str
    message: Leased
    token: int
    """The number of the delivery in this run."""


@dataclass(eq=False)
class PushedStream:
    """A stream of a consumer, with its own counts beside those of the session."""

    id: str
    """Unique in the run."""
    queue: str
    limit: int
    """Credit and held messages together, at most."""
    buffer_messages: int | None
    buffer_bytes: int | None
    granted: int
    received: int = 0
    stream: ClientStream = field(init=False)
    held: list[HeldMessage] = field(default_factory=list)

    def grant(self, messages: int) -> None:
        """Let the broker push more."""
        self.granted += messages
        self.stream.grant(messages)

    @property
    def room(self) -> int:
        """How many messages may be granted."""
        return self.limit - len(self.held) - (self.granted - self.received)


@dataclass
class NativeConsumer(WireUser[NativeLink]):
    """A client with a stream for each of its queues."""

    queues: tuple[str, ...] = ()
    _streams: list[PushedStream] = field(default_factory=list)
    _arrived: asyncio.Event = field(default_factory=asyncio.Event)
    _made: int = 0

    def link(self, name: str) -> NativeLink:
        return NativeLink(self.world, name)

    def is_done(self) -> bool:
        return self.world.ending

    async def work(self, link: NativeLink) -> None:
        self._streams = []
        for queue in self.queues:
            await self._subscribe(link, queue)
        for _ in range(self.random.randint(5, 20)):
            await self._step(link)
            if self.world.ending:
                return

    # ------------------------------------------------------------------------------------------------ streams

    async def _subscribe(self, link: NativeLink, queue: str) -> None:
        self._made += 1
        limit, bounded = self.random.choice((1, 2, 4, 10)), self.random.random()
        credit = self.random.choice((0, 1, limit))
        terms = SubscribeTerms(
            topic=queue,
            subscription=SUBSCRIPTION,
            credit=credit,
            buffer_messages=self.random.randint(1, limit) if bounded < 0.3 else None,
            buffer_bytes=BUFFER_BYTES if bounded > 0.7 else None,
        )
        pushed = PushedStream(
            f"{link.name}s{self._made}", queue, limit, terms.buffer_messages, terms.buffer_bytes, credit
        )
        pushed.stream = stream = link.subscribe(terms, partial(self._take, link, pushed))
        self._streams.append(pushed)
        stream.ended.add_done_callback(lambda _: self._ended(link, pushed))
        await link.answer(stream.opened, "SUBSCRIBE")

    def _ended(self, link: NativeLink, pushed: PushedStream) -> None:
        left = self.world.wire_history.left
        left[pushed.id] = min(left.get(pushed.id, NEVER), link.transport.data_since, link.transport.ended_at)
        fault = pushed.stream.ended.result()
        if fault is not None and not link.session.is_closed:
            self.world.note("stream ended", pushed.id, str(fault))
        self._arrived.set()

    def _take(self, link: NativeLink, pushed: PushedStream, batch: Batch, size: int) -> None:
        delivery = self.world.next_delivery()
        for row, message in enumerate(batch.messages()):
            held = HeldMessage(name_of(message.payload), message, self.world.next_delivery() if row else delivery)
            pushed.received += 1
            pushed.held.append(held)
            self.world.note("pushed", held.name, message.attempt, pushed.id)
            self.world.wire_history.got.append(self._got(link, pushed, held, delivery, row))
        self._check_bounds(link, pushed)
        self._arrived.set()

    def _got(self, link: NativeLink, pushed: PushedStream, held: HeldMessage, delivery: int, row: int) -> Got:
        message = held.message
        return Got(
            name=held.name,
            subscription=(pushed.queue, SUBSCRIPTION),
            consumer=pushed.id,
            partition=message.partition,
            offset=message.offset,
            priority=0,
            due_ms=None,
            key=None,
            attempt=message.attempt,
            token=held.token,
            start=link.transport.data_since,
            end=self.world.now(),
            seen_ms=0,
            life=self.world.life,
            delivery=delivery,
            row=row,
        )

    def _check_bounds(self, link: NativeLink, pushed: PushedStream) -> None:
        """Check what the broker may push: by credit, and by the bounds on what the consumer holds.

        A single message may have more bytes than the bound.
        """
        if pushed.received > pushed.granted:
            link.broken("credit_kept", f"{pushed.received} came to {pushed.id}, {pushed.granted} were granted")
        sizes = [len(each.message.payload) for each in pushed.held]
        if pushed.buffer_messages is not None and len(sizes) > pushed.buffer_messages:
            link.broken("buffer_kept", f"{pushed.id} holds {len(sizes)} messages, {pushed.buffer_messages} are allowed")
        if pushed.buffer_bytes is not None and len(sizes) > 1 and sum(sizes[:-1]) >= pushed.buffer_bytes:
            link.broken("buffer_kept", f"{pushed.id} holds {sizes} bytes, {pushed.buffer_bytes} are allowed")

    # ------------------------------------------------------------------------------------------------- settles

    async def _step(self, link: NativeLink) -> None:
        """Grant credit, settle some of what is held, or wait for a message."""
        if link.is_leaving and not link.is_gone:
            await self._say_goodbye(link)
        if link.is_gone:
            raise Gone("the connection is over")
        for pushed in self._streams:
            if pushed.room > 0 and (not pushed.held or self.random.random() < 0.5):
                pushed.grant(self.random.randint(1, pushed.room))
        holding = [each for each in self._streams if each.held and not each.stream.is_over]
        if not holding:
            self._arrived.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(0.5):
                    await self._arrived.wait()
            return
        await asyncio.sleep(self.random.choice((0.0, 0.0, 0.05, 0.3)))
        await self._handle(link, self.random.choice(holding))

    async def _handle(self, link: NativeLink, pushed: PushedStream) -> None:
        doing = self.random.random()
        if doing < 0.06:
            await self._leave(link, pushed)
        elif doing < 0.12:
            batch = self.random.choice(pushed.held).message.batch
            await link.answer(batch.renew(self.random.choice((None, 60_000))), "RENEW")
        elif doing < 0.2:
            await self._settle_by_another(link, pushed)
        elif doing < 0.5:
            await self._ack_each(link, pushed)
        else:
            kind: Kind = self.random.choices(("ack", "nack", "dead", "release"), (50, 25, 10, 15))[0]
            await self._settle(link, pushed, kind, self.random.sample(pushed.held, self._some(pushed)))

    def _some(self, pushed: PushedStream) -> int:
        return self.random.randint(1, len(pushed.held))

    async def _ack_each(self, link: NativeLink, pushed: PushedStream) -> None:
        """Ack messages one by one, without waiting in between."""
        under_way = []
        for held in self.random.sample(pushed.held, self._some(pushed)):
            (settled,) = self._settled(pushed, "ack", [held], None)
            held.message.batch.claim_row(held.message.row)
            waiting = pushed.stream.ack(held.message)
            waiting.add_done_callback(_noted)
            under_way.append((settled, waiting))
        for settled, waiting in under_way:
            await link.answer(waiting, f"ack of {settled.name}")
            self._sure([settled])

    async def _settle(self, link: NativeLink, pushed: PushedStream, kind: Kind, some: list[HeldMessage]) -> None:
        """Settle messages in one frame, and wait for the answer."""
        fields: dict[str, object] = {"error": "it failed"} if kind == "nack" else {}
        parts = _parts(some)
        settled = self._settled(pushed, kind, some, pushed.granted - pushed.received)
        try:
            await link.answer(pushed.stream.settle(VERBS[kind], parts, **fields), f"{kind} of {len(some)}")
            self._sure(settled)
        except Refusal:
            for each in settled:
                each.outcome = "refused"

    def _settled(
        self, pushed: PushedStream, kind: Kind, some: list[HeldMessage], under_way: int | None
    ) -> list[Settled]:
        """Record messages that are about to be settled, which are not held from now on."""
        pushed.held = [each for each in pushed.held if each not in some]
        made = [
            Settled(
                kind=kind,
                name=held.name,
                subscription=(pushed.queue, SUBSCRIPTION),
                token=held.token,
                start=self.world.now(),
                end=NEVER,
                outcome="unknown",
                stale=False,
                under_way=under_way,
                after=self.world.deliveries,
                consumer=pushed.id,
            )
            for held in some
        ]
        self.world.wire_history.settled += made
        return made

    def _sure(self, settled: list[Settled]) -> None:
        for each in settled:
            each.outcome, each.end = "ok", self.world.now()
            self.world.note("settled", each.kind, each.name)

    async def _settle_by_another(self, link: NativeLink, pushed: PushedStream) -> None:
        """Ack a message by a stream of another queue, which must be refused: the message is held as before."""
        others = [each for each in self._streams if each.queue != pushed.queue and not each.stream.is_over]
        if not others:
            return
        held = self.random.choice(pushed.held)
        with suppress(Refusal):
            await link.answer(
                others[0].stream.settle("ack", _parts([held])),
                "an ack by another stream",
                allowed=(StaleLease, NotFound),
            )
            link.broken("own_leases", f"{held.name} of {pushed.queue} was acked by a stream of {others[0].queue}")

    async def _leave(self, link: NativeLink, pushed: PushedStream) -> None:
        """Cancel a stream and open another."""
        self._streams.remove(pushed)
        self.world.wire_history.left[pushed.id] = min(self.world.now(), link.transport.ended_at)
        await link.answer(pushed.stream.cancel(), "CANCEL")
        if not link.is_leaving:
            await self._subscribe(link, pushed.queue)

    async def _say_goodbye(self, link: NativeLink) -> None:
        """Settle some of what is held, since the broker drains; then let the session say GOODBYE."""
        for pushed in self._streams:
            if pushed.held and not pushed.stream.is_over:
                await self._settle(link, pushed, "ack", self.random.sample(pushed.held, self._some(pushed)))
        self.leaving(min(self.world.now(), link.transport.ended_at))
        for pushed in self._streams:
            pushed.stream.finish()
        await link.answer(asyncio.shield(link.session.lost), "GOODBYE")
        raise Gone("the broker drained")

    def leaving(self, since: float) -> None:
        left = self.world.wire_history.left
        for pushed in self._streams:
            left[pushed.id] = min(left.get(pushed.id, NEVER), since)


def _parts(some: list[HeldMessage]) -> LeaseParts:
    """Return messages by their leases, those of each batch as ranges."""
    rows: dict[Batch, list[int]] = {}
    for held in some:
        rows.setdefault(held.message.batch, []).append(held.message.row)
    return [part for batch, each in rows.items() for part in batch.parts(np.array(sorted(each)))]


def _noted(waiting: asyncio.Future[T]) -> None:
    """Mark the error of a request as seen: a client whose connection has ended does not wait for it."""
    if not waiting.cancelled():
        waiting.exception()
