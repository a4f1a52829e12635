"""Connections and channels: how they open, how they end, and what survives whose end."""

from __future__ import annotations

from tests.amqp.scenarios.registry import Scene, refused, scenario


@scenario()
def a_connection_opens_and_closes(scene: Scene) -> None:
    connection = scene.connect()
    assert connection.is_open()
    connection.channel()
    connection.close()
    assert not connection.is_open()


@scenario()
def the_server_names_its_capabilities(scene: Scene) -> None:
    properties = scene.connect().server_properties
    can = {name for name, yes in properties["capabilities"].items() if yes}
    assert can >= {
        "publisher_confirms",
        "exchange_exchange_bindings",
        "basic.nack",
        "consumer_cancel_notify",
        "connection.blocked",
        "consumer_priorities",
        "authentication_failure_close",
        "per_consumer_qos",
        "direct_reply_to",
    }
    assert {"product", "version", "platform", "copyright", "information", "cluster_name"} <= set(properties)


@scenario()
def the_connection_is_tuned(scene: Scene) -> None:
    connection = scene.connect(heartbeat_s=7)
    assert connection.heartbeat_s == 7
    assert 0 < connection.channel_max <= 65_535
    assert connection.frame_max >= 4_096


@scenario()
def heartbeats_keep_an_idle_connection_alive(scene: Scene) -> None:
    connection = scene.connect(heartbeat_s=1)
    channel = connection.channel()
    connection.idle(3.5)
    assert connection.is_open()
    assert channel.declare_queue(exclusive=True).messages == 0


@scenario()
def a_wrong_password_is_refused(scene: Scene) -> None:
    with refused(403, "connection", "ACCESS_REFUSED"):
        scene.connect(password="wrong")


@scenario()
def an_unknown_user_is_refused(scene: Scene) -> None:
    with refused(403, "connection", "ACCESS_REFUSED"):
        scene.connect(user="nobody")


@scenario("codes-at-opening")
def an_unknown_vhost_is_refused(scene: Scene) -> None:
    with refused(530, "connection"):
        scene.connect(vhost="nowhere")


@scenario()
def two_channels_do_not_meet(scene: Scene) -> None:
    connection = scene.connect()
    first, second = connection.channel(), connection.channel()
    queues = [scene.queue(channel, word, exclusive=True) for channel, word in ((first, "one"), (second, "two"))]
    first.consume(queues[0], no_ack=True)
    second.consume(queues[1], no_ack=True)
    first.publish("", queues[1], b"to the second")
    second.publish("", queues[0], b"to the first")
    assert first.next().body == b"to the first"
    assert second.next().body == b"to the second"
    assert first.is_quiet()
    assert second.is_quiet()


@scenario()
def the_end_of_a_channel_gives_its_messages_back(scene: Scene) -> None:
    connection = scene.connect()
    first, second = connection.channel(), connection.channel()
    queue = scene.queue(first, exclusive=True)
    first.publish("", queue, b"m")
    first.consume(queue)
    assert not first.next().redelivered
    first.close()
    second.consume(queue)
    again = second.next()
    assert (again.body, again.redelivered) == (b"m", True)


@scenario()
def the_end_of_a_connection_gives_its_messages_back(scene: Scene) -> None:
    first, second = scene.connect(), scene.channel()
    queue = scene.queue(second, durable=True)
    second.publish("", queue, b"m")
    taker = first.channel()
    taker.consume(queue)
    assert taker.next().body == b"m"
    first.close()
    second.consume(queue)
    again = second.next()
    assert (again.body, again.redelivered) == (b"m", True)


@scenario()
def a_connection_survives_an_error_on_a_channel(scene: Scene) -> None:
    connection = scene.connect()
    bad, good = connection.channel(), connection.channel()
    with refused(404):
        bad.declare_queue(scene.name("missing"), passive=True)
    assert connection.is_open()
    queue = scene.queue(good, exclusive=True)
    good.publish("", queue, b"m")
    good.consume(queue, no_ack=True)
    assert good.next().body == b"m"
    assert connection.channel().declare_queue(exclusive=True).consumers == 0


@scenario()
def many_channels_on_one_connection(scene: Scene) -> None:
    connection = scene.connect()
    channels = [connection.channel() for _ in range(200)]
    queue = scene.queue(channels[0], exclusive=True)
    for number, channel in enumerate(channels):
        channel.publish("", queue, str(number).encode())
    channels[0].until_count(queue, 200)
    assert {int(message.body) for message in channels[-1].drain(queue)} == set(range(200))
    for channel in channels[1:]:
        channel.close()
    assert channels[0].count(queue) == 0


@scenario("update-secret")
def a_secret_can_be_renewed(scene: Scene) -> None:
    connection = scene.connect()
    connection.update_secret(scene.address.password, "it was time")
    assert connection.channel().declare_queue(exclusive=True).messages == 0


# ------------------------------------------------------------------------------------------ what ends the connection


@scenario()
def an_unknown_type_of_exchange_ends_the_connection(scene: Scene) -> None:
    connection = scene.connect()
    with refused(503, "connection", "unknown exchange type"):
        connection.channel().declare_exchange(scene.name("odd"), "odd")
