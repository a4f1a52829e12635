"""py-amqp, which kombu and so Celery talk with."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from typing import Any

import amqp
from amqp import exceptions, spec

from tests.amqp.clients.port import Address, Channel, Client, Connection, Declared, Message, Refused


@contextmanager
def translated(*, opening: bool = False) -> Iterator[None]:
    """Raise what the server closed, in the words of the port. While a connection opens there is no channel to close."""
    try:
        yield
    except exceptions.AMQPError as fault:
        hard = opening or isinstance(fault, exceptions.ConnectionError) or fault.reply_code in (501, 503, 530, 540)
        raise Refused("connection" if hard else "channel", fault.reply_code, str(fault)) from fault


def as_message(found: amqp.Message, **fields: Any) -> Message:
    """Return a message with the properties that were set."""
    properties = dict(found.properties)
    properties["headers"] = properties.pop("application_headers", None)
    if isinstance(when := properties.get("timestamp"), datetime):
        properties["timestamp"] = int(when.replace(tzinfo=UTC).timestamp())
    body = found.body
    return Message(
        body=body.encode() if isinstance(body, str) else bytes(body),
        properties={name: value for name, value in properties.items() if value is not None},
        **fields,
    )


def arrived(found: amqp.Message) -> Message:
    """Return a message that was delivered or got."""
    info = found.delivery_info
    return as_message(
        found,
        exchange=info["exchange"],
        key=info["routing_key"],
        tag=info["delivery_tag"],
        redelivered=bool(info["redelivered"]),
        consumer=info.get("consumer_tag", ""),
        left=info.get("message_count", 0),
    )


class PyAmqpChannel(Channel):
    """A channel. py-amqp opens it anew after an error."""

    def __init__(self, connection: amqp.Connection, confirms: bool) -> None:
        super().__init__()
        self._connection, self._confirms = connection, confirms
        self._settled: dict[int, bool] = {}
        self._published = 0
        with translated():
            self._channel = connection.channel()
            if confirms:
                self._channel.confirm_select()
        self._channel.events["basic_return"].add(self._on_return)
        self._channel.events["basic_ack"].add(partial(self._on_confirm, True))
        self._channel.events["basic_nack"].add(partial(self._on_confirm, False))

    def _on_return(self, fault: Any, exchange: str, key: str, message: amqp.Message) -> None:
        back = as_message(message, exchange=exchange, key=key, code=fault.reply_code, text=fault.reply_text)
        self.returned.append(back)

    def _on_confirm(self, yes: bool, tag: int, multiple: bool) -> None:
        first = max(self._settled, default=0) + 1 if multiple else tag
        self._settled.update((each, yes) for each in range(first, tag + 1) if each not in self._settled)

    def pump(self, seconds: float) -> None:
        with translated():
            try:
                self._connection.drain_events(timeout=seconds)
            except (TimeoutError, socket.timeout):  # noqa: UP041  py-amqp raises either
                return

    def close(self) -> None:
        self._channel.close()

    def declare_queue(self, name: str = "", **terms: Any) -> Declared:
        with translated():
            answer = self._channel.queue_declare(name, **{"auto_delete": False, **terms})
        return Declared(answer.queue, answer.message_count, answer.consumer_count)

    def delete_queue(self, name: str, **terms: Any) -> int:
        with translated():
            return int(self._channel.queue_delete(name, **terms))

    def purge(self, name: str) -> int:
        with translated():
            return int(self._channel.queue_purge(name))

    def bind(self, queue: str, exchange: str, key: str = "", arguments: dict[str, Any] | None = None) -> None:
        with translated():
            self._channel.queue_bind(queue, exchange, key, arguments=arguments)

    def unbind(self, queue: str, exchange: str, key: str = "", arguments: dict[str, Any] | None = None) -> None:
        with translated():
            self._channel.queue_unbind(queue, exchange, key, arguments=arguments)

    def declare_exchange(self, name: str, kind: str = "direct", *, internal: bool = False, **terms: Any) -> None:
        terms = {"auto_delete": False, **terms}
        with translated():
            if not internal:
                self._channel.exchange_declare(name, kind, **terms)
                return
            # `exchange_declare` of py-amqp has no parameter for `internal`; the rest of the library does.
            bits = (terms.get("passive"), terms.get("durable"), terms["auto_delete"], internal, False)
            self._channel.send_method(
                spec.Exchange.Declare,
                "BssbbbbbF",
                (0, name, kind, *map(bool, bits), terms.get("arguments")),
                wait=spec.Exchange.DeclareOk,
            )

    def delete_exchange(self, name: str, *, if_unused: bool = False) -> None:
        with translated():
            self._channel.exchange_delete(name, if_unused)

    def bind_exchange(
        self, destination: str, source: str, key: str = "", arguments: dict[str, Any] | None = None
    ) -> None:
        with translated():
            self._channel.exchange_bind(destination, source, key, arguments=arguments)

    def unbind_exchange(
        self, destination: str, source: str, key: str = "", arguments: dict[str, Any] | None = None
    ) -> None:
        with translated():
            self._channel.exchange_unbind(destination, source, key, arguments=arguments)

    def _send(self, exchange: str, key: str, body: bytes, mandatory: bool, properties: dict[str, Any]) -> None:
        if "headers" in properties:
            properties["application_headers"] = properties.pop("headers")
        self._channel.basic_publish(amqp.Message(body, **properties), exchange, key, mandatory)
        self._published += 1

    def publish(
        self, exchange: str, key: str, body: bytes = b"", *, mandatory: bool = False, **properties: Any
    ) -> bool:
        with translated():
            self._send(exchange, key, body, mandatory, properties)
            tag = self._published
            while self._confirms and tag not in self._settled:
                self._connection.drain_events(timeout=10)
        return self._settled.get(tag, True)

    def publish_all(self, exchange: str, key: str, bodies: list[bytes]) -> list[bool]:
        first = self._published + 1
        with translated():
            for body in bodies:
                self._send(exchange, key, body, False, {})
            wanted = range(first, self._published + 1)
            while not all(tag in self._settled for tag in wanted):
                self._connection.drain_events(timeout=10)
        return [self._settled[tag] for tag in wanted]

    def qos(self, count: int, *, whole_channel: bool = False) -> None:
        with translated():
            self._channel.basic_qos(0, count, whole_channel)

    def consume(
        self,
        queue: str,
        *,
        tag: str = "",
        no_ack: bool = False,
        exclusive: bool = False,
        arguments: dict[str, Any] | None = None,
    ) -> str:
        with translated():
            made: str = self._channel.basic_consume(
                queue,
                tag,
                no_ack=no_ack,
                exclusive=exclusive,
                callback=lambda message: self.arrived.append(arrived(message)),
                arguments=arguments,
                on_cancel=self.cancelled.append,
            )
        return made

    def cancel(self, tag: str) -> None:
        with translated():
            self._channel.basic_cancel(tag)

    def get(self, queue: str, *, no_ack: bool = False) -> Message | None:
        with translated():
            found = self._channel.basic_get(queue, no_ack)
        return None if found is None else arrived(found)

    def ack(self, tag: int, *, multiple: bool = False) -> None:
        with translated():
            self._channel.basic_ack(tag, multiple)

    def nack(self, tag: int, *, multiple: bool = False, requeue: bool = True) -> None:
        with translated():
            self._channel.send_method(spec.Basic.Nack, "Lbb", (tag, multiple, requeue))

    def reject(self, tag: int, *, requeue: bool = True) -> None:
        with translated():
            self._channel.basic_reject(tag, requeue)

    def recover(self) -> None:
        with translated():
            self._channel.basic_recover(requeue=True)

    def tx_select(self) -> None:
        with translated():
            self._channel.tx_select()

    def tx_commit(self) -> None:
        with translated():
            self._channel.tx_commit()

    def tx_rollback(self) -> None:
        with translated():
            self._channel.tx_rollback()


class PyAmqpConnection(Connection):
    """A connection."""

    def __init__(self, address: Address) -> None:
        self._connection = amqp.Connection(
            host=f"{address.host}:{address.port}",
            userid=address.user,
            password=address.password,
            virtual_host=address.vhost,
            heartbeat=address.heartbeat_s,
            connect_timeout=10,
        )
        with translated(opening=True):
            self._connection.connect()
        self.server_properties = self._connection.server_properties
        self.channel_max, self.frame_max = self._connection.channel_max, self._connection.frame_max
        self.heartbeat_s = int(self._connection.heartbeat)

    def channel(self, *, confirms: bool = False) -> Channel:
        return PyAmqpChannel(self._connection, confirms)

    def close(self) -> None:
        self._connection.close()

    def is_open(self) -> bool:
        return bool(self._connection.connected)

    def idle(self, seconds: float) -> None:
        for _ in range(round(seconds / 0.1)):
            with translated():
                try:
                    self._connection.drain_events(timeout=0.1)
                except (TimeoutError, socket.timeout):  # noqa: UP041  py-amqp raises either
                    if self._connection.heartbeat:
                        self._connection.heartbeat_tick(rate=20)

    def update_secret(self, secret: str, reason: str) -> None:
        raise NotImplementedError("py-amqp has no word for it")


class PyAmqp(Client):
    """The library."""

    def connect(self, address: Address) -> Connection:
        return PyAmqpConnection(address)
