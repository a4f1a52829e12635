"""Clients of queues over wires: publishers with confirms and transactions, consumers that ack, requeue and reject.

They connect again when their connection is closed, and record what they did and received, on any wire.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field

from wherry.queueing.names import SUBSCRIPTION
from wherry.sim.clients.amqp_link import AmqpLink
from wherry.sim.clients.links import NEVER, Delivered, Gone, Refusal, Subscribed, Verdict
from wherry.sim.clients.stomp_link import StompLink
from wherry.sim.clients.wire_users import WireUser
from wherry.sim.history import NOWHERE, Got, Outcome, Settled
from wherry.sim.wire_plan import JOBS, SOLO

AnyLink = AmqpLink | StompLink


@dataclass
class QueueUser(WireUser[AnyLink]):
    """One client of AMQP or STOMP, with one connection at a time."""

    beats: tuple[int, ...] = (0, 1, 2)
    """Seconds between two heart-beats that it may ask for."""

    def link(self, name: str) -> AnyLink:
        """Return a connection that is not open yet."""
        kind = AmqpLink if self.wire == "amqp" else StompLink
        return kind(self.world, name, beat_s=self.random.choice(self.beats))


@dataclass
class QueueIdler(QueueUser):
    """A client that is connected and idle."""

    beats: tuple[int, ...] = (1,)

    def is_done(self) -> bool:
        return self.world.ending

    async def work(self, link: AnyLink) -> None:
        for _ in range(self.random.randint(6, 16)):
            if not link.is_gone and not self.world.ending:
                await asyncio.sleep(0.5)


@dataclass
class QueuePublisher(QueueUser):
    """A client that publishes."""

    left: int = 0
    made: int = 0
    queues: tuple[str, ...] = (JOBS, JOBS, SOLO)
    """Where its messages go; the more often a queue is named, the more of them."""
    transacts: float = 0.3
    """The part of its publishes that are transactions."""

    def is_done(self) -> bool:
        return self.left <= 0

    async def work(self, link: AnyLink) -> None:
        await link.ready()
        for _ in range(self.random.randint(1, 4)):
            if self.is_done():
                return
            self.left -= 1
            await asyncio.sleep(self.random.uniform(0, 0.5))
            if self.random.random() < self.transacts:
                await self._transact(link)
            else:
                await self._publish(link)

    async def _publish(self, link: AnyLink) -> None:
        """Publish some messages at once, then wait for the answer to each."""
        waits = []
        for _ in range(self.random.randint(1, 5)):
            self.made += 1
            queue, persistent = self.random.choice(self.queues), self.random.random() < 0.85
            group = self.world.next_group()
            sent = self.sent(f"{link.name}c", self.made, queue, group, "unknown", persistent=persistent)
            waits.append((sent, link.publish(queue, self.body(sent), persistent=persistent)))
        for sent, waiting in waits:
            try:
                await link.answer(waiting, "a publish")
                sent.outcome = "ok"
            except Refusal:
                sent.outcome = "refused"
            sent.end = self.world.now()
            self.world.note("published", sent.name, sent.outcome)

    async def _transact(self, link: AnyLink) -> None:
        commit, group = self.random.random() < 0.7, self.world.next_group()
        outcome: Outcome = "unknown" if commit else "refused"
        calls = []
        for _ in range(self.random.randint(2, 4)):
            self.made += 1
            queue = self.random.choice((JOBS, SOLO))
            calls.append(self.sent(f"{link.name}t", self.made, queue, group, outcome, persistent=True))
        await link.transact(None, [(sent.topic, self.body(sent)) for sent in calls], [], commit=commit)
        for sent in calls:
            sent.end = self.world.now()
            sent.outcome = "ok" if commit else "refused"
        self.world.note("transacted", group, commit)


@dataclass
class QueueConsumer(QueueUser):
    """A client that consumes one or two queues at a time."""

    queues: tuple[str, ...] = ()
    made: int = 0
    _subscribed: list[Subscribed] = field(default_factory=list)
    _unsure: dict[str, list[Settled]] = field(default_factory=dict)
    """By subscription: settles that are not confirmed to be durable."""
    _arrived: asyncio.Event = field(default_factory=asyncio.Event)

    def is_done(self) -> bool:
        return self.world.ending

    async def work(self, link: AnyLink) -> None:
        self._subscribed = []
        for number, queue in enumerate(self.queues):
            await self._subscribe(link, queue, number)
        for _ in range(self.random.randint(5, 20)):
            await self._step(link)
            if self.world.ending:
                return

    async def _subscribe(self, link: AnyLink, queue: str, number: int) -> None:
        subscribed = Subscribed(
            queue,
            f"{link.name}s{number}" + "x" * self.random.randint(0, 1),
            limit=self.random.choice((1, 1, 2, 4)),
            transacted=self.random.random() < 0.3,
            on_message=self._got,
        )
        self._subscribed.append(subscribed)
        self._unsure[subscribed.id] = []
        await link.subscribe(subscribed)

    def _got(self, message: Delivered, since: float) -> None:
        world, subscribed = self.world, message.subscription
        subscribed.held.append(message)
        held, now = len(subscribed.held), world.now()
        world.note("handed", message.name, message.again, subscribed.id)
        if held > subscribed.limit:
            names = [each.name for each in subscribed.held]
            world.wire_history.faults.append(
                f"prefetch_kept: {subscribed.id} holds {names}, {subscribed.limit} are allowed"
            )
        world.wire_history.got.append(
            Got(
                name=message.name,
                subscription=(subscribed.queue, SUBSCRIPTION),
                consumer=subscribed.id,
                partition=NOWHERE,
                offset=NOWHERE,
                priority=0,
                due_ms=None,
                key=None,
                attempt=1,
                token=message.token,
                start=since,
                end=now,
                seen_ms=0,
                life=world.life,
                delivery=message.token,
                row=0,
                again=message.again,
            )
        )
        self._arrived.set()

    async def _step(self, link: AnyLink) -> None:
        """Settle a held message, or wait for one."""
        holding = [each for each in self._subscribed if each.held]
        if not holding:
            self._arrived.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(0.5):
                    await self._arrived.wait()
            if link.is_gone:
                raise Gone("the connection is over")
            return
        await asyncio.sleep(self.random.choice((0.0, 0.0, 0.05, 0.3)))
        subscribed = self.random.choice(holding)
        if self.random.random() < 0.06:
            await self._leave(link, subscribed)
        elif subscribed.transacted:
            await self._transact(link, subscribed)
        else:
            await self._settle(link, subscribed)

    def _verdict(self) -> Verdict:
        return self.random.choices(("ack", "nack", "dead"), (70, 22, 8))[0]

    def _settled(self, message: Delivered, verdict: Verdict, group: int, under_way: int | None) -> Settled:
        made = Settled(
            kind=verdict,
            name=message.name,
            subscription=(message.subscription.queue, SUBSCRIPTION),
            token=message.token,
            start=self.world.now(),
            end=NEVER,
            outcome="unknown",
            stale=False,
            group=group,
            under_way=under_way,
            after=self.world.deliveries,
            consumer=message.subscription.id,
        )
        self.world.wire_history.settled.append(made)
        return made

    async def _settle(self, link: AnyLink, subscribed: Subscribed) -> None:
        message, verdict = self.random.choice(subscribed.held), self._verdict()
        under_way = subscribed.limit - len(subscribed.held)
        subscribed.held.remove(message)
        settled = self._settled(message, verdict, 0, under_way)
        waiting = link.settle(message, verdict)
        if waiting is None:
            self._unsure[subscribed.id].append(settled)
            return
        await link.answer(waiting, f"{verdict} of {message.name}")
        self._sure([settled])

    def _sure(self, settled: list[Settled]) -> None:
        for each in settled:
            each.outcome, each.end = "ok", self.world.now()
            self.world.note("settled", each.kind, each.name)

    async def _transact(self, link: AnyLink, subscribed: Subscribed) -> None:
        """Settle some of the held messages and publish some, in one transaction."""
        commit, group = self.random.random() < 0.7, self.world.next_group()
        some = self.random.sample(subscribed.held, self.random.randint(1, len(subscribed.held)))
        chosen = [(message, self._verdict()) for message in some]
        outcome: Outcome = "unknown" if commit else "refused"
        calls = []
        for _ in range(self.random.randint(0, 2)):
            self.made += 1
            calls.append(self.sent(f"{subscribed.id}p", self.made, SOLO, group, outcome, persistent=True))
        settled = [self._settled(*each, group, None) for each in chosen] if commit else []
        if commit:  # from now on the broker may count them as settled, and send others
            subscribed.held = [each for each in subscribed.held if each not in some]
        await link.transact(subscribed, [(sent.topic, self.body(sent)) for sent in calls], chosen, commit=commit)
        for sent in calls:
            sent.end, sent.outcome = self.world.now(), "ok" if commit else "refused"
        self._sure(settled)

    async def _leave(self, link: AnyLink, subscribed: Subscribed) -> None:
        """Cancel this subscription and open another."""
        self._subscribed.remove(subscribed)
        self.world.wire_history.left[subscribed.id] = min(self.world.now(), link.transport.ended_at)
        await link.unsubscribe(subscribed)
        self._sure(self._unsure[subscribed.id])
        self._unsure[subscribed.id] = []
        used = {each.rstrip("x") for each in self._unsure}
        while f"{link.name}s{(number := self.random.randrange(1_000))}" in used:
            pass  # one connection never uses a consumer tag twice
        await self._subscribe(link, subscribed.queue, number)

    def leaving(self, since: float) -> None:
        left = self.world.wire_history.left
        for subscribed in self._subscribed:
            left[subscribed.id] = min(left.get(subscribed.id, NEVER), since)
