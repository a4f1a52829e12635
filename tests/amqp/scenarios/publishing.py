"""Publishing: what comes back, what is confirmed, and what arrives as it was sent."""

from __future__ import annotations

import hashlib
from typing import Any

from tests.amqp.scenarios.registry import Scene, refused, scenario


@scenario("returns-without-confirms")
def a_mandatory_message_without_a_queue_is_returned(scene: Scene) -> None:
    channel = scene.channel()
    exchange = scene.exchange(channel, "direct")
    channel.publish(exchange, "nobody", b"m", mandatory=True, message_id="7", headers={"a": 1})
    back = channel.next_returned()
    assert (back.code, back.text) == (312, "NO_ROUTE")
    assert (back.exchange, back.key, back.body) == (exchange, "nobody", b"m")
    assert (back.properties["message_id"], back.headers) == ("7", {"a": 1})


@scenario()
def a_return_comes_with_a_confirm(scene: Scene) -> None:
    channel = scene.channel(confirms=True)
    missing = scene.name("missing")
    assert channel.publish("", missing, b"m", mandatory=True, message_id="7", headers={"a": 1})
    back = channel.next_returned()
    assert (back.code, back.text, back.exchange, back.key, back.body) == (312, "NO_ROUTE", "", missing, b"m")
    assert (back.properties["message_id"], back.headers) == ("7", {"a": 1})
    assert not channel.returned


@scenario()
def a_mandatory_message_that_is_routed_does_not_come_back(scene: Scene) -> None:
    channel = scene.channel(confirms=True)
    queue = scene.queue(channel, exclusive=True)
    assert channel.publish("", queue, b"m", mandatory=True)
    assert not channel.returned
    assert channel.count(queue) == 1


@scenario()
def a_message_without_a_queue_is_dropped_and_confirmed(scene: Scene) -> None:
    channel = scene.channel(confirms=True)
    assert channel.publish("", scene.name("missing"), b"m")
    assert not channel.returned


@scenario()
def confirms_one_by_one(scene: Scene) -> None:
    channel = scene.channel(confirms=True)
    queue = scene.queue(channel, durable=True)
    for number in range(20):
        assert channel.publish("", queue, str(number).encode(), delivery_mode=2)
        assert channel.count(queue) == number + 1


@scenario("pipelined")
def confirms_pipelined(scene: Scene) -> None:
    channel = scene.channel(confirms=True)
    queue = scene.queue(channel, durable=True)
    bodies = [str(number).encode() for number in range(2_000)]
    assert channel.publish_all("", queue, bodies) == [True] * len(bodies)
    assert [message.body for message in channel.drain(queue)] == bodies


@scenario("pipelined")
def confirms_of_what_is_refused_are_negative(scene: Scene) -> None:
    channel = scene.channel(confirms=True)
    queue = scene.queue(channel, exclusive=True, arguments={"x-max-length": 10, "x-overflow": "reject-publish"})
    outcomes = channel.publish_all("", queue, [b"m"] * 30)
    assert outcomes[:10] == [True] * 10
    assert not outcomes[-1]
    assert outcomes.count(True) == channel.count(queue)


@scenario()
def a_full_queue_that_rejects_sends_a_nack(scene: Scene) -> None:
    channel = scene.channel(confirms=True)
    queue = scene.queue(channel, exclusive=True, arguments={"x-max-length": 2, "x-overflow": "reject-publish"})
    outcomes = [channel.publish("", queue, str(number).encode()) for number in range(4)]
    assert outcomes == [True, True, False, False]
    assert [message.body for message in channel.drain(queue)] == [b"0", b"1"]
    assert channel.publish("", queue, b"again")


@scenario()
def one_queue_that_rejects_makes_the_whole_publish_negative(scene: Scene) -> None:
    channel = scene.channel(confirms=True)
    exchange = scene.exchange(channel, "fanout")
    full = scene.queue(channel, "full", exclusive=True, arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
    wide = scene.queue(channel, "wide", exclusive=True)
    for queue in (full, wide):
        channel.bind(queue, exchange)
    assert channel.publish(exchange, "", b"1")
    assert not channel.publish(exchange, "", b"2")
    assert channel.count(full) == 1


def _body(size: int) -> bytes:
    """Return bytes of which none is like its neighbour."""
    block = b"".join(hashlib.sha256(str(number).encode()).digest() for number in range(512))
    return (block * (size // len(block) + 1))[:size]


def _sends_and_gets(scene: Scene, size: int) -> None:
    channel = scene.channel(confirms=True)
    queue = scene.queue(channel, f"of-{size}", durable=True)
    body = _body(size)
    assert channel.publish("", queue, body, delivery_mode=2)
    channel.consume(queue)
    message = channel.next()
    assert len(message.body) == size
    assert message.body == body
    channel.ack(message.tag)
    assert channel.publish("", queue, b"after")
    assert channel.next().body == b"after"


@scenario()
def a_body_of_nothing(scene: Scene) -> None:
    _sends_and_gets(scene, 0)


@scenario()
def a_body_of_one_byte(scene: Scene) -> None:
    _sends_and_gets(scene, 1)


@scenario()
def a_body_of_just_one_frame(scene: Scene) -> None:
    for size in (131_072 - 9, 131_072 - 8, 131_072 - 7):
        _sends_and_gets(scene, size)


@scenario()
def a_body_of_130_kib(scene: Scene) -> None:
    _sends_and_gets(scene, 130 << 10)


@scenario()
def a_body_of_1_mib(scene: Scene) -> None:
    _sends_and_gets(scene, 1 << 20)


@scenario()
def a_body_of_5_mib(scene: Scene) -> None:
    _sends_and_gets(scene, 5 << 20)


@scenario()
def large_bodies_on_two_channels(scene: Scene) -> None:
    connection = scene.connect()
    channels = [connection.channel() for _ in range(2)]
    queues = [scene.queue(channel, f"queue{n}", exclusive=True) for n, channel in enumerate(channels)]
    bodies = [_body(700_000), _body(700_001)]
    for channel, queue in zip(channels, queues, strict=True):
        channel.consume(queue, no_ack=True)
    for _ in range(3):
        for channel, queue, body in zip(channels, queues, bodies, strict=True):
            channel.publish("", queue, body)
    for channel, body in zip(channels, bodies, strict=True):
        assert channel.bodies(3) == [body] * 3


PROPERTIES: dict[str, Any] = {
    "content_type": "application/x-thing",
    "content_encoding": "gzip",
    "headers": {"a": 1, "b": "two"},
    "delivery_mode": 2,
    "priority": 7,
    "correlation_id": "correlation",
    "reply_to": "somebody",
    "expiration": "3600000",
    "message_id": "id-1",
    "timestamp": 1_700_000_000,
    "type": "a.type",
    "user_id": "guest",
    "app_id": "an app",
}


@scenario()
def every_property_arrives_as_it_was_sent(scene: Scene) -> None:
    channel = scene.channel()
    queue = scene.queue(channel, exclusive=True)
    sent = {**PROPERTIES, "user_id": scene.address.user}
    channel.consume(queue, no_ack=True)
    channel.publish("", queue, b"m", **sent)
    assert channel.next().properties == sent


@scenario("cluster-id")
def the_cluster_id_arrives_too(scene: Scene) -> None:
    channel = scene.channel()
    queue = scene.queue(channel, exclusive=True)
    channel.consume(queue, no_ack=True)
    channel.publish("", queue, b"m", cluster_id="a cluster")
    assert channel.next().properties["cluster_id"] == "a cluster"


@scenario()
def each_property_arrives_alone(scene: Scene) -> None:
    channel = scene.channel()
    queue = scene.queue(channel, exclusive=True)
    channel.consume(queue, no_ack=True)
    for name, value in {**PROPERTIES, "user_id": scene.address.user}.items():
        channel.publish("", queue, name.encode(), **{name: value})
        found = channel.next()
        assert (found.body, found.properties[name]) == (name.encode(), value)
        assert set(found.properties) - channel.adds - {name} == set()


HEADERS: dict[str, Any] = {
    "text": "größe→名",
    "empty": "",
    "yes": True,
    "no": False,
    "zero": 0,
    "small": -128,
    "short": 32_767,
    "int": -2_147_483_648,
    "long": 9_007_199_254_740_991,
    "nothing": None,
    "table": {"inner": {"deep": [1, "two", {"three": 3}]}, "empty": {}},
    "list": [1, -2, "three", [4, 5], {"six": 6}, None, True],
    "none at all": [],
}


@scenario()
def headers_of_every_type_arrive_as_they_were_sent(scene: Scene) -> None:
    channel = scene.channel()
    queue = scene.queue(channel, exclusive=True)
    channel.consume(queue, no_ack=True)
    channel.publish("", queue, b"m", headers=HEADERS)
    found = channel.next().headers
    for name, value in HEADERS.items():
        assert found[name] == value, name
        assert isinstance(found[name], bool) == isinstance(value, bool), name
    assert set(found) == set(HEADERS)


@scenario("floats")
def headers_with_fractions_arrive_as_they_were_sent(scene: Scene) -> None:
    channel = scene.channel()
    queue = scene.queue(channel, exclusive=True)
    headers = {"half": 1.5, "less": -0.25, "list": [0.5, -1024.125]}
    channel.consume(queue, no_ack=True)
    channel.publish("", queue, b"m", headers=headers)
    assert channel.next().headers == headers


@scenario("doubles")
def headers_with_fractions_of_64_bits_arrive_as_they_were_sent(scene: Scene) -> None:
    channel = scene.channel()
    queue = scene.queue(channel, exclusive=True)
    headers = {"third": 1 / 3, "tiny": -2.5e-300, "huge": 1.7e308, "list": [0.1, -0.1]}
    channel.consume(queue, no_ack=True)
    channel.publish("", queue, b"m", headers=headers)
    assert channel.next().headers == headers


@scenario()
def a_large_table_of_headers(scene: Scene) -> None:
    channel = scene.channel()
    queue = scene.queue(channel, exclusive=True)
    headers = {f"header{number}": "x" * 90 for number in range(500)}
    channel.consume(queue, no_ack=True)
    channel.publish("", queue, b"m", headers=headers)
    assert channel.next().headers == headers


@scenario()
def the_user_id_of_another_user_is_refused(scene: Scene) -> None:
    channel = scene.channel()
    queue = scene.queue(channel, exclusive=True)
    with refused(406, text="user_id property set to 'somebody' but authenticated user was"):
        channel.publish("", queue, b"m", user_id="somebody")
        channel.qos(1)


@scenario("any-expiration")
def an_expiration_that_is_no_number_is_refused(scene: Scene) -> None:
    connection = scene.connect()
    for expiration in ("soon", "-1"):
        channel = connection.channel()
        queue = channel.declare_queue("", exclusive=True).name
        with refused(406, text="invalid expiration"):
            channel.publish("", queue, b"m", expiration=expiration)
            channel.qos(1)


@scenario()
def many_messages_keep_their_order(scene: Scene) -> None:
    channel = scene.channel()
    queue = scene.queue(channel, exclusive=True)
    channel.consume(queue, no_ack=True)
    bodies = [str(number).encode() for number in range(3_000)]
    for body in bodies:
        channel.publish("", queue, body)
    assert channel.bodies(3_000) == bodies


@scenario()
def copies_are_routed_by_the_keys_in_cc_and_bcc(scene: Scene) -> None:
    channel = scene.channel(confirms=True)
    to, cc, bcc = (scene.queue(channel, word, exclusive=True) for word in ("to", "cc", "bcc"))
    channel.publish("", to, b"m", headers={"CC": [cc], "BCC": [bcc]})
    for queue in (to, cc, bcc):
        message = channel.get(queue, no_ack=True)
        assert message is not None
        assert message.headers == {"CC": [cc]}
