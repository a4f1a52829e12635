"""Consuming: which consumer gets which messages, and what an ack, a nack or a silence does to a message."""

from __future__ import annotations

from tests.amqp.clients.port import Channel
from tests.amqp.scenarios.registry import Scene, refused, scenario


def filled(scene: Scene, channel: Channel, count: int) -> str:
    """Make a queue of the connection with the messages 0, 1, 2, …"""
    queue = scene.queue(channel, exclusive=True)
    for number in range(count):
        channel.publish("", queue, str(number).encode())
    channel.until_count(queue, count)
    return queue


def numbers(*wanted: int) -> list[bytes]:
    return [str(number).encode() for number in wanted]


@scenario()
def what_is_acknowledged_is_gone(scene: Scene) -> None:
    connection = scene.connect()
    channel = connection.channel()
    queue = filled(scene, channel, 3)
    channel.consume(queue)
    for message in channel.take(3):
        assert not message.redelivered
        channel.ack(message.tag)
    channel.close()
    assert connection.channel().get(queue) is None


@scenario()
def delivery_tags_count_from_one_on_each_channel(scene: Scene) -> None:
    connection = scene.connect()
    first, second = connection.channel(), connection.channel()
    queue = filled(scene, first, 4)
    got = [first.get(queue), first.get(queue), second.get(queue), second.get(queue)]
    assert [message.tag for message in got if message is not None] == [1, 2, 1, 2]


@scenario()
def an_ack_of_multiple_takes_all_before_it(scene: Scene) -> None:
    connection = scene.connect()
    channel = connection.channel()
    queue = filled(scene, channel, 5)
    channel.consume(queue)
    taken = channel.take(5)
    channel.ack(taken[2].tag, multiple=True)
    channel.close()
    other = connection.channel()
    other.consume(queue)
    assert other.bodies(2) == numbers(3, 4)
    assert other.is_quiet()


@scenario()
def an_ack_of_all_takes_everything(scene: Scene) -> None:
    connection = scene.connect()
    channel = connection.channel()
    queue = filled(scene, channel, 3)
    channel.consume(queue)
    channel.take(3)
    channel.ack(0, multiple=True)
    channel.close()
    assert connection.channel().count(queue) == 0


@scenario()
def an_unknown_delivery_tag_is_refused(scene: Scene) -> None:
    connection = scene.connect()
    deeds = [
        lambda channel: channel.ack(7),
        lambda channel: channel.nack(7),
        lambda channel: channel.reject(7),
        lambda channel: channel.ack(7, multiple=True),
    ]
    for deed in deeds:
        channel = connection.channel()
        with refused(406, text="unknown delivery tag 7"):
            deed(channel)
            channel.qos(1)


@scenario()
def a_second_ack_is_refused(scene: Scene) -> None:
    channel = scene.channel()
    queue = filled(scene, channel, 1)
    message = channel.get(queue)
    assert message is not None
    channel.ack(message.tag)
    with refused(406, text="unknown delivery tag 1"):
        channel.ack(message.tag)
        channel.qos(1)


@scenario()
def an_ack_of_what_needs_none_is_refused(scene: Scene) -> None:
    channel = scene.channel()
    queue = filled(scene, channel, 1)
    channel.consume(queue, no_ack=True)
    message = channel.next()
    with refused(406, text="unknown delivery tag"):
        channel.ack(message.tag)
        channel.qos(1)


@scenario()
def a_nacked_message_comes_back_marked_as_redelivered(scene: Scene) -> None:
    channel = scene.channel()
    queue = filled(scene, channel, 1)
    channel.consume(queue)
    first = channel.next()
    channel.nack(first.tag, requeue=True)
    second = channel.next()
    assert (second.body, second.redelivered, second.tag) == (first.body, True, first.tag + 1)
    channel.ack(second.tag)
    assert channel.is_quiet()


@scenario()
def a_nack_without_requeue_drops_it(scene: Scene) -> None:
    channel = scene.channel()
    queue = filled(scene, channel, 2)
    channel.consume(queue)
    for message in channel.take(2):
        channel.nack(message.tag, requeue=False)
    assert channel.is_quiet()
    assert channel.count(queue) == 0


@scenario()
def a_nack_of_multiple_brings_all_back_in_order(scene: Scene) -> None:
    channel = scene.channel()
    queue = filled(scene, channel, 5)
    channel.consume(queue)
    taken = channel.take(5)
    channel.nack(taken[-1].tag, multiple=True, requeue=True)
    again = channel.take(5)
    assert [message.body for message in again] == numbers(0, 1, 2, 3, 4)
    assert all(message.redelivered for message in again)


@scenario()
def a_rejected_message_comes_back_or_is_dropped(scene: Scene) -> None:
    channel = scene.channel()
    queue = filled(scene, channel, 1)
    channel.consume(queue)
    channel.reject(channel.next().tag, requeue=True)
    again = channel.next()
    assert again.redelivered
    channel.reject(again.tag, requeue=False)
    assert channel.is_quiet()
    assert channel.count(queue) == 0


@scenario()
def what_comes_back_takes_its_old_place(scene: Scene) -> None:
    channel = scene.channel()
    queue = filled(scene, channel, 5)
    taken = [channel.get(queue) for _ in range(3)]
    for message in (taken[2], taken[0], taken[1]):
        assert message is not None
        channel.reject(message.tag, requeue=True)
    left = channel.drain(queue)
    assert [message.body for message in left] == numbers(0, 1, 2, 3, 4)
    assert [message.redelivered for message in left] == [True, True, True, False, False]


@scenario("recover")
def a_recover_brings_everything_back(scene: Scene) -> None:
    channel = scene.channel()
    queue = filled(scene, channel, 3)
    channel.consume(queue)
    channel.ack(channel.take(3)[0].tag)
    channel.recover()
    again = channel.take(2)
    assert [message.body for message in again] == numbers(1, 2)
    assert all(message.redelivered for message in again)


# -------------------------------------------------------------------------------------------------------- how much


@scenario()
def a_prefetch_bounds_each_consumer(scene: Scene) -> None:
    channel = scene.channel()
    queue = filled(scene, channel, 10)
    channel.qos(3)
    channel.consume(queue)
    taken = channel.take(3)
    assert [message.body for message in taken] == numbers(0, 1, 2)
    assert channel.is_quiet()
    channel.ack(taken[0].tag)
    assert channel.next().body == b"3"
    assert channel.is_quiet()
    channel.ack(taken[2].tag, multiple=True)
    assert channel.bodies(2) == numbers(4, 5)
    assert channel.is_quiet()


@scenario()
def a_prefetch_counts_for_each_new_consumer_alone(scene: Scene) -> None:
    channel = scene.channel()
    queue = filled(scene, channel, 10)
    channel.qos(1)
    one = channel.consume(queue)
    channel.qos(2)
    two = channel.consume(queue)
    consumers = [message.consumer for message in channel.take(3)]
    assert channel.is_quiet()
    assert (consumers.count(one), consumers.count(two)) == (1, 2)


@scenario()
def a_prefetch_for_the_whole_channel_bounds_the_channel(scene: Scene) -> None:
    channel = scene.channel()
    queue = filled(scene, channel, 10)
    channel.qos(3, whole_channel=True)
    channel.consume(queue)
    channel.consume(queue)
    taken = channel.take(3)
    assert channel.is_quiet()
    channel.ack(taken[0].tag)
    channel.next()
    assert channel.is_quiet()


@scenario()
def both_prefetches_hold_together(scene: Scene) -> None:
    channel = scene.channel()
    queue = filled(scene, channel, 20)
    channel.qos(2)
    channel.qos(3, whole_channel=True)
    channel.consume(queue)
    channel.consume(queue)
    channel.take(3)
    assert channel.is_quiet()


@scenario()
def a_prefetch_does_not_bound_a_consumer_without_acks(scene: Scene) -> None:
    channel = scene.channel()
    queue = filled(scene, channel, 10)
    channel.qos(1)
    channel.consume(queue, no_ack=True)
    assert channel.bodies(10) == numbers(*range(10))


@scenario()
def no_prefetch_is_no_bound(scene: Scene) -> None:
    channel = scene.channel()
    queue = filled(scene, channel, 300)
    channel.qos(0)
    channel.consume(queue)
    assert len(channel.take(300)) == 300


@scenario()
def what_needs_no_ack_is_gone_when_it_is_sent(scene: Scene) -> None:
    connection = scene.connect()
    channel = connection.channel()
    queue = filled(scene, channel, 3)
    channel.consume(queue, no_ack=True)
    channel.take(3)
    channel.close()
    assert connection.channel().count(queue) == 0


# ------------------------------------------------------------------------------------------------------- which consumer


@scenario()
def two_consumers_take_turns(scene: Scene) -> None:
    channel = scene.channel(confirms=True)
    queue = scene.queue(channel, exclusive=True)
    tags = [channel.consume(queue, no_ack=True) for _ in range(2)]
    for number in range(10):
        channel.publish("", queue, str(number).encode())
    taken = channel.take(10)
    by_consumer = {tag: [message.body for message in taken if message.consumer == tag] for tag in tags}
    assert sorted(by_consumer.values()) == [numbers(0, 2, 4, 6, 8), numbers(1, 3, 5, 7, 9)]


@scenario()
def a_busy_consumer_is_passed_over(scene: Scene) -> None:
    channel = scene.channel(confirms=True)
    queue = scene.queue(channel, exclusive=True)
    channel.qos(1)
    tags = [channel.consume(queue) for _ in range(2)]
    for number in range(4):
        channel.publish("", queue, str(number).encode())
    first, second = channel.take(2)
    assert {first.consumer, second.consumer} == set(tags)
    channel.ack(second.tag)
    third = channel.next()
    assert third.consumer == second.consumer
    channel.ack(third.tag)
    assert channel.next().consumer == second.consumer


@scenario()
def an_exclusive_consumer_is_alone(scene: Scene) -> None:
    connection = scene.connect()
    channel = connection.channel()
    queue = scene.queue(channel, exclusive=True)
    tag = channel.consume(queue, exclusive=True)
    with refused(403, text=f"queue '{queue}' in vhost '/' in exclusive use"):
        connection.channel().consume(queue)
    channel.cancel(tag)
    channel.consume(queue)
    with refused(403, text="in exclusive use"):
        connection.channel().consume(queue, exclusive=True)


@scenario()
def the_consumer_of_higher_priority_comes_first(scene: Scene) -> None:
    channel = scene.channel(confirms=True)
    queue = scene.queue(channel, exclusive=True)
    channel.qos(2)
    low = channel.consume(queue, arguments={"x-priority": -5})
    usual = channel.consume(queue)
    high = channel.consume(queue, arguments={"x-priority": 10})
    for number in range(5):
        channel.publish("", queue, str(number).encode())
    consumers = [message.consumer for message in sorted(channel.take(5), key=lambda message: message.body)]
    assert consumers == [high, high, usual, usual, low]


@scenario()
def a_consumer_chooses_its_tag_or_gets_one(scene: Scene) -> None:
    channel = scene.channel()
    queue = scene.queue(channel, exclusive=True)
    assert channel.consume(queue, tag="größe") == "größe"
    others = {channel.consume(queue) for _ in range(3)}
    assert len(others) == 3
    assert "" not in others


@scenario()
def the_same_tag_may_be_used_on_two_channels(scene: Scene) -> None:
    connection = scene.connect()
    channels = [connection.channel(), connection.channel()]
    queue = scene.queue(channels[0], exclusive=True)
    for channel in channels:
        assert channel.consume(queue, tag="same") == "same"
    assert channels[0].declare_queue(queue, passive=True).consumers == 2


@scenario()
def a_cancelled_consumer_gets_no_more_and_keeps_what_it_has(scene: Scene) -> None:
    channel = scene.channel(confirms=True)
    queue = scene.queue(channel, exclusive=True)
    tag = channel.consume(queue)
    channel.publish("", queue, b"before")
    message = channel.next()
    channel.cancel(tag)
    channel.publish("", queue, b"after")
    assert channel.is_quiet()
    assert channel.declare_queue(queue, passive=True).consumers == 0
    channel.ack(message.tag)
    assert [message.body for message in channel.drain(queue)] == [b"after"]


@scenario()
def to_cancel_an_unknown_consumer_is_no_error(scene: Scene) -> None:
    channel = scene.channel()
    channel.cancel("nobody")
    assert channel.declare_queue(exclusive=True).messages == 0


@scenario()
def a_consumer_is_cancelled_when_its_queue_is_deleted(scene: Scene) -> None:
    connection = scene.connect()
    channel = connection.channel()
    queue = scene.queue(channel)
    tags = {channel.consume(queue, tag=tag) for tag in ("one", "two")}
    scene.channel().delete_queue(queue)
    assert {channel.next_cancelled(), channel.next_cancelled()} == tags
    assert channel.declare_queue(exclusive=True).messages == 0


# -------------------------------------------------------------------------------------------------------------- get


@scenario()
def a_get_takes_one_and_returns_how_many_are_left(scene: Scene) -> None:
    channel = scene.channel()
    queue = filled(scene, channel, 3)
    got = [channel.get(queue) for _ in range(3)]
    assert [(message.body, message.left) for message in got if message is not None] == [(b"0", 2), (b"1", 1), (b"2", 0)]
    assert channel.get(queue) is None
    for message in got:
        assert message is not None
        channel.ack(message.tag)
    assert channel.count(queue) == 0


@scenario()
def a_get_without_ack_is_gone_at_once(scene: Scene) -> None:
    connection = scene.connect()
    channel = connection.channel()
    queue = filled(scene, channel, 1)
    message = channel.get(queue, no_ack=True)
    assert message is not None
    assert (message.body, message.redelivered) == (b"0", False)
    channel.close()
    assert connection.channel().get(queue) is None


@scenario()
def what_was_got_and_not_acked_comes_back(scene: Scene) -> None:
    connection = scene.connect()
    channel = connection.channel()
    queue = filled(scene, channel, 1)
    assert channel.get(queue) is not None
    channel.close()
    other = connection.channel()
    other.until_count(queue, 1)
    again = other.get(queue, no_ack=True)
    assert again is not None
    assert again.redelivered


@scenario()
def a_get_of_an_empty_queue_is_nothing(scene: Scene) -> None:
    channel = scene.channel()
    assert channel.get(scene.queue(channel, exclusive=True)) is None
    assert channel.get(scene.queue(channel, "other", exclusive=True), no_ack=True) is None


@scenario()
def a_get_is_not_bound_by_the_prefetch(scene: Scene) -> None:
    channel = scene.channel()
    queue = filled(scene, channel, 3)
    channel.qos(1)
    assert [message.body for message in (channel.get(queue) for _ in range(3)) if message] == numbers(0, 1, 2)
