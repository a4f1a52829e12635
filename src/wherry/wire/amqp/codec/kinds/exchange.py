"""Class 40: exchanges and the bindings between them."""

from __future__ import annotations

from typing import ClassVar

from wherry.wire.amqp.codec.fields import Bit, Short, ShortStr, Table
from wherry.wire.amqp.codec.kinds.method import Method, no_entries


class ExchangeDeclare(Method, frozen=True, gc=False):
    """Client: create the exchange unless it exists; passive: check that it exists."""

    ids: ClassVar = (40, 10)
    reserved_1: Short = 0
    exchange: ShortStr = ""
    type: ShortStr = "direct"
    passive: Bit = False
    durable: Bit = False
    auto_delete: Bit = False
    internal: Bit = False
    no_wait: Bit = False
    arguments: Table = no_entries()


class ExchangeDeclareOk(Method, frozen=True, gc=False):
    """Server: the exchange exists."""

    ids: ClassVar = (40, 11)


class ExchangeDelete(Method, frozen=True, gc=False):
    """Client: delete the exchange."""

    ids: ClassVar = (40, 20)
    reserved_1: Short = 0
    exchange: ShortStr = ""
    if_unused: Bit = False
    no_wait: Bit = False


class ExchangeDeleteOk(Method, frozen=True, gc=False):
    """Server: the exchange is deleted."""

    ids: ClassVar = (40, 21)


class ExchangeBind(Method, frozen=True, gc=False):
    """Client: route messages of the source exchange to the destination exchange too. An extension of RabbitMQ."""

    ids: ClassVar = (40, 30)
    reserved_1: Short = 0
    destination: ShortStr = ""
    source: ShortStr = ""
    routing_key: ShortStr = ""
    no_wait: Bit = False
    arguments: Table = no_entries()


class ExchangeBindOk(Method, frozen=True, gc=False):
    """Server: bound."""

    ids: ClassVar = (40, 31)


class ExchangeUnbind(Method, frozen=True, gc=False):
    """Client: remove a binding between exchanges. An extension of RabbitMQ."""

    ids: ClassVar = (40, 40)
    reserved_1: Short = 0
    destination: ShortStr = ""
    source: ShortStr = ""
    routing_key: ShortStr = ""
    no_wait: Bit = False
    arguments: Table = no_entries()


class ExchangeUnbindOk(Method, frozen=True, gc=False):
    """Server: no longer bound. Its number is 51, where the others suggest 41."""

    ids: ClassVar = (40, 51)
