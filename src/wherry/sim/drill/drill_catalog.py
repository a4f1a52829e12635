"""Steps of the drill that change the catalog: topics, subscriptions, routes, keys."""

from __future__ import annotations

from wherry.model.catalog.key import Key, Right
from wherry.model.catalog.route import Binding, Route
from wherry.model.catalog.subscription import Subscription
from wherry.model.errors import NotFound
from wherry.sim.drill.drill import SUBSCRIPTION, Drill, Step


async def create_topic(one: Drill) -> None:
    """Create a topic."""
    await one.ask(lambda broker: broker.create_topic("another"))
    await one.cut()
    one.expect("another" in await _topics(one), "a topic that was made is gone")


async def create_again(one: Drill) -> None:
    """Create a topic that another client has just created."""
    await one.begin(lambda broker: broker.create_topic("theirs"))
    await one.ask(lambda broker: broker.create_topic("theirs"))
    await one.cut()
    one.expect("theirs" in await _topics(one), "a topic that was made is gone")


async def delete_topic(one: Drill) -> None:
    """Delete a topic."""
    await one.ask(lambda broker: broker.delete_topic(one.topic))
    await one.cut()
    one.expect(one.topic not in await _topics(one), "a topic that was deleted is there")


async def subscribe(one: Drill) -> None:
    """Subscribe."""
    await one.ask(lambda broker: broker.subscribe(one.topic, "others"))
    await one.cut()
    one.expect("others" in await _subscriptions(one), "a subscription that was made is gone")


async def subscribe_late(one: Drill) -> None:
    """Subscribe to an ordered topic that has messages: they must be in order by the time of the answer."""
    await one.ask(lambda broker: broker.create_topic(f"{one.topic}-ordered", order="priority"))
    await one.ask(lambda broker: broker.subscribe(f"{one.topic}-ordered", SUBSCRIPTION))
    await one.ask(lambda broker: broker.publish(f"{one.topic}-ordered", [b"it"]))
    await one.ask(lambda broker: broker.subscribe(f"{one.topic}-ordered", "others", start="earliest"))
    await one.cut()
    one.topic = f"{one.topic}-ordered"
    one.expect(await one.payloads("others") == [b"it"], "a subscription was made, and has not what was there before it")


async def change_subscription(one: Drill) -> None:
    """Change the lease of a subscription."""
    wanted = Subscription(topic=one.topic, name="others", lease_ms=9_000)
    await one.ask(lambda broker: broker.subscribe(one.topic, "others"))
    await one.ask(lambda broker: broker.change_subscription(wanted))
    await one.cut()
    assert one.world.broker is not None
    config = one.world.broker.shard.state.subscription(one.topic, "others").config
    one.expect(config.lease_ms == 9_000, "a subscription that was changed is as it was")


async def unsubscribe(one: Drill) -> None:
    """Unsubscribe."""
    await one.ask(lambda broker: broker.unsubscribe(one.topic, SUBSCRIPTION))
    await one.cut()
    one.expect(SUBSCRIPTION not in await _subscriptions(one), "a subscription that was deleted is there")


async def cut_off(one: Drill) -> None:
    """Cut off a subscription."""
    await one.ask(
        lambda broker: broker.cut_off(
            broker.shard.state.subscription(one.topic, SUBSCRIPTION).number, "it is the problem"
        )
    )
    await one.cut()
    one.expect(SUBSCRIPTION not in await _subscriptions(one), "a subscription that was cut off is there")


async def put_route(one: Drill) -> None:
    """Put a route."""
    await one.ask(lambda broker: broker.put_route(route_of(one)))
    await one.cut()
    one.expect(await _kept_route(one) == route_of(one), "a route that was made is gone")


async def delete_route(one: Drill) -> None:
    """Delete a route."""
    await one.ask(lambda broker: broker.put_route(route_of(one)))
    await one.ask(lambda broker: broker.delete_route(one.topic))
    await one.cut()
    one.expect(await _kept_route(one) is None, "a route that was deleted is there")


async def bind(one: Drill) -> None:
    """Bind."""
    await one.ask(lambda broker: broker.put_route(Route(name=one.topic, kind="fanout")))
    await one.ask(lambda broker: broker.bind(one.topic, Binding(topic=one.topic)))
    await one.cut()
    one.expect(await _kept_route(one) == route_of(one), "a binding that was made is gone")


async def unbind(one: Drill) -> None:
    """Unbind what another client unbinds at the same time."""
    await one.ask(lambda broker: broker.put_route(route_of(one)))
    await one.begin(lambda broker: broker.unbind(one.topic, Binding(topic=one.topic)))
    await one.ask(lambda broker: broker.unbind(one.topic, Binding(topic=one.topic)))
    await one.cut()
    one.expect(await _kept_route(one) != route_of(one), "a binding that was taken away is there")


async def put_key(one: Drill) -> None:
    """Put an API key."""
    await one.ask(lambda broker: broker.put_key(_key("key00001")))
    await one.cut()
    one.expect("key00001" in await _keys(one), "a key that was made is gone")


async def change_key(one: Drill) -> None:
    """Change the name of an API key."""
    await one.ask(lambda broker: broker.put_key(_key("key00002")))
    await one.ask(lambda broker: broker.change_key("key00002", name="another"))
    await one.cut()
    one.expect((await _keys(one)).get("key00002") == "another", "a key that was changed is as it was")


async def delete_key(one: Drill) -> None:
    """Delete an API key."""
    await one.ask(lambda broker: broker.put_key(_key("key00003")))
    await one.ask(lambda broker: broker.delete_key("key00003"))
    await one.cut()
    one.expect("key00003" not in await _keys(one), "a key that was deleted is there")


async def delete_topic_again(one: Drill) -> None:
    """Delete a topic that another client has just deleted: the answer is that there is no such topic."""
    await one.begin(lambda broker: broker.delete_topic(one.topic))
    await one.refused(lambda broker: broker.delete_topic(one.topic), NotFound, "it was deleted twice")
    await one.cut()
    one.expect(one.topic not in await _topics(one), "a topic was reported as gone, and is there")


async def unsubscribe_again(one: Drill) -> None:
    """Delete a subscription that another client has just deleted: the answer is that there is no such subscription."""
    await one.begin(lambda broker: broker.unsubscribe(one.topic, SUBSCRIPTION))
    await one.refused(lambda broker: broker.unsubscribe(one.topic, SUBSCRIPTION), NotFound, "it was deleted twice")
    await one.cut()
    one.expect(SUBSCRIPTION not in await _subscriptions(one), "a subscription was reported as gone, and is there")


async def delete_key_again(one: Drill) -> None:
    """Delete a key that another client has just deleted: the answer is that there is no such key."""
    await one.ask(lambda broker: broker.put_key(_key("key00004")))
    await one.begin(lambda broker: broker.delete_key("key00004"))
    await one.refused(lambda broker: broker.delete_key("key00004"), NotFound, "it was deleted twice")
    await one.cut()
    one.expect("key00004" not in await _keys(one), "a key was reported as gone, and is there")


def route_of(one: Drill) -> Route:
    """Return the route of a step, to its topic."""
    return Route(name=one.topic, kind="fanout", bindings=(Binding(topic=one.topic),))


async def _kept_route(one: Drill) -> Route | None:
    assert one.world.broker is not None
    return {route.name: route for route in one.world.broker.routes()}.get(one.topic)


async def _topics(one: Drill) -> list[str]:
    assert one.world.broker is not None
    return [topic.name for topic in one.world.broker.topics()]


async def _subscriptions(one: Drill) -> list[str]:
    assert one.world.broker is not None
    return [each.name for each in one.world.broker.stats(one.topic).subscriptions]


async def _keys(one: Drill) -> dict[str, str]:
    assert one.world.broker is not None
    listed = one.world.broker.keys()
    return {key.id: key.name for key in listed}


def _key(public_id: str) -> Key:
    return Key(id=public_id, digest=bytes(32), name="sim", rights=(Right("admin", "*"),), created_ms=1)


CATALOG: dict[str, Step] = {
    "create topic": create_topic,
    "create again": create_again,
    "delete topic": delete_topic,
    "subscribe": subscribe,
    "subscribe late": subscribe_late,
    "change subscription": change_subscription,
    "unsubscribe": unsubscribe,
    "cut off": cut_off,
    "put route": put_route,
    "delete route": delete_route,
    "bind": bind,
    "unbind": unbind,
    "put key": put_key,
    "change key": change_key,
    "delete key": delete_key,
    "delete topic again": delete_topic_again,
    "unsubscribe again": unsubscribe_again,
    "delete key again": delete_key_again,
}
