"""`python -m bench.lone.sides.pika CASE produce|consume PORT COUNT …`: AMQP by pika, the same over any broker.

The producer of a case declares its queues.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from typing import Any

import pika

from bench.flow import Found, Steps, play_steps
from bench.lone.shapes import DELAY_QUEUES, DELAY_S, LATE, delay_queue
from bench.peers.peer import age_ms, message, paced
from bench.peers.rabbitmq import consumed, parameters

LASTING = pika.BasicProperties(delivery_mode=2)
STEP_S = 0.005
"""A producer that is paced sends what is due so often."""


def declare(port: int, queues: dict[str, dict[str, Any]]) -> None:
    """Declare queues that last, with their arguments."""
    with pika.BlockingConnection(parameters(port)) as connection:
        channel = connection.channel()
        for name, arguments in queues.items():
            channel.queue_declare(name, durable=True, arguments=arguments)


# ------------------------------------------------------------------------------------------------------------- blocking


def blocking_produce(port: int, count: int, kind: str, rate: str = "0") -> Iterator[Found]:
    """Publish by a `BlockingConnection` in confirm mode: each publish waits for its confirm."""
    confirms: list[float] = []
    declare(port, {f"blocking-{kind}": {"x-queue-type": kind}})
    with pika.BlockingConnection(parameters(port)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        yield None
        for _ in paced(count, int(rate) or None):
            began = time.perf_counter()
            channel.basic_publish("", f"blocking-{kind}", message(), LASTING)
            confirms.append((time.perf_counter() - began) * 1e3)
        yield {"confirm": confirms}


def blocking_consume(port: int, count: int, kind: str, rate: str = "0") -> Iterator[Found]:
    """Consume by a callback, and ack message by message."""
    ages: list[float] = []
    declare(port, {f"blocking-{kind}": {"x-queue-type": kind}})
    with pika.BlockingConnection(parameters(port)) as connection:
        channel = connection.channel()
        channel.basic_qos(prefetch_count=100)

        def take(_: Any, method: Any, properties: Any, body: bytes) -> None:
            ages.append(age_ms(body))
            channel.basic_ack(method.delivery_tag)
            if len(ages) == count:
                channel.stop_consuming()

        channel.basic_consume(f"blocking-{kind}", take)
        yield None
        channel.start_consuming()
        yield {"age": ages}


# --------------------------------------------------------------------------------------------------------------- delays


def _delays_declared(port: int) -> None:
    """Declare queues whose messages expire after a time and are dead-lettered into one queue, all of them classic."""
    goal = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": LATE, "x-queue-type": "classic"}
    queues = {name: {**goal, "x-message-ttl": ttl_ms} for name, ttl_ms in map(delay_queue, range(DELAY_QUEUES))}
    declare(port, {LATE: {"x-queue-type": "classic"}, **queues})


def delays_produce(port: int, count: int) -> Iterator[Found]:
    """Publish evenly over some seconds, one queue after the other; confirms are counted, and all of them awaited."""
    _delays_declared(port)
    yield None
    producer = DelayProducer(port, count)
    producer.run()
    assert producer.confirmed == count, f"{producer.confirmed} of {count} confirms came"
    yield None


class DelayProducer:
    """Publishes by a `SelectConnection`, what is due at a time; confirms come meanwhile."""

    def __init__(self, port: int, count: int) -> None:
        self._count = count
        self._sent = self.confirmed = 0
        self._connection = pika.SelectConnection(parameters(port), on_open_callback=self._on_open)
        self._connection.add_on_close_callback(lambda *_: self._connection.ioloop.stop())

    def run(self) -> None:
        """Return when all are confirmed."""
        self._connection.ioloop.start()

    def _on_open(self, connection: Any) -> None:
        connection.channel(on_open_callback=self._on_channel)

    def _on_channel(self, channel: Any) -> None:
        self._channel, self._start = channel, time.monotonic()
        channel.confirm_delivery(self._on_confirm, callback=lambda _: self._send())

    def _send(self) -> None:
        due = min(self._count, (time.monotonic() - self._start) * self._count / DELAY_S)
        while self._sent < due:
            name, ttl_ms = delay_queue(self._sent)
            self._channel.basic_publish("", name, message(time.monotonic_ns() + ttl_ms * 1_000_000), LASTING)
            self._sent += 1
        if self._sent < self._count:
            self._connection.ioloop.call_later(STEP_S, self._send)

    def _on_confirm(self, frame: Any) -> None:
        assert isinstance(frame.method, pika.spec.Basic.Ack), "a publish was refused"
        self.confirmed = max(self.confirmed, frame.method.delivery_tag)
        if self.confirmed == self._count:
            self._connection.close()


def delays_consume(port: int, count: int) -> Iterator[Found]:
    """Consume what was dead-lettered; return how late each message is."""
    _delays_declared(port)
    yield None
    yield {"late": consumed(port, LATE, count)}


SIDES: dict[str, dict[str, Steps]] = {
    "blocking": {"produce": blocking_produce, "consume": blocking_consume},
    "delays": {"produce": delays_produce, "consume": delays_consume},
}


if __name__ == "__main__":
    play_steps(SIDES[sys.argv[1]][sys.argv[2]])
