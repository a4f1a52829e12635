"""aio-pika: a loop in a thread, so that scenarios can wait in a straight line."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Coroutine
from concurrent.futures import CancelledError
from contextlib import suppress
from typing import Any, TypeVar

import aio_pika
from aio_pika import exceptions
from aiormq import exceptions as below

from tests.amqp.clients.port import PATIENCE_S, Address, Channel, Client, Connection, Declared, Message, Refused

T = TypeVar("T")

CODES = {
    below.ProbableAuthenticationError: ("connection", 403),
    below.ConnectionNotAllowed: ("connection", 530),
    below.ConnectionCommandInvalid: ("connection", 503),
    below.ConnectionNotImplemented: ("connection", 540),
    below.ChannelAccessRefused: ("channel", 403),
    below.ChannelNotFoundEntity: ("channel", 404),
    below.ChannelLockedResource: ("channel", 405),
    below.ChannelPreconditionFailed: ("channel", 406),
}
"""aio-pika gives a class instead of a code."""

GONE = (below.ChannelInvalidStateError, below.ConnectionClosed, below.ChannelClosed, CancelledError, RuntimeError)


def as_refused(fault: BaseException) -> Refused | None:
    """Return what the server closed, in the words of the port."""
    for kind, (scope, code) in CODES.items():
        if isinstance(fault, kind):
            return Refused(scope, code, " ".join(map(str, fault.args)))
    if isinstance(fault, below.ConnectionClosed) and fault.args[0] is not None:
        return Refused("connection", fault.args[0], str(fault.args[1]))
    return None


def as_message(found: Any, **fields: Any) -> Message:
    """Return a message with the properties that were set."""
    names = ("content_type", "content_encoding", "priority", "correlation_id", "reply_to", "message_id", "type")
    properties = {name: getattr(found, name) for name in (*names, "user_id", "app_id")}
    properties["headers"] = dict(found.headers) or None
    properties["delivery_mode"] = None if found.delivery_mode is None else int(found.delivery_mode)
    properties["expiration"] = None if found.expiration is None else str(round(found.expiration * 1000))
    properties["timestamp"] = None if found.timestamp is None else int(found.timestamp.timestamp())
    return Message(
        body=found.body,
        exchange=found.exchange or "",
        key=found.routing_key or "",
        tag=found.delivery_tag or 0,
        redelivered=bool(found.redelivered),
        consumer=found.consumer_tag or "",
        left=found.message_count or 0,
        properties={name: value for name, value in properties.items() if value is not None},
        **fields,
    )


def as_sent(body: bytes, properties: dict[str, Any]) -> aio_pika.Message:
    """Return a message to be published."""
    if "expiration" in properties:
        properties["expiration"] = int(properties["expiration"]) / 1000
    return aio_pika.Message(body, **properties)


class Loop:
    """A loop in a thread."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(3 * PATIENCE_S)


class AioPikaChannel(Channel):
    """A channel."""

    adds = frozenset({"delivery_mode", "headers", "message_id", "priority"})

    def __init__(self, loop: Loop, connection: aio_pika.abc.AbstractConnection, confirms: bool) -> None:
        super().__init__()
        self._loop = loop
        self._why: BaseException | None = None
        self._channel: Any = None
        self._connection = connection

        async def open_() -> None:
            self._channel = connection.channel(publisher_confirms=confirms)
            await self._channel.initialize()
            self._channel.close_callbacks.add(self._on_close)
            self._connection.close_callbacks.add(self._on_close)
            self._below = await self._channel.get_underlay_channel()
            self._below.on_return_callbacks.add(self._on_return)
            self._below.on_consumer_cancel_callbacks.add(lambda frame: self.cancelled.append(frame.consumer_tag))

        self._do(open_())

    def _do(self, work: Coroutine[Any, Any, T]) -> T:
        try:
            return self._loop.wait(work)
        except GONE as fault:
            raise self._refused(fault) from fault

    def _refused(self, fault: BaseException) -> BaseException:
        end = time.monotonic() + PATIENCE_S
        while (found := as_refused(fault) or (self._why and as_refused(self._why))) is None:
            if time.monotonic() > end:
                return fault
            time.sleep(0.01)
        return found

    def _on_close(self, _: Any, fault: BaseException | None) -> None:
        self._why = self._why or fault

    def _on_return(self, message: Any) -> None:
        delivery = message.delivery
        found = aio_pika.IncomingMessage(message, no_ack=True)
        self.returned.append(as_message(found, code=delivery.reply_code, text=delivery.reply_text))

    def pump(self, seconds: float) -> None:
        waits = (self.arrived, self.returned, self.cancelled)
        before, end = [len(box) for box in waits], time.monotonic() + seconds
        while [len(box) for box in waits] == before and time.monotonic() < end:
            if self._why is not None and (found := as_refused(self._why)) is not None:
                raise found
            time.sleep(0.002)

    def close(self) -> None:
        self._do(self._channel.close())

    def declare_queue(self, name: str = "", **terms: Any) -> Declared:
        async def declare() -> Declared:
            if name:
                queue = await self._channel.declare_queue(name, **terms)
                answer = queue.declaration_result
            else:  # aio-pika would make up a name of its own
                answer = await self._below.queue_declare("", **terms)
            return Declared(answer.queue, answer.message_count, answer.consumer_count)

        return self._do(declare())

    def delete_queue(self, name: str, **terms: Any) -> int:
        return int(self._do(self._channel.queue_delete(name, **terms)).message_count)

    async def _queue(self, name: str) -> Any:
        return await self._channel.get_queue(name, ensure=False)

    async def _exchange(self, name: str) -> Any:
        return await self._channel.get_exchange(name, ensure=False)

    def purge(self, name: str) -> int:
        async def purge() -> int:
            return int((await (await self._queue(name)).purge()).message_count)

        return self._do(purge())

    def bind(self, queue: str, exchange: str, key: str = "", arguments: dict[str, Any] | None = None) -> None:
        async def bind() -> None:
            await (await self._queue(queue)).bind(exchange, key, arguments=arguments)

        self._do(bind())

    def unbind(self, queue: str, exchange: str, key: str = "", arguments: dict[str, Any] | None = None) -> None:
        async def unbind() -> None:
            await (await self._queue(queue)).unbind(exchange, key, arguments=arguments)

        self._do(unbind())

    def declare_exchange(self, name: str, kind: str = "direct", **terms: Any) -> None:
        self._do(self._channel.declare_exchange(name, kind, **terms))

    def delete_exchange(self, name: str, *, if_unused: bool = False) -> None:
        self._do(self._channel.exchange_delete(name, if_unused=if_unused))

    def bind_exchange(
        self, destination: str, source: str, key: str = "", arguments: dict[str, Any] | None = None
    ) -> None:
        async def bind() -> None:
            await (await self._exchange(destination)).bind(source, key, arguments=arguments)

        self._do(bind())

    def unbind_exchange(
        self, destination: str, source: str, key: str = "", arguments: dict[str, Any] | None = None
    ) -> None:
        async def unbind() -> None:
            await (await self._exchange(destination)).unbind(source, key, arguments=arguments)

        self._do(unbind())

    async def _publish(self, exchange: str, key: str, message: aio_pika.Message, mandatory: bool) -> bool:
        place = await self._exchange(exchange) if exchange else self._channel.default_exchange
        try:
            await place.publish(message, key, mandatory=mandatory)
        except exceptions.DeliveryError:
            return False
        return True

    def publish(
        self, exchange: str, key: str, body: bytes = b"", *, mandatory: bool = False, **properties: Any
    ) -> bool:
        return self._do(self._publish(exchange, key, as_sent(body, properties), mandatory))

    def publish_all(self, exchange: str, key: str, bodies: list[bytes]) -> list[bool]:
        async def publish() -> list[bool]:
            sent = [self._publish(exchange, key, as_sent(body, {}), False) for body in bodies]
            return list(await asyncio.gather(*sent))

        return self._do(publish())

    def qos(self, count: int, *, whole_channel: bool = False) -> None:
        self._do(self._channel.set_qos(count, global_=whole_channel))

    def consume(
        self,
        queue: str,
        *,
        tag: str = "",
        no_ack: bool = False,
        exclusive: bool = False,
        arguments: dict[str, Any] | None = None,
    ) -> str:
        async def arrive(message: Any) -> None:
            self.arrived.append(as_message(message))

        async def consume() -> str:
            made: str = await (await self._queue(queue)).consume(
                arrive, no_ack=no_ack, exclusive=exclusive, arguments=arguments, consumer_tag=tag or None
            )
            return made

        return self._do(consume())

    def cancel(self, tag: str) -> None:
        self._do(self._below.basic_cancel(tag))

    def get(self, queue: str, *, no_ack: bool = False) -> Message | None:
        async def get() -> Message | None:
            found = await (await self._queue(queue)).get(no_ack=no_ack, fail=False)
            return None if found is None else as_message(found)

        return self._do(get())

    def ack(self, tag: int, *, multiple: bool = False) -> None:
        self._do(self._below.basic_ack(tag, multiple))

    def nack(self, tag: int, *, multiple: bool = False, requeue: bool = True) -> None:
        self._do(self._below.basic_nack(tag, multiple=multiple, requeue=requeue))

    def reject(self, tag: int, *, requeue: bool = True) -> None:
        self._do(self._below.basic_reject(tag, requeue=requeue))

    def recover(self) -> None:
        self._do(self._below.basic_recover(requeue=True))

    def tx_select(self) -> None:
        self._do(self._below.tx_select())

    def tx_commit(self) -> None:
        self._do(self._below.tx_commit())

    def tx_rollback(self) -> None:
        self._do(self._below.tx_rollback())


class AioPikaConnection(Connection):
    """A connection."""

    def __init__(self, loop: Loop, address: Address) -> None:
        self._loop = loop
        try:
            self._connection = loop.wait(connected(address))
        except below.AMQPError as fault:
            raise as_refused(fault) or fault from fault
        transport = self._connection.transport
        assert transport is not None
        self.server_properties = transport.connection.server_properties
        tune = transport.connection.connection_tune
        self.channel_max, self.frame_max, self.heartbeat_s = tune.channel_max, tune.frame_max, tune.heartbeat

    def channel(self, *, confirms: bool = False) -> Channel:
        return AioPikaChannel(self._loop, self._connection, confirms)

    def close(self) -> None:
        with suppress(CancelledError):
            self._loop.wait(self._connection.close())

    def is_open(self) -> bool:
        return not self._connection.is_closed

    def idle(self, seconds: float) -> None:
        time.sleep(seconds)

    def update_secret(self, secret: str, reason: str) -> None:
        async def update() -> None:
            await self._connection.update_secret(secret, reason=reason)

        self._loop.wait(update())


async def connected(address: Address) -> Any:
    """Open a connection of aio-pika."""
    return await aio_pika.connect(
        host=address.host,
        port=address.port,
        login=address.user,
        password=address.password,
        virtualhost=address.vhost,
        heartbeat=address.heartbeat_s,
        timeout=PATIENCE_S,
    )


class AioPika(Client):
    """The library."""

    def __init__(self) -> None:
        self._loop = Loop()

    def connect(self, address: Address) -> Connection:
        return AioPikaConnection(self._loop, address)
