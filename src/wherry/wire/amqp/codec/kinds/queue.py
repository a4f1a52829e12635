"""Class 50: queues and their bindings."""

from __future__ import annotations

from typing import ClassVar

from wherry.wire.amqp.codec.fields import Bit, Long, Short, ShortStr, Table
from wherry.wire.amqp.codec.kinds.method import Method, no_entries


class QueueDeclare(Method, frozen=True, gc=False):
    """Client: there should be such a queue; an empty name: the server finds one; passive: it only asks."""

    ids: ClassVar = (50, 10)
    reserved_1: Short = 0
    queue: ShortStr = ""
    passive: Bit = False
    durable: Bit = False
    exclusive: Bit = False
    auto_delete: Bit = False
    no_wait: Bit = False
    arguments: Table = no_entries()


class QueueDeclareOk(Method, frozen=True, gc=False):
    """Server: the queue, its ready messages and its consumers."""

    ids: ClassVar = (50, 11)
    queue: ShortStr = ""
    message_count: Long = 0
    consumer_count: Long = 0


class QueueBind(Method, frozen=True, gc=False):
    """Client: what the exchange routes by this key goes to the queue."""

    ids: ClassVar = (50, 20)
    reserved_1: Short = 0
    queue: ShortStr = ""
    exchange: ShortStr = ""
    routing_key: ShortStr = ""
    no_wait: Bit = False
    arguments: Table = no_entries()


class QueueBindOk(Method, frozen=True, gc=False):
    """Server: bound."""

    ids: ClassVar = (50, 21)


class QueuePurge(Method, frozen=True, gc=False):
    """Client: the ready messages of the queue should go."""

    ids: ClassVar = (50, 30)
    reserved_1: Short = 0
    queue: ShortStr = ""
    no_wait: Bit = False


class QueuePurgeOk(Method, frozen=True, gc=False):
    """Server: so many went."""

    ids: ClassVar = (50, 31)
    message_count: Long = 0


class QueueDelete(Method, frozen=True, gc=False):
    """Client: the queue should go."""

    ids: ClassVar = (50, 40)
    reserved_1: Short = 0
    queue: ShortStr = ""
    if_unused: Bit = False
    if_empty: Bit = False
    no_wait: Bit = False


class QueueDeleteOk(Method, frozen=True, gc=False):
    """Server: it went, and so many messages with it."""

    ids: ClassVar = (50, 41)
    message_count: Long = 0


class QueueUnbind(Method, frozen=True, gc=False):
    """Client: takes a binding back. It always waits: there is no bit for the contrary."""

    ids: ClassVar = (50, 50)
    reserved_1: Short = 0
    queue: ShortStr = ""
    exchange: ShortStr = ""
    routing_key: ShortStr = ""
    arguments: Table = no_entries()


class QueueUnbindOk(Method, frozen=True, gc=False):
    """Server: no longer bound."""

    ids: ClassVar = (50, 51)
