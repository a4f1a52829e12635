"""What RabbitMQ has beyond the specification: priorities, one active consumer, replies without a queue; and tx."""

from __future__ import annotations

import time
from typing import Any

from tests.amqp.scenarios.registry import Scene, refused, scenario

REPLIES = "amq.rabbitmq.reply-to"


# -------------------------------------------------------------------------------------------------------- priorities


@scenario()
def the_larger_priority_comes_first(scene: Scene) -> None:
    channel = scene.channel(confirms=True)
    queue = scene.queue(channel, exclusive=True, arguments={"x-max-priority": 10})
    for number, priority in enumerate((1, 5, None, 5, 9, 0, 1)):
        properties: dict[str, Any] = {} if priority is None else {"priority": priority}
        channel.publish("", queue, str(number).encode(), **properties)
    assert [message.body for message in channel.drain(queue)] == [b"4", b"1", b"3", b"0", b"6", b"2", b"5"]


@scenario()
def a_priority_over_the_largest_counts_as_the_largest(scene: Scene) -> None:
    channel = scene.channel(confirms=True)
    queue = scene.queue(channel, exclusive=True, arguments={"x-max-priority": 5})
    for body, priority in ((b"5", 5), (b"200", 200), (b"4", 4), (b"6", 6)):
        channel.publish("", queue, body, priority=priority)
    left = channel.drain(queue)
    assert [message.body for message in left] == [b"5", b"200", b"6", b"4"]
    assert left[1].properties["priority"] == 200


@scenario()
def a_requeued_message_keeps_its_priority(scene: Scene) -> None:
    channel = scene.channel(confirms=True)
    queue = scene.queue(channel, exclusive=True, arguments={"x-max-priority": 255})
    for body, priority in ((b"low", 1), (b"high", 255)):
        channel.publish("", queue, body, priority=priority)
    first = channel.get(queue)
    assert first is not None
    assert first.body == b"high"
    channel.nack(first.tag, requeue=True)
    assert [message.body for message in channel.drain(queue)] == [b"high", b"low"]


@scenario()
def without_a_largest_priority_there_is_none(scene: Scene) -> None:
    channel = scene.channel(confirms=True)
    queue = scene.queue(channel, exclusive=True)
    for priority in (1, 9, 5):
        channel.publish("", queue, str(priority).encode(), priority=priority)
    assert [message.body for message in channel.drain(queue)] == [b"1", b"9", b"5"]


# ------------------------------------------------------------------------------------------------ one active consumer


@scenario()
def one_consumer_is_active_and_the_next_takes_over(scene: Scene) -> None:
    channel = scene.channel(confirms=True)
    queue = scene.queue(channel, exclusive=True, arguments={"x-single-active-consumer": True})
    first, second = (channel.consume(queue, no_ack=True) for _ in range(2))
    for _ in range(4):
        channel.publish("", queue, b"m")
    assert [message.consumer for message in channel.take(4)] == [first] * 4
    channel.cancel(first)
    for _ in range(2):
        channel.publish("", queue, b"m")
    assert [message.consumer for message in channel.take(2)] == [second] * 2


@scenario()
def the_next_takes_over_when_a_connection_ends(scene: Scene) -> None:
    one, two = scene.connect(), scene.channel()
    active = one.channel()
    queue = scene.queue(active, durable=True, arguments={"x-single-active-consumer": True})
    active.consume(queue)
    two.consume(queue)
    two.publish("", queue, b"m")
    assert active.next().body == b"m"
    assert two.is_quiet()
    one.close()
    again = two.next()
    assert (again.body, again.redelivered) == (b"m", True)


@scenario()
def where_one_is_active_none_is_exclusive(scene: Scene) -> None:
    channel = scene.channel()
    queue = scene.queue(channel, exclusive=True, arguments={"x-single-active-consumer": True})
    with refused(403):
        channel.consume(queue, exclusive=True)


# ------------------------------------------------------------------------------------------------------------ replies


@scenario()
def a_reply_comes_without_a_queue(scene: Scene) -> None:
    caller, server = scene.channel(), scene.channel()
    queue = scene.queue(server, exclusive=True)
    server.consume(queue, no_ack=True)
    caller.consume(REPLIES, no_ack=True)
    for number in range(3):
        caller.publish("", queue, b"ask", reply_to=REPLIES, correlation_id=str(number))
        request = server.next()
        address = request.properties["reply_to"]
        assert address.startswith(f"{REPLIES}.")
        server.publish("", address, b"answer", correlation_id=request.properties["correlation_id"])
        reply = caller.next()
        assert (reply.body, reply.properties["correlation_id"]) == (b"answer", str(number))
        assert (reply.exchange, reply.redelivered) == ("", False)


@scenario()
def the_queue_of_replies_is_found(scene: Scene) -> None:
    channel = scene.channel()
    assert channel.declare_queue(REPLIES, passive=True).name == REPLIES
    channel.consume(REPLIES, no_ack=True)


@scenario("any-name")
def the_address_of_a_reply_is_found(scene: Scene) -> None:
    caller, server = scene.channel(), scene.channel()
    caller.consume(REPLIES, no_ack=True)
    queue = scene.queue(server, exclusive=True)
    server.consume(queue, no_ack=True)
    caller.publish("", queue, b"ask", reply_to=REPLIES)
    address = server.next().properties["reply_to"]
    found = server.declare_queue(address, passive=True)
    assert (found.messages, found.consumers) == (0, 1)


@scenario()
def replies_need_no_ack(scene: Scene) -> None:
    channel = scene.channel()
    with refused(406, text="reply consumer cannot acknowledge"):
        channel.consume(REPLIES, no_ack=False)


@scenario()
def a_request_needs_a_consumer_of_replies(scene: Scene) -> None:
    channel = scene.channel()
    queue = scene.queue(channel, exclusive=True)
    with refused(406, text="fast reply consumer does not exist"):
        channel.publish("", queue, b"ask", reply_to=REPLIES)
        channel.qos(1)


@scenario()
def one_channel_has_one_consumer_of_replies(scene: Scene) -> None:
    channel = scene.channel()
    channel.consume(REPLIES, no_ack=True)
    with refused(406, text="reply consumer already set"):
        channel.consume(REPLIES, no_ack=True)


@scenario()
def a_reply_to_a_client_that_left_is_returned(scene: Scene) -> None:
    caller, server = scene.connect(), scene.channel(confirms=True)
    queue = scene.queue(server, exclusive=True)
    server.consume(queue, no_ack=True)
    asking = caller.channel()
    asking.consume(REPLIES, no_ack=True)
    asking.publish("", queue, b"ask", reply_to=REPLIES)
    address = server.next().properties["reply_to"]
    caller.close()
    end = time.monotonic() + 5
    while not server.returned and time.monotonic() < end:
        server.publish("", address, b"answer", mandatory=True)
        server.pump(0.1)
    assert server.next_returned().code == 312


# ----------------------------------------------------------------------------------------------------------------- tx


@scenario("tx")
def a_transaction_publishes_at_its_commit(scene: Scene) -> None:
    connection = scene.connect()
    channel, other = connection.channel(), connection.channel()
    queue = scene.queue(channel, exclusive=True)
    channel.tx_select()
    for number in range(3):
        channel.publish("", queue, str(number).encode())
    channel.qos(0)
    assert other.count(queue) == 0
    channel.tx_commit()
    assert [message.body for message in other.drain(queue)] == [b"0", b"1", b"2"]


@scenario("tx")
def a_rollback_publishes_nothing(scene: Scene) -> None:
    channel = scene.channel()
    queue = scene.queue(channel, exclusive=True)
    channel.tx_select()
    channel.publish("", queue, b"no")
    channel.tx_rollback()
    channel.publish("", queue, b"yes")
    channel.tx_commit()
    assert [message.body for message in channel.drain(queue)] == [b"yes"]


@scenario("tx")
def a_transaction_acks_at_its_commit(scene: Scene) -> None:
    connection = scene.connect()
    channel = connection.channel(confirms=True)
    queue = scene.queue(channel, exclusive=True)
    for number in range(2):
        channel.publish("", queue, str(number).encode())
    worker = connection.channel()
    worker.tx_select()
    first, second = worker.get(queue), worker.get(queue)
    assert first is not None
    assert second is not None
    worker.ack(first.tag)
    worker.tx_commit()
    worker.ack(second.tag)
    worker.tx_rollback()
    worker.close()
    channel.until_count(queue, 1)
    assert [(message.body, message.redelivered) for message in channel.drain(queue)] == [(b"1", True)]


@scenario("tx")
def a_rolled_back_ack_can_be_given_again(scene: Scene) -> None:
    connection = scene.connect()
    channel = connection.channel()
    queue = scene.queue(channel, exclusive=True)
    channel.publish("", queue, b"m")
    channel.until_count(queue, 1)
    channel.tx_select()
    message = channel.get(queue)
    assert message is not None
    channel.ack(message.tag)
    channel.tx_rollback()
    channel.ack(message.tag)
    channel.tx_commit()
    channel.close()
    assert connection.channel().count(queue) == 0


@scenario("tx")
def a_channel_that_ends_rolls_back(scene: Scene) -> None:
    connection = scene.connect()
    channel, other = connection.channel(), connection.channel()
    queue = scene.queue(channel, exclusive=True)
    channel.tx_select()
    channel.publish("", queue, b"m")
    channel.close()
    assert other.count(queue) == 0


@scenario("tx")
def transactions_and_confirms_do_not_mix(scene: Scene) -> None:
    connection = scene.connect()
    with refused(406, text="cannot switch from confirm to tx mode"):
        connection.channel(confirms=True).tx_select()


@scenario("tx")
def without_a_transaction_there_is_nothing_to_commit(scene: Scene) -> None:
    connection = scene.connect()
    with refused(406, text="channel is not transactional"):
        connection.channel().tx_commit()
    with refused(406, text="channel is not transactional"):
        connection.channel().tx_rollback()


# -------------------------------------------------------------------------------------------------- x-delayed-message


def delayed(scene: Scene, channel: Any, kind: str = "direct") -> str:
    """Declare an exchange that holds messages back."""
    return scene.exchange(channel, "x-delayed-message", "delayed", arguments={"x-delayed-type": kind})


@scenario(only_here=True)
def a_delayed_message_comes_later(scene: Scene) -> None:
    channel = scene.channel(confirms=True)
    exchange = delayed(scene, channel)
    queue = scene.queue(channel, exclusive=True)
    channel.bind(queue, exchange, "key")
    channel.consume(queue, no_ack=True)
    began = time.monotonic()
    channel.publish(exchange, "key", b"late", headers={"x-delay": 600})
    channel.publish(exchange, "key", b"soon", headers={"x-delay": 300})
    channel.publish(exchange, "key", b"now")
    assert channel.bodies(3) == [b"now", b"soon", b"late"]
    assert time.monotonic() - began >= 0.6  # no message is early; how late a message may be is not bounded


@scenario(only_here=True)
def a_delayed_exchange_routes_by_its_type(scene: Scene) -> None:
    channel = scene.channel(confirms=True)
    for kind, key in (("topic", "a.*"), ("fanout", ""), ("direct", "a.b")):
        exchange = scene.exchange(channel, "x-delayed-message", kind, arguments={"x-delayed-type": kind})
        queue = scene.queue(channel, f"of-{kind}", exclusive=True)
        channel.bind(queue, exchange, key)
        channel.publish(exchange, "a.b", kind.encode(), headers={"x-delay": 50})
        channel.until_count(queue, 1)
        assert [message.body for message in channel.drain(queue)] == [kind.encode()]


@scenario(only_here=True)
def a_delayed_message_keeps_its_properties(scene: Scene) -> None:
    channel = scene.channel(confirms=True)
    exchange = delayed(scene, channel)
    queue = scene.queue(channel, exclusive=True)
    channel.bind(queue, exchange, "key")
    channel.publish(exchange, "key", b"m", headers={"x-delay": 50, "mine": "too"}, message_id="7", delivery_mode=2)
    channel.until_count(queue, 1)
    message = channel.get(queue, no_ack=True)
    assert message is not None
    assert (message.exchange, message.key, message.properties["message_id"]) == (exchange, "key", "7")
    assert message.headers["mine"] == "too"


@scenario(only_here=True)
def a_delayed_exchange_has_to_name_its_type(scene: Scene) -> None:
    connection = scene.connect()
    with refused(406):
        connection.channel().declare_exchange(scene.name("delayed"), "x-delayed-message")
