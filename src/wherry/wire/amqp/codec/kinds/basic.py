"""Class 60: messages, from the publish to the acknowledgement."""

from __future__ import annotations

from typing import ClassVar

from wherry.wire.amqp.codec.fields import Bit, Long, LongLong, Short, ShortStr, Table
from wherry.wire.amqp.codec.kinds.method import Method, no_entries


class BasicQos(Method, frozen=True, gc=False):
    """Client: how many messages may be unacknowledged. A zero means no bound."""

    ids: ClassVar = (60, 10)
    prefetch_size: Long = 0
    prefetch_count: Short = 0
    global_: Bit = False


class BasicQosOk(Method, frozen=True, gc=False):
    """Server: the bound holds."""

    ids: ClassVar = (60, 11)


class BasicConsume(Method, frozen=True, gc=False):
    """Client: deliver messages of the queue under this tag (empty: the server chooses one)."""

    ids: ClassVar = (60, 20)
    reserved_1: Short = 0
    queue: ShortStr = ""
    consumer_tag: ShortStr = ""
    no_local: Bit = False
    no_ack: Bit = False
    exclusive: Bit = False
    no_wait: Bit = False
    arguments: Table = no_entries()


class BasicConsumeOk(Method, frozen=True, gc=False):
    """Server: the tag of the new consumer."""

    ids: ClassVar = (60, 21)
    consumer_tag: ShortStr = ""


class BasicCancel(Method, frozen=True, gc=False):
    """Client: end a consumer. Server: a consumer ended, for example because its queue was deleted."""

    ids: ClassVar = (60, 30)
    consumer_tag: ShortStr = ""
    no_wait: Bit = False


class BasicCancelOk(Method, frozen=True, gc=False):
    """The consumer ended."""

    ids: ClassVar = (60, 31)
    consumer_tag: ShortStr = ""


class BasicPublish(Method, frozen=True, gc=False):
    """Client: a message for an exchange. A header frame and body frames follow."""

    ids: ClassVar = (60, 40)
    reserved_1: Short = 0
    exchange: ShortStr = ""
    routing_key: ShortStr = ""
    mandatory: Bit = False
    immediate: Bit = False


class BasicReturn(Method, frozen=True, gc=False):
    """Server: a message that could not be routed. A header frame and body frames follow."""

    ids: ClassVar = (60, 50)
    reply_code: Short = 312
    reply_text: ShortStr = "NO_ROUTE"
    exchange: ShortStr = ""
    routing_key: ShortStr = ""


class BasicDeliver(Method, frozen=True, gc=False):
    """Server: a message for a consumer. A header frame and body frames follow."""

    ids: ClassVar = (60, 60)
    consumer_tag: ShortStr = ""
    delivery_tag: LongLong = 0
    redelivered: Bit = False
    exchange: ShortStr = ""
    routing_key: ShortStr = ""


class BasicGet(Method, frozen=True, gc=False):
    """Client: get one message of the queue now."""

    ids: ClassVar = (60, 70)
    reserved_1: Short = 0
    queue: ShortStr = ""
    no_ack: Bit = False


class BasicGetOk(Method, frozen=True, gc=False):
    """Server: the message. A header frame and body frames follow."""

    ids: ClassVar = (60, 71)
    delivery_tag: LongLong = 0
    redelivered: Bit = False
    exchange: ShortStr = ""
    routing_key: ShortStr = ""
    message_count: Long = 0


class BasicGetEmpty(Method, frozen=True, gc=False):
    """Server: the queue has no ready message."""

    ids: ClassVar = (60, 72)
    reserved_1: ShortStr = ""


class BasicAck(Method, frozen=True, gc=False):
    """Client: done with a delivery. Server: a publish is safe. Multiple: all up to the tag; tag 0 then means all."""

    ids: ClassVar = (60, 80)
    delivery_tag: LongLong = 0
    multiple: Bit = False


class BasicReject(Method, frozen=True, gc=False):
    """Client: refuse one delivery."""

    ids: ClassVar = (60, 90)
    delivery_tag: LongLong = 0
    requeue: Bit = True


class BasicRecoverAsync(Method, frozen=True, gc=False):
    """Client: redeliver what is unacknowledged, without an answer."""

    ids: ClassVar = (60, 100)
    requeue: Bit = False


class BasicRecover(Method, frozen=True, gc=False):
    """Client: redeliver what is unacknowledged."""

    ids: ClassVar = (60, 110)
    requeue: Bit = False


class BasicRecoverOk(Method, frozen=True, gc=False):
    """Server: the messages will be redelivered."""

    ids: ClassVar = (60, 111)


class BasicNack(Method, frozen=True, gc=False):
    """Client: refuse deliveries. Server: a publish was not taken. An extension of RabbitMQ."""

    ids: ClassVar = (60, 120)
    delivery_tag: LongLong = 0
    multiple: Bit = False
    requeue: Bit = True
