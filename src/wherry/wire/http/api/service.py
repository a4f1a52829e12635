"""What the endpoints use: the broker, the server that they run in, and the consumers that pull by name."""

from __future__ import annotations

import asyncio
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
from wherry.wire.http.pages.sign_in import ProviderView
from wherry.wire.http.protocol.message import Answer, Request
from wherry.wire.http.protocol.server import Server
from wherry.wire.listener import Clock

Guard: TypeAlias = Callable[[Request, Verb, str], str]
"""Returns the caller's name, or raises; gets the request, its right, and the topic (`*` for calls about no topic)."""

CONSUMER_IDLE_S = 90.0
"""A consumer that holds nothing and has not pulled for so long leaves. Longer than the longest poll."""

LISTINGS = 16
"""Listings made at a time: each holds a page of messages while it reads and writes."""

SEAT = "http"
"""The seat of consumers without a name: they share partitions as one consumer, and are called `http-1`, `http-2`."""

KNOWN_MAX = 65_536
"""Most consumers kept; beyond them, connections that pull without a name share one consumer."""


def open_to_all(request: Request, verb: Verb, topic: str) -> str:
    """Allow everything to every caller: the guard of a broker without keys."""
    return ""


@dataclass(slots=True)
class BrokerService:
    """A broker with all that its HTTP endpoints need."""

    broker: BrokerPort
    server: Server
    guard: Guard = open_to_all
    names: frozenset[str] | None = frozenset()
    """Host names that requests may name, beside addresses and `localhost`; None is any."""
    origins: frozenset[str] = frozenset()
    """Origins of pages of other sites that may call the broker, as `https://example.org`; `*` is any."""
    document: Callable[[], bytes] = lambda: b"{}"
    """Returns the description of the interface."""
    check_ready: Callable[[], None] = lambda: None
    """Raises while clients should not be sent here, such as while the node drains."""
    provider: Callable[[], ProviderView | None] = lambda: None
    """Returns the identity provider by which people sign in at the console, if there is one."""
    consumers: Consumers = field(init=False)
    """The consumers that pull over HTTP."""
    settler: SettlerPort = field(init=False)
    sampler: Sampler = field(init=False)
    listings: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(LISTINGS))

    def __post_init__(self) -> None:
        self.consumers = Consumers(self.broker, self.server.clock)
        self.settler = self.broker.settler
        self.sampler = Sampler(self.broker, self.server)

    def may(self, request: Request, verb: Verb, topic: str) -> bool:
        """Return whether the caller has a right; `Unauthorized` if the caller is not known."""
        try:
            self.guard(request, verb, topic)
        except Forbidden:
            return False
        return True

    def caller(self, request: Request) -> str:
        """Return the caller's name, whatever its rights; empty without keys, `Unauthorized` if it is not known."""
        try:
            return self.guard(request, "publish", "*")
        except Forbidden as fault:
            return fault.name

    def visible(self, request: Request, verb: Verb, topics: Iterable[Topic]) -> list[Topic]:
        """Return the topics on which the caller has a right."""
        everything = self.may(request, verb, "*")
        return [topic for topic in topics if everything or self.may(request, verb, topic.name)]


ApiCall: TypeAlias = Call[BrokerService]
Handler: TypeAlias = Callable[[ApiCall], Awaitable[Answer]]


def once_durable(handler: Handler) -> Handler:
    """Make an endpoint wait with its answer, an error included, until what the answer shows is durable.

    Otherwise an answer could show a topic or a key, or that it is gone, and a power cut could make that untrue. Figures
    need not wait: `stats`.
    """

    @wraps(handler)
    async def waiting(call: ApiCall) -> Answer:
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
    """A consumer, when it last pulled, and whether its connection is closed."""

    consumer: ConsumerPort
    pulled_at: float
    is_gone: bool = False


class Consumers:
    """The consumers that pull over HTTP, kept between requests until they have not pulled for a while.

    A client that gives no name is known by its connection: each connection has a buffer of its own, so that a client
    that never settles keeps no messages from the others. Messages pulled on a connection that is closed stay on lease,
    and can be settled over another connection.
    """

    def __init__(self, broker: BrokerPort, clock: Clock) -> None:
        self._broker, self.clock = broker, clock
        self._known: dict[tuple[str, str, str | int], _Known] = {}
        """By topic, subscription and name, or the connection where the client gave no name."""
        self._of: dict[int, dict[tuple[str, str], _Known]] = {}
        """By connection, then by topic and subscription: the consumers without a name."""

    async def get(self, topic: str, subscription: str, name: str | None, connection: int = 0) -> ConsumerPort:
        """Return the consumer of that name, or of that connection for None; it joins at its first pull."""
        place = (topic, subscription, connection if name is None else name)
        known = self._known.get(place)
        if known is None and name is None and len(self._known) >= KNOWN_MAX:
            connection, place = 0, (topic, subscription, 0)
            known = self._known.get(place)
        if known is not None and known.consumer.is_joined():
            known.pulled_at = self.clock()
            return known.consumer
        seat = SEAT if name is None else None
        consumer = await self._broker.consumer(topic, subscription, name, seat=seat)
        known = self._known[place] = _Known(consumer, self.clock())
        if name is None and connection:
            self._of.setdefault(connection, {})[topic, subscription] = known
        return consumer

    def forget(self, connection: int) -> None:
        """Note that a connection is closed: its consumers leave, once they hold nothing."""
        for known in self._of.pop(connection, {}).values():
            known.is_gone = True

    async def leave(self, topic: str, subscription: str, name: str) -> None:
        """Let a consumer leave: what it held waits again."""
        if self._broker.consumer_stats(topic, subscription, name).is_internal:
            hint = "take the webhook away, or delete the subscription"
            raise HttpError("forbidden", f"consumer {name!r} is the broker's own and pushes to a webhook: {hint}")
        self._known.pop((topic, subscription, name), None)
        await self._broker.leave(topic, subscription, name)

    async def close_idle(self) -> None:
        """Close consumers that hold nothing and have not pulled for long, or whose connection is closed."""
        now = self.clock()
        for place, known in list(self._known.items()):
            consumer = known.consumer
            # The last consumer of an ephemeral subscription stays: a client that connects anew for each pull still
            # needs it.
            is_over = now - known.pulled_at > CONSUMER_IDLE_S or (known.is_gone and not consumer.is_last_of_ephemeral())
            if not consumer.is_joined() or (is_over and not consumer.unsettled_messages):
                if self._known.get(place) is known:  # else another consumer has joined under the same name
                    del self._known[place]
                await consumer.close()

    async def close(self) -> None:
        """Close all consumers, as the server closes; what they held waits again."""
        for known in self._known.values():
            await known.consumer.close()
        self._known.clear()
