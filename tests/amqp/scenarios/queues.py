"""Queues: how they are declared, counted, purged, deleted, and whose they are."""

from __future__ import annotations

import time
from typing import Any

from tests.amqp.clients.port import PATIENCE_S, Channel, Connection, Refused
from tests.amqp.scenarios.registry import Scene, refused, scenario


def until_gone(connection: Connection, queue: str, every_s: float = 0.05) -> None:
    """Wait until there is no such queue. To ask is to use it: a queue that expires has to be asked for less often."""
    end = time.monotonic() + PATIENCE_S
    while True:
        channel = connection.channel()
        try:
            channel.declare_queue(queue, passive=True)
        except Refused as fault:
            assert fault.code == 404, fault
            return
        channel.close()
        assert time.monotonic() < end, f"{queue} is still there"
        connection.idle(every_s)


@scenario()
def a_declaration_counts_messages_and_consumers(scene: Scene) -> None:
    channel = scene.channel(confirms=True)
    queue = scene.name("queue")
    first = channel.declare_queue(queue, exclusive=True)
    assert (first.name, first.messages, first.consumers) == (queue, 0, 0)
    for _ in range(3):
        channel.publish("", queue, b"m")
    again = channel.declare_queue(queue, exclusive=True)
    assert (again.messages, again.consumers) == (3, 0)
    channel.qos(1)
    channel.consume(queue)
    channel.next()
    found = channel.declare_queue(queue, passive=True)
    assert (found.messages, found.consumers) == (2, 1)


@scenario()
def the_server_names_a_queue(scene: Scene) -> None:
    channel = scene.channel()
    first, second = (channel.declare_queue("", exclusive=True).name for _ in range(2))
    assert first.startswith("amq.gen-")
    assert second.startswith("amq.gen-")
    assert first != second
    channel.publish("", first, b"m")
    channel.consume(first, no_ack=True)
    assert channel.next().body == b"m"


@scenario()
def a_queue_named_by_the_server_is_found_and_not_declared_again(scene: Scene) -> None:
    channel = scene.channel()
    name = channel.declare_queue("", exclusive=True).name
    assert channel.declare_queue(name, passive=True).name == name
    with refused(403, text="ACCESS_REFUSED"):
        channel.declare_queue(name, exclusive=True)


@scenario()
def no_name_means_the_queue_that_was_declared_last(scene: Scene) -> None:
    channel = scene.channel()
    queue = channel.declare_queue("", exclusive=True).name
    channel.bind("", "amq.fanout")
    channel.publish("amq.fanout", "", b"m")
    channel.consume("", no_ack=True)
    assert channel.next().body == b"m"
    assert channel.declare_queue(queue, passive=True).consumers == 1


@scenario()
def a_queue_may_be_declared_twice_alike(scene: Scene) -> None:
    channel = scene.channel()
    terms: dict[str, Any] = {"durable": True, "arguments": {"x-max-length": 10, "x-message-ttl": 60_000}}
    queue = scene.queue(channel, **terms)
    assert channel.declare_queue(queue, **terms).name == queue


@scenario()
def a_missing_queue_is_not_found(scene: Scene) -> None:
    connection = scene.connect()
    missing = scene.name("missing")
    with refused(404, text=f"no queue '{missing}' in vhost '/'"):
        connection.channel().declare_queue(missing, passive=True)
    with refused(404, text="no queue"):
        connection.channel().consume(missing)
    with refused(404, text="no queue"):
        connection.channel().get(missing)
    with refused(404, text="no queue"):
        connection.channel().purge(missing)
    with refused(404, text="no queue"):
        connection.channel().bind(missing, "amq.direct", "key")


@scenario()
def another_durability_is_refused(scene: Scene) -> None:
    channel = scene.channel()
    queue = scene.queue(channel, durable=True)
    with refused(406, text=f"inequivalent arg 'durable' for queue '{queue}' in vhost '/'"):
        channel.declare_queue(queue, durable=False)


@scenario()
def another_auto_delete_is_refused(scene: Scene) -> None:
    channel = scene.channel()
    queue = scene.queue(channel, durable=True)
    with refused(406, text="inequivalent arg 'auto_delete'"):
        channel.declare_queue(queue, durable=True, auto_delete=True)


@scenario()
def another_argument_is_refused(scene: Scene) -> None:
    connection = scene.connect()
    queue = scene.queue(connection.channel(), durable=True, arguments={"x-message-ttl": 60_000})
    for arguments in ({"x-message-ttl": 60_001}, {}):
        with refused(406, text="inequivalent arg 'x-message-ttl'"):
            connection.channel().declare_queue(queue, durable=True, arguments=arguments)
    with refused(406, text="inequivalent arg 'x-max-length'"):
        connection.channel().declare_queue(queue, durable=True, arguments={"x-message-ttl": 60_000, "x-max-length": 5})


@scenario()
def an_exclusive_queue_is_locked_for_others(scene: Scene) -> None:
    queue = scene.queue(scene.channel(), exclusive=True)
    other = scene.connect()
    deeds = [
        lambda channel: channel.declare_queue(queue, exclusive=True),
        lambda channel: channel.declare_queue(queue, passive=True),
        lambda channel: channel.consume(queue),
        lambda channel: channel.get(queue),
        lambda channel: channel.purge(queue),
        lambda channel: channel.delete_queue(queue),
        lambda channel: channel.bind(queue, "amq.direct", "key"),
    ]
    for deed in deeds:
        with refused(405, text=f"cannot obtain exclusive access to locked queue '{queue}' in vhost '/'"):
            deed(other.channel())


@scenario()
def others_may_publish_to_an_exclusive_queue(scene: Scene) -> None:
    channel = scene.channel()
    queue = scene.queue(channel, exclusive=True)
    channel.consume(queue, no_ack=True)
    scene.channel().publish("", queue, b"from afar")
    assert channel.next().body == b"from afar"


@scenario()
def all_channels_of_a_connection_share_its_exclusive_queues(scene: Scene) -> None:
    connection = scene.connect()
    queue = scene.queue(connection.channel(), exclusive=True)
    assert connection.channel().declare_queue(queue, passive=True).messages == 0


@scenario()
def an_exclusive_queue_ends_with_its_connection(scene: Scene) -> None:
    first, second = scene.connect(), scene.connect()
    queue = scene.queue(first.channel(), exclusive=True)
    first.close()
    until_gone(second, queue)


@scenario()
def an_auto_delete_queue_ends_with_its_last_consumer(scene: Scene) -> None:
    connection = scene.connect()
    channel = connection.channel()
    queue = scene.queue(channel, auto_delete=True)
    tags = [channel.consume(queue) for _ in range(2)]
    channel.cancel(tags[0])
    assert channel.count(queue) == 0
    channel.cancel(tags[1])
    until_gone(connection, queue)


@scenario()
def an_auto_delete_queue_ends_with_the_channel_of_its_consumer(scene: Scene) -> None:
    connection = scene.connect()
    channel = connection.channel()
    queue = scene.queue(channel, auto_delete=True)
    channel.consume(queue)
    channel.close()
    until_gone(connection, queue)


@scenario()
def an_auto_delete_queue_lives_until_it_had_a_consumer(scene: Scene) -> None:
    first, second = scene.connect(), scene.channel()
    queue = scene.queue(first.channel(), auto_delete=True)
    first.close()
    assert second.count(queue) == 0


@scenario()
def a_delete_returns_how_many_messages_were_deleted(scene: Scene) -> None:
    connection = scene.connect()
    channel = connection.channel(confirms=True)
    queue = scene.queue(channel)
    for _ in range(4):
        channel.publish("", queue, b"m")
    assert channel.delete_queue(queue) == 4
    until_gone(connection, queue)


@scenario()
def to_delete_what_is_not_there_is_no_error(scene: Scene) -> None:
    channel = scene.channel()
    assert channel.delete_queue(scene.name("missing")) == 0
    channel.delete_exchange(scene.name("missing"))


@scenario()
def to_unbind_what_is_not_there_is_no_error(scene: Scene) -> None:
    channel = scene.channel()
    queue = scene.queue(channel, exclusive=True)
    exchange = scene.exchange(channel, "direct")
    channel.unbind(queue, exchange, "key")
    channel.delete_queue(queue)
    channel.unbind(queue, exchange, "key")
    channel.unbind(queue, scene.name("missing"), "key")
    assert channel.declare_queue(exclusive=True).messages == 0


@scenario()
def a_queue_in_use_is_not_deleted_if_unused(scene: Scene) -> None:
    connection = scene.connect()
    channel = connection.channel()
    queue = scene.queue(channel)
    tag = channel.consume(queue)
    with refused(406, text=f"queue '{queue}' in vhost '/' in use"):
        connection.channel().delete_queue(queue, if_unused=True)
    channel.cancel(tag)
    assert channel.delete_queue(queue, if_unused=True) == 0


@scenario()
def a_queue_with_messages_is_not_deleted_if_empty(scene: Scene) -> None:
    connection = scene.connect()
    channel = connection.channel(confirms=True)
    queue = scene.queue(channel)
    channel.publish("", queue, b"m")
    with refused(406, text=f"queue '{queue}' in vhost '/' not empty"):
        connection.channel().delete_queue(queue, if_empty=True)
    channel.purge(queue)
    assert channel.delete_queue(queue, if_empty=True) == 0


@scenario()
def a_purge_takes_what_is_ready_and_counts_it(scene: Scene) -> None:
    channel = scene.channel(confirms=True)
    queue = scene.queue(channel, exclusive=True)
    for number in range(5):
        channel.publish("", queue, str(number).encode())
    held = [channel.get(queue), channel.get(queue)]
    assert channel.purge(queue) == 3
    assert channel.purge(queue) == 0
    for message in held:
        assert message is not None
        channel.nack(message.tag)
    assert [message.body for message in channel.drain(queue)] == [b"0", b"1"]


@scenario()
def names_of_the_server_are_refused(scene: Scene) -> None:
    connection = scene.connect()
    with refused(403, text="ACCESS_REFUSED"):
        connection.channel().declare_queue("amq.mine")
    with refused(403, text="ACCESS_REFUSED"):
        connection.channel().declare_exchange("amq.mine", "direct")


@scenario("any-name")
def a_name_may_be_any_text(scene: Scene) -> None:
    channel = scene.channel(confirms=True)
    words = ["with space", "a/b\\c", "dotted.name", "größe→名", "x" * 240, "UPPER and lower", "%2F?#&=", "*.#"]
    for word in words:
        queue = scene.queue(channel, word, exclusive=True)
        channel.publish("", queue, word.encode())
    for word in words:
        message = channel.get(scene.name(word), no_ack=True)
        assert message is not None
        assert (message.body, message.key) == (word.encode(), scene.name(word))


@scenario()
def names_differ_by_case(scene: Scene) -> None:
    channel = scene.channel(confirms=True)
    small, large = scene.queue(channel, "word", exclusive=True), scene.queue(channel, "WORD", exclusive=True)
    channel.publish("", small, b"m")
    assert (channel.count(small), channel.count(large)) == (1, 0)


@scenario()
def a_hundred_queues(scene: Scene) -> None:
    channel = scene.channel()
    queues = [scene.queue(channel, f"queue{number}", exclusive=True) for number in range(100)]
    for queue in queues:
        channel.consume(queue, no_ack=True)
    for queue in queues:
        channel.publish("", queue, queue.encode())
    assert {message.body for message in channel.take(100)} == {queue.encode() for queue in queues}


# ------------------------------------------------------------------------------------------------- arguments refused

WRONG_ARGUMENTS: dict[str, list[Any]] = {
    "x-message-ttl": [-1, "soon", 1 << 60],
    "x-expires": [-1, 0, "soon"],
    "x-max-length": [-1, "many"],
    "x-max-length-bytes": [-1],
    "x-max-priority": [-1, 256, "high"],
    "x-overflow": ["explode", 5],
    "x-dead-letter-exchange": [5],
    "x-dead-letter-routing-key": ["without an exchange"],
    "x-single-active-consumer": ["yes"],
    "x-queue-type": ["fancy"],
}


def _refuses(connection: Connection, queue: str, argument: str, value: Any) -> None:
    channel: Channel = connection.channel()
    try:
        channel.declare_queue(queue, arguments={argument: value})
    except Refused as fault:
        assert (fault.scope, fault.code) == ("channel", 406), f"{argument}={value!r}: {fault}"
        assert argument in fault.text, fault
    else:
        raise AssertionError(f"{argument}={value!r} was accepted")


@scenario()
def arguments_with_wrong_values_are_refused(scene: Scene) -> None:
    connection = scene.connect()
    queue = scene.name("wrong")
    for argument, values in WRONG_ARGUMENTS.items():
        for value in values:
            _refuses(connection, queue, argument, value)


@scenario()
def unknown_arguments_do_no_harm(scene: Scene) -> None:
    channel = scene.channel()
    queue = scene.queue(channel, exclusive=True, arguments={"x-of-somebody": "else", "plain": 1})
    assert channel.count(queue) == 0


@scenario()
def queue_types_are_accepted(scene: Scene) -> None:
    channel = scene.channel(confirms=True)
    for kind in ("classic", "quorum"):
        queue = scene.queue(channel, kind, durable=True, arguments={"x-queue-type": kind})
        channel.publish("", queue, kind.encode(), delivery_mode=2)
        channel.consume(queue)
        message = channel.next()
        assert message.body == kind.encode()
        channel.ack(message.tag)


@scenario()
def a_stream_is_read_from_its_beginning(scene: Scene) -> None:
    channel = scene.channel(confirms=True)
    queue = scene.queue(channel, "stream", durable=True, arguments={"x-queue-type": "stream"})
    for number in range(3):
        channel.publish("", queue, str(number).encode())
    channel.qos(10)
    channel.consume(queue, arguments={"x-stream-offset": "first"})
    for number in range(3):
        message = channel.next()
        assert message.body == str(number).encode()
        channel.ack(message.tag)


@scenario()
def a_quorum_queue_has_to_be_durable(scene: Scene) -> None:
    connection = scene.connect()
    terms: list[dict[str, Any]] = [{"durable": False}, {"durable": True, "exclusive": True}]
    for each in terms:
        with refused(406):
            connection.channel().declare_queue(scene.name("q"), arguments={"x-queue-type": "quorum"}, **each)
