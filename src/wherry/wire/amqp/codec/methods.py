"""Every method of AMQP 0-9-1 and of RabbitMQ's extensions, as a value whose annotations are its layout on the wire.

The order of the fields is their order in the frame, and each annotation names the wire type. `Signature` compiles a
decoder and an encoder from them when this module is imported. Every field has a default, so that a call site names
only what matters to it; reserved fields are kept so that a method goes out as it came in.
"""

from __future__ import annotations

from typing import Any, ClassVar

import msgspec

from wherry.wire.amqp.codec.faults import NO_METHOD, AmqpFault, Reply
from wherry.wire.amqp.codec.fields import Bit, Long, LongLong, LongStr, Octet, Short, ShortStr, Signature, Table


class Method(msgspec.Struct, frozen=True, gc=False):
    """One method: subclasses name their class id and method id."""

    ids: ClassVar[tuple[int, int]] = NO_METHOD


def _no_entries() -> dict[str, Any]:
    return {}


def _empty() -> Any:
    return msgspec.field(default_factory=_no_entries)


# ---------------------------------------------------------------------------------------------------- 10: connection


class ConnectionStart(Method, frozen=True, gc=False):
    """Server: which versions, mechanisms and locales there are, and who it is."""

    ids: ClassVar = (10, 10)
    version_major: Octet = 0
    version_minor: Octet = 9
    server_properties: Table = _empty()
    mechanisms: LongStr = b"PLAIN"
    locales: LongStr = b"en_US"


class ConnectionStartOk(Method, frozen=True, gc=False):
    """Client: who it is, and the first word of the chosen mechanism."""

    ids: ClassVar = (10, 11)
    client_properties: Table = _empty()
    mechanism: ShortStr = "PLAIN"
    response: LongStr = b""
    locale: ShortStr = "en_US"


class ConnectionSecure(Method, frozen=True, gc=False):
    """Server: a challenge of the mechanism."""

    ids: ClassVar = (10, 20)
    challenge: LongStr = b""


class ConnectionSecureOk(Method, frozen=True, gc=False):
    """Client: the answer to a challenge."""

    ids: ClassVar = (10, 21)
    response: LongStr = b""


class ConnectionTune(Method, frozen=True, gc=False):
    """Server: its bounds. A zero means no bound; the heart-beat is in seconds."""

    ids: ClassVar = (10, 30)
    channel_max: Short = 0
    frame_max: Long = 0
    heartbeat: Short = 0


class ConnectionTuneOk(Method, frozen=True, gc=False):
    """Client: the bounds that hold from here on."""

    ids: ClassVar = (10, 31)
    channel_max: Short = 0
    frame_max: Long = 0
    heartbeat: Short = 0


class ConnectionOpen(Method, frozen=True, gc=False):
    """Client: the virtual host to work in."""

    ids: ClassVar = (10, 40)
    virtual_host: ShortStr = "/"
    reserved_1: ShortStr = ""
    reserved_2: Bit = False


class ConnectionOpenOk(Method, frozen=True, gc=False):
    """Server: the virtual host is open."""

    ids: ClassVar = (10, 41)
    reserved_1: ShortStr = ""


class ConnectionClose(Method, frozen=True, gc=False):
    """Either side: the end, why, and which method was at fault."""

    ids: ClassVar = (10, 50)
    reply_code: Short = 200
    reply_text: ShortStr = ""
    class_id: Short = 0
    method_id: Short = 0


class ConnectionCloseOk(Method, frozen=True, gc=False):
    """Either side: the end was heard."""

    ids: ClassVar = (10, 51)


class ConnectionBlocked(Method, frozen=True, gc=False):
    """Server: it takes no publishes for now."""

    ids: ClassVar = (10, 60)
    reason: ShortStr = ""


class ConnectionUnblocked(Method, frozen=True, gc=False):
    """Server: it takes publishes again."""

    ids: ClassVar = (10, 61)


class ConnectionUpdateSecret(Method, frozen=True, gc=False):
    """Client: a new secret (a token, say) for the same user."""

    ids: ClassVar = (10, 70)
    new_secret: LongStr = b""
    reason: ShortStr = ""


class ConnectionUpdateSecretOk(Method, frozen=True, gc=False):
    """Server: the new secret holds."""

    ids: ClassVar = (10, 71)


# ------------------------------------------------------------------------------------------------------- 20: channel


class ChannelOpen(Method, frozen=True, gc=False):
    """Client: opens the channel that the frame names."""

    ids: ClassVar = (20, 10)
    reserved_1: ShortStr = ""


class ChannelOpenOk(Method, frozen=True, gc=False):
    """Server: the channel is open."""

    ids: ClassVar = (20, 11)
    reserved_1: LongStr = b""


class ChannelFlow(Method, frozen=True, gc=False):
    """Either side: asks the other to stop or go on sending content."""

    ids: ClassVar = (20, 20)
    active: Bit = False


class ChannelFlowOk(Method, frozen=True, gc=False):
    """Either side: what was asked of it holds."""

    ids: ClassVar = (20, 21)
    active: Bit = False


class ChannelClose(Method, frozen=True, gc=False):
    """Either side: the end of the channel, why, and which method was at fault."""

    ids: ClassVar = (20, 40)
    reply_code: Short = 200
    reply_text: ShortStr = ""
    class_id: Short = 0
    method_id: Short = 0


class ChannelCloseOk(Method, frozen=True, gc=False):
    """Either side: the end was heard."""

    ids: ClassVar = (20, 41)


# -------------------------------------------------------------------------------------------------------- 30: access


class AccessRequest(Method, frozen=True, gc=False):
    """Client: asks for a ticket. Of 0-8; clients of its age still send it, and any ticket will do."""

    ids: ClassVar = (30, 10)
    realm: ShortStr = ""
    exclusive: Bit = False
    passive: Bit = True
    active: Bit = True
    write: Bit = True
    read: Bit = True


class AccessRequestOk(Method, frozen=True, gc=False):
    """Server: the ticket."""

    ids: ClassVar = (30, 11)
    ticket: Short = 1


# ------------------------------------------------------------------------------------------------------ 40: exchange


class ExchangeDeclare(Method, frozen=True, gc=False):
    """Client: there should be such an exchange; passive: it only asks whether there is."""

    ids: ClassVar = (40, 10)
    reserved_1: Short = 0
    exchange: ShortStr = ""
    type: ShortStr = "direct"
    passive: Bit = False
    durable: Bit = False
    auto_delete: Bit = False
    internal: Bit = False
    no_wait: Bit = False
    arguments: Table = _empty()


class ExchangeDeclareOk(Method, frozen=True, gc=False):
    """Server: there is."""

    ids: ClassVar = (40, 11)


class ExchangeDelete(Method, frozen=True, gc=False):
    """Client: the exchange should go."""

    ids: ClassVar = (40, 20)
    reserved_1: Short = 0
    exchange: ShortStr = ""
    if_unused: Bit = False
    no_wait: Bit = False


class ExchangeDeleteOk(Method, frozen=True, gc=False):
    """Server: it is gone."""

    ids: ClassVar = (40, 21)


class ExchangeBind(Method, frozen=True, gc=False):
    """Client: what the source exchange takes goes to the destination exchange too. RabbitMQ's."""

    ids: ClassVar = (40, 30)
    reserved_1: Short = 0
    destination: ShortStr = ""
    source: ShortStr = ""
    routing_key: ShortStr = ""
    no_wait: Bit = False
    arguments: Table = _empty()


class ExchangeBindOk(Method, frozen=True, gc=False):
    """Server: bound."""

    ids: ClassVar = (40, 31)


class ExchangeUnbind(Method, frozen=True, gc=False):
    """Client: takes a binding between exchanges back. RabbitMQ's."""

    ids: ClassVar = (40, 40)
    reserved_1: Short = 0
    destination: ShortStr = ""
    source: ShortStr = ""
    routing_key: ShortStr = ""
    no_wait: Bit = False
    arguments: Table = _empty()


class ExchangeUnbindOk(Method, frozen=True, gc=False):
    """Server: no longer bound. Its number is 51, where the others would make one expect 41."""

    ids: ClassVar = (40, 51)


# --------------------------------------------------------------------------------------------------------- 50: queue


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
    arguments: Table = _empty()


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
    arguments: Table = _empty()


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
    arguments: Table = _empty()


class QueueUnbindOk(Method, frozen=True, gc=False):
    """Server: no longer bound."""

    ids: ClassVar = (50, 51)


# --------------------------------------------------------------------------------------------------------- 60: basic


class BasicQos(Method, frozen=True, gc=False):
    """Client: how much may be in flight to it unacknowledged. A zero means no bound."""

    ids: ClassVar = (60, 10)
    prefetch_size: Long = 0
    prefetch_count: Short = 0
    global_: Bit = False


class BasicQosOk(Method, frozen=True, gc=False):
    """Server: the bound holds."""

    ids: ClassVar = (60, 11)


class BasicConsume(Method, frozen=True, gc=False):
    """Client: sends what the queue has, under this tag (empty: the server finds one)."""

    ids: ClassVar = (60, 20)
    reserved_1: Short = 0
    queue: ShortStr = ""
    consumer_tag: ShortStr = ""
    no_local: Bit = False
    no_ack: Bit = False
    exclusive: Bit = False
    no_wait: Bit = False
    arguments: Table = _empty()


class BasicConsumeOk(Method, frozen=True, gc=False):
    """Server: the tag of the new consumer."""

    ids: ClassVar = (60, 21)
    consumer_tag: ShortStr = ""


class BasicCancel(Method, frozen=True, gc=False):
    """Client: ends a consumer. Server: a consumer ended, because its queue went, say."""

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
    """Client: one message of the queue, now."""

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
    """Client: refuses one delivery."""

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
    """Server: it will."""

    ids: ClassVar = (60, 111)


class BasicNack(Method, frozen=True, gc=False):
    """Client: refuses deliveries. Server: a publish was not taken. RabbitMQ's."""

    ids: ClassVar = (60, 120)
    delivery_tag: LongLong = 0
    multiple: Bit = False
    requeue: Bit = True


# ------------------------------------------------------------------------------------------------------- 85: confirm


class ConfirmSelect(Method, frozen=True, gc=False):
    """Client: confirm every publish of this channel. RabbitMQ's."""

    ids: ClassVar = (85, 10)
    no_wait: Bit = False


class ConfirmSelectOk(Method, frozen=True, gc=False):
    """Server: it will."""

    ids: ClassVar = (85, 11)


# ------------------------------------------------------------------------------------------------------------ 90: tx


class TxSelect(Method, frozen=True, gc=False):
    """Client: publishes and acknowledgements of this channel wait for a commit."""

    ids: ClassVar = (90, 10)


class TxSelectOk(Method, frozen=True, gc=False):
    """Server: they do."""

    ids: ClassVar = (90, 11)


class TxCommit(Method, frozen=True, gc=False):
    """Client: do what waits."""

    ids: ClassVar = (90, 20)


class TxCommitOk(Method, frozen=True, gc=False):
    """Server: done."""

    ids: ClassVar = (90, 21)


class TxRollback(Method, frozen=True, gc=False):
    """Client: forget what waits."""

    ids: ClassVar = (90, 30)


class TxRollbackOk(Method, frozen=True, gc=False):
    """Server: forgotten."""

    ids: ClassVar = (90, 31)


# ------------------------------------------------------------------------------------------------------ all of them


METHODS: dict[tuple[int, int], type[Method]] = {kind.ids: kind for kind in Method.__subclasses__()}
"""Every method by its class id and method id."""

CONTENT = frozenset({BasicPublish.ids, BasicReturn.ids, BasicDeliver.ids, BasicGetOk.ids})
"""The methods that a header frame and body frames follow."""


def name_of(kind: type[Method]) -> str:
    """The name of a method as the specification writes it: `queue.declare-ok`."""
    words = "".join(f" {letter.lower()}" if letter.isupper() else letter for letter in kind.__name__).split()
    return f"{words[0]}.{'-'.join(words[1:])}"


_SIGNATURES = {kind: Signature(kind, kind.ids, name_of(kind)) for kind in METHODS.values()}


def decode_method(payload: bytes) -> Method:
    """The method that the payload of a method frame holds, which it must fill exactly."""
    if len(payload) < 4:
        raise AmqpFault(Reply.FRAME_ERROR, f"a method frame of {len(payload)} bytes has no class id and method id")
    ids = (int.from_bytes(payload[:2], "big"), int.from_bytes(payload[2:4], "big"))
    kind = METHODS.get(ids)
    if kind is None:
        raise AmqpFault(Reply.NOT_IMPLEMENTED, f"unknown method {ids[0]}.{ids[1]}", ids=ids)
    method: Method = _SIGNATURES[kind].decode(payload, 4)
    return method


def encode_method(method: Method) -> bytes:
    """The payload of a method frame."""
    return _SIGNATURES[type(method)].encode(method)
