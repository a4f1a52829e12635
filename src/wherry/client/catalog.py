"""The calls of a client about what is set up: topics, subscriptions, routes and API keys."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from wherry.client.requests import Caller, built, path
from wherry.model import check
from wherry.model.calls.stats import TopicStats
from wherry.model.catalog.key import Right, parse_right
from wherry.model.catalog.route import Route
from wherry.model.catalog.subscription import Subscription
from wherry.model.catalog.topic import Topic
from wherry.model.errors import InvalidInput
from wherry.model.limits import TOPIC_NAME_BYTES_MAX


class CatalogCalls:
    """The part of `Client` that creates, changes, lists and deletes."""

    _caller: Caller

    async def create_topic(self, topic: Topic | str, /, **fields: Any) -> Topic:
        """Create a topic from a `Topic`, or from a name and its fields; the same again is no error.

        Of a topic that exists, the fields given (of a `Topic`: all of them) are changed where they may.
        """
        if isinstance(topic, Topic):
            fields = msgspec.structs.asdict(topic.checked())
            topic = fields.pop("name")
        name = check.name("topic", topic, TOPIC_NAME_BYTES_MAX)
        return (await self._caller.json("PUT", path("topics", name), _TopicView, fields)).config

    async def change_topic(self, topic: str, /, **fields: Any) -> Topic:
        """Change bounds and retention of a topic, or give it more partitions: `change_topic("jobs", partitions=4)`."""
        return (await self._caller.json("PATCH", path("topics", topic), _TopicView, fields)).config

    async def delete_topic(self, topic: str) -> None:
        """Delete a topic with its messages, subscriptions and dead letters."""
        await self._caller.send_json("DELETE", path("topics", topic))

    async def topics(self) -> list[Topic]:
        """Return all topics, by name."""
        return [view.config for view in (await self._caller.json("GET", path("topics"), _Topics)).topics]

    async def topic(self, topic: str) -> Topic:
        """Return the settings of a topic."""
        return (await self._caller.json("GET", path("topics", topic), _TopicView)).config

    async def stats(self, topic: str) -> TopicStats:
        """Return how many messages a topic has, and how far behind each subscription is."""
        return (await self._caller.json("GET", path("topics", topic), _TopicView)).stats

    async def subscribe(
        self, subscription: Subscription | str, name: str | None = None, /, **fields: Any
    ) -> Subscription:
        """Create a subscription: `subscribe("jobs", "workers", lease_ms=60_000)`. The same again is no error."""
        wanted = subscription
        if not isinstance(wanted, Subscription):
            wanted = built(Subscription, topic=subscription, name=name, **fields)
        target = path("topics", wanted.topic, "subscriptions", wanted.name)
        return (await self._caller.json("PUT", target, _SubscriptionView, _without(wanted, "topic", "name"))).config

    async def subscription(self, topic: str, subscription: str) -> Subscription:
        """Return the settings of a subscription."""
        target = path("topics", topic, "subscriptions", subscription)
        return (await self._caller.json("GET", target, _SubscriptionView)).config

    async def change_subscription(self, topic: str, subscription: str, /, **fields: Any) -> Subscription:
        """Change lease, retry, buffers or webhook: `change_subscription("jobs", "workers", lease_ms=60_000)`."""
        target = path("topics", topic, "subscriptions", subscription)
        return (await self._caller.json("PATCH", target, _SubscriptionView, fields)).config

    async def unsubscribe(self, topic: str, subscription: str) -> None:
        """Delete a subscription; its progress and dead letters are deleted too."""
        await self._caller.send_json("DELETE", path("topics", topic, "subscriptions", subscription))

    async def put_route(self, route: Route) -> Route:
        """Create or change a route."""
        if not isinstance(route, Route):
            raise InvalidInput("route", route, "a Route")
        body = {"kind": route.kind, "bindings": route.bindings}
        return await self._caller.json("PUT", path("routes", route.name), Route, body)

    async def delete_route(self, route: str) -> None:
        """Delete a route."""
        await self._caller.send_json("DELETE", path("routes", route))

    async def routes(self) -> list[Route]:
        """Return all routes, by name."""
        return (await self._caller.json("GET", path("routes"), _Routes)).routes

    async def make_key(self, name: str, rights: Iterable[Right | str], *, expires_ms: int | None = None) -> ApiKey:
        """Make an API key: `make_key("ann", ["publish:orders.*", "consume:jobs"])`. Its token is returned this once."""
        body = {"name": name, "rights": _rights(rights), "expires_ms": expires_ms}
        return await self._caller.json("POST", path("keys"), ApiKey, body)

    async def keys(self) -> list[ApiKey]:
        """Return all keys, without their secrets."""
        return (await self._caller.json("GET", path("keys"), _Keys)).keys

    async def change_key(self, key_id: str, /, **fields: Any) -> ApiKey:
        """Change `name`, `rights` or `expires_ms` of a key; its token stays."""
        if "rights" in fields:
            fields["rights"] = _rights(fields["rights"])
        return await self._caller.json("PATCH", path("keys", key_id), ApiKey, fields)

    async def delete_key(self, key_id: str) -> None:
        """Delete a key: it is refused from now on."""
        await self._caller.send_json("DELETE", path("keys", key_id))


class ApiKey(msgspec.Struct, frozen=True):
    """An API key, without its secret. `token` is what requests carry: returned once, when the key is made.

    `made_by` is the name of the caller that made it; empty where no key was asked for.
    """

    id: str
    name: str
    rights: tuple[Right, ...]
    created_ms: int
    expires_ms: int | None
    token: str | None = None
    made_by: str = ""

    def __repr__(self) -> str:
        return f"ApiKey({self.id!r}, {self.name!r}, {self.rights!r})"


class _Keys(msgspec.Struct):
    keys: list[ApiKey]


class _TopicView(msgspec.Struct):
    config: Topic
    stats: TopicStats


class _Topics(msgspec.Struct):
    topics: list[_TopicView]


class _SubscriptionView(msgspec.Struct):
    config: Subscription


class _Routes(msgspec.Struct):
    routes: list[Route]


def _rights(given: Iterable[Right | str]) -> list[Right]:
    if isinstance(given, str):
        raise InvalidInput("rights", given, "a list of rights")
    return [parse_right(right) if isinstance(right, str) else right for right in given]


def _without(struct: Subscription, *names: str) -> dict[str, Any]:
    """Return the fields of a struct for a body, without those that are in the path."""
    return {name: value for name, value in msgspec.to_builtins(struct.checked()).items() if name not in names}
