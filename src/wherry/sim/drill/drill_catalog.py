"""Steps of the drill in which the catalog was changed: topics, subscriptions, routes, keys."""

from __future__ import annotations

from wherry.model.catalog.key import Key, Right
from wherry.model.catalog.route import Binding, Route
from wherry.model.catalog.subscription import Subscription
from wherry.model.errors import NotFound
from wherry.sim.drill.drill import SUBSCRIPTION, Drill, Step


async def create_topic(one: Drill) -> None:
    """A new topic."""
    await one.ask(lambda broker: broker.create_topic("another"))
    await one.cut()
    one.expect("another" in await _topics(one), "a topic that was made is gone")


async def create_again(one: Drill) -> None:
    """A topic that somebody else has just made."""
    await one.begin(lambda broker: broker.create_topic("theirs"))
    await one.ask(lambda broker: broker.create_topic("theirs"))
    await one.cut()
    one.expect("theirs" in await _topics(one), "a topic that was made is gone")


async def delete_topic(one: Drill) -> None:
    """A topic goes."""
    await one.ask(lambda broker: broker.delete_topic(one.topic))
    await one.cut()
    one.expect(one.topic not in await _topics(one), "a topic that was deleted is there")


async def subscribe(one: Drill) -> None:
    """A new subscription."""
    await one.ask(lambda broker: broker.subscribe(one.topic, "others"))
    await one.cut()
    one.expect("others" in await _subscriptions(one), "a subscription that was made is gone")


async def subscribe_late(one: Drill) -> None:
    """A new subscription in an ordered topic: what was there before it is in its order, before it is answered."""
    await one.ask(lambda broker: broker.create_topic(f"{one.topic}-ordered", order="priority"))
    await one.ask(lambda broker: broker.subscribe(f"{one.topic}-ordered", SUBSCRIPTION))
    await one.ask(lambda broker: broker.publish(f"{one.topic}-ordered", [b"it"]))
    await one.ask(lambda broker: broker.subscribe(f"{one.topic}-ordered", "others", start="earliest"))
    await one.cut()
    one.topic = f"{one.topic}-ordered"
    one.expect(await one.payloads("others") == [b"it"], "a subscription was made, and has not what was there before it")


async def change_subscription(one: Drill) -> None:
    """A subscription gets another lease."""
    wanted = Subscription(topic=one.topic, name="others", lease_ms=9_000)
    await one.ask(lambda broker: broker.subscribe(one.topic, "others"))
    await one.ask(lambda broker: broker.change_subscription(wanted))
    await one.cut()
    assert one.world.broker is not None
    config = one.world.broker.shard.state.subscription(one.topic, "others").config
    one.expect(config.lease_ms == 9_000, "a subscription that was changed is as it was")


async def unsubscribe(one: Drill) -> None:
    """A subscription goes."""
    await one.ask(lambda broker: broker.unsubscribe(one.topic, SUBSCRIPTION))
    await one.cut()
    one.expect(SUBSCRIPTION not in await _subscriptions(one), "a subscription that was deleted is there")


async def cut_off(one: Drill) -> None:
    """A subscription is removed because it is the problem."""
    await one.ask(
        lambda broker: broker.cut_off(
            broker.shard.state.subscription(one.topic, SUBSCRIPTION).number, "it is the problem"
        )
    )
    await one.cut()
    one.expect(SUBSCRIPTION not in await _subscriptions(one), "a subscription that was cut off is there")


async def put_route(one: Drill) -> None:
    """A new route."""
    await one.ask(lambda broker: broker.put_route(route_of(one)))
    await one.cut()
    one.expect(await _kept_route(one) == route_of(one), "a route that was made is gone")


async def delete_route(one: Drill) -> None:
    """A route goes."""
    await one.ask(lambda broker: broker.put_route(route_of(one)))
    await one.ask(lambda broker: broker.delete_route(one.topic))
    await one.cut()
    one.expect(await _kept_route(one) is None, "a route that was deleted is there")


async def bind(one: Drill) -> None:
    """One binding more."""
    await one.ask(lambda broker: broker.put_route(Route(name=one.topic, kind="fanout")))
    await one.ask(lambda broker: broker.bind(one.topic, Binding(topic=one.topic)))
    await one.cut()
    one.expect(await _kept_route(one) == route_of(one), "a binding that was made is gone")


async def unbind(one: Drill) -> None:
    """One binding less, which somebody else takes away in the same moment."""
    await one.ask(lambda broker: broker.put_route(route_of(one)))
    await one.begin(lambda broker: broker.unbind(one.topic, Binding(topic=one.topic)))
    await one.ask(lambda broker: broker.unbind(one.topic, Binding(topic=one.topic)))
    await one.cut()
    one.expect(await _kept_route(one) != route_of(one), "a binding that was taken away is there")


async def put_key(one: Drill) -> None:
    """A new API key."""
    await one.ask(lambda broker: broker.put_key(_key("key00001")))
    await one.cut()
    one.expect("key00001" in await _keys(one), "a key that was made is gone")


async def change_key(one: Drill) -> None:
    """An API key gets another name."""
    await one.ask(lambda broker: broker.put_key(_key("key00002")))
    await one.ask(lambda broker: broker.change_key("key00002", name="another"))
    await one.cut()
    one.expect((await _keys(one)).get("key00002") == "another", "a key that was changed is as it was")


async def delete_key(one: Drill) -> None:
    """An API key opens nothing any more."""
    await one.ask(lambda broker: broker.put_key(_key("key00003")))
    await one.ask(lambda broker: broker.delete_key("key00003"))
    await one.cut()
    one.expect("key00003" not in await _keys(one), "a key that was deleted is there")


async def delete_topic_again(one: Drill) -> None:
    """A repeat of a deletion is told that there is no such topic."""
    await one.begin(lambda broker: broker.delete_topic(one.topic))
    await one.refused(lambda broker: broker.delete_topic(one.topic), NotFound, "it was deleted twice")
    await one.cut()
    one.expect(one.topic not in await _topics(one), "a topic was said to be gone, and is there")


async def unsubscribe_again(one: Drill) -> None:
    """A repeat of a deletion is told that there is no such subscription."""
    await one.begin(lambda broker: broker.unsubscribe(one.topic, SUBSCRIPTION))
    await one.refused(lambda broker: broker.unsubscribe(one.topic, SUBSCRIPTION), NotFound, "it was deleted twice")
    await one.cut()
    one.expect(SUBSCRIPTION not in await _subscriptions(one), "a subscription was said to be gone, and is there")


async def delete_key_again(one: Drill) -> None:
    """A repeat of a deletion is told that there is no such key: so it opens nothing."""
    await one.ask(lambda broker: broker.put_key(_key("key00004")))
    await one.begin(lambda broker: broker.delete_key("key00004"))
    await one.refused(lambda broker: broker.delete_key("key00004"), NotFound, "it was deleted twice")
    await one.cut()
    one.expect("key00004" not in await _keys(one), "a key was said to be gone, and is there")


def route_of(one: Drill) -> Route:
    """The route of a step, to its topic."""
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
