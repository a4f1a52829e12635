"""What there is: topics, subscriptions, routes, API keys and stages, as values. Nothing here changes anything."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice

from wherry.broker.calls.calls import BrokerCalls
from wherry.broker.commit.forwarding import ExpiryForwarder
from wherry.core.state.catalog import Catalog
from wherry.core.state.state import SubscriptionState
from wherry.model.calls.dead import CopyCall
from wherry.model.catalog.key import Key, Verb
from wherry.model.catalog.route import Route
from wherry.model.catalog.subscription import Subscription
from wherry.model.catalog.topic import Topic


class InventoryCalls(BrokerCalls):
    """The calls that return what there is."""

    @property
    def catalog(self) -> Catalog:
        """Return the names of topics and routes as they are at any time: for callers that route each message."""
        return self.shard.state.catalog

    # -------------------------------------------------------------------------------------------------------- topics

    def topics(self) -> list[Topic]:
        """Return all topics, by name."""
        return sorted((topic.config for topic in self.shard.state.topics.values()), key=lambda topic: topic.name)

    def topic(self, name: str) -> Topic:
        """Return a topic as it is set up, or raise `NotFound`."""
        return self.shard.state.topic(name).config

    def find_topic(self, name: str) -> Topic | None:
        """Return a topic as it is set up, None where there is none of this name."""
        state = self.shard.state
        number = state.catalog.topics.get(name)
        return None if number is None else state.topics[number].config

    def has_topic(self, name: str) -> bool:
        """Return whether there is a topic of this name."""
        return name in self.shard.state.catalog.topics

    def topic_number(self, name: str) -> int:
        """Return the number of a topic, or raise `NotFound`. One that is made again gets another number."""
        return self.shard.state.catalog.topic(name)

    def first_topics(self, count: int) -> list[str]:
        """Return the names of so many topics, those that were made first."""
        return [topic.config.name for topic in islice(self.shard.state.topics.values(), count)]

    def topics_with_dead_letters(self) -> list[str]:
        """Return the names of topics that have dead letters."""
        return [topic.config.name for topic in self.shard.state.topics.values() if topic.dead]

    def watch_dead_letters(self, call: Callable[[str], None] | None) -> None:
        """Call a function with the name of each topic that gets new dead letters; None ends it.

        The function is called in the middle of a step, so it may only note the name.
        """
        self.shard.on_bury = call

    def forward_expired(self, call: CopyCall | None, *, by: str = "") -> None:
        """Ask a function for the copies of messages that expire, to publish them in the same step; None ends it.

        `by` is the name that the audit shows. Messages for which the function returns None become dead letters. It is
        called in the middle of a step, so it may only read.
        """
        self.shard.forwarder = None if call is None else ExpiryForwarder(self.shard, call, by)

    # ------------------------------------------------------------------------------------------------- subscriptions

    def subscriptions(self, topic: str) -> list[Subscription]:
        """Return the subscriptions of a topic, by name."""
        known = self.shard.state.topic(topic).subscriptions.values()
        return sorted((each.config for each in known), key=lambda each: each.name)

    def subscription(self, topic: str, name: str) -> Subscription:
        """Return a subscription as it is set up, or raise `NotFound`."""
        return self.shard.state.subscription(topic, name).config

    def has_subscription(self, topic: str, name: str) -> bool:
        """Return whether a topic, which must exist, has a subscription of this name."""
        return any(each.config.name == name for each in self.shard.state.topic(topic).subscriptions.values())

    def numbered_subscription(self, number: int) -> Subscription | None:
        """Return the subscription of a number, which no later one of its name has; None once it is gone."""
        known = self.shard.state.subscriptions.get(number)
        return None if known is None else known.config

    def pushed_subscriptions(self) -> list[int]:
        """Return the numbers of subscriptions that have a webhook."""
        return [number for number, each in self.shard.state.subscriptions.items() if _is_pushed(each)]

    def watch_webhooks(self, call: Callable[[int], None] | None) -> None:
        """Call a function with the number of each subscription whose webhook comes or changes; None ends it.

        The function is called in the middle of a step, so it may only note the number.
        """
        self.shard.on_push = call

    # --------------------------------------------------------------------------------------- routes, keys and stages

    def routes(self) -> list[Route]:
        """Return all routes, by name."""
        return sorted(self.shard.state.catalog.routes.values(), key=lambda route: route.name)

    def route(self, name: str) -> Route:
        """Return a route, or raise `NotFound`."""
        return self.shard.state.catalog.route(name)

    def keys(self) -> list[Key]:
        """Return all API keys, by name."""
        return sorted(self.shard.state.catalog.keys.values(), key=lambda key: (key.name, key.id))

    def key(self, public_id: str) -> Key | None:
        """Return the API key with this public id, if there is one."""
        return self.shard.state.catalog.keys.get(public_id)

    def user(self, name: str) -> Key | None:
        """Return the API key that is the user of this name, if there is one."""
        catalog = self.shard.state.catalog
        return catalog.keys.get(catalog.users.get(name, ""))

    def is_committed(self, key: str) -> bool:
        """Return whether the stage of a key was committed, as far as that is remembered."""
        return key in self.shard.state.stages.committed

    def rights_to_end(self, *keys: str) -> list[tuple[Verb, str]]:
        """Return the rights that a caller needs to commit or abort the stages of these keys, each with its topic.

        They are the rights that were needed to stage what is, or was, under the keys.
        """
        state = self.shard.state
        found: dict[tuple[Verb, str], None] = {}
        for key in keys:
            stage, done = state.stages.open.get(key), state.stages.committed.get(key)
            numbers = [part.topic for part in stage.parts] if stage is not None else []
            numbers += done.reshape(-1, 4)[:, 0].tolist() if done is not None else []
            for number in numbers:
                if number in state.topics:
                    found["publish", state.topics[number].config.name] = None
            for settle in stage.settles if stage is not None else ():
                lease = state.leases.get(settle.token)
                if lease is not None:
                    found["consume", state.subscriptions[lease.subscription].config.topic] = None
        return list(found)


def _is_pushed(subscription: SubscriptionState) -> bool:
    return subscription.config.webhook is not None
