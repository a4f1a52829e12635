"""Messages over the management interface: publish one, get some. For inspection and tests, not for traffic."""

from __future__ import annotations

import asyncio
import base64
import binascii
from typing import Any

import msgspec

from wherry.model.calls.rows import Rows
from wherry.model.errors import Closed, Forbidden, InvalidInput, TooLarge
from wherry.model.limits import PAYLOAD_BYTES_MAX, TIME_MS_MAX
from wherry.queueing.flow.delivering import QueueDelivery, SettleVerb
from wherry.queueing.flow.intake import Unconfirmed
from wherry.queueing.hosts.queue import Queue
from wherry.queueing.message import properties
from wherry.queueing.message.envelope import prefix, texts
from wherry.queueing.message.handling import delay_ms, handling_of
from wherry.queueing.message.properties import UsedProperties, used_properties
from wherry.queueing.message.table import without
from wherry.queueing.refusals import Reason, refused
from wherry.wire.amqp.management.asking import (
    BODY_BYTES_MAX,
    ManagementAnswer,
    ManagementCall,
    Row,
    decoded,
    exchange_name,
)
from wherry.wire.amqp.management.reads import plain

COUNT_MAX = 1_000
GOT_BYTES_MAX = 32 << 20
"""Bounds of one `get`: the most messages, and the bytes after which no more are taken."""

PUBLISH_BYTES_MAX = PAYLOAD_BYTES_MAX // 3 * 4 + BODY_BYTES_MAX
"""The largest body of a publish: the largest payload in base64, and its other fields."""

STORED_S = 30.0
"""How long a publish waits for the disk before it is answered that its fate is unknown."""

_MODES: dict[str, SettleVerb] = {
    "ack_requeue_false": "ack",
    "ack_requeue_true": "requeue",
    "reject_requeue_true": "requeue",
    "reject_requeue_false": "reject",
}


class _StoredWait:
    """Waits until one published message is stored or refused."""

    def __init__(self) -> None:
        self.over: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    def confirmed(self, last: int, refused: set[int]) -> None:
        """Note that the message is stored, or was refused."""
        if not self.over.done():
            self.over.set_result(not refused)


async def publish(ask: ManagementCall) -> ManagementAnswer:
    """Answer `POST exchanges/VHOST/NAME/publish`: publish one message; the answer shows whether a queue took it."""
    host = ask.host(ask.parts[1])
    # checked whatever queues the message reaches, which may be none
    if not ask.login.has_some(("publish",), host.name):
        raise Forbidden(ask.login.user, "publish", f"vhost {host.name}")
    ask.known = _message(ask.raw)
    exchange, key = exchange_name(ask.parts[2]), ask.text("routing_key")
    body = _payload(ask)
    terms = host.exchange_index.terms(exchange)
    if terms.internal:
        raise InvalidInput("exchange", exchange, "one that is not internal")
    known = _properties(ask)
    targets = host.targets(exchange, key, known)
    for queue in targets:
        ask.check("publish", queue.topic)
    if known.headers and b"BCC" in known.headers:
        known = used_properties(properties.replaced(known.raw, "headers", without(known.headers, ("BCC",))))
    if targets:
        messages = Rows([body], prefix(exchange, key) + known.raw, key if exchange else None, texts(known))
        delay = delay_ms(known) if terms.delayed else None
        await _stored(ask, targets, messages, known, delay)
    return ManagementAnswer(200, {"routed": bool(targets)})


class _Message(msgspec.Struct):
    """The body of a publish: a payload that may be large, and the other fields undecoded."""

    payload: str | msgspec.UnsetType = msgspec.UNSET
    payload_encoding: msgspec.Raw = msgspec.Raw()
    routing_key: msgspec.Raw = msgspec.Raw()
    properties: msgspec.Raw = msgspec.Raw()


def _message(raw: bytes) -> Row:
    """Decode the body of a publish: only known fields, and of these only small ones, except the payload."""
    if not raw.strip():
        return {}
    try:
        found = msgspec.json.decode(raw, type=_Message)
    except (msgspec.DecodeError, ValueError, RecursionError) as fault:
        raise InvalidInput("body", raw[:80], f"an object of JSON ({fault})") from None
    body: Row = {} if found.payload is msgspec.UNSET else {"payload": found.payload}
    for name in ("payload_encoding", "routing_key", "properties"):
        given = bytes(getattr(found, name))
        if len(given) > BODY_BYTES_MAX:
            raise TooLarge(name, len(given), BODY_BYTES_MAX)
        body |= decoded(b'{"%b":%b}' % (name.encode(), given)) if given else {}
    return body


def _payload(ask: ManagementCall) -> bytes:
    text, encoding = ask.text("payload"), ask.text("payload_encoding", "string")
    if encoding not in ("string", "base64"):
        raise InvalidInput("payload_encoding", encoding, "string or base64")
    try:
        body = text.encode() if encoding == "string" else base64.b64decode(text, validate=True)
    except (UnicodeEncodeError, binascii.Error, ValueError):
        raise InvalidInput("payload", text[:80], f"text that is {encoding}") from None
    if len(body) > PAYLOAD_BYTES_MAX:
        raise TooLarge("payload", len(body), PAYLOAD_BYTES_MAX)
    return body


def _properties(ask: ManagementCall) -> UsedProperties:
    """Return the properties of a message, given by their names in the protocol."""
    given = ask.table("properties")
    for name in given:
        if name not in properties.Properties.__struct_fields__:
            raise InvalidInput(f"properties.{name}", given[name], ", ".join(properties.Properties.__struct_fields__))
    if given.get("user_id") not in (None, ask.login.user):
        raise InvalidInput("properties.user_id", given["user_id"], f"{ask.login.user!r}, the name of the login")
    raw = properties.NONE
    for name, value in given.items():
        try:
            raw = properties.replaced(raw, name, value)
        except (InvalidInput, TypeError, ValueError, AttributeError, OverflowError) as fault:
            raise InvalidInput(f"properties.{name}", value, f"a value that the protocol has for it ({fault})") from None
    return used_properties(raw)


async def _stored(
    ask: ManagementCall, targets: tuple[Queue, ...], messages: Rows, known: UsedProperties, delay: int | None
) -> None:
    waiting, queueing = _StoredWait(), ask.queueing
    now_ms = queueing.broker.now_ms()
    due = None if delay is None else min(now_ms + delay, TIME_MS_MAX)
    for queue in targets:
        queueing.intake.add(
            queue.topic, messages, Unconfirmed(waiting, 1), handling_of(queue, known, due, lambda: now_ms)
        )
    try:
        async with asyncio.timeout(STORED_S):
            taken = await waiting.over
    except TimeoutError:
        queueing.broker.check_alive()
        raise Closed("the message was not stored in time, and may be yet") from None
    if not taken:
        raise refused(Reason.PRECONDITION_FAILED, "rejected: a queue that it goes to has reached its limit")


async def get(ask: ManagementCall) -> ManagementAnswer:
    """Answer `POST queues/VHOST/NAME/get`: return the next messages, and remove them or put them back."""
    host = ask.host(ask.parts[1])
    queue = host.queue_for(ask.parts[2], None)
    ask.check("consume", queue.topic)
    verb = _mode(ask)
    as_text = ask.text("encoding", "auto") == "auto"
    count = min(ask.number("count", 1), COUNT_MAX)
    longest = ask.number("truncate", PAYLOAD_BYTES_MAX)
    if verb == "reject" and queue.terms.dead_exchange is None:  # without a dead-letter exchange the message is dropped
        verb = "ack"
    await host.have_subscription(queue)
    await ask.queueing.intake.flush()
    await ask.queueing.settling.flush()
    found: list[Row] = []
    out: list[QueueDelivery] = []
    size = 0
    try:
        while len(found) < count and size < GOT_BYTES_MAX and (one := await queue.get()) is not None:
            queue_delivery, (((again, exchange, key, raw), body),) = one
            out.append(queue_delivery)
            size += len(body)
            row = {"payload_bytes": len(body), "redelivered": again, "exchange": exchange, "routing_key": plain(key)}
            row |= {"message_count": queue.ready(), "properties": _shown_properties(raw)}
            found.append(row | _encoded(body[:longest], as_text=as_text))
    finally:
        for queue_delivery in out:
            ask.queueing.settling.add(queue_delivery, verb if len(out) == len(found) else "requeue", (0,))
    await ask.queueing.settling.flush()
    return ManagementAnswer(200, found)


def _mode(ask: ManagementCall) -> SettleVerb:
    if "requeue" in ask.body and "ackmode" not in ask.body:  # as tools of earlier versions ask
        return "requeue" if ask.flag("requeue") else "ack"
    mode = ask.text("ackmode", "ack_requeue_true")
    if mode not in _MODES:
        raise InvalidInput("ackmode", mode, ", ".join(_MODES))
    return _MODES[mode]


def _shown_properties(raw: bytes) -> Row:
    decoded = properties.decode(raw)
    values: dict[str, Any] = {name: getattr(decoded, name) for name in decoded.__struct_fields__}
    return {name: plain(value) for name, value in values.items() if value is not None}


def _encoded(body: bytes, *, as_text: bool) -> Row:
    if as_text:
        try:
            return {"payload": body.decode(), "payload_encoding": "string"}
        except UnicodeDecodeError:
            pass
    return {"payload": base64.b64encode(body).decode("ascii"), "payload_encoding": "base64"}
