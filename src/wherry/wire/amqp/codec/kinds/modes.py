"""Class 85: confirms, and class 90: transactions. A channel has one of them at most."""

from __future__ import annotations

from typing import ClassVar

from wherry.wire.amqp.codec.fields import Bit
from wherry.wire.amqp.codec.kinds.method import Method


class ConfirmSelect(Method, frozen=True, gc=False):
    """Client: confirm every publish of this channel. An extension of RabbitMQ."""

    ids: ClassVar = (85, 10)
    no_wait: Bit = False


class ConfirmSelectOk(Method, frozen=True, gc=False):
    """Server: publishes will be confirmed."""

    ids: ClassVar = (85, 11)


class TxSelect(Method, frozen=True, gc=False):
    """Client: hold publishes and acknowledgements of this channel until a commit."""

    ids: ClassVar = (90, 10)


class TxSelectOk(Method, frozen=True, gc=False):
    """Server: the channel is transactional."""

    ids: ClassVar = (90, 11)


class TxCommit(Method, frozen=True, gc=False):
    """Client: carry out what is held."""

    ids: ClassVar = (90, 20)


class TxCommitOk(Method, frozen=True, gc=False):
    """Server: the transaction is committed."""

    ids: ClassVar = (90, 21)


class TxRollback(Method, frozen=True, gc=False):
    """Client: discard what is held."""

    ids: ClassVar = (90, 30)


class TxRollbackOk(Method, frozen=True, gc=False):
    """Server: the transaction is discarded."""

    ids: ClassVar = (90, 31)
