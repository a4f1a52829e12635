"""Topics, subscriptions, routes and API keys: create, change, delete, list."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec
import numpy as np

from wherry.broker.calls.calls import BrokerCalls
from wherry.broker.commit.shard import T
from wherry.broker.upkeep import backfill
from wherry.core.decide import leasing
from wherry.core.state.assignment import make as make_assignment
from wherry.core.state.catalog import KEY_CHANGEABLE, check_change, check_subscription_change
from wherry.model import check, ops
from wherry.model.catalog.key import Key
from wherry.model.catalog.route import BINDINGS_MAX, Binding, Route
from wherry.model.catalog.subscription import Subscription
from wherry.model.catalog.topic import Topic
from wherry.model.errors import AlreadyExists, InvalidInput, LimitReached, NotFound
from wherry.model.ops import Entry


class CatalogCalls(BrokerCalls):
    """The calls that create, change and delete topics, subscriptions, routes and API keys."""

    async def create_topic(self, topic: Topic | str, /, **fields: object) -> Topic:
        """Create a topic from a `Topic`, or from a name and its fields. Creating the same again is no error.

        Of a topic that exists, the fields given (of a `Topic`: all of them) are changed where they may: bounds and
        retention, and more partitions: from then on a key may go to another one than before. Its order stays.
        """
        given = _built(Topic, topic, fields, name="name")
        given.check_fields()

        def choose(now: leasing.Now) -> tuple[list[Entry], Topic]:
            catalog = self.shard.state.catalog
            number = catalog.topics.get(given.name)
            if number is None:
                wanted, number = given.checked(), catalog.next_number
                catalog.check_room()
            else:
                known = self.shard.state.topics[number].config
                wanted = given if isinstance(topic, Topic) else msgspec.structs.replace(known, **fields)
                if wanted == known:
                    return [], known
                check_change(known, wanted)
                wanted.checked()
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
        self._check_webhook(wanted)

        def choose(now: leasing.Now) -> tuple[list[Entry], Subscription]:
            return self._new_subscription(wanted, now), wanted

        await self._durable(choose)
        state = self.shard.state.subscription(wanted.topic, wanted.name)
        # The broker owns the work: a caller that stops waiting for it must not leave the subscription half filled.
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

    async def change_subscription(self, subscription: Subscription) -> Subscription:
        """Change the lease, retry policy, buffer or webhook of a subscription; its other fields cannot change."""
        if not isinstance(subscription, Subscription):
            raise InvalidInput("subscription", subscription, "a Subscription")
        wanted = subscription.checked()
        self._check_webhook(wanted)

        def choose(now: leasing.Now) -> tuple[list[Entry], Subscription]:
            known = self.shard.state.subscription(wanted.topic, wanted.name)
            if known.config == wanted:
                return [], wanted
            check_subscription_change(known.config, wanted)
            op = ops.ChangeSubscription(known.number, wanted)
            return [Entry(now.wall_us, [op], volatile=not known.config.durable)], wanted

        return await self._durable(choose)

    def _check_webhook(self, subscription: Subscription) -> None:
        if subscription.webhook is not None:
            self.check_url("webhook.url", subscription.webhook.url)

    async def unsubscribe(self, topic: str, name: str) -> None:
        """Delete a subscription; its progress and dead letters go with it."""
        await self.shard.admit_settle(1)
        try:
            subscription = self.shard.state.subscription(topic, name)
        except NotFound:
            await self.stored_so_far()  # a caller that repeats the call relies on this answer
            raise
        position = self.shard.remove_subscription(subscription, "")
        await self.shard.committer.wait(position)

    async def cut_off(self, number: int, why: str) -> None:
        """Remove the subscription of a number, unless it is gone; its consumers get `why` as an error."""
        await self.shard.admit_settle(1)
        subscription = self.shard.state.subscriptions.get(number)
        if subscription is not None:
            await self.shard.committer.wait(self.shard.remove_subscription(subscription, why))

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

    async def bind(self, route: str, binding: Binding) -> None:
        """Add a binding to a route. A binding that the route has already is no error."""
        _check_binding(binding)

        def choose(now: leasing.Now) -> tuple[list[Entry], None]:
            known = self.shard.state.catalog.route(route)
            if binding in known.bindings:
                return [], None
            if len(known.bindings) >= BINDINGS_MAX:
                raise LimitReached("bindings of the route", BINDINGS_MAX, len(known.bindings) + 1)
            return [Entry(now.wall_us, [ops.Bind(route, binding)])], None

        await self._durable(choose)

    async def unbind(self, route: str, binding: Binding) -> None:
        """Remove a binding from a route. A binding that the route does not have is no error."""
        _check_binding(binding)

        def choose(now: leasing.Now) -> tuple[list[Entry], None]:
            known = self.shard.state.catalog.route(route)
            return ([Entry(now.wall_us, [ops.Unbind(route, binding)])] if binding in known.bindings else []), None

        await self._durable(choose)

    async def put_key(self, key: Key) -> Key:
        """Store an API key, or replace the one with its id. `wherry.security.keys.make` makes one, with its secret."""
        if not isinstance(key, Key):
            raise InvalidInput("key", key, "a Key")
        key.checked()

        def choose(now: leasing.Now) -> tuple[list[Entry], Key]:
            catalog = self.shard.state.catalog
            if key.id not in catalog.keys:
                catalog.check_key_room()
            return [Entry(now.wall_us, [ops.PutKey(key)])], key

        return await self._durable(choose)

    async def change_key(self, public_id: str, **changes: object) -> Key:
        """Change `name`, `rights` or `expires_ms` of an API key. A key that was deleted meanwhile stays deleted."""
        for field in changes:
            check.one_of("key field", field, KEY_CHANGEABLE)

        def changed(known: Key) -> Key:
            if known.user is not None and changes.keys() - {"expires_ms"}:
                raise InvalidInput("key", public_id, "a key with a token: users are changed where they were made")
            return msgspec.structs.replace(known, **changes)

        return await self.alter_key(public_id, changed)

    async def alter_key(self, public_id: str, change: Callable[[Key], Key]) -> Key:
        """Replace an API key by what `change` returns for it; no other change can come between read and write.

        `change` must have no effects, since it may be called more than once. Raise `NotFound` for a key that is gone.
        """

        def choose(now: leasing.Now) -> tuple[list[Entry], Key]:
            known = self.shard.state.catalog.key(public_id)
            wanted = change(known).checked()
            return ([] if wanted == known else [Entry(now.wall_us, [ops.PutKey(wanted)])]), wanted

        return await self._durable(choose)

    async def delete_key(self, public_id: str) -> None:
        """Delete an API key by its public id; requests with its token are refused from now on."""

        def choose(now: leasing.Now) -> tuple[list[Entry], None]:
            self.shard.state.catalog.key(public_id)
            return [Entry(now.wall_us, [ops.DeleteKey(public_id)])], None

        await self._durable(choose)


def _check_binding(binding: object) -> None:
    if not isinstance(binding, Binding):
        raise InvalidInput("binding", binding, "a Binding")
    binding.check()


def _built(kind: type[T], given: object, fields: dict[str, object], *, name: str) -> T:
    """Return a `Topic` or `Subscription`: the one given, or one built from a name and keyword fields."""
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
