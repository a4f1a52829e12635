"""Exchanges: of what types they are, what they are bound to, and which queues get a message."""

from __future__ import annotations

from typing import Any

from tests.amqp.clients.port import Channel
from tests.amqp.scenarios.registry import Scene, refused, scenario


def gets(channel: Channel, queue: str) -> list[bytes]:
    """Return what a queue got so far. The channel has confirms: what was published has arrived."""
    return [message.body for message in channel.drain(queue)]


@scenario()
def the_default_exchange_reaches_every_queue_by_name(scene: Scene) -> None:
    channel = scene.channel(confirms=True)
    queues = [scene.queue(channel, word, exclusive=True) for word in ("a", "b")]
    for queue in queues:
        channel.publish("", queue, queue.encode())
    for queue in queues:
        message = channel.get(queue, no_ack=True)
        assert message is not None
        assert (message.body, message.exchange, message.key) == (queue.encode(), "", queue)


@scenario()
def no_client_may_bind_to_or_delete_the_default_exchange(scene: Scene) -> None:
    connection = scene.connect()
    queue = scene.queue(connection.channel(), exclusive=True)
    with refused(403, text="ACCESS_REFUSED"):
        connection.channel().bind(queue, "", "key")
    with refused(403, text="ACCESS_REFUSED"):
        connection.channel().unbind(queue, "", queue)
    with refused(403, text="ACCESS_REFUSED"):
        connection.channel().delete_exchange("")


@scenario()
def a_direct_exchange_routes_by_the_key(scene: Scene) -> None:
    channel = scene.channel(confirms=True)
    exchange = scene.exchange(channel, "direct")
    one, two = scene.queue(channel, "one", exclusive=True), scene.queue(channel, "two", exclusive=True)
    for queue, key in ((one, "red"), (one, "blue"), (two, "blue")):
        channel.bind(queue, exchange, key)
    for key in ("red", "blue", "green", ""):
        channel.publish(exchange, key, key.encode())
    assert gets(channel, one) == [b"red", b"blue"]
    assert gets(channel, two) == [b"blue"]


@scenario()
def a_delivery_names_where_it_was_published(scene: Scene) -> None:
    channel = scene.channel()
    exchange = scene.exchange(channel, "topic")
    queue = scene.queue(channel, exclusive=True)
    channel.bind(queue, exchange, "#")
    tag = channel.consume(queue, tag="me", no_ack=True)
    channel.publish(exchange, "some.key", b"m")
    message = channel.next()
    assert tag == "me"
    assert (message.exchange, message.key, message.consumer, message.tag) == (exchange, "some.key", "me", 1)


@scenario()
def two_bindings_bring_one_copy(scene: Scene) -> None:
    channel = scene.channel(confirms=True)
    exchange = scene.exchange(channel, "topic")
    queue = scene.queue(channel, exclusive=True)
    for pattern in ("a.*", "*.b", "#"):
        channel.bind(queue, exchange, pattern)
    channel.publish(exchange, "a.b", b"m")
    assert gets(channel, queue) == [b"m"]


@scenario()
def a_fanout_exchange_reaches_every_queue(scene: Scene) -> None:
    channel = scene.channel(confirms=True)
    exchange = scene.exchange(channel, "fanout")
    queues = [scene.queue(channel, f"queue{number}", exclusive=True) for number in range(10)]
    for queue in queues:
        channel.bind(queue, exchange, "ignored")
    channel.publish(exchange, "whatever", b"m")
    assert [gets(channel, queue) for queue in queues] == [[b"m"]] * 10


KEYS = ["", "a", "a.b", "a.b.c", "a..c", "b.a", ".", "a.", ".a"]

TOPICS: dict[str, list[str]] = {
    "#": KEYS,
    "#.#": KEYS,
    "a.b.c": ["a.b.c"],
    "a.*.c": ["a.b.c", "a..c"],
    "*": ["a"],
    "*.*": ["a.b", "b.a", ".", "a.", ".a"],
    "*.*.*": ["a.b.c", "a..c"],
    "a.*": ["a.b", "a."],
    "a.#": ["a", "a.b", "a.b.c", "a..c", "a."],
    "#.c": ["a.b.c", "a..c"],
    "a.#.c": ["a.b.c", "a..c"],
    "#.b.#": ["a.b", "a.b.c", "b.a"],
    "*.#.*": ["a.b", "a.b.c", "a..c", "b.a", ".", "a.", ".a"],
    "": [""],
    "A": [],
    "a*": [],
}
"""Which of the keys a pattern matches, as RabbitMQ does: an empty key has no words, `.` has two empty ones."""


@scenario()
def a_topic_exchange_routes_by_patterns(scene: Scene) -> None:
    channel = scene.channel(confirms=True)
    exchange = scene.exchange(channel, "topic")
    queues = {pattern: channel.declare_queue("", exclusive=True).name for pattern in TOPICS}
    for pattern, queue in queues.items():
        channel.bind(queue, exchange, pattern)
    for key in KEYS:
        channel.publish(exchange, key, key.encode())
    found = {pattern: [body.decode() for body in gets(channel, queue)] for pattern, queue in queues.items()}
    assert found == TOPICS


@scenario()
def a_headers_exchange_routes_by_all_or_any(scene: Scene) -> None:
    channel = scene.channel(confirms=True)
    exchange = scene.exchange(channel, "headers")
    bindings: dict[str, dict[str, Any]] = {
        "all": {"x-match": "all", "shape": "round", "size": 1},
        "any": {"x-match": "any", "shape": "round", "size": 1},
        "unnamed": {"shape": "round", "size": 1},
        "nothing": {},
    }
    for word, arguments in bindings.items():
        channel.bind(scene.queue(channel, word, exclusive=True), exchange, "", arguments)
    sent: dict[bytes, dict[str, Any]] = {
        b"both": {"shape": "round", "size": 1, "more": True},
        b"shape": {"shape": "round", "size": 2},
        b"size": {"size": 1},
        b"other": {"shape": "square", "size": 2},
        b"none": {},
    }
    for body, headers in sent.items():
        channel.publish(exchange, "", body, headers=headers)
    found = {word: gets(channel, scene.name(word)) for word in bindings}
    assert found == {
        "all": [b"both"],
        "any": [b"both", b"shape", b"size"],
        "unnamed": [b"both"],
        "nothing": [b"both", b"shape", b"size", b"other", b"none"],
    }


@scenario()
def a_headers_binding_ignores_names_that_begin_with_x(scene: Scene) -> None:
    channel = scene.channel(confirms=True)
    exchange = scene.exchange(channel, "headers")
    queue = scene.queue(channel, exclusive=True)
    channel.bind(queue, exchange, "", {"x-match": "all", "x-color": "red", "size": 1})
    channel.publish(exchange, "", b"without", headers={"size": 1})
    channel.publish(exchange, "", b"other", headers={"size": 1, "x-color": "blue"})
    assert gets(channel, queue) == [b"without", b"other"]


@scenario()
def a_headers_binding_may_ask_for_names_that_begin_with_x(scene: Scene) -> None:
    channel = scene.channel(confirms=True)
    exchange = scene.exchange(channel, "headers")
    for match in ("all-with-x", "any-with-x"):
        queue = scene.queue(channel, match, exclusive=True)
        channel.bind(queue, exchange, "", {"x-match": match, "x-color": "red", "size": 1})
    channel.publish(exchange, "", b"both", headers={"size": 1, "x-color": "red"})
    channel.publish(exchange, "", b"one", headers={"size": 2, "x-color": "red"})
    assert gets(channel, scene.name("all-with-x")) == [b"both"]
    assert gets(channel, scene.name("any-with-x")) == [b"both", b"one"]


@scenario()
def a_headers_binding_may_ask_for_a_name_of_any_value(scene: Scene) -> None:
    channel = scene.channel(confirms=True)
    exchange = scene.exchange(channel, "headers")
    queue = scene.queue(channel, exclusive=True)
    channel.bind(queue, exchange, "", {"x-match": "all", "size": None})
    channel.publish(exchange, "", b"yes", headers={"size": 1})
    channel.publish(exchange, "", b"no", headers={"shape": "round"})
    assert gets(channel, queue) == [b"yes"]


@scenario()
def an_unbound_queue_gets_no_more(scene: Scene) -> None:
    channel = scene.channel(confirms=True)
    queue = scene.queue(channel, exclusive=True)
    for kind in ("direct", "fanout", "topic", "headers"):
        exchange = scene.exchange(channel, kind)
        arguments = {"x-match": "all", "n": 1} if kind == "headers" else None
        channel.bind(queue, exchange, "key", arguments)
        channel.publish(exchange, "key", b"bound", headers={"n": 1})
        assert gets(channel, queue) == [b"bound"], kind
        channel.unbind(queue, exchange, "key", arguments)
        channel.publish(exchange, "key", b"unbound", headers={"n": 1})
        assert gets(channel, queue) == [], kind


@scenario()
def an_unbind_takes_only_its_own_key(scene: Scene) -> None:
    channel = scene.channel(confirms=True)
    exchange = scene.exchange(channel, "direct")
    queue = scene.queue(channel, exclusive=True)
    channel.bind(queue, exchange, "a")
    channel.bind(queue, exchange, "b")
    channel.bind(queue, exchange, "b")
    channel.unbind(queue, exchange, "b")
    channel.unbind(queue, exchange, "never bound")
    channel.publish(exchange, "a", b"a")
    channel.publish(exchange, "b", b"b")
    assert gets(channel, queue) == [b"a"]


@scenario()
def an_exchange_feeds_another(scene: Scene) -> None:
    channel = scene.channel(confirms=True)
    source, middle = scene.exchange(channel, "topic", "source"), scene.exchange(channel, "direct", "middle")
    last = scene.exchange(channel, "fanout", "last")
    queue = scene.queue(channel, exclusive=True)
    channel.bind_exchange(middle, source, "a.#")
    channel.bind_exchange(last, middle, "a.b")
    channel.bind(queue, last)
    for key in ("a.b", "a.c", "b"):
        channel.publish(source, key, key.encode())
    message = channel.get(queue, no_ack=True)
    assert message is not None
    assert (message.body, message.exchange, message.key) == (b"a.b", source, "a.b")
    assert channel.get(queue) is None
    channel.unbind_exchange(last, middle, "a.b")
    channel.publish(source, "a.b", b"unbound")
    assert channel.get(queue) is None


@scenario()
def a_ring_of_exchanges_brings_one_copy(scene: Scene) -> None:
    channel = scene.channel(confirms=True)
    one, two = scene.exchange(channel, "fanout", "one"), scene.exchange(channel, "fanout", "two")
    queue = scene.queue(channel, exclusive=True)
    channel.bind_exchange(one, two)
    channel.bind_exchange(two, one)
    channel.bind(queue, one)
    channel.bind(queue, two)
    channel.publish(one, "", b"m")
    assert gets(channel, queue) == [b"m"]


@scenario()
def what_an_exchange_cannot_route_is_sent_to_its_alternate(scene: Scene) -> None:
    channel = scene.channel(confirms=True)
    spare = scene.exchange(channel, "fanout", "spare")
    exchange = scene.exchange(channel, "direct", arguments={"alternate-exchange": spare})
    known, unknown = scene.queue(channel, "known", exclusive=True), scene.queue(channel, "unknown", exclusive=True)
    channel.bind(known, exchange, "known")
    channel.bind(unknown, spare)
    channel.publish(exchange, "known", b"1", mandatory=True)
    channel.publish(exchange, "else", b"2", mandatory=True)
    assert gets(channel, known) == [b"1"]
    message = channel.get(unknown, no_ack=True)
    assert message is not None
    assert (message.body, message.exchange, message.key) == (b"2", exchange, "else")
    assert not channel.returned


@scenario()
def what_no_alternate_takes_either_is_returned(scene: Scene) -> None:
    channel = scene.channel(confirms=True)
    spare = scene.exchange(channel, "fanout", "spare")
    exchange = scene.exchange(channel, "direct", arguments={"alternate-exchange": spare})
    channel.publish(exchange, "key", b"m", mandatory=True)
    back = channel.next_returned()
    assert (back.body, back.exchange, back.code) == (b"m", exchange, 312)


@scenario()
def an_alternate_that_is_not_there_is_no_error(scene: Scene) -> None:
    channel = scene.channel(confirms=True)
    exchange = scene.exchange(channel, "direct", arguments={"alternate-exchange": scene.name("missing")})
    assert channel.publish(exchange, "key", b"m")


@scenario()
def no_client_may_publish_to_an_internal_exchange(scene: Scene) -> None:
    connection = scene.connect()
    channel = connection.channel(confirms=True)
    inner = scene.exchange(channel, "fanout", "inner", internal=True)
    outer = scene.exchange(channel, "fanout", "outer")
    queue = scene.queue(channel, exclusive=True)
    channel.bind_exchange(inner, outer)
    channel.bind(queue, inner)
    channel.publish(outer, "", b"m")
    assert gets(channel, queue) == [b"m"]
    bad = connection.channel()
    with refused(403, text=f"cannot publish to internal exchange '{inner}' in vhost '/'"):
        bad.publish(inner, "", b"m")
        bad.qos(1)


@scenario()
def an_auto_delete_exchange_ends_with_its_last_binding(scene: Scene) -> None:
    connection = scene.connect()
    channel = connection.channel()
    exchange = scene.exchange(channel, "direct", auto_delete=True)
    queue = scene.queue(channel, exclusive=True)
    channel.bind(queue, exchange, "a")
    channel.bind(queue, exchange, "b")
    channel.unbind(queue, exchange, "a")
    channel.declare_exchange(exchange, passive=True)
    channel.delete_queue(queue)
    with refused(404, text=f"no exchange '{exchange}' in vhost '/'"):
        channel.declare_exchange(exchange, passive=True)


@scenario()
def an_exchange_in_use_is_not_deleted_if_unused(scene: Scene) -> None:
    connection = scene.connect()
    channel = connection.channel()
    exchange = scene.exchange(channel, "direct")
    queue = scene.queue(channel, exclusive=True)
    channel.bind(queue, exchange, "key")
    with refused(406, text=f"exchange '{exchange}' in vhost '/' in use"):
        connection.channel().delete_exchange(exchange, if_unused=True)
    channel.unbind(queue, exchange, "key")
    channel.delete_exchange(exchange, if_unused=True)
    with refused(404):
        channel.declare_exchange(exchange, passive=True)


@scenario()
def a_deleted_exchange_forgets_its_bindings(scene: Scene) -> None:
    channel = scene.channel(confirms=True)
    exchange = scene.exchange(channel, "direct")
    queue = scene.queue(channel, exclusive=True)
    channel.bind(queue, exchange, "key")
    channel.delete_exchange(exchange)
    channel.declare_exchange(exchange, "direct")
    channel.publish(exchange, "key", b"m")
    assert gets(channel, queue) == []


@scenario()
def a_deleted_queue_is_bound_no_more(scene: Scene) -> None:
    channel = scene.channel(confirms=True)
    exchange = scene.exchange(channel, "direct")
    queue = scene.queue(channel)
    channel.bind(queue, exchange, "key")
    channel.delete_queue(queue)
    channel.declare_queue(queue, exclusive=True)
    channel.publish(exchange, "key", b"m", mandatory=True)
    assert channel.next_returned().code == 312
    assert gets(channel, queue) == []


@scenario()
def the_exchanges_of_the_server_are_there(scene: Scene) -> None:
    connection = scene.connect()
    channel = connection.channel(confirms=True)
    kinds = {
        "amq.direct": "direct",
        "amq.fanout": "fanout",
        "amq.topic": "topic",
        "amq.headers": "headers",
        "amq.match": "headers",
    }
    for name, kind in kinds.items():
        channel.declare_exchange(name, kind, passive=True)
        channel.declare_exchange(name, kind, durable=True)
        queue = scene.queue(channel, name.replace(".", "-"), exclusive=True)
        channel.bind(queue, name, queue, {"mine": queue} if kind == "headers" else None)
        channel.publish(name, queue, b"m", headers={"mine": queue})
        assert gets(channel, queue) == [b"m"], name
        with refused(403, text="ACCESS_REFUSED"):
            connection.channel().delete_exchange(name)


@scenario()
def another_type_of_exchange_is_refused(scene: Scene) -> None:
    connection = scene.connect()
    exchange = scene.exchange(connection.channel(), "direct", durable=True)
    text = f"inequivalent arg 'type' for exchange '{exchange}' in vhost '/': received 'fanout' but current is 'direct'"
    with refused(406, text=text):
        connection.channel().declare_exchange(exchange, "fanout", durable=True)
    with refused(406, text="inequivalent arg 'durable'"):
        connection.channel().declare_exchange(exchange, "direct", durable=False)
    with refused(406, text="inequivalent arg 'auto_delete'"):
        connection.channel().declare_exchange(exchange, "direct", durable=True, auto_delete=True)


@scenario()
def a_missing_exchange_is_not_found(scene: Scene) -> None:
    connection = scene.connect()
    missing = scene.name("missing")
    queue = scene.queue(connection.channel(), exclusive=True)
    text = f"no exchange '{missing}' in vhost '/'"
    with refused(404, text=text):
        connection.channel().declare_exchange(missing, passive=True)
    with refused(404, text=text):
        connection.channel().bind(queue, missing, "key")
    with refused(404, text=text):
        connection.channel().bind_exchange("amq.direct", missing, "key")
    channel = connection.channel()
    with refused(404, text=text):
        channel.publish(missing, "key", b"m")
        channel.qos(1)
    assert connection.is_open()
