"""pika, as most people use it: a blocking connection."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pika
from pika import exceptions

from tests.amqp.clients.port import Address, Channel, Client, Connection, Declared, Message, Refused


@contextmanager
def translated() -> Iterator[None]:
    """Raise what the server closed, in the words of the port."""
    try:
        yield
    except (exceptions.ProbableAuthenticationError, exceptions.ProbableAccessDeniedError) as fault:
        raise as_refused("connection", fault.args) from fault
    except exceptions.ConnectionClosedByBroker as fault:
        raise Refused("connection", fault.reply_code, fault.reply_text) from fault
    except exceptions.ChannelClosedByBroker as fault:
        raise Refused("channel", fault.reply_code, fault.reply_text) from fault


def as_refused(scope: str, words: tuple[Any, ...]) -> Refused:
    """Make a refusal of pika's words: pika guesses, and keeps the code in a text."""
    text = " ".join(str(word) for word in words)
    found = next((code for code in (403, 530, 402) if f"({code})" in text), 0)
    return Refused(scope, found, text)


def as_message(properties: Any, body: bytes, **fields: Any) -> Message:
    """Return a message with the properties that were set."""
    names = [name for name in vars(pika.BasicProperties()) if getattr(properties, name) is not None]
    return Message(body=body, properties={name: getattr(properties, name) for name in names}, **fields)


class PikaChannel(Channel):
    """A blocking channel."""

    def __init__(self, connection: pika.BlockingConnection, confirms: bool) -> None:
        super().__init__()
        self._connection, self._confirms = connection, confirms
        with translated():
            self._channel = connection.channel()
            if confirms:
                self._channel.confirm_delivery()
        self._channel.add_on_return_callback(self._on_return)
        self._channel.add_on_cancel_callback(lambda frame: self.cancelled.append(frame.method.consumer_tag))

    def _on_return(self, _: Any, method: Any, properties: Any, body: bytes) -> None:
        self.returned.append(
            as_message(
                properties,
                body,
                exchange=method.exchange,
                key=method.routing_key,
                code=method.reply_code,
                text=method.reply_text,
            )
        )

    def _on_message(self, _: Any, method: Any, properties: Any, body: bytes) -> None:
        self.arrived.append(
            as_message(
                properties,
                body,
                exchange=method.exchange,
                key=method.routing_key,
                tag=method.delivery_tag,
                redelivered=method.redelivered,
                consumer=method.consumer_tag,
            )
        )

    def pump(self, seconds: float) -> None:
        with translated():
            self._connection.process_data_events(seconds)
            if self._channel.is_closed:
                raise self._channel._closing_reason  # pika has no public way to the reason

    def close(self) -> None:
        self._channel.close()

    def declare_queue(self, name: str = "", **terms: Any) -> Declared:
        with translated():
            answer = self._channel.queue_declare(name, **terms).method
        return Declared(answer.queue, answer.message_count, answer.consumer_count)

    def delete_queue(self, name: str, **terms: Any) -> int:
        with translated():
            return self._channel.queue_delete(name, **terms).method.message_count

    def purge(self, name: str) -> int:
        with translated():
            return self._channel.queue_purge(name).method.message_count

    def bind(self, queue: str, exchange: str, key: str = "", arguments: dict[str, Any] | None = None) -> None:
        with translated():
            self._channel.queue_bind(queue, exchange, key, arguments)

    def unbind(self, queue: str, exchange: str, key: str = "", arguments: dict[str, Any] | None = None) -> None:
        with translated():
            self._channel.queue_unbind(queue, exchange, key, arguments)

    def declare_exchange(self, name: str, kind: str = "direct", **terms: Any) -> None:
        with translated():
            self._channel.exchange_declare(name, kind, **terms)

    def delete_exchange(self, name: str, *, if_unused: bool = False) -> None:
        with translated():
            self._channel.exchange_delete(name, if_unused)

    def bind_exchange(
        self, destination: str, source: str, key: str = "", arguments: dict[str, Any] | None = None
    ) -> None:
        with translated():
            self._channel.exchange_bind(destination, source, key, arguments)

    def unbind_exchange(
        self, destination: str, source: str, key: str = "", arguments: dict[str, Any] | None = None
    ) -> None:
        with translated():
            self._channel.exchange_unbind(destination, source, key, arguments)

    def publish(
        self, exchange: str, key: str, body: bytes = b"", *, mandatory: bool = False, **properties: Any
    ) -> bool:
        with translated():
            try:
                self._channel.basic_publish(exchange, key, body, pika.BasicProperties(**properties), mandatory)
            except exceptions.NackError:
                return False
            except exceptions.UnroutableError as fault:
                for each in fault.messages:
                    self._on_return(None, each.method, each.properties, each.body)
        return True

    def publish_all(self, exchange: str, key: str, bodies: list[bytes]) -> list[bool]:
        raise NotImplementedError("a blocking channel waits for each; see pika_own")

    def qos(self, count: int, *, whole_channel: bool = False) -> None:
        with translated():
            self._channel.basic_qos(prefetch_count=count, global_qos=whole_channel)

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
            made: str = self._channel.basic_consume(queue, self._on_message, no_ack, exclusive, tag or None, arguments)
        return made

    def cancel(self, tag: str) -> None:
        with translated():
            self._channel.basic_cancel(tag)

    def get(self, queue: str, *, no_ack: bool = False) -> Message | None:
        with translated():
            method, properties, body = self._channel.basic_get(queue, no_ack)
        if method is None:
            return None
        return as_message(
            properties,
            body,
            exchange=method.exchange,
            key=method.routing_key,
            tag=method.delivery_tag,
            redelivered=method.redelivered,
            left=method.message_count,
        )

    def ack(self, tag: int, *, multiple: bool = False) -> None:
        with translated():
            self._channel.basic_ack(tag, multiple)

    def nack(self, tag: int, *, multiple: bool = False, requeue: bool = True) -> None:
        with translated():
            self._channel.basic_nack(tag, multiple, requeue)

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


class PikaConnection(Connection):
    """A blocking connection."""

    def __init__(self, address: Address) -> None:
        with translated():
            self._connection = pika.BlockingConnection(parameters(address))
        below = self._connection._impl
        self.server_properties = below.server_properties
        self.channel_max, self.frame_max = below.params.channel_max, below.params.frame_max
        self.heartbeat_s = below.params.heartbeat

    def channel(self, *, confirms: bool = False) -> Channel:
        return PikaChannel(self._connection, confirms)

    def close(self) -> None:
        if self._connection.is_open:
            self._connection.close()

    def is_open(self) -> bool:
        if self._connection.is_open:
            with translated():
                self._connection.process_data_events(0)
        return bool(self._connection.is_open)

    def idle(self, seconds: float) -> None:
        with translated():
            self._connection.sleep(seconds)

    def update_secret(self, secret: str, reason: str) -> None:
        with translated():
            self._connection.update_secret(secret, reason)


def parameters(address: Address) -> pika.ConnectionParameters:
    """Return the address as pika takes it."""
    return pika.ConnectionParameters(
        address.host,
        address.port,
        address.vhost,
        pika.PlainCredentials(address.user, address.password),
        heartbeat=address.heartbeat_s,
        socket_timeout=10,
        blocked_connection_timeout=30,
    )


class Pika(Client):
    """The library."""

    def connect(self, address: Address) -> Connection:
        return PikaConnection(address)
