"""The catalog: names and numbers of topics and subscriptions, routes, API keys.

Operations refer to topics and subscriptions by number. A number is never used again, so an operation cannot reach a
topic or subscription of the same name that was created later.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from wherry.model.catalog.key import Key
from wherry.model.catalog.route import Binding, Route
from wherry.model.catalog.subscription import Subscription
from wherry.model.catalog.topic import Topic
from wherry.model.errors import AlreadyExists, InvalidInput, LimitReached, NotFound

TOPICS_MAX = 1_000_000
SUBSCRIPTIONS_MAX = 1_000_000
ROUTES_MAX = 100_000
KEYS_MAX = 10_000

CHANGEABLE = frozenset(
    {"messages_max", "bytes_max", "overflow", "dead_messages_max", "keep_ms", "keep_bytes", "payload_bytes_max"}
    | {"expired", "labels", "counted"}
)
"""Fields of a topic that may change after its creation. Partitions may be added, but not removed."""

SUBSCRIPTION_CHANGEABLE = frozenset({"lease_ms", "retry", "buffer_messages", "buffer_bytes", "webhook"})
"""Fields of a subscription that may change after its creation; not where it started and how it assigns partitions."""

KEY_CHANGEABLE = ("name", "rights", "expires_ms")
"""Fields of an API key that may change. A key with another secret is another key."""


class Catalog:
    """Topics, subscriptions, routes and keys, by name and by number."""

    __slots__ = (
        "_leading_to",
        "_names_of",
        "changes",
        "keys",
        "next_number",
        "routes",
        "subscriptions",
        "topics",
        "users",
    )

    def __init__(self) -> None:
        self.topics: dict[str, int] = {}
        self.subscriptions: dict[tuple[int, str], int] = {}
        self.routes: dict[str, Route] = {}
        self.keys: dict[str, Key] = {}
        self.users: dict[str, str] = {}
        """Public ids of the keys that are users, by name. Derived from `keys`."""
        self.next_number = 1
        self.changes = 0
        """Grows with every change of topics and routes, so that a cache derived from them can see that it is old."""
        self._names_of: dict[int, dict[str, None]] = {}
        """Names of the subscriptions of a topic, by its number. Derived from `subscriptions`."""
        self._leading_to: dict[str | None, set[str]] = {}
        """Routes that have a binding to a topic, by its name; None for bindings to other routes. No set is empty."""

    def topic(self, name: str) -> int:
        """Return the number of a topic, or raise `NotFound`."""
        number = self.topics.get(name) if isinstance(name, str) else None
        if number is None:
            raise NotFound("topic", name)
        return number

    def found_topics(self, names: Iterable[str]) -> list[int]:
        """Return the numbers of those topics that exist."""
        return [self.topics[name] for name in names if isinstance(name, str) and name in self.topics]

    def subscription(self, topic: str, name: str) -> int:
        """Return the number of a subscription, or raise `NotFound`."""
        number = self.subscriptions.get((self.topic(topic), name))
        if number is None:
            raise NotFound("subscription", f"{topic}/{name}")
        return number

    def route(self, name: str) -> Route:
        """Return a route, or raise `NotFound`."""
        route = self.routes.get(name) if isinstance(name, str) else None
        if route is None:
            raise NotFound("route", name)
        return route

    def key(self, public_id: str) -> Key:
        """Return an API key, or raise `NotFound`."""
        key = self.keys.get(public_id) if isinstance(public_id, str) else None
        if key is None:
            raise NotFound("key", public_id)
        return key

    def put_key(self, key: Key) -> None:
        """Add or replace an API key."""
        self._forget_user(key.id)
        self.keys[key.id] = key
        if key.user is not None:
            self.users[key.name] = key.id

    def delete_key(self, public_id: str) -> None:
        """Delete an API key."""
        self._forget_user(public_id)
        del self.keys[public_id]

    def _forget_user(self, public_id: str) -> None:
        known = self.keys.get(public_id)
        if known is not None and self.users.get(known.name) == public_id:
            del self.users[known.name]

    def put_topic(self, number: int, topic: Topic) -> None:
        """Add or replace a topic."""
        self.topics[topic.name] = number
        self.changes += 1
        self._count_past(number)

    def put_subscription(self, number: int, topic: int, subscription: Subscription) -> None:
        """Add a durable subscription."""
        self.subscriptions[topic, subscription.name] = number
        self._names_of.setdefault(topic, {})[subscription.name] = None
        self._count_past(number)

    def delete_topic(self, number: int, name: str) -> None:
        """Delete a topic with its subscriptions and the bindings to it."""
        del self.topics[name]
        self.changes += 1
        for subscription in self._names_of.pop(number, ()):
            del self.subscriptions[number, subscription]
        for route in self._leading_to.pop(name, ()):
            known = self.routes.get(route)
            if known is not None:
                left = tuple(binding for binding in known.bindings if binding.topic != name)
                self.routes[route] = msgspec.structs.replace(known, bindings=left)

    def delete_subscription(self, topic: int, name: str) -> None:
        """Delete a subscription."""
        del self.subscriptions[topic, name]
        del self._names_of[topic][name]
        if not self._names_of[topic]:
            del self._names_of[topic]

    def put_route(self, route: Route) -> None:
        """Add or replace a route."""
        self._forget_bindings(route.name)
        self.routes[route.name] = route
        self.changes += 1
        for binding in route.bindings:
            self._leading_to.setdefault(binding.topic, set()).add(route.name)

    def delete_route(self, name: str) -> None:
        """Delete a route."""
        self._forget_bindings(name)
        del self.routes[name]
        self.changes += 1

    def bind(self, name: str, binding: Binding) -> None:
        """Add a binding to a route."""
        route = self.routes[name]
        self.routes[name] = msgspec.structs.replace(route, bindings=(*route.bindings, binding))
        self._leading_to.setdefault(binding.topic, set()).add(name)
        self.changes += 1

    def unbind(self, name: str, binding: Binding) -> None:
        """Remove a binding from a route."""
        route = self.routes[name]
        left = tuple(each for each in route.bindings if each != binding)
        self.routes[name] = msgspec.structs.replace(route, bindings=left)
        self.changes += 1
        if all(each.topic != binding.topic for each in left):
            self._leads_no_more(name, binding.topic)

    def leading_to(self, topic: str | None) -> list[str]:
        """Return the routes that have a binding to a topic, sorted by name; None for bindings to other routes."""
        return sorted(self._leading_to.get(topic, ()))

    def _forget_bindings(self, name: str) -> None:
        for binding in self.routes[name].bindings if name in self.routes else ():
            self._leads_no_more(name, binding.topic)

    def _leads_no_more(self, route: str, topic: str | None) -> None:
        leading = self._leading_to.get(topic)
        if leading is not None:
            leading.discard(route)
            if not leading:
                del self._leading_to[topic]

    def check_room(self) -> None:
        """Raise `LimitReached` when there are too many topics, subscriptions or routes already."""
        for what, held, limit in (
            ("topics", len(self.topics), TOPICS_MAX),
            ("subscriptions", len(self.subscriptions), SUBSCRIPTIONS_MAX),
            ("routes", len(self.routes), ROUTES_MAX),
        ):
            if held >= limit:
                raise LimitReached(what, limit, held + 1)

    def check_key_room(self) -> None:
        """Raise `LimitReached` when there are too many API keys already. They do not count as names."""
        if len(self.keys) >= KEYS_MAX:
            raise LimitReached("keys", KEYS_MAX, len(self.keys) + 1)

    def _count_past(self, number: int) -> None:
        self.next_number = max(self.next_number, number + 1)


def check_change(old: Topic, new: Topic) -> None:
    """Raise `AlreadyExists` unless `new` differs from `old` only in fields that may change."""
    if old.flows and new.partitions != old.partitions:
        allowed = f"{old.partitions}, as it was made: in a topic with mesh='flow' a peer would lose what is under way"
        raise InvalidInput("partitions", new.partitions, allowed)
    more = {"partitions"} if new.partitions > old.partitions else set()
    _check_change("topic", old.name, old, new, CHANGEABLE | more)


def check_subscription_change(old: Subscription, new: Subscription) -> None:
    """Raise `AlreadyExists` unless `new` differs from `old` only in fields that may change."""
    _check_change("subscription", f"{old.topic}/{old.name}", old, new, SUBSCRIPTION_CHANGEABLE)


def _check_change(kind: str, name: str, old: msgspec.Struct, new: msgspec.Struct, changeable: frozenset[str]) -> None:
    for field in old.__struct_fields__:
        before, after = getattr(old, field), getattr(new, field)
        if before != after and field not in changeable:
            raise AlreadyExists(kind, name, f"{field} is {before!r} and cannot become {after!r}")
