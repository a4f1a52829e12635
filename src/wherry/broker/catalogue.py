"""Topics, subscriptions and routes: create, change, delete, list."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec
import numpy as np

from wherry.broker import backfill
from wherry.broker.face import Face
from wherry.broker.shard import T
from wherry.core import leasing
from wherry.core.assignment import make as make_assignment
from wherry.core.catalog import check_change
from wherry.model import ops
from wherry.model.errors import AlreadyExists, InvalidInput
from wherry.model.ops import Entry
from wherry.model.route import Route
from wherry.model.subscription import Subscription
from wherry.model.topic import Topic


class Catalogue(Face):
    """The calls that say what there is."""

    async def create_topic(self, topic: Topic | str, /, **fields: object) -> Topic:
        """Create a topic from a `Topic`, or from a name and its fields. Creating the same again is no error.

        A topic that exists may be given other bounds and retention this way; its order and partitions stay.
        """
        wanted = _built(Topic, topic, fields, name="name").checked()

        def choose(now: leasing.Now) -> tuple[list[Entry], Topic]:
            catalog = self.shard.state.catalog
            number = catalog.topics.get(wanted.name)
            if number is None:
                catalog.check_room()
                number = catalog.next_number
            else:
                known = self.shard.state.topics[number].config
                if known == wanted:
                    return [], wanted
                check_change(known, wanted)
            return [Entry(now.wall_us, [ops.PutTopic(number, wanted)])], wanted

        return await self._durable(choose)

    async def delete_topic(self, name: str) -> None:
        """Delete a topic with its messages, subscriptions and dead letters."""

        def choose(now: leasing.Now) -> tuple[list[Entry], None]:
            return [Entry(now.wall_us, [ops.DeleteTopic(self.shard.state.catalog.topic(name))])], None

        await self._durable(choose)

    async def subscribe(
        self, subscription: Subscription | str, name: str | None = None, /, **fields: object
    ) -> Subscription:
        """Create a subscription: `subscribe("jobs", "workers", lease_ms=60_000)`. The same again is no error."""
        if name is not None:
            fields = {"name": name, **fields}
        wanted = _built(Subscription, subscription, fields, name="topic").checked()
        make_assignment(wanted.assignment, 1)

        def choose(now: leasing.Now) -> tuple[list[Entry], Subscription]:
            return self._new_subscription(wanted, now), wanted

        await self._durable(choose)
        state = self.shard.state.subscription(wanted.topic, wanted.name)
        # The broker owns the work: somebody who stops waiting for it must not leave the subscription half filled.
        await asyncio.shield(self.shard.keep(backfill.run(self.shard, state)))
        return wanted

    def _new_subscription(self, wanted: Subscription, now: leasing.Now) -> list[Entry]:
        state = self.shard.state
        topic = state.topic(wanted.topic)
        for known in topic.subscriptions.values():
            if known.config.name == wanted.name:
                if known.config != wanted:
                    raise AlreadyExists(
                        "subscription", f"{wanted.topic}/{wanted.name}", _difference(known.config, wanted)
                    )
                return []
        state.catalog.check_room()
        starts = np.zeros(max(topic.partitions, default=0) + 1, np.int64)
        for number, partition in topic.partitions.items():
            starts[number] = _start(wanted, partition.next_offset, partition.directory.first_published_from)
        if wanted.durable:
            number = state.catalog.next_number
        else:
            state.last_ephemeral -= 1
            number = state.last_ephemeral
        op = ops.PutSubscription(number, topic.number, wanted, starts)
        return [Entry(now.wall_us, [op], volatile=not wanted.durable)]

    async def unsubscribe(self, topic: str, name: str) -> None:
        """Delete a subscription; its progress and dead letters go with it."""
        self.shard.state.subscription(topic, name)
        await self.shard.admit_settle(1)
        subscription = self.shard.state.subscription(topic, name)
        position = self.shard.remove_subscription(subscription, "")
        await self.shard.committer.wait(position)

    async def put_route(self, route: Route) -> Route:
        """Create or change a route."""
        if not isinstance(route, Route):
            raise InvalidInput("route", route, "a Route")
        route.checked()

        def choose(now: leasing.Now) -> tuple[list[Entry], Route]:
            self.shard.state.catalog.check_room()
            return [Entry(now.wall_us, [ops.PutRoute(route)])], route

        return await self._durable(choose)

    async def delete_route(self, name: str) -> None:
        """Delete a route."""

        def choose(now: leasing.Now) -> tuple[list[Entry], None]:
            self.shard.state.catalog.route(name)
            return [Entry(now.wall_us, [ops.DeleteRoute(name)])], None

        await self._durable(choose)

    def topics(self) -> list[Topic]:
        """All topics, by name."""
        return sorted((topic.config for topic in self.shard.state.topics.values()), key=lambda topic: topic.name)

    def routes(self) -> list[Route]:
        """All routes, by name."""
        return sorted(self.shard.state.catalog.routes.values(), key=lambda route: route.name)


def _built(kind: type[T], given: object, fields: dict[str, object], *, name: str) -> T:
    """A `Topic` or `Subscription` from itself, or from a name and keyword fields."""
    if isinstance(given, kind):
        if fields:
            raise InvalidInput(next(iter(fields)), fields, f"no further fields beside a whole {kind.__name__}")
        return given
    try:
        return kind(**{name: given, **fields})
    except TypeError as fault:
        known = ", ".join(kind.__struct_fields__)  # type: ignore[attr-defined]
        raise InvalidInput(f"{kind.__name__} fields", str(fault), f"some of {known}") from None


def _difference(known: msgspec.Struct, wanted: msgspec.Struct) -> str:
    for field in known.__struct_fields__:
        before, after = getattr(known, field), getattr(wanted, field)
        if before != after:
            return f"{field} is {before!r}, not {after!r}"
    return "nothing"


def _start(wanted: Subscription, end: int, first_from: Callable[[int], int | None]) -> int:
    if wanted.start == "earliest":
        return 0
    if wanted.start == "offset":
        return min(wanted.start_offset or 0, end)
    if wanted.start == "time":
        first = first_from((wanted.start_ms or 0) * 1000)
        return end if first is None else first
    return end
