"""The client against each of its brokers: topics, subscriptions, routes, keys, and what is wrong with a call."""

from __future__ import annotations

from typing import Any

import pytest

import wherry
from tests.integration.worlds import AT_ONCE, on_each
from wherry.client.link.transport import ClientRequest
from wherry.client.requests import Caller, parsed


@on_each
@pytest.mark.rows("A18")
async def test_a_topic_is_changed_in_the_fields_given_and_no_other(world):
    await world.client.create_topic("jobs", keep="age", keep_ms=60_000, messages_max=10)
    changed = await world.client.create_topic("jobs", messages_max=20)
    assert (changed.messages_max, changed.keep, changed.keep_ms) == (20, "age", 60_000)
    changed = await world.client.create_topic("jobs", messages_max=None)  # though this is the default
    assert (changed.messages_max, changed.keep, changed.keep_ms) == (None, "age", 60_000)
    changed = await world.client.change_topic("jobs", messages_max=30, overflow="drop-oldest")
    assert (changed.messages_max, changed.overflow) == (30, "drop-oldest")
    assert await world.client.topic("jobs") == changed
    whole = wherry.Topic(name="jobs", keep="age", keep_ms=60_000)
    assert await world.client.create_topic(whole) == whole
    assert (await world.client.change_topic("jobs", partitions=2)).partitions == 2
    with pytest.raises(wherry.AlreadyExists, match="partitions is 2 and cannot become 1"):
        await world.client.change_topic("jobs", partitions=1)
    with pytest.raises(wherry.AlreadyExists, match="order"):
        await world.client.change_topic("jobs", order="priority")
    with pytest.raises(wherry.InvalidInput, match="colour"):
        await world.client.create_topic("jobs", colour="red")
    for wrong in ("", 7):
        with pytest.raises(wherry.InvalidInput, match="topic"):
            await world.client.create_topic(wrong)
    with pytest.raises(wherry.NotFound):
        await world.client.change_topic("nowhere", messages_max=1)


@on_each
@pytest.mark.rows("A18")
async def test_a_subscription_can_be_changed_in_what_may_change(world):
    await world.jobs()
    changed = await world.client.change_subscription("jobs", "workers", lease_ms=5_000, retry=AT_ONCE)
    assert (changed.lease_ms, changed.retry) == (5_000, AT_ONCE)
    assert await world.client.subscription("jobs", "workers") == changed
    with pytest.raises(wherry.AlreadyExists, match="acks"):
        await world.client.change_subscription("jobs", "workers", acks=False)


@on_each
@pytest.mark.rows("A18", "D27")
async def test_keys_are_made_listed_changed_and_deleted(world):
    made = await world.client.make_key("ann", ["publish:orders.*", wherry.Right("consume", "jobs")])
    assert made.token is not None
    assert made.token not in repr(made)
    assert made.rights == (wherry.Right("publish", "orders.*"), wherry.Right("consume", "jobs"))
    changed = await world.client.change_key(made.id, rights=["admin"], expires_ms=world.now_ms + 60_000)
    assert (changed.name, changed.rights, changed.token) == ("ann", (wherry.Right("admin", "*"),), None)
    assert await world.client.keys() == [changed]
    await world.client.delete_key(made.id)
    assert await world.client.keys() == []
    with pytest.raises(wherry.NotFound):
        await world.client.change_key(made.id, name="bob")
    for wrong in ("admin", ["look"], [7]):
        with pytest.raises(wherry.InvalidInput, match="right"):
            await world.client.make_key("ann", wrong)


@on_each
@pytest.mark.rows("A18")
async def test_a_route_copies_to_the_topics_that_match(world):
    for name in ("eu", "us"):
        await world.client.create_topic(name)
    bindings = (wherry.Binding(topic="eu", match="order.eu.#"), wherry.Binding(topic="us", match="order.us.#"))
    route = await world.client.put_route(wherry.Route(name="orders", kind="pattern", bindings=bindings))
    assert await world.client.routes() == [route]
    published = await world.client.publish_route("orders", [b"a"], routing_key="order.eu.7")
    assert {topic: each.ids() for topic, each in published.items()} == {"eu": ["0-0"]}
    await world.client.delete_route("orders")
    assert await world.client.routes() == []


@on_each
@pytest.mark.rows("A18")
async def test_a_route_may_use_headers_of_the_call(world):
    for name in ("eu", "large"):
        await world.client.create_topic(name)
    bindings = (
        wherry.Binding(topic="eu", headers={"region": "eu", "by": "ann of: sales; 7%"}),
        wherry.Binding(topic="large", headers={"size": "", "X-Large": "yes", "größe": " groß\r\n"}, any_header=True),
    )
    await world.client.put_route(wherry.Route(name="orders", kind="headers", bindings=bindings))

    async def reached(**headers: str) -> list[str]:
        message = wherry.Message(payload=b"a", headers={"region": "eu", "of": "the message"})
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return list(await world.client.publish_route("orders", [message], headers=named))

    assert await reached(region="eu") == []
    assert await reached(region="eu", by="ann of: sales; 7%") == ["eu"]
    assert await reached(region="eu", by="ann of: sales; 7%", x_large="yes") == ["eu", "large"]
    assert await reached(size="") == ["large"]
    assert await reached(X_LARGE="yes") == await reached(GRÖßE=" groß\r\n") == ["large"]
    assert await reached(size="%20", x_large="YES", größe="gro%C3%9F") == []
    assert await world.client.publish_route("orders", [b"a"]) == {}
    for wrong in ({"Region": "eu", "region": "us"}, {"": "c"}, {"a": "\ud800"}, {"a": 1}, {1: "a"}, "a=b"):
        with pytest.raises(wherry.InvalidInput, match="headers"):
            await world.client.publish_route("orders", [b"a"], headers=wrong)


@on_each
@pytest.mark.rows("A18")
async def test_octets_may_be_routed_by_headers_of_the_call(world):
    await world.client.create_topic("eu")
    bindings = (wherry.Binding(topic="eu", headers={"City": "Köln"}),)
    await world.client.put_route(wherry.Route(name="orders", kind="headers", bindings=bindings))

    async def post(target: str, city: str) -> dict[str, Any]:
        named = (("wherry-route-city", city), ("wherry-header-by", "ann"))
        octets = ClientRequest("POST", target, [b"a"], "application/octet-stream", headers=named)
        return parsed(await Caller(world.client._transport).send(octets), dict[str, Any])

    assert (await post("/v1/routes/orders/messages", "Bonn"))["topics"] == {}
    assert list((await post("/v1/routes/orders/messages", "K%C3%B6ln"))["topics"]) == ["eu"]
    with pytest.raises(wherry.InvalidInput, match="Wherry-Route-City"):
        await post("/v1/routes/orders/messages", "%ff")
    with pytest.raises(wherry.InvalidInput, match="Wherry-Route-City"):
        await post("/v1/topics/eu/messages", "Bonn")  # no route reads the body of a plain publish
    [stored] = (await world.client.browse("eu")).to_pylist()
    assert (stored["payload"], stored["headers"]) == (b"a", [("by", "ann")])


@on_each
@pytest.mark.rows("A18")
async def test_a_value_that_json_cannot_hold_is_refused_by_its_field(world):
    await world.jobs()
    for wrong in (object(), float("nan"), float("inf"), "\ud800", {"a": {object()}}):
        with pytest.raises(wherry.InvalidInput) as refused:
            await world.client.create_topic("jobs", overflow="refuse", messages_max=wrong)
        assert refused.value.field == "messages_max"
    with pytest.raises(wherry.InvalidInput, match="retry"):
        await world.client.change_subscription("jobs", "workers", retry=object())
    with pytest.raises(wherry.InvalidInput, match="by"):
        await world.client.redrive("jobs", by=object())
    assert (await world.client.topic("jobs")).messages_max is None


@on_each
@pytest.mark.rows("A18")
async def test_a_wrong_call_raises_the_error_of_the_broker(world):
    await world.jobs()
    with pytest.raises(wherry.NotFound, match="nowhere"):
        await world.client.publish("nowhere", [b"a"])
    with pytest.raises(wherry.InvalidInput) as refused:
        await world.client.create_topic("jobs", partitions=0)
    assert (refused.value.field, refused.value.code) == ("partitions", "invalid-input")
    with pytest.raises(wherry.InvalidInput) as refused:
        await world.pull(messages=70_000)
    assert refused.value.field == "messages"
    with pytest.raises(wherry.InvalidInput, match="payload"):
        await world.client.publish("jobs", [b"x" * 70_000])
    with pytest.raises(wherry.AlreadyExists):
        await world.client.subscribe("jobs", "workers", lease_ms=1)
    with pytest.raises(wherry.InvalidInput):
        await world.client.subscribe("jobs", "other", colour="red")
    await world.client.unsubscribe("jobs", "workers")
    await world.client.delete_topic("jobs")
    assert await world.client.topics() == []


@on_each
@pytest.mark.rows("A18")
async def test_names_may_hold_anything(world):
    name = "a/b?c=d&é %2F#"
    await world.client.create_topic(name)
    await world.client.subscribe(name, name)
    await world.client.publish(name, [wherry.Message(payload=b"a", id="x/ y?")])
    assert [message.id for message in await world.client.pull(name, name)] == ["x/ y?"]
    assert [topic.name for topic in await world.client.topics()] == [name]


def test_clients_may_connect_to_an_embedded_broker():
    with wherry.embedded_sync() as here, wherry.connect_sync(here.listen()) as there:
        there.create_topic("jobs")
        assert [topic.name for topic in here.topics()] == ["jobs"]
        with pytest.raises(wherry.InvalidInput, match="clock"):
            here.clock.advance(1)
