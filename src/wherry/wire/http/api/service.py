"""What the endpoints stand on: the broker, the server they run in, and the consumers that come back by name."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from functools import wraps
from typing import TypeAlias

from wherry.broker.port.consume import ConsumerPort, SettlerPort
from wherry.broker.port.port import BrokerPort
from wherry.model.catalog.topic import Topic
from wherry.model.errors import Forbidden, WherryError
from wherry.wire.http.api.problem import HttpError
from wherry.wire.http.api.routing import Call, Verb
from wherry.wire.http.api.sampling import Sampler
from wherry.wire.http.protocol.message import Answer, Request
from wherry.wire.http.protocol.server import Server

Guard: TypeAlias = Callable[[Request, Verb, str], str]
"""Says who asks, or raises: the request, the right it needs, and the topic (`*` for calls about no single one)."""

CONSUMER_IDLE_S = 90.0
"""A consumer that holds nothing and was not heard of for so long has left. Longer than the longest poll."""

LISTINGS = 16
"""Listings that are made at a time: each holds a page of messages while it looks and writes."""

SEAT = "http"
"""Those who pull without a name share partitions as one consumer would, and are called by it: `http-1`, `http-2`."""

KNOWN_MAX = 65_536
"""Consumers that are remembered, before connections that pull without a name share one."""


def open_to_all(request: Request, verb: Verb, topic: str) -> str:
    """No keys: everyone may do everything."""
    return ""


@dataclass(slots=True)
class Service:
    """One broker behind HTTP."""

    broker: BrokerPort
    server: Server
    guard: Guard = open_to_all
    names: frozenset[str] | None = frozenset()
    """Host names it answers under, beside addresses and `localhost`; None is any."""
    origins: frozenset[str] = frozenset()
    """Pages from elsewhere that may call it, as `https://example.org`; `*` is any."""
    document: Callable[[], bytes] = lambda: b"{}"
    """Returns the description of the interface."""
    check_ready: Callable[[], None] = lambda: None
    """Raises while clients should not be sent here, such as while the node drains."""
    consumers: Consumers = field(init=False)
    """Who pulls."""
    settler: SettlerPort = field(init=False)
    sampler: Sampler = field(init=False)
    listings: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(LISTINGS))

    def __post_init__(self) -> None:
        self.consumers = Consumers(self.broker)
        self.settler = self.broker.settler
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
Handler: TypeAlias = Callable[[Ask], Awaitable[Answer]]


def once_durable(handler: Handler) -> Handler:
    """Make an endpoint that shows what there is wait with its answer, that there is none too, until it is durable.

    Else a topic or a key could be shown, or be gone, and a power cut makes it untrue. Figures need not wait: `stats`.
    """

    @wraps(handler)
    async def waiting(call: Ask) -> Answer:
        broker = call.service.broker
        try:
            answer = await handler(call)
        except WherryError:
            await broker.stored_so_far()
            raise
        await broker.stored_so_far()
        return answer

    return waiting


@dataclass(slots=True)
class _Known:
    """A consumer, when it was last heard of, and whether the connection that it was for is gone."""

    consumer: ConsumerPort
    heard: float
    is_gone: bool = False


class Consumers:
    """HTTP forgets its callers after each answer; this remembers who pulls, until they have been silent for a while.

    Whoever gives no name is known by the connection: each has a buffer of its own, so that one who never settles keeps
    nothing from the others. What was pulled on a connection that is gone stays on lease, to be settled over another.
    """

    def __init__(self, broker: BrokerPort, time: Callable[[], float] = time.monotonic) -> None:
        self._broker = broker
        self.time = time
        self._known: dict[tuple[str, str, str | int], _Known] = {}
        """By topic, subscription and the name, or the connection of those without one."""
        self._of: dict[int, dict[tuple[str, str], _Known]] = {}
        """By connection and by topic and subscription, those without a name."""

    async def get(self, topic: str, subscription: str, name: str | None, connection: int = 0) -> ConsumerPort:
        """Return the consumer of that name, or of that connection for None; it joins at its first pull."""
        place = (topic, subscription, connection if name is None else name)
        known = self._known.get(place)
        if known is None and name is None and len(self._known) >= KNOWN_MAX:
            connection, place = 0, (topic, subscription, 0)
            known = self._known.get(place)
        if known is not None and known.consumer.is_joined():
            known.heard = self.time()
            return known.consumer
        seat = SEAT if name is None else None
        consumer = await self._broker.consumer(topic, subscription, name, seat=seat)
        known = self._known[place] = _Known(consumer, self.time())
        if name is None and connection:
            self._of.setdefault(connection, {})[topic, subscription] = known
        return consumer

    def forget(self, connection: int) -> None:
        """A connection is gone: what it pulled for goes, once it holds nothing."""
        for known in self._of.pop(connection, {}).values():
            known.is_gone = True

    async def leave(self, topic: str, subscription: str, name: str) -> None:
        """Somebody says goodbye: what it held waits again."""
        if self._broker.consumer_stats(topic, subscription, name).is_internal:
            hint = "take the webhook away, or delete the subscription"
            raise HttpError("forbidden", f"consumer {name!r} is the broker's own and pushes to a webhook: {hint}")
        self._known.pop((topic, subscription, name), None)
        await self._broker.leave(topic, subscription, name)

    async def weed(self) -> None:
        """Let those go who hold nothing and have been silent, or whose connection is gone."""
        now = self.time()
        for place, known in list(self._known.items()):
            consumer = known.consumer
            # The last one takes an ephemeral subscription along: whoever opens a connection for each pull wants it.
            is_over = now - known.heard > CONSUMER_IDLE_S or (known.is_gone and not consumer.is_last_of_ephemeral())
            if not consumer.is_joined() or (is_over and not consumer.out_messages):
                if self._known.get(place) is known:  # else another one has joined under the same name
                    del self._known[place]
                await consumer.close()

    async def close(self) -> None:
        """The wire goes; what its consumers held waits again."""
        for known in self._known.values():
            await known.consumer.close()
        self._known.clear()
