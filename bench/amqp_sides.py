"""`python -m bench.amqp_sides CASE produce|consume PORT COUNT`: one side of a flow over AMQP, in a process of its own.

The same code runs against Wherry and against RabbitMQ: only the port differs.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, NamedTuple

import aio_pika
import pika

from bench.flow import play
from bench.peers.rabbitmq import parameters

SIZE = 256
BODY = bytes(range(256))
IN_FLIGHT = 500
PREFETCH = 500
QUEUES = 10
CALLS = 64
LEVELS = 256

LASTING, PASSING = pika.BasicProperties(delivery_mode=2), pika.BasicProperties(delivery_mode=1)


class Case(NamedTuple):
    """How a flow is set up, and its two sides. `together`: both run at the same time, else one after the other."""

    set_up: Callable[[Any], None]
    produce: Callable[[int, int], None]
    consume: Callable[[int, int], None]
    together: bool = True


# ------------------------------------------------------------------------------------------------------------ producing


def publish(
    port: int, count: int, exchange: str, key: str, properties: Callable[[int], pika.BasicProperties], in_flight: int
) -> None:
    """Publish so many messages with confirms, so many of them under way."""
    sent = confirmed = 0

    def on_open(connection: Any) -> None:
        connection.channel(on_open_callback=on_channel)

    def on_channel(channel: Any) -> None:
        channel.confirm_delivery(lambda frame: on_confirm(channel, frame), callback=lambda _: send(channel))

    def send(channel: Any) -> None:
        nonlocal sent
        while sent < count and sent - confirmed < in_flight:
            channel.basic_publish(exchange, key, BODY, properties(sent))
            sent += 1

    def on_confirm(channel: Any, frame: Any) -> None:
        nonlocal confirmed
        assert isinstance(frame.method, pika.spec.Basic.Ack), "a publish was refused"
        confirmed = max(confirmed, frame.method.delivery_tag)
        if confirmed == count:
            channel.connection.close()
        else:
            send(channel)

    connection = pika.SelectConnection(parameters(port), on_open_callback=on_open)
    connection.add_on_close_callback(lambda *_: connection.ioloop.stop())
    connection.ioloop.start()


def receive(port: int, count: int, queues: list[str], *, acks: bool) -> None:
    """Consume so many messages, acked in multiples or not at all."""
    got = unacked = 0
    with pika.BlockingConnection(parameters(port)) as connection:
        channel = connection.channel()
        channel.basic_qos(prefetch_count=PREFETCH)

        def take(_: Any, method: Any, properties: Any, body: bytes) -> None:
            nonlocal got, unacked
            assert len(body) == SIZE
            got, unacked = got + 1, unacked + 1
            if acks and (unacked >= PREFETCH // 2 or got == count):
                channel.basic_ack(method.delivery_tag, multiple=True)
                unacked = 0
            if got == count:
                channel.stop_consuming()

        for queue in queues:
            channel.basic_consume(queue, take, auto_ack=not acks)
        channel.start_consuming()


# ---------------------------------------------------------------------------------------------------------- aio-pika


async def _aio_publish(port: int, count: int) -> None:
    connection = await aio_pika.connect(f"amqp://guest:guest@127.0.0.1:{port}/?heartbeat=0")
    async with connection:
        channel = await connection.channel(publisher_confirms=True)
        message = aio_pika.Message(BODY, delivery_mode=aio_pika.DeliveryMode.PERSISTENT)
        left = count

        async def work() -> None:
            nonlocal left
            while left > 0:
                left -= 1
                await channel.default_exchange.publish(message, "aio")

        await asyncio.gather(*(work() for _ in range(IN_FLIGHT)))


async def _aio_receive(port: int, count: int) -> None:
    connection = await aio_pika.connect(f"amqp://guest:guest@127.0.0.1:{port}/?heartbeat=0")
    async with connection:
        channel = await connection.channel()
        await channel.set_qos(prefetch_count=PREFETCH)
        queue = await channel.get_queue("aio")
        got = 0
        async with queue.iterator() as messages:
            async for message in messages:
                got += 1
                await message.ack()
                if got == count:
                    break


def _run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(work)


# ----------------------------------------------------------------------------------------------------------- replies


def _answer(port: int, count: int) -> None:
    """Answer calls, straight to their callers."""
    got = 0
    with pika.BlockingConnection(parameters(port)) as connection:
        channel = connection.channel()

        def reply(_: Any, method: Any, properties: Any, body: bytes) -> None:
            nonlocal got
            channel.basic_publish("", properties.reply_to, body)
            got += 1
            if got == count:
                channel.stop_consuming()

        channel.basic_consume("calls", reply, auto_ack=True)
        channel.start_consuming()


def _call(port: int, count: int) -> None:
    """Make so many calls, some of them under way at a time."""
    sent = answered = 0
    asking = pika.BasicProperties(reply_to="amq.rabbitmq.reply-to", delivery_mode=1)
    with pika.BlockingConnection(parameters(port)) as connection:
        channel = connection.channel()

        def ask() -> None:
            nonlocal sent
            sent += 1
            channel.basic_publish("", "calls", BODY, asking)

        def on_answer(*_: Any) -> None:
            nonlocal answered
            answered += 1
            if sent < count:
                ask()
            if answered == count:
                channel.stop_consuming()

        channel.basic_consume("amq.rabbitmq.reply-to", on_answer, auto_ack=True)
        for _ in range(min(CALLS, count)):
            ask()
        channel.start_consuming()


# ------------------------------------------------------------------------------------------------------------- cases


def _durable(name: str, **arguments: Any) -> Callable[[Any], None]:
    return lambda channel: channel.queue_declare(name, durable=True, arguments=arguments)


def _fanout(channel: Any) -> None:
    channel.exchange_declare("fan", "fanout")
    for number in range(QUEUES):
        channel.queue_declare(f"fan-{number}")
        channel.queue_bind(f"fan-{number}", "fan")


def _ranked(number: int) -> pika.BasicProperties:
    return pika.BasicProperties(delivery_mode=2, priority=number * 7919 % LEVELS)


QUORUM = {"x-queue-type": "quorum"}
"""RabbitMQ's quicker one of those whose confirms mean that a message is on disk."""

CASES = {
    "pika": Case(
        _durable("pika", **QUORUM),
        lambda port, count: publish(port, count, "", "pika", lambda _: LASTING, IN_FLIGHT),
        lambda port, count: receive(port, count, ["pika"], acks=True),
    ),
    "aio_pika": Case(
        _durable("aio", **QUORUM),
        lambda port, count: _run(_aio_publish(port, count)),
        lambda port, count: _run(_aio_receive(port, count)),
    ),
    "transient": Case(
        lambda channel: channel.queue_declare("passing"),
        lambda port, count: publish(port, count, "", "passing", lambda _: PASSING, IN_FLIGHT),
        lambda port, count: receive(port, count, ["passing"], acks=False),
    ),
    "fanout": Case(
        _fanout,
        lambda port, count: publish(port, count, "fan", "", lambda _: PASSING, IN_FLIGHT),
        lambda port, count: receive(port, count * QUEUES, [f"fan-{n}" for n in range(QUEUES)], acks=False),
    ),
    "priority": Case(
        _durable("ranked", **{"x-max-priority": LEVELS - 1}),
        lambda port, count: publish(port, count, "", "ranked", _ranked, IN_FLIGHT),
        lambda port, count: receive(port, count, ["ranked"], acks=True),
        together=False,
    ),
    "calls": Case(lambda channel: channel.queue_declare("calls"), _call, _answer),
}


if __name__ == "__main__":
    case = CASES[sys.argv[1]]
    side = case.produce if sys.argv[2] == "produce" else case.consume
    play(lambda port, count: partial(side, port, count))
