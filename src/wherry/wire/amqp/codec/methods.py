"""Every method of AMQP 0-9-1 and of RabbitMQ's extensions: the table of all kinds, and the way from and to bytes.

`Signature` compiles a decoder and an encoder from the fields of each when this module is imported.
"""

from __future__ import annotations

from wherry.wire.amqp.codec.faults import AmqpFault, ReplyCode
from wherry.wire.amqp.codec.fields import Signature
from wherry.wire.amqp.codec.kinds.basic import (
    BasicAck,
    BasicCancel,
    BasicCancelOk,
    BasicConsume,
    BasicConsumeOk,
    BasicDeliver,
    BasicGet,
    BasicGetEmpty,
    BasicGetOk,
    BasicNack,
    BasicPublish,
    BasicQos,
    BasicQosOk,
    BasicRecover,
    BasicRecoverAsync,
    BasicRecoverOk,
    BasicReject,
    BasicReturn,
)
from wherry.wire.amqp.codec.kinds.channel import (
    AccessRequest,
    AccessRequestOk,
    ChannelClose,
    ChannelCloseOk,
    ChannelFlow,
    ChannelFlowOk,
    ChannelOpen,
    ChannelOpenOk,
)
from wherry.wire.amqp.codec.kinds.connection import (
    ConnectionBlocked,
    ConnectionClose,
    ConnectionCloseOk,
    ConnectionOpen,
    ConnectionOpenOk,
    ConnectionSecure,
    ConnectionSecureOk,
    ConnectionStart,
    ConnectionStartOk,
    ConnectionTune,
    ConnectionTuneOk,
    ConnectionUnblocked,
    ConnectionUpdateSecret,
    ConnectionUpdateSecretOk,
)
from wherry.wire.amqp.codec.kinds.exchange import (
    ExchangeBind,
    ExchangeBindOk,
    ExchangeDeclare,
    ExchangeDeclareOk,
    ExchangeDelete,
    ExchangeDeleteOk,
    ExchangeUnbind,
    ExchangeUnbindOk,
)
from wherry.wire.amqp.codec.kinds.method import Method
from wherry.wire.amqp.codec.kinds.modes import (
    ConfirmSelect,
    ConfirmSelectOk,
    TxCommit,
    TxCommitOk,
    TxRollback,
    TxRollbackOk,
    TxSelect,
    TxSelectOk,
)
from wherry.wire.amqp.codec.kinds.queue import (
    QueueBind,
    QueueBindOk,
    QueueDeclare,
    QueueDeclareOk,
    QueueDelete,
    QueueDeleteOk,
    QueuePurge,
    QueuePurgeOk,
    QueueUnbind,
    QueueUnbindOk,
)

__all__ = [
    "CONTENT",
    "METHODS",
    "AccessRequest",
    "AccessRequestOk",
    "BasicAck",
    "BasicCancel",
    "BasicCancelOk",
    "BasicConsume",
    "BasicConsumeOk",
    "BasicDeliver",
    "BasicGet",
    "BasicGetEmpty",
    "BasicGetOk",
    "BasicNack",
    "BasicPublish",
    "BasicQos",
    "BasicQosOk",
    "BasicRecover",
    "BasicRecoverAsync",
    "BasicRecoverOk",
    "BasicReject",
    "BasicReturn",
    "ChannelClose",
    "ChannelCloseOk",
    "ChannelFlow",
    "ChannelFlowOk",
    "ChannelOpen",
    "ChannelOpenOk",
    "ConfirmSelect",
    "ConfirmSelectOk",
    "ConnectionBlocked",
    "ConnectionClose",
    "ConnectionCloseOk",
    "ConnectionOpen",
    "ConnectionOpenOk",
    "ConnectionSecure",
    "ConnectionSecureOk",
    "ConnectionStart",
    "ConnectionStartOk",
    "ConnectionTune",
    "ConnectionTuneOk",
    "ConnectionUnblocked",
    "ConnectionUpdateSecret",
    "ConnectionUpdateSecretOk",
    "ExchangeBind",
    "ExchangeBindOk",
    "ExchangeDeclare",
    "ExchangeDeclareOk",
    "ExchangeDelete",
    "ExchangeDeleteOk",
    "ExchangeUnbind",
    "ExchangeUnbindOk",
    "Method",
    "QueueBind",
    "QueueBindOk",
    "QueueDeclare",
    "QueueDeclareOk",
    "QueueDelete",
    "QueueDeleteOk",
    "QueuePurge",
    "QueuePurgeOk",
    "QueueUnbind",
    "QueueUnbindOk",
    "TxCommit",
    "TxCommitOk",
    "TxRollback",
    "TxRollbackOk",
    "TxSelect",
    "TxSelectOk",
    "decode_method",
    "encode_method",
    "name_of",
]

METHODS: dict[tuple[int, int], type[Method]] = {
    kind.ids: kind for kind in sorted(Method.__subclasses__(), key=lambda kind: kind.ids)
}
"""Every method by its class id and method id."""

CONTENT = frozenset({BasicPublish.ids, BasicReturn.ids, BasicDeliver.ids, BasicGetOk.ids})
"""The methods that a header frame and body frames follow."""


def name_of(kind: type[Method]) -> str:
    """Return the name of a method as the specification writes it: `queue.declare-ok`."""
    words = "".join(f" {letter.lower()}" if letter.isupper() else letter for letter in kind.__name__).split()
    return f"{words[0]}.{'-'.join(words[1:])}"


_SIGNATURES = {kind: Signature(kind, kind.ids, name_of(kind)) for kind in METHODS.values()}


def decode_method(payload: bytes) -> Method:
    """Decode the payload of a method frame, which the method must fill exactly."""
    if len(payload) < 4:
        raise AmqpFault(ReplyCode.FRAME_ERROR, f"a method frame of {len(payload)} bytes has no class id and method id")
    ids = (int.from_bytes(payload[:2], "big"), int.from_bytes(payload[2:4], "big"))
    kind = METHODS.get(ids)
    if kind is None:
        raise AmqpFault(ReplyCode.NOT_IMPLEMENTED, f"unknown method {ids[0]}.{ids[1]}", ids=ids)
    method: Method = _SIGNATURES[kind].decode(payload, 4)
    return method


def encode_method(method: Method) -> bytes:
    """Encode the payload of a method frame."""
    return _SIGNATURES[type(method)].encode(method)
