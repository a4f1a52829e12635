"""A virtual host: its queues, exchanges and bindings, over the topics and routes of the broker."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping
from typing import Any

from wherry.broker.port.port import BrokerPort
from wherry.model.catalog.route import Binding, Route
from wherry.queueing import clock
from wherry.queueing.hosts import exchanges, queue_terms
from wherry.queueing.hosts.exchanges import BUILT_IN, KEPT_SLACK, ExchangeIndex, ExchangeTerms
from wherry.queueing.hosts.queue import Queue
from wherry.queueing.hosts.queue_terms import QueueTerms
from wherry.queueing.message.envelope import headers_of
from wherry.queueing.message.properties import UsedProperties
from wherry.queueing.message.table import find
from wherry.queueing.names import SUBSCRIPTION, full_name, host_and_name
from wherry.queueing.refusals import Reason, check_equal, locked, no_queue, on_default_exchange, refused

RESERVED = "amq."
"""Names with this prefix are given by the server only."""

RESOLVED_MAX = 65_536


class VirtualHost:
    """The queues, exchanges and bindings of one name space."""

    def __init__(self, broker: BrokerPort, name: str) -> None:
        self.name = name
        topics = broker.catalog.topics
        self._old = {number: end for topic, number in topics.items() if (end := broker.next_offset(topic, 0))}
        """By number of the topic: the first offset of this run. Messages before it may have been handed over in an
        earlier run."""
        self.exchange_index = ExchangeIndex(broker.catalog, name)
        self._broker = broker
        self._catalog = broker.catalog
        self._queues: dict[str, Queue] = {}
        self.expiring: dict[Queue, float] = {}
        """Queues that are deleted when unused, and after how many seconds."""
        self._seen = -1
        self._resolved: dict[tuple[str, str], tuple[Queue, ...]] = {}

    # -------------------------------------------------------------------------------------------------------- queues

    def queue(self, name: str) -> Queue:
        """Return a queue, or raise `NOT_FOUND`. A topic of another wire is a queue too, once it is subscribed to."""
        known = self._queues.get(name)
        full = full_name(self.name, name)
        number = self._catalog.topics.get(full)
        if number is None:
            self._queues.pop(name, None)
            raise no_queue(self.name, name)
        if known is None or known.number != number:  # it may have been deleted and made again over another wire
            terms = queue_terms.terms_of(self._broker.topic(full))
            known = Queue(self._broker, self.name, name, terms, old_below=self._old.get(number, 0))
            self._forget_gone()
            self._queues[name] = known
            if terms.expires_ms is not None:
                self.expiring[known] = terms.expires_ms / 1000
        return known

    def _forget_gone(self) -> None:
        """Drop queues whose topics were deleted over another wire, once there may be many."""
        if len(self._queues) > 2 * len(self._catalog.topics) + KEPT_SLACK:
            kept = (each for each in self._queues.values() if each.consumers or self._is_there(each))
            self._queues = {each.name: each for each in kept}
            self.expiring = {each: after_s for each, after_s in self.expiring.items() if self._is_there(each)}

    def has_queue(self, name: str) -> bool:
        """Return whether there is such a queue."""
        return full_name(self.name, name) in self._catalog.topics

    def queues(self) -> list[Queue]:
        """Return all queues, by name."""
        names = (host_and_name(topic) for topic in self._catalog.topics)
        return [self.queue(name) for host, name in sorted(names) if host == self.name]

    def queue_for(self, name: str, connection: object) -> Queue:
        """Return a queue that a connection may use; raise `RESOURCE_LOCKED` if it is exclusive to another one."""
        queue = self.queue(name)
        if queue.terms.exclusive and queue.owner is not connection:
            raise locked(self.name, name)
        return queue

    async def declare_queue(self, name: str, wanted: QueueTerms, connection: object) -> Queue:
        """Return a queue as declared, made if it does not exist; an empty name gets a new one."""
        if name == "":
            name = f"amq.gen-{secrets.token_urlsafe(16)}"
        elif name.startswith(RESERVED):
            text = f"queue name '{name}' contains reserved prefix 'amq.*'"
            raise refused(Reason.ACCESS_REFUSED, text)
        elif self.has_queue(name):
            queue = self.queue_for(name, connection)
            if queue.terms.exclusive != wanted.exclusive:
                raise locked(self.name, name)
            check_equal("queue", self.name, name, queue_terms.compared(queue.terms, wanted))
            queue.used_at = clock.now_s()
            await self.have_subscription(queue)
            await self._broker.stored_so_far()  # another client may have made it just now
            return queue
        await self._broker.create_topic(wanted.topic(self.name, name))
        if not wanted.durable:
            await self._broker.reserve(full_name(self.name, name))
        queue = self.queue(name)
        if wanted.exclusive:
            queue.owner = connection
        await self._broker.subscribe(wanted.subscription(self.name, name))
        return queue

    def expired(self, now: float) -> list[Queue]:
        """Return the queues that were unused for as long as they may exist."""
        idle = [queue for queue, after_s in self.expiring.items() if queue.idle_s(now) >= after_s]
        gone = [queue for queue in idle if not self._is_there(queue)]
        for queue in gone:
            del self.expiring[queue]
        return [queue for queue in idle if queue in self.expiring]

    def _is_there(self, queue: Queue) -> bool:
        """Return whether the topic of a queue is still the one that the queue was made for."""
        return self._catalog.topics.get(queue.topic) == queue.number

    def owned_by(self, connection: object) -> list[Queue]:
        """Return the queues that are exclusive to a connection."""
        return [queue for queue in self._queues.values() if queue.owner is connection and self._is_there(queue)]

    async def close(self) -> None:
        """Stop all deliveries."""
        for queue in self._queues.values():
            await queue.close()

    async def have_subscription(self, queue: Queue) -> None:
        """Subscribe to a topic that was made over another wire: its messages wait for queue consumers from now on."""
        if not self._broker.has_subscription(queue.topic, SUBSCRIPTION):
            await self._broker.subscribe(queue.terms.subscription(self.name, queue.name))

    async def delete_queue(self, queue: Queue) -> int:
        """Delete a queue and its bindings; return how many messages were in it."""
        there = self._is_there(queue)
        count = queue.ready() if there else 0
        if self._queues.get(queue.name) is queue:
            del self._queues[queue.name]
        self.expiring.pop(queue, None)
        consumers = await queue.close()
        left = self._catalog.leading_to(queue.topic) if there else []
        if self._is_there(queue):
            await self._broker.delete_topic(queue.topic)
        self.exchange_index.forget(left)
        await self._tidy(left)
        for consumer in consumers:  # after the answer to the client that deleted it, which may be one of them
            asyncio.get_running_loop().call_soon(consumer.deliveries_ended)
        return count

    async def delete_all(self) -> None:
        """Delete all queues and exchanges."""
        for queue in self.queues():
            await self.delete_queue(queue)
        for name in [full_name(self.name, each) for each, _ in self.exchanges()]:
            if name != full_name(self.name, "") and name in self._catalog.routes:
                await self._delete_route(self._catalog.routes[name])

    async def purge(self, queue: Queue) -> int:
        """Remove all ready messages from a queue; return how many."""
        await self.have_subscription(queue)
        return await self._broker.purge(queue.topic, SUBSCRIPTION)

    # ----------------------------------------------------------------------------------------------------- exchanges

    async def declare_exchange(self, name: str, wanted: ExchangeTerms) -> None:
        """Make an exchange as declared, or check that it is the same."""
        if self.has_exchange(name):
            check_equal("exchange", self.name, name, exchanges.compared(self.exchange_index.terms(name), wanted))
            await self._broker.stored_so_far()
            return
        if name.startswith(RESERVED):
            text = f"exchange name '{name}' contains reserved prefix 'amq.*'"
            raise refused(Reason.ACCESS_REFUSED, text)
        await self._broker.put_route(wanted.route(self.name, name))

    async def delete_exchange(self, name: str, *, if_unused: bool) -> None:
        """Delete an exchange. One that does not exist is no error."""
        if name in BUILT_IN:
            if name == "":
                raise on_default_exchange()
            text = f"deletion of system exchange '{name}' in vhost '{self.name}' not allowed"
            raise refused(Reason.ACCESS_REFUSED, text)
        full = full_name(self.name, name)
        route = self._catalog.routes.get(full)
        if route is None:
            return
        if if_unused and (route.bindings or self._leading_to_route(full)):
            raise refused(Reason.PRECONDITION_FAILED, f"exchange '{name}' in vhost '{self.name}' in use")
        await self._delete_route(route)

    async def _delete_route(self, route: Route) -> None:
        left = self._leading_to_route(route.name)
        for name in left:
            for bound in self._catalog.routes[name].bindings:
                if bound.route == route.name:
                    await self._broker.unbind(name, bound)
        await self._broker.delete_route(route.name)
        self.exchange_index.forget((*left, route.name))
        await self._tidy(left)

    def has_exchange(self, name: str) -> bool:
        """Return whether there is such an exchange."""
        return name in BUILT_IN or full_name(self.name, name) in self._catalog.routes

    def exchanges(self) -> list[tuple[str, ExchangeTerms]]:
        """Return all exchanges, by name."""
        names = {name for host, name in map(host_and_name, self._catalog.routes) if host == self.name}
        return [(name, self.exchange_index.terms(name)) for name in sorted({*names, *BUILT_IN})]

    # ------------------------------------------------------------------------------------------------------ bindings

    async def bind(self, exchange: str, key: str, arguments: dict[str, Any], *, queue: str = "", to: str = "") -> None:
        """Bind a queue, or another exchange, to an exchange."""
        terms = self._bindable(exchange, to)
        if terms.kind == "headers":
            exchanges.check_match(arguments)
        name = full_name(self.name, exchange)
        if name not in self._catalog.routes:  # built in, and this is its first binding
            await self._broker.put_route(terms.route(self.name, exchange))
        await self._broker.bind(name, self._binding(key, arguments, queue, to))
        self.exchange_index.forget([name])

    async def unbind(
        self, exchange: str, key: str, arguments: dict[str, Any], *, queue: str = "", to: str = ""
    ) -> None:
        """Remove a binding. One that does not exist is no error."""
        if exchange == "":
            raise on_default_exchange()
        name = full_name(self.name, exchange)
        if name in self._catalog.routes:
            await self._broker.unbind(name, self._binding(key, arguments, queue, to))
            self.exchange_index.forget([name])
            await self._tidy([name])

    def _bindable(self, exchange: str, to: str) -> ExchangeTerms:
        if exchange == "":
            raise on_default_exchange()
        if to:
            self.exchange_index.terms(to)
        return self.exchange_index.terms(exchange)

    def _binding(self, key: str, arguments: dict[str, Any], queue: str, to: str) -> Binding:
        return exchanges.binding(full_name(self.name, to or queue), key, arguments, to_exchange=bool(to))

    def _leading_to_route(self, route: str) -> list[str]:
        routes = ((name, self._catalog.routes[name]) for name in self._catalog.leading_to(None))
        return [name for name, each in routes if any(bound.route == route for bound in each.bindings)]

    async def _tidy(self, routes: list[str]) -> None:
        """Delete auto-delete exchanges that have lost their last binding."""
        for name in routes:
            route = self._catalog.routes.get(name)
            if route is not None and not route.bindings and exchanges.terms_of(route).auto_delete:
                await self._delete_route(route)

    def bindings_of(self, exchange: str) -> tuple[Binding, ...]:
        """Return the bindings of one exchange."""
        route = self._catalog.routes.get(full_name(self.name, exchange)) if exchange else None
        return route.bindings if route is not None else ()

    async def unbind_this(self, exchange: str, bound: Binding) -> None:
        """Remove a binding, given as it is stored."""
        name = full_name(self.name, exchange)
        await self._broker.unbind(name, bound)
        self.exchange_index.forget([name])
        await self._tidy([name])

    def bindings(self) -> list[tuple[str, Binding]]:
        """Return exchange and binding of all bindings, without those of the default exchange."""
        found = []
        for route in self._catalog.routes.values():
            host, name = host_and_name(route.name)
            if host == self.name:
                found += [(name, bound) for bound in route.bindings]
        return found

    # ------------------------------------------------------------------------------------------------------- routing

    def targets(self, exchange: str, key: str, known: UsedProperties) -> tuple[Queue, ...]:
        """Return the queues that a message is routed to, each once."""
        if self._seen != self._catalog.changes:
            self._seen = self._catalog.changes
            self._resolved.clear()
        if known.headers and (more := _more_keys(known.headers)):
            found: dict[Queue, None] = {}
            for each in (key, *more):
                found |= dict.fromkeys(self._looked_up(exchange, each, known)[0])
            return tuple(found)
        place = (exchange, key)
        result = self._resolved.get(place)
        if result is None:
            result, lasting = self._looked_up(exchange, key, known)
            if lasting and len(self._resolved) < RESOLVED_MAX:
                self._resolved[place] = result
        return result

    def _looked_up(self, exchange: str, key: str, known: UsedProperties) -> tuple[tuple[Queue, ...], bool]:
        decoded: list[Mapping[str, Any]] = []

        def headers() -> Mapping[str, Any]:
            if not decoded:
                decoded.append(headers_of(known))
            return decoded[0]

        topics, lasting = self.exchange_index.topics(exchange, key, headers)
        names = (host_and_name(topic)[1] for topic in topics if topic in self._catalog.topics)
        return tuple(self.queue(name) for name in names), lasting


def _more_keys(headers: bytes) -> list[str]:
    """Return the routing keys that a message has in its headers `CC` and `BCC`."""
    found: list[str] = []
    for name in ("CC", "BCC"):
        value = find(headers, name)
        if value is None:
            continue
        if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
            raise refused(Reason.PRECONDITION_FAILED, f"unsupported type of header '{name}': a list of text is allowed")
        found += value
    return found
