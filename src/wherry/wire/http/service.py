"""What the endpoints stand on: the broker, the server they run in, and the consumers that come back by name."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TypeAlias

from wherry.broker.broker import Broker
from wherry.broker.consumer import Consumer
from wherry.broker.settle import Settler
from wherry.model.errors import Forbidden, NotFound
from wherry.model.topic import Topic
from wherry.wire.http.message import Request
from wherry.wire.http.problem import HttpError
from wherry.wire.http.routing import Call, Verb
from wherry.wire.http.sampling import Sampler
from wherry.wire.http.server import Server

Guard: TypeAlias = Callable[[Request, Verb, str], str]
"""Says who asks, or raises: the request, the right it needs, and the topic (`*` for calls about no single one)."""

CONSUMER_IDLE_S = 90.0
"""A consumer that holds nothing and was not heard of for so long has left. Longer than the longest poll."""

LISTINGS = 16
"""Listings that are made at a time: each holds a page of messages while it looks and writes."""

SHARED_CONSUMER = "http"
"""Those who pull without a name share one consumer of each subscription."""


def open_to_all(request: Request, verb: Verb, topic: str) -> str:
    """No keys: everyone may do everything."""
    return ""


@dataclass(slots=True)
class Service:
    """One broker behind HTTP."""

    broker: Broker
    server: Server
    guard: Guard = open_to_all
    names: frozenset[str] | None = frozenset()
    """Host names it answers under, beside addresses and `localhost`; None is any."""
    origins: frozenset[str] = frozenset()
    """Pages from elsewhere that may call it, as `https://example.org`; `*` is any."""
    document: Callable[[], bytes] = lambda: b"{}"
    """Makes the interface, described."""
    consumers: Consumers = field(init=False)
    settler: Settler = field(init=False)
    sampler: Sampler = field(init=False)
    listings: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(LISTINGS))

    def __post_init__(self) -> None:
        self.consumers = Consumers(self.broker)
        self.settler = Settler(self.broker.shard)
        self.sampler = Sampler(self.broker, self.server)

    def may(self, request: Request, verb: Verb, topic: str) -> bool:
        """Whether whoever asks has a right; `Unauthorized` if nobody knows who that is."""
        try:
            self.guard(request, verb, topic)
        except Forbidden:
            return False
        return True

    def caller(self, request: Request) -> str:
        """Who asks, whatever they may do; empty where no keys are asked for, `Unauthorized` if nobody knows."""
        try:
            return self.guard(request, "publish", "*")
        except Forbidden as fault:
            return fault.name

    def visible(self, request: Request, verb: Verb, topics: Iterable[Topic]) -> list[Topic]:
        """The topics on which whoever asks has a right."""
        everything = self.may(request, verb, "*")
        return [topic for topic in topics if everything or self.may(request, verb, topic.name)]


Ask: TypeAlias = Call[Service]


class Consumers:
    """HTTP forgets its callers after each answer; this remembers who pulls, until they have been silent for a while."""

    def __init__(self, broker: Broker, time: Callable[[], float] = time.monotonic) -> None:
        self._broker = broker
        self.time = time
        self._known: dict[tuple[int, str], tuple[Consumer, float]] = {}

    async def get(self, topic: str, subscription: str, name: str | None) -> Consumer:
        """The consumer of that name, joined at its first pull."""
        chosen = SHARED_CONSUMER if name is None else name
        state = self._broker.shard.state.subscription(topic, subscription)
        known = self._known.get((state.number, chosen))
        now = self.time()
        if known is not None and known[0].is_joined():
            self._known[state.number, chosen] = (known[0], now)
            return known[0]
        consumer = await self._broker.consumer(topic, subscription, chosen)
        self._known[state.number, chosen] = (consumer, now)
        return consumer

    async def leave(self, topic: str, subscription: str, name: str) -> None:
        """Somebody says goodbye: what it held waits again."""
        state = self._broker.shard.state.subscription(topic, subscription)
        joined = state.consumers.get(name)
        if joined is None:
            raise NotFound("consumer", name)
        if joined.is_ours:
            hint = "take the webhook away, or delete the subscription"
            raise HttpError("forbidden", f"consumer {name!r} is the broker's own and pushes to a webhook: {hint}")
        self._known.pop((state.number, name), None)
        await Consumer(self._broker.shard, state, joined).close()

    async def weed(self) -> None:
        """Let those go who hold nothing and have been silent."""
        now = self.time()
        for place, (consumer, heard) in list(self._known.items()):
            if not consumer.is_joined():
                del self._known[place]
            elif now - heard > CONSUMER_IDLE_S and not consumer.out_messages:
                del self._known[place]
                await consumer.close()

    async def close(self) -> None:
        """The wire goes; what its consumers held waits again."""
        for consumer, _ in self._known.values():
            await consumer.close()
        self._known.clear()
