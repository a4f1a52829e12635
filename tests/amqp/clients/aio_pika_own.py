"""Scenarios that only aio-pika has words for: iterators, contexts, transactions, calls and robust connections."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import aio_pika
from aio_pika.patterns import RPC, Master

from tests.amqp.clients.aio_pika_client import connected
from tests.amqp.scenarios.registry import Scene, scenario


def in_loop(scene: Scene, work: Callable[[Any], Awaitable[None]]) -> None:
    """Do something with a connection in a loop of its own."""

    async def main() -> None:
        async with asyncio.timeout(30), await connected(scene.address) as connection:
            await work(connection)

    asyncio.run(main())


@scenario()
def messages_come_out_of_an_iterator(scene: Scene) -> None:
    async def work(connection: Any) -> None:
        channel = await connection.channel()
        await channel.set_qos(10)
        queue = await channel.declare_queue(scene.name("queue"), auto_delete=True)
        for number in range(50):
            await channel.default_exchange.publish(aio_pika.Message(str(number).encode()), queue.name)
        found = []
        async with queue.iterator() as messages:
            async for message in messages:
                async with message.process():
                    found.append(int(message.body))
                if len(found) == 50:
                    break
        assert found == list(range(50))

    in_loop(scene, work)


@scenario()
def work_that_fails_is_rejected_or_requeued(scene: Scene) -> None:
    async def work(connection: Any) -> None:
        channel = await connection.channel()
        queue = await channel.declare_queue("", exclusive=True)
        await channel.default_exchange.publish(aio_pika.Message(b"m"), queue.name)
        message = await queue.get()
        try:
            async with message.process(requeue=True):
                raise ValueError("once more")
        except ValueError:
            pass
        again = await queue.get()
        assert again.redelivered
        try:
            async with again.process(requeue=True, reject_on_redelivered=True):
                raise ValueError("no more")
        except ValueError:
            pass
        assert await queue.get(fail=False) is None

    in_loop(scene, work)


@scenario()
def a_message_is_published_with_all_it_takes(scene: Scene) -> None:
    async def work(connection: Any) -> None:
        channel = await connection.channel()
        exchange = await channel.declare_exchange(scene.name("topic"), aio_pika.ExchangeType.TOPIC, auto_delete=True)
        queue = await channel.declare_queue("", exclusive=True)
        await queue.bind(exchange, "a.*")
        sent = aio_pika.Message(
            b"{}",
            headers={"when": 1, "deep": {"list": [1, 2]}},
            content_type="application/json",
            delivery_mode=aio_pika.DeliveryMode.PERSISTENT,
            expiration=timedelta(minutes=1),
            priority=3,
            correlation_id="c",
        )
        await exchange.publish(sent, "a.b")
        found = await queue.get(no_ack=True)
        assert (found.headers, found.expiration, found.priority) == ({"when": 1, "deep": {"list": [1, 2]}}, 60, 3)
        assert (found.content_type, found.correlation_id) == ("application/json", "c")

    in_loop(scene, work)


@scenario()
def what_cannot_be_routed_raises_if_asked_for(scene: Scene) -> None:
    async def work(connection: Any) -> None:
        channel = await connection.channel(on_return_raises=True)
        try:
            await channel.default_exchange.publish(aio_pika.Message(b"m"), scene.name("missing"), mandatory=True)
        except aio_pika.exceptions.PublishError:
            return
        raise AssertionError("it was taken")

    in_loop(scene, work)


@scenario()
def a_transaction_is_a_context(scene: Scene) -> None:
    async def work(connection: Any) -> None:
        channel = await connection.channel(publisher_confirms=False)
        queue = await channel.declare_queue("", exclusive=True)
        async with channel.transaction():
            await channel.default_exchange.publish(aio_pika.Message(b"yes"), queue.name)
        try:
            async with channel.transaction():
                await channel.default_exchange.publish(aio_pika.Message(b"no"), queue.name)
                raise ValueError("never mind")
        except ValueError:
            pass
        assert (await queue.get(no_ack=True)).body == b"yes"
        assert await queue.get(fail=False) is None

    in_loop(scene, work)


@scenario()
def functions_are_called_from_afar(scene: Scene) -> None:
    async def work(connection: Any) -> None:
        async def multiply(*, x: int, y: int) -> int:
            return x * y

        async with await connection.channel() as channel:
            rpc = await RPC.create(channel)
            name = scene.name("multiply")
            await rpc.register(name, multiply, auto_delete=True)
            answers = await asyncio.gather(*(rpc.call(name, kwargs={"x": n, "y": 2}) for n in range(20)))
            assert answers == [n * 2 for n in range(20)]
            await rpc.close()

    in_loop(scene, work)


@scenario()
def a_master_gives_tasks_to_workers(scene: Scene) -> None:
    async def work(connection: Any) -> None:
        done: list[int] = []
        ready = asyncio.Event()

        async def task(*, number: int) -> None:
            done.append(number)
            if len(done) == 10:
                ready.set()

        channel = await connection.channel()
        master = Master(channel)
        name = scene.name("tasks")
        worker = await master.create_worker(name, task, auto_delete=True)
        for number in range(10):
            await master.create_task(name, kwargs={"number": number})
        await ready.wait()
        assert sorted(done) == list(range(10))
        await worker.close()

    in_loop(scene, work)


@scenario()
def a_robust_connection_does_what_a_plain_one_does(scene: Scene) -> None:
    async def main() -> None:
        at = scene.address
        connection = await aio_pika.connect_robust(
            host=at.host, port=at.port, login=at.user, password=at.password, virtualhost=at.vhost
        )
        async with asyncio.timeout(30), connection:
            channel = await connection.channel()
            queue = await channel.declare_queue(scene.name("queue"), durable=True)
            await channel.default_exchange.publish(aio_pika.Message(b"m"), queue.name)
            message = await queue.get()
            assert message is not None
            await message.ack()
            await queue.delete()

    asyncio.run(main())


@scenario()
def a_thousand_publishes_at_once(scene: Scene) -> None:
    async def work(connection: Any) -> None:
        channels = [await connection.channel() for _ in range(4)]
        queue = await channels[0].declare_queue(scene.name("queue"), durable=True)
        sends = [
            channels[number % 4].default_exchange.publish(aio_pika.Message(str(number).encode()), queue.name)
            for number in range(1_000)
        ]
        await asyncio.gather(*sends)
        found = await channels[0].declare_queue(queue.name, passive=True)
        assert found.declaration_result.message_count == 1_000

    in_loop(scene, work)


@scenario(only_here=True)  # RabbitMQ ends the connection if it answers the close before the acks reach the server
def handlers_that_ack_while_the_channel_is_closed_lose_no_connection(scene: Scene) -> None:
    async def once(connection: Any, queue: str) -> None:
        channel = await connection.channel()
        under_way: list[asyncio.Future[Any]] = []
        begun = asyncio.Event()

        async def handle(message: Any) -> None:
            under_way.append(asyncio.ensure_future(message.ack()))
            begun.set()

        await (await channel.get_queue(queue)).consume(handle)
        await begun.wait()
        await channel.close()
        await asyncio.gather(*under_way, return_exceptions=True)  # what comes too late will come again

    async def work(connection: Any) -> None:
        channel = await connection.channel()
        queue = await channel.declare_queue("", exclusive=True)
        for _ in range(20):
            sends = (channel.default_exchange.publish(aio_pika.Message(b"m"), queue.name) for _ in range(50))
            await asyncio.gather(*sends)
            await once(connection, queue.name)
            assert not connection.is_closed
        await channel.declare_queue(queue.name, passive=True)

    in_loop(scene, work)
