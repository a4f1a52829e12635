"""Clients of routes: producers that publish through them, operators that bind, unbind, purge and forward.

Several operators work on the same routes at the same time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any, TypeAlias

from msgspec.structs import replace

from wherry.broker.broker import Broker
from wherry.model.calls.dead import DeadFilter
from wherry.model.catalog.route import Route
from wherry.model.catalog.subscription import Subscription
from wherry.model.errors import WherryError
from wherry.model.schema import Message
from wherry.sim.clients.producers import KEYS, name_of
from wherry.sim.history import Bound, Copy, Forwarded, Listed, Outcome, Purged, Routed
from wherry.sim.plan import FORWARDED_TO, HEADERS, ROUTING_KEYS, RoutePlan
from wherry.sim.world.world import LOST, World

Doing: TypeAlias = Callable[[], Awaitable[None]]


async def set_up(world: World, route_plan: RoutePlan) -> None:
    """Create the topics, subscriptions and first routes."""
    for topic in route_plan.topics:
        await world.call(lambda broker, topic=topic: broker.create_topic(topic))  # type: ignore[misc]
    for config in route_plan.subscriptions:
        await world.call(lambda broker, config=config: broker.subscribe(config))  # type: ignore[misc]
    start = world.now()
    for route in route_plan.routes:
        await world.call(lambda broker, route=route: broker.put_route(route))  # type: ignore[misc]
    begin = [(route.name, binding) for route in route_plan.routes for binding in route.bindings]
    for number, each in enumerate(route_plan.bindings):
        if each in begin:
            world.route_history.bound.append(Bound("bind", number, start, world.now(), "ok"))


@dataclass
class RouteProducer:
    """Publishes through routes; its messages are named by its own name and a number."""

    world: World
    route_plan: RoutePlan
    name: str
    random: Random
    made: int = 0

    async def run(self) -> None:
        """Publish all messages, with pauses."""
        for _ in range(self.route_plan.publishes):
            await asyncio.sleep(self.random.expovariate(self.route_plan.publishes / self.world.plan.seconds))
            await self.publish()

    async def publish(self) -> None:
        """Publish once, without a repeat after a fault."""
        random, world = self.random, self.world
        messages = [self._message() for _ in range(random.randint(1, 5))]
        route = random.choice(self.route_plan.routes).name
        routing_key, headers = random.choice(ROUTING_KEYS), random.choice(HEADERS)
        names, timed = [name_of(each.payload) for each in messages], [each.due_ms is not None for each in messages]
        sent = [Routed(*each, route, routing_key, headers, world.now()) for each in zip(names, timed, strict=True)]
        # a publish whose caller is cancelled has no end in the history, since the broker may still finish it
        world.route_history.routed += sent
        topics: tuple[str, ...] = ()
        outcome: Outcome = "ok"
        try:
            topics = tuple(
                await world.call(
                    lambda broker: broker.publish_route(route, messages, routing_key=routing_key, headers=headers)
                )
            )
        except LOST:
            outcome = "unknown"
        except WherryError as fault:
            world.note("refused", str(fault))
            outcome = "refused"
        world.note("routed", route, routing_key, topics, outcome)
        for each in sent:
            each.end, each.outcome, each.topics = world.now(), outcome, topics

    def _message(self) -> Message:
        self.made += 1
        random, now_ms = self.random, self.world.clock.wall_us() // 1000
        return Message(
            payload=f"{self.name}.{self.made}".encode() + b"." * random.choice((0, 0, 50, 900)),
            key=random.choice(KEYS),
            priority=random.choice((0, 1, 5, 65_535)) if random.random() < 0.7 else None,
            due_ms=now_ms + random.choice((0, 300, 4_000)) if random.random() < 0.1 else None,
        )


@dataclass
class RouteOperator:
    """Changes bindings, purges subscriptions and forwards dead letters."""

    world: World
    route_plan: RoutePlan
    random: Random
    producer: RouteProducer

    async def run(self) -> None:
        """Do something at random times until the run ends."""
        often = (self.bind, self.bind, self.forward, self.forward)
        doings = (*often, *often, self.list_routes, self.purge, self.rush)
        while not self.world.ending:
            await asyncio.sleep(self.random.expovariate(4))
            await self._try(self.random.choice(doings))

    async def _try(self, doing: Doing) -> None:
        try:
            await doing()
        except LOST:
            return
        except WherryError as fault:
            self.world.note("router", str(fault))

    def _queue(self) -> Subscription:
        return self.random.choice([each for each in self.route_plan.subscriptions if each.topic != FORWARDED_TO])

    async def rush(self) -> None:
        """Publish and purge at the same time, several of each."""
        config = self._queue()
        purges: list[Doing] = [partial(self._purge, config)] * self.random.randint(1, 2)
        publishes: list[Doing] = [self.producer.publish] * self.random.randint(1, 3)
        async with asyncio.TaskGroup() as group:
            for doing in (self.producer.publish, *purges, *publishes):
                group.create_task(self._try(doing))
                await asyncio.sleep(self.random.choice((0, 0.001, 0.005)))

    async def bind(self) -> None:
        """Bind or unbind one of the bindings of a route, whether the route has it or not."""
        number = self.random.randrange(len(self.route_plan.bindings))
        route, binding = self.route_plan.bindings[number]
        bound = Bound("bind" if self.random.random() < 0.6 else "unbind", number, self.world.now())
        self.world.route_history.bound.append(bound)
        with self._asking(bound):
            if bound.kind == "bind":
                await self.world.call(lambda broker: broker.bind(route, binding))
            else:
                await self.world.call(lambda broker: broker.unbind(route, binding))

    async def list_routes(self) -> None:
        """Record which bindings the routes have."""
        start, known = self.world.now(), list(self.route_plan.bindings)

        async def ask(broker: Broker) -> list[Route]:
            return broker.routes()

        routes = await self.world.call(ask)
        found = [(route.name, binding) for route in routes for binding in route.bindings]
        strange = [str(each) for each in found if each not in known]
        if [replace(route, bindings=()) for route in routes] != [
            replace(r, bindings=()) for r in self.route_plan.routes
        ]:
            strange.append(str(routes))
        numbers = sorted(known.index(each) for each in found if each in known)
        self.world.note("routes", numbers)
        self.world.route_history.listed.append(Listed(numbers, strange, start, self.world.now()))

    async def purge(self) -> None:
        """Purge a subscription of its ready messages."""
        await self._purge(self._queue())

    async def _purge(self, config: Subscription) -> None:
        purged = Purged((config.topic, config.name), self.world.now())
        self.world.route_history.purged.append(purged)
        with self._asking(purged):
            purged.count = await self.world.call(lambda broker: broker.purge(config.topic, config.name))
        self.world.note("purged", purged.subscription, purged.count)

    async def forward(self) -> None:
        """List dead letters of one or two subscriptions, then forward some of them to another topic in one step."""
        rows: dict[tuple[str, str, int], list[dict[str, Any]]] = {}
        for _ in range(self.random.choice((1, 1, 2))):
            config = self._queue()
            topic, whose = config.topic, self.random.choice((config.name, config.name, ""))
            wanted = DeadFilter(subscription=whose, limit=self.random.choice((1, 4, 50)))
            found = (await self.world.call(lambda broker: broker.dead_letters(topic, wanted))).to_pylist()  # noqa: B023
            if found:
                partition = found[0]["partition"]
                rows[topic, whose, partition] = [row for row in found if row["partition"] == partition]
        if rows:
            await asyncio.sleep(self.random.choice((0, 0.3, 1)))  # another operator may be quicker
            await self._forward(rows)

    async def _forward(self, rows: dict[tuple[str, str, int], list[dict[str, Any]]]) -> None:
        sources, copies = list[tuple[str, DeadFilter]](), list[Copy]()
        for (topic, whose, partition), found in rows.items():
            offsets = tuple(row["offset"] for row in found)
            sources.append((topic, DeadFilter(subscription=whose, partition=partition, offsets=offsets)))
            copies += [(topic, whose, name_of(row["payload"])) for row in found]
        lasting = self.random.randint(0, len(copies)) if self.random.random() < 0.2 else len(copies)
        forwarded = Forwarded(copies, copies[lasting:], self.world.now())
        messages = [Message(payload="/".join(copy).encode()) for copy in copies]
        parts = ((messages[:lasting], True), (messages[lasting:], False))
        to = [(FORWARDED_TO, part, persistent) for part, persistent in parts if part]
        self.world.route_history.forwarded.append(forwarded)
        with self._asking(forwarded):
            forwarded.count = await self.world.call(lambda broker: broker.forward(sources, to, by="sim"))
        self.world.note("forwarded", copies, forwarded.count)

    @contextmanager
    def _asking(self, doing: Bound | Purged | Forwarded) -> Iterator[None]:
        """Record the result of a call.

        A cancelled call has no end in the history, since the broker may still finish it.
        """
        try:
            yield
        except Exception as fault:
            known = isinstance(fault, WherryError) and not isinstance(fault, LOST)
            doing.end, doing.outcome = self.world.now(), "refused" if known else "unknown"
            raise
        doing.end, doing.outcome = self.world.now(), "ok"
