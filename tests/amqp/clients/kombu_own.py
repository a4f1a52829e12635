"""Scenarios that only kombu has words for: what Celery and many others build upon."""

from __future__ import annotations

import socket
from contextlib import suppress
from typing import Any

from kombu import Connection, Consumer, Exchange, Producer, Queue, binding, pools
from kombu.mixins import ConsumerMixin

from tests.amqp.scenarios.registry import Scene, scenario


def connection_to(scene: Scene, **options: Any) -> Connection:
    """Open a connection of kombu."""
    at = scene.address
    return Connection(
        hostname=at.host,
        port=at.port,
        userid=at.user,
        password=at.password,
        virtual_host=at.vhost,
        transport="pyamqp",
        **options,
    )


def drained(connection: Connection, found: list[Any], count: int) -> None:
    """Wait until so many messages came, or none comes any more."""
    with suppress(socket.timeout, TimeoutError):
        while len(found) < count:
            connection.drain_events(timeout=10)
    assert len(found) == count, found


@scenario()
def a_producer_declares_what_it_publishes_to(scene: Scene) -> None:
    exchange = Exchange(scene.name("direct"), "direct", durable=True)
    queue = Queue(scene.name("queue"), exchange, routing_key="video")
    with connection_to(scene) as connection:
        producer = connection.Producer(serializer="json")
        producer.publish({"name": "größe"}, exchange=exchange, routing_key="video", declare=[queue], retry=True)
        found: list[Any] = []

        def arrived(body: Any, message: Any) -> None:
            found.append((body, message.delivery_info["routing_key"], message.content_type))
            message.ack()

        with connection.Consumer(queue, callbacks=[arrived]):
            drained(connection, found, 1)
        assert found == [({"name": "größe"}, "video", "application/json")]
        assert queue(connection.default_channel).delete() == 0


@scenario()
def a_simple_queue_puts_and_gets(scene: Scene) -> None:
    with connection_to(scene) as connection, connection.SimpleQueue(scene.name("simple")) as queue:
        for number in range(5):
            queue.put({"number": number}, compression="zlib")
        for number in range(5):
            message = queue.get(timeout=10)
            assert message.payload == {"number": number}
            message.ack()
        assert queue.qsize() == 0
        try:
            queue.get(block=False)
        except queue.Empty:
            return
        raise AssertionError("something was left")


@scenario()
def a_message_is_requeued_and_rejected(scene: Scene) -> None:
    with connection_to(scene) as connection:
        queue = Queue(scene.name("queue"), durable=True)(connection.default_channel)
        queue.declare()
        Producer(connection).publish("m", routing_key=queue.name)
        message = None
        while message is None:
            message = queue.get()
        message.requeue()
        again = None
        while again is None:
            again = queue.get()
        assert again.delivery_info["redelivered"]
        again.reject()
        assert queue.get() is None


@scenario()
def a_queue_takes_kombus_options(scene: Scene) -> None:
    with connection_to(scene) as connection:
        queue = Queue(
            scene.name("queue"),
            max_priority=10,
            message_ttl=60.0,
            expires=60.0,
            max_length=3,
            queue_arguments={"x-queue-mode": "lazy"},
            durable=True,
        )(connection.default_channel)
        queue.declare()
        producer = Producer(connection)
        for priority in (1, 9, 5):
            producer.publish(str(priority), routing_key=queue.name, priority=priority)
        while queue.queue_declare(passive=True).message_count < 3:
            pass
        assert [queue.get(no_ack=True).payload for _ in range(3)] == ["9", "5", "1"]


@scenario()
def one_queue_has_many_bindings(scene: Scene) -> None:
    exchange = Exchange(scene.name("topic"), "topic")
    bindings = [binding(exchange, routing_key=key) for key in ("a.*", "b.#")]
    with connection_to(scene) as connection:
        queue = Queue(scene.name("queue"), bindings=bindings, auto_delete=True)
        found: list[str] = []
        with Consumer(connection, [queue], callbacks=[lambda body, message: found.append(body)], no_ack=True):
            producer = Producer(connection, exchange)
            for key in ("a.b", "b", "c", "b.c.d"):
                producer.publish(key, routing_key=key)
            drained(connection, found, 3)
        assert found == ["a.b", "b", "b.c.d"]


@scenario()
def publishes_wait_for_confirms_if_asked_to(scene: Scene) -> None:
    with connection_to(scene, transport_options={"confirm_publish": True}) as connection:
        queue = Queue(scene.name("queue"), durable=True)(connection.default_channel)
        queue.declare()
        for number in range(20):
            Producer(connection).publish(number, routing_key=queue.name)
            assert queue.queue_declare(passive=True).message_count == number + 1


@scenario()
def pools_share_connections(scene: Scene) -> None:
    connection = connection_to(scene)
    try:
        with pools.producers[connection].acquire(block=True) as producer:
            queue = Queue(scene.name("queue"))
            producer.publish("m", routing_key=queue.name, declare=[queue])
        with pools.connections[connection].acquire(block=True) as second:
            message = None
            while message is None:
                message = queue(second.default_channel).get(no_ack=True)
            assert message.payload == "m"
    finally:
        pools.reset()
        connection.release()


@scenario()
def a_program_of_consumers_runs_and_stops(scene: Scene) -> None:
    queue = Queue(scene.name("queue"), durable=True)
    found: list[int] = []

    class Program(ConsumerMixin):  # type: ignore[misc]  # kombu has no types
        def __init__(self, connection: Connection) -> None:
            self.connection = connection

        def get_consumers(self, consumer: Any, channel: Any) -> list[Any]:
            return [consumer(queues=[queue], callbacks=[self.arrived], prefetch_count=5)]

        def arrived(self, body: int, message: Any) -> None:
            found.append(body)
            message.ack()
            self.should_stop = len(found) == 20

    with connection_to(scene) as connection:
        producer = Producer(connection)
        for number in range(20):
            producer.publish(number, routing_key=queue.name, declare=[queue])
        Program(connection).run()
    assert found == list(range(20))


@scenario()
def heartbeats_are_checked_by_hand(scene: Scene) -> None:
    with connection_to(scene, heartbeat=2) as connection:
        connection.connect()
        for _ in range(12):
            with suppress(socket.timeout, TimeoutError):
                connection.drain_events(timeout=0.3)
            connection.heartbeat_check(rate=6)
        assert connection.connected


@scenario()
def an_exchange_is_bound_to_an_exchange(scene: Scene) -> None:
    with connection_to(scene) as connection:
        channel = connection.default_channel
        source = Exchange(scene.name("source"), "fanout", durable=False)(channel)
        target = Exchange(scene.name("target"), "direct", durable=False)(channel)
        source.declare()
        target.declare()
        target.bind_to(source, routing_key="key")
        queue = Queue(scene.name("queue"), target, routing_key="key", auto_delete=True)
        found: list[str] = []
        with Consumer(connection, [queue], callbacks=[lambda body, message: found.append(body)], no_ack=True):
            Producer(connection, source).publish("m", routing_key="key")
            drained(connection, found, 1)
        target.unbind_from(source, routing_key="key")


@scenario()
def a_missing_queue_is_an_error_of_the_channel(scene: Scene) -> None:
    with connection_to(scene) as connection:
        try:
            Queue(scene.name("missing"))(connection.default_channel).queue_declare(passive=True)
        except connection.channel_errors as fault:
            assert fault.reply_code == 404
        else:
            raise AssertionError("it was found")
        assert Queue(scene.name("other"), exclusive=True)(connection.channel()).declare()


@scenario()
def a_wrong_password_is_an_access_refused(scene: Scene) -> None:
    connection = connection_to(scene)
    connection.password = "wrong"
    try:
        connection.connect()
    except connection.channel_errors as fault:  # py-amqp raises an error of a channel, though there is no channel yet
        assert fault.reply_code == 403
    else:
        raise AssertionError("it was let in")
