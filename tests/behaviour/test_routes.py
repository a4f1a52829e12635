"""Routes, and AMQP's exchanges and queues built from what the core has."""

import pytest

from tests.behaviour.world import Home, VirtualClock, drain, in_loop, reader_of
from wherry import Binding, Broker, InvalidInput, LimitReached, Message, NotFound, Retry, Route


async def with_queues(home: Home, *names: str) -> Broker:
    broker = await home.open()
    for name in names:
        await broker.create_topic(name)
        await broker.subscribe(name, "queue")
    return broker


async def heads(broker: Broker, *names: str) -> dict[str, list[bytes]]:
    return {name: (await broker.browse(name)).column("payload").to_pylist() for name in names}


@pytest.mark.rows("Q7")
@in_loop
async def test_direct_fanout_pattern_and_headers_copy_to_the_topics_they_mean(home: Home, how: str):
    broker = await with_queues(home, "a", "b", "c")
    await broker.put_route(
        Route(
            name="direct",
            kind="direct",
            bindings=(
                Binding(topic="a", match="red"),
                Binding(topic="b", match="red"),
                Binding(topic="a", match="red"),
                Binding(topic="c", match=""),
            ),
        )
    )
    await broker.put_route(Route(name="fanout", kind="fanout", bindings=(Binding(topic="b"), Binding(topic="c"))))
    await broker.put_route(
        Route(
            name="pattern",
            kind="pattern",
            bindings=(
                Binding(topic="a", match="log.*"),
                Binding(topic="b", match="log.#"),
                Binding(topic="c", match="#"),
            ),
        )
    )
    await broker.put_route(
        Route(
            name="headers",
            kind="headers",
            bindings=(
                Binding(topic="a", headers={"x": "1", "y": "2"}),
                Binding(topic="b", headers={"x": "1", "y": "2"}, any_header=True),
            ),
        )
    )
    broker = await home.again(how)
    assert [route.name for route in broker.routes()] == ["direct", "fanout", "headers", "pattern"]

    async def reached(route: str, routing_key: str = "", headers: dict[str, str] | None = None) -> str:
        answer = await broker.publish_route(route, b"x", routing_key=routing_key, headers=headers)
        return "".join(sorted(answer))

    assert [await reached("direct", key) for key in ("red", "blue", "")] == ["ab", "", "c"]
    assert await reached("fanout", "whatever") == "bc"
    keys = ("log", "log.x", "log.x.y", "", "other.log")
    assert [await reached("pattern", key) for key in keys] == ["bc", "abc", "bc", "c", "c"]
    given: tuple[dict[str, str], ...] = ({"x": "1", "y": "2", "z": "3"}, {"x": "1"}, {"x": "2"}, {})
    assert [await reached("headers", headers=one) for one in given] == ["ab", "b", "", ""]


@pytest.mark.rows("Q7")
@in_loop
async def test_a_routed_publish_reaches_all_topics_or_none(home: Home, how: str):
    broker = await with_queues(home, "a", "b")
    await broker.create_topic("b", messages_max=1)
    await broker.create_topic("memory", persistent=False)
    topics = ("memory", "a", "b")
    await broker.put_route(Route(name="all", kind="fanout", bindings=tuple(Binding(topic=name) for name in topics)))
    await broker.publish_route("all", [b"1"])
    with pytest.raises(LimitReached):
        await broker.publish_route("all", [b"2"])
    with pytest.raises(InvalidInput):
        await broker.publish_route("all", [b"x" * 65_536])
    assert await heads(broker, "memory", "a", "b") == {"memory": [b"1"], "a": [b"1"], "b": [b"1"]}
    broker = await home.again(how)
    assert await heads(broker, "memory", "a", "b") == {"memory": [], "a": [b"1"], "b": [b"1"]}


@in_loop
async def test_a_route_is_changed_and_deleted(home: Home, how: str):
    broker = await with_queues(home, "a", "b")
    await broker.put_route(Route(name="r", kind="fanout", bindings=(Binding(topic="a"),)))
    await broker.put_route(Route(name="r", kind="fanout", bindings=(Binding(topic="b"),)))
    assert list(await broker.publish_route("r", b"x")) == ["b"]
    await broker.delete_route("r")
    broker = await home.again(how)
    for call in (broker.publish_route("r", b"x"), broker.delete_route("r")):
        with pytest.raises(NotFound, match="route"):
            await call
    await broker.put_route(Route(name="n" * 256, kind="fanout"))
    for wrong in (
        Route(name="", kind="fanout"),
        Route(name="n" * 257, kind="fanout"),
        Route(name="r", kind="smart"),  # type: ignore[arg-type]
        Route(name="r", kind="direct", bindings=(Binding(),)),
        Route(name="r", kind="direct", bindings=(Binding(topic="a", route="b"),)),
        Route(name="r", kind="direct", otherwise=""),
        Route(name="r", kind="direct", labels={"a": "x" * 65_535}),
        Route(name="r", kind="direct", bindings=(Binding(topic="a", match="k" * 1_025),)),
    ):
        with pytest.raises(InvalidInput):
            await broker.put_route(wrong)


@pytest.mark.rows("Q7")
@in_loop
async def test_a_route_leads_to_others_and_to_another_one_where_nothing_matches(home: Home, how: str):
    broker = await with_queues(home, "a", "b", "c")
    await broker.put_route(Route(name="first", kind="direct", otherwise="rest"))
    await broker.put_route(Route(name="second", kind="fanout", bindings=(Binding(topic="b"), Binding(route="first"))))
    await broker.put_route(Route(name="rest", kind="fanout", bindings=(Binding(topic="c"),)))
    for binding in (
        Binding(topic="a", match="k"),
        Binding(route="second", match="k"),
        Binding(route="gone", match="k"),
    ):
        await broker.bind("first", binding)
    assert list(await broker.publish_route("first", b"x", routing_key="k")) == ["a", "b"]
    assert list(await broker.publish_route("first", b"x", routing_key="other")) == ["c"]
    broker = await home.again(how)
    assert list(await broker.publish_route("first", b"x", routing_key="k")) == ["a", "b"]


@in_loop
async def test_bindings_are_added_and_removed_one_by_one_and_with_their_topic(home: Home, how: str):
    broker = await with_queues(home, "a", "b")
    await broker.put_route(Route(name="r", kind="fanout"))
    to_a, to_b = Binding(topic="a"), Binding(topic="b", labels={"note": "kept"})
    for binding in (to_a, to_b, to_a):
        await broker.bind("r", binding)
    assert broker.routes()[0].bindings == (to_a, to_b)
    await broker.unbind("r", to_a)
    await broker.unbind("r", to_a)
    broker = await home.again(how)
    assert broker.routes()[0].bindings == (to_b,)
    await broker.delete_topic("a")
    await broker.delete_topic("b")
    assert broker.routes()[0].bindings == ()
    assert not await broker.publish_route("r", b"x")
    with pytest.raises(NotFound, match="route"):
        await broker.bind("none", to_a)
    with pytest.raises(InvalidInput, match="binding"):
        await broker.bind("r", "a")  # type: ignore[arg-type]


@in_loop
async def test_a_topic_is_deleted_after_a_route_that_once_led_to_it(home: Home, how: str):
    broker = await with_queues(home, "a")
    await broker.put_route(Route(name="r", kind="fanout", bindings=(Binding(topic="a"),)))
    await broker.unbind("r", Binding(topic="a"))
    await broker.delete_route("r")
    await broker.delete_topic("a")
    broker = await home.again(how)
    assert broker.topics() == []


@pytest.mark.rows("Q7")
@in_loop
async def test_exchange_binding_queue_prefetch_ack_requeue_and_reject(home: Home, clock: VirtualClock, how: str):
    """Declare, bind, publish, qos, get, ack, nack(requeue), reject, redelivered: one after the other."""
    broker = await home.open()
    await broker.create_topic("queue", messages_max=100)
    await broker.subscribe("queue", "queue", retry=Retry(attempts=None, first_ms=0, jitter=0.0))
    await broker.put_route(
        Route(name="exchange", kind="pattern", bindings=(Binding(topic="queue", match="orders.*.paid"),))
    )
    for number in range(4):
        sent = Message(payload=b"%d" % number, headers={"h": "v"}, envelope=b"\x01typed properties")
        assert await broker.publish_route("exchange", sent, routing_key="orders.eu.paid")
    assert not await broker.publish_route("exchange", b"lost", routing_key="orders.eu.open")  # basic.return

    broker = await home.again(how)
    consumer = await broker.consumer("queue", "queue", "ctag-1", buffer_messages=2)  # basic.qos(prefetch_count=2)
    first = await consumer.pull()
    assert first.payloads() == [b"0", b"1"]
    assert len(await consumer.pull()) == 0
    assert first.batch.column("envelope").to_pylist() == [b"\x01typed properties"] * 2
    await first.ack([0])  # basic.ack
    await first.nack([1], delay_ms=0)  # basic.nack(requeue=True)
    second = await consumer.pull()
    assert [(m.payload, m.attempt > 1) for m in second] == [(b"1", True), (b"2", False)]  # redelivered
    await second.dead_letter([0], reason="rejected")  # basic.reject(requeue=False)
    await consumer.close()  # the connection breaks: what is not acked is requeued
    other = await broker.consumer("queue", "queue", "ctag-2")
    got = await other.pull(1)  # basic.get
    assert got.payloads() == [b"2"]
    await got.ack()
    assert await drain(other) == [b"3"]
    assert (await broker.dead_letters("queue")).column("reason").to_pylist() == ["rejected"]


@pytest.mark.rows("Q7")
@in_loop
async def test_an_exclusive_auto_delete_queue_with_no_ack(home: Home):
    broker = await home.open()
    await broker.create_topic("events", persistent=False)
    tab = await reader_of(broker, "events", "amq.gen-1", durable=False, acks=False, assignment="exclusive")
    await broker.publish("events", b"x")
    assert (await tab.pull()).payloads() == [b"x"]
    assert broker.stats("events").subscriptions[0].leased == 0
    await tab.close()
    assert broker.stats("events").subscriptions == ()
