"""Consumers of a run: quick and slow ones, some that settle too late, some that leave while they hold messages."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from random import Random
from typing import Literal, TypeAlias

from wherry.broker.broker import Broker
from wherry.broker.calls.consumer import Consumer, Delivery
from wherry.core.state.lease import EPOCH_SHIFT
from wherry.model.catalog.subscription import Subscription
from wherry.model.errors import CutOff, DiskFull, NotFound, StaleLease, WherryError
from wherry.sim.clients.producers import name_of
from wherry.sim.history import Got, History, Outcome, Settled, SubscriptionKey, Torn
from wherry.sim.world.errors import Killed
from wherry.sim.world.world import LOST, World

Kind: TypeAlias = Literal["ack", "nack", "dead", "release", "renew"]


@dataclass
class Receiver:
    """One consumer of a subscription; it joins again after a restart of the broker and after it has left."""

    world: World
    name: str
    config: Subscription
    random: Random
    history: History
    """Records what this consumer was delivered and what it settled."""
    _joined: Consumer | None = field(default=None, repr=False)
    _joined_at: Broker | None = field(default=None, repr=False)
    """The broker that it joined. A consumer of a dead broker ends with it: it is not asked again."""

    @property
    def subscription(self) -> SubscriptionKey:
        """Return the topic and the name of the subscription."""
        return self.config.topic, self.config.name

    async def run(self) -> None:
        """Pull and settle until the run ends."""
        while not self.world.ending:
            await asyncio.sleep(self.random.uniform(0, 0.3))
            try:
                await self.pull_and_settle()
            except LOST:
                self._joined = None
            except (CutOff, NotFound) as fault:
                self.world.note("gone", str(fault))
                self._joined = None
            # at-most-once: messages are settled when they are handed over, and the disk has no room for that
            except DiskFull as fault:
                self.world.note("full", str(fault))

    async def pull_and_settle(self) -> None:
        """Pull once, and settle, renew, forget or release what came."""
        got = await self.pull(self.random.randint(1, 8), wait_ms=self.random.choice((0, 200)))
        if got is None or not len(got):
            return
        rows = list(range(len(got)))
        if self.random.random() < 0.3:
            rows = self.random.sample(rows, self.random.randint(1, len(rows)))
        doing, renews = self.random.random(), 0.15
        if doing < 0.1:
            renews = 0.5
            await asyncio.sleep(self.config.lease_ms / 1000 * self.random.uniform(0.5, 2))
        elif doing < 0.15:
            await self.leave()
            return
        elif doing < 0.25:
            return  # forget them: the lease expires
        if self.random.random() < renews:
            await self.settle("renew", got, None)
        kind: Kind = self.random.choices(("ack", "nack", "dead", "release"), (75, 15, 4, 6))[0]
        if self.config.acks:
            await self.settle(kind, got, rows)

    async def pull(self, count: int, wait_ms: int) -> Delivery | None:
        """Join if necessary, pull, and record what came."""
        world = self.world
        if self._joined is None or world.broker not in (self._joined_at, None):
            self._joined = await world.call(self._join)
        joined = self._joined

        async def ask(broker: Broker) -> Delivery:
            if broker is not self._joined_at:
                raise Killed("the broker that the consumer had joined is dead")
            return await joined.pull(count, wait_ms=wait_ms)

        start = world.now()
        try:
            got = await world.call(ask)
        except (*LOST, WherryError):
            self.history.torn.append(Torn(self.subscription, start, world.now()))
            raise
        self._note(got, joined.id, start)
        return got

    async def _join(self, broker: Broker) -> Consumer:
        self._joined_at = broker
        return await broker.consumer(*self.subscription, f"{self.name}-{self.world.next_group()}")

    def _note(self, got: Delivery, consumer: str, start: float) -> None:
        delivery = self.world.next_delivery()
        for row, message in enumerate(got):
            self.world.note("got", message.payload, message.offset)
            self.history.got.append(
                Got(
                    name=name_of(message.payload),
                    subscription=self.subscription,
                    consumer=consumer,
                    partition=message.partition,
                    offset=message.offset,
                    priority=message.priority,
                    due_ms=message.due_ms,
                    key=message.key,
                    attempt=message.attempt,
                    token=got.token_of(row),
                    start=start,
                    end=self.world.now(),
                    seen_ms=self.world.clock.highest_ms,
                    life=got.token_of(row) >> EPOCH_SHIFT,
                    delivery=delivery,
                    row=row,
                )
            )

    async def leave(self) -> None:
        """Leave while messages are held: they wait again at once."""
        joined, self._joined = self._joined, None
        if joined is not None:
            self.history.left[joined.id] = self.world.now()

            async def close(broker: Broker) -> None:
                if broker is self._joined_at:
                    await joined.close()

            await self.world.call(close)

    async def settle(self, kind: Kind, got: Delivery, rows: list[int] | None) -> None:
        """Settle by token, as a client over a network does, with the broker that runs now."""
        start = self.world.now()
        delay_ms = self.random.choice((None, 0, 500)) if kind == "nack" else None
        for token, offsets in got.parts(rows):
            outcome, stale = await self._ask(kind, token, _list(offsets) if offsets is not None else None, delay_ms)
            part = [row for row in rows or range(len(got)) if got.token_of(row) == token]
            self._log(kind, got, part, start, outcome, stale=stale, delay_ms=delay_ms)

    async def _ask(
        self, kind: Kind, token: int, offsets: list[int] | None, delay_ms: int | None
    ) -> tuple[Outcome, bool]:
        async def ask(broker: Broker) -> None:
            if kind == "ack":
                await broker.ack(token, offsets)
            elif kind == "nack":
                await broker.nack(token, offsets, delay_ms=delay_ms, error="it failed")
            elif kind == "dead":
                await broker.dead_letter(token, offsets, reason="rejected")
            elif kind == "release":
                await broker.release(token, offsets)
            else:
                await broker.renew(token)

        try:
            await self.world.call(ask)
        except LOST:
            return "unknown", False
        except StaleLease:
            return "refused", True
        except WherryError as fault:
            self.world.note("refused", str(fault))
            return "refused", False
        return "ok", False

    def _log(
        self,
        kind: Kind,
        got: Delivery,
        rows: list[int] | None,
        start: float,
        outcome: Outcome,
        *,
        stale: bool,
        delay_ms: int | None,
    ) -> None:
        for row, message in enumerate(got):
            if rows is None or row in rows:
                self.history.settled.append(
                    Settled(
                        kind=kind,
                        name=name_of(message.payload),
                        subscription=self.subscription,
                        token=got.token_of(row),
                        start=start,
                        end=self.world.now(),
                        outcome=outcome,
                        stale=stale,
                        delay_ms=delay_ms,
                    )
                )


def _list(offsets: object) -> list[int]:
    return [int(offset) for offset in offsets]  # type: ignore[attr-defined]
