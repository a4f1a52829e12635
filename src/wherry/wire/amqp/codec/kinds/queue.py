"""Class 50: queues and their bindings."""

from __future__ import annotations

from typing import ClassVar

from wherry.wire.amqp.codec.fields import Bit, Long, Short, ShortStr, Table
from wherry.wire.amqp.codec.kinds.method import Method, no_entries


class QueueDeclare(Method, frozen=True, gc=False):
    """Client: create the queue unless it exists; empty name: the server chooses one; passive: check that it exists."""

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
    """Server: the name of the queue, its ready messages and its consumers."""

    ids: ClassVar = (50, 11)
    queue: ShortStr = ""
    message_count: Long = 0
    consumer_count: Long = 0


class QueueBind(Method, frozen=True, gc=False):
    """Client: route messages of the exchange with this key to the queue."""

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
    """Client: delete the ready messages of the queue."""

    ids: ClassVar = (50, 30)
    reserved_1: Short = 0
    queue: ShortStr = ""
    no_wait: Bit = False


class QueuePurgeOk(Method, frozen=True, gc=False):
    """Server: how many messages were deleted."""

    ids: ClassVar = (50, 31)
    message_count: Long = 0


class QueueDelete(Method, frozen=True, gc=False):
    """Client: delete the queue."""

    ids: ClassVar = (50, 40)
    reserved_1: Short = 0
    queue: ShortStr = ""
    if_unused: Bit = False
    if_empty: Bit = False
    no_wait: Bit = False


class QueueDeleteOk(Method, frozen=True, gc=False):
    """Server: the queue is deleted, with so many messages."""

    ids: ClassVar = (50, 41)
    message_count: Long = 0


class QueueUnbind(Method, frozen=True, gc=False):
    """Client: remove a binding. The server always answers: there is no `no-wait` bit."""

    ids: ClassVar = (50, 50)
    reserved_1: Short = 0
    queue: ShortStr = ""
    exchange: ShortStr = ""
    routing_key: ShortStr = ""
    arguments: Table = no_entries()


class QueueUnbindOk(Method, frozen=True, gc=False):
    """Server: no longer bound."""

    ids: ClassVar = (50, 51)
