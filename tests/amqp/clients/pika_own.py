"""Scenarios that only pika has words for: its own loop, its generator of messages, and calls from other threads."""

from __future__ import annotations

import threading
from typing import Any

import pika

from tests.amqp.clients.pika_client import parameters
from tests.amqp.scenarios.registry import Scene, scenario


def looped(scene: Scene, begin: Any, *, patience_s: float = 20) -> None:
    """Run a connection with pika's own loop. `begin` gets a channel, and a function that ends the loop."""
    faults: list[Any] = []

    def end(fault: Any = None) -> None:
        faults.append(fault)
        connection.close()

    def fail(made: Any, fault: Any) -> None:
        faults.append(fault)
        made.ioloop.stop()

    connection = pika.SelectConnection(
        parameters(scene.address),
        on_open_callback=lambda made: made.channel(on_open_callback=lambda channel: begin(channel, end)),
        on_open_error_callback=fail,
        on_close_callback=lambda made, _: made.ioloop.stop(),
    )
    connection.ioloop.call_later(patience_s, lambda: end("it took too long"))
    connection.ioloop.start()
    assert faults == [None], faults


@scenario()
def confirms_in_flight_on_a_loop(scene: Scene) -> None:
    count, confirmed = 1_000, set[int]()
    queue = scene.name("queue")

    def begin(channel: Any, end: Any) -> None:
        channel.queue_declare(queue, durable=True, callback=lambda _: channel.confirm_delivery(settled, select))

        def select(_: Any) -> None:
            for number in range(count):
                channel.basic_publish("", queue, str(number).encode(), pika.BasicProperties(delivery_mode=2))

        def settled(frame: Any) -> None:
            assert isinstance(frame.method, pika.spec.Basic.Ack)
            tag = frame.method.delivery_tag
            confirmed.update(range(1, tag + 1) if frame.method.multiple else [tag])
            if len(confirmed) == count:
                end()

    looped(scene, begin)
    channel = scene.channel()
    assert [int(message.body) for message in channel.drain(queue)] == list(range(count))


@scenario()
def negative_confirms_in_flight_on_a_loop(scene: Scene) -> None:
    count = 50
    outcomes: dict[int, bool] = {}

    def begin(channel: Any, end: Any) -> None:
        arguments = {"x-max-length": 10, "x-overflow": "reject-publish"}
        channel.queue_declare("", exclusive=True, arguments=arguments, callback=lambda f: declared(f.method.queue))

        def declared(queue: str) -> None:
            channel.confirm_delivery(settled)
            for _ in range(count):
                channel.basic_publish("", queue, b"m")

        def settled(frame: Any) -> None:
            method = frame.method
            first = 1 if method.multiple else method.delivery_tag
            for tag in range(first, method.delivery_tag + 1):
                outcomes.setdefault(tag, isinstance(method, pika.spec.Basic.Ack))
            if len(outcomes) == count:
                end()

    looped(scene, begin)
    assert all(outcomes[tag] for tag in range(1, 11))
    assert not outcomes[count]


@scenario()
def consuming_and_acking_on_a_loop(scene: Scene) -> None:
    count, found = 500, list[bytes]()

    def begin(channel: Any, end: Any) -> None:
        channel.queue_declare("", exclusive=True, callback=lambda frame: declared(frame.method.queue))

        def declared(queue: str) -> None:
            channel.basic_qos(prefetch_count=20, callback=lambda _: channel.basic_consume(queue, arrived))
            for number in range(count):
                channel.basic_publish("", queue, str(number).encode())

        def arrived(_: Any, method: Any, __: Any, body: bytes) -> None:
            found.append(body)
            channel.basic_ack(method.delivery_tag)
            if len(found) == count:
                end()

    looped(scene, begin)
    assert found == [str(number).encode() for number in range(count)]


@scenario()
def a_generator_of_messages(scene: Scene) -> None:
    with pika.BlockingConnection(parameters(scene.address)) as connection:
        channel = connection.channel()
        queue = channel.queue_declare("", exclusive=True).method.queue
        for number in range(10):
            channel.basic_publish("", queue, str(number).encode())
        found = []
        for method, _, body in channel.consume(queue, inactivity_timeout=5):
            found.append(body)
            channel.basic_ack(method.delivery_tag)
            if len(found) == 5:
                break
        requeued = channel.cancel()
        assert found == [b"0", b"1", b"2", b"3", b"4"]
        assert requeued <= 5
        assert channel.queue_declare(queue, passive=True).method.consumer_count == 0


@scenario()
def acks_from_another_thread(scene: Scene) -> None:
    with pika.BlockingConnection(parameters(scene.address)) as connection:
        channel = connection.channel()
        queue = channel.queue_declare("", exclusive=True).method.queue
        left = 20

        def work(tag: int) -> None:
            connection.add_callback_threadsafe(lambda: settle(tag))

        def settle(tag: int) -> None:
            nonlocal left
            channel.basic_ack(tag)
            left -= 1
            if not left:
                channel.stop_consuming()

        def arrived(_: Any, method: Any, __: Any, ___: bytes) -> None:
            threading.Thread(target=work, args=(method.delivery_tag,)).start()

        channel.basic_qos(prefetch_count=3)
        for _ in range(left):
            channel.basic_publish("", queue, b"m")
        channel.basic_consume(queue, arrived)
        connection.call_later(20, channel.stop_consuming)
        channel.start_consuming()
        assert left == 0
        assert channel.queue_declare(queue, passive=True).method.message_count == 0


@scenario()
def a_url_with_everything_in_it(scene: Scene) -> None:
    at = scene.address
    url = f"amqp://{at.user}:{at.password}@{at.host}:{at.port}/%2F?heartbeat=30&connection_attempts=2&channel_max=20"
    with pika.BlockingConnection(pika.URLParameters(url)) as connection:
        assert connection.channel().queue_declare("", exclusive=True).method.message_count == 0
        assert connection._impl.params.channel_max == 20


@scenario()
def a_channel_stops_and_resumes_the_flow(scene: Scene) -> None:
    with pika.BlockingConnection(parameters(scene.address)) as connection:
        assert connection.channel().flow(True) is True


@scenario()
def each_publish_is_confirmed_before_the_next(scene: Scene) -> None:
    queue = scene.name("queue")
    with pika.BlockingConnection(parameters(scene.address)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare(queue, durable=True)
        for number in range(200):
            mode = 1 + number % 2
            channel.basic_publish("", queue, str(number).encode(), pika.BasicProperties(delivery_mode=mode))
        assert channel.queue_declare(queue, passive=True).method.message_count == 200
    assert [int(message.body) for message in scene.channel().drain(queue)] == list(range(200))
