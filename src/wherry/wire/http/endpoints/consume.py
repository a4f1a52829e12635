"""Pull messages, and settle them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, ClassVar, Literal

import msgspec

from wherry.broker.port.consume import ConsumerPort, DeliveryPort
from wherry.broker.port.port import BrokerPort
from wherry.model import check
from wherry.model.calls.lease import (
    LOST,
    PULL_BYTES_DEFAULT,
    PULL_MESSAGES_MAX,
    LeasePart,
)
from wherry.model.calls.listing import Page
from wherry.model.calls.receipts import SETTLED_MAX
from wherry.model.catalog.subscription import BUFFER_MAX
from wherry.model.errors import WherryError
from wherry.wire.http.api.problem import HttpError, problem
from wherry.wire.http.api.routing import EndpointGroup
from wherry.wire.http.api.service import ApiCall
from wherry.wire.http.api.terms import (
    WAIT_MS_MAX,
    Buffer,
    ConsumerName,
    DelayMs,
    LeaseMs,
    PullMessages,
    ReceiptList,
    WaitMs,
)
from wherry.wire.http.endpoints.views import MessageList, MessagePage
from wherry.wire.http.formats import GIVES, ONE_EACH, parse_receipts, write_messages, write_page, write_pull
from wherry.wire.http.protocol.message import (
    ARROW,
    EVENTS,
    JSON,
    NDJSON,
    Answer,
    Response,
    Stream,
    accepted,
)

TABLE = EndpointGroup("consume")
CONSUMES = ("already-exists", "cut-off", "limit-reached")
PATH = "/v1/topics/{topic}/subscriptions/{subscription}"

HEARTBEAT_MS = 15_000
"""How often an idle stream sends a comment, so that proxies keep it open."""

SETTLE_BYTES_MAX = 32 << 20
"""The largest body that names messages one by one."""

SETTLING: dict[str, Any] = {"codes": ("stale-lease", "limit-reached"), "body_bytes": SETTLE_BYTES_MAX}


class PullQuery(msgspec.Struct, frozen=True):
    """How much to pull, and how long to wait for it."""

    messages: PullMessages = 1_000
    bytes: Buffer = PULL_BYTES_DEFAULT
    wait_ms: WaitMs = 0
    consumer: ConsumerName | None = None
    columns: Literal["all", "present"] = "all"


class ReceiptsToSettle(msgspec.Struct, forbid_unknown_fields=True):
    """What to settle: receipts as `lease`, `lease:offset` or `lease:first-last`."""

    texts_max: ClassVar[int] = SETTLED_MAX + 100
    receipts: ReceiptList


class Nack(ReceiptsToSettle, forbid_unknown_fields=True):
    """Which messages failed, when to try again (by the retry policy unless given), and why."""

    delay_ms: DelayMs | None = None
    error: str = ""


class DeadLetter(ReceiptsToSettle, forbid_unknown_fields=True):
    """Which messages to make dead letters, and why."""

    reason: str = "rejected"
    error: str = ""


class Renew(ReceiptsToSettle, forbid_unknown_fields=True):
    """Which leases to renew, and for how long: the lease of the subscription unless given."""

    lease_ms: LeaseMs | None = None


LISTS = tuple(kind for kind in GIVES if kind not in ONE_EACH)
"""Formats of listings."""

PULLED = {kind: MessageList if kind == JSON else None for kind in GIVES}
LISTED = {kind: MessagePage if kind == JSON else None for kind in LISTS}

PAGE_BYTES_MAX = 16 << 20
"""Most bytes of messages in a listing: a larger one ends early, and `next` names where to continue."""

EVENTS_BYTES_MAX = 1 << 20
"""Most bytes that a stream pulls at a time."""


def media_type(call: ApiCall, offered: tuple[str, ...] = GIVES) -> str:
    """Return the format that the caller accepts."""
    kind = accepted(call.request.headers.get("accept", ""), offered)
    if kind is None:
        raise HttpError("not-acceptable", "what can be had here: " + ", ".join(offered))
    return kind


async def listing(call: ApiCall, read_page: Callable[[BrokerPort, str], Awaitable[Page]]) -> Response:
    """Return a page of messages that are browsed, not consumed."""
    kind, broker = media_type(call, LISTS), call.service.broker
    async with call.service.listings:
        page = await read_page(broker, call["topic"])
        return await write_page(kind, page.batch, page.next, broker.slices)


@TABLE.add(
    "POST", PATH + "/pull", "consume", query=PullQuery, gives=GIVES, answers={200: PULLED, 204: None}, codes=CONSUMES
)
async def pull(call: ApiCall) -> Answer:
    """Pull messages on lease; with `wait_ms` the answer waits for the first message.

    Messages that are not settled before their lease ends are handed over again.
    """
    query: PullQuery = call.query
    kind = media_type(call)
    check.integer("wait_ms", query.wait_ms, 0, WAIT_MS_MAX)
    check.integer("bytes", query.bytes, 1, BUFFER_MAX)
    consumer = await call.service.consumers.get(
        call["topic"], call["subscription"], query.consumer, call.request.connection
    )
    if query.wait_ms:
        call.service.server.begin_wait(call.request)
    count = 1 if kind in ONE_EACH else query.messages
    delivery = await call.service.server.patiently(
        lambda wait_ms: consumer.pull(count, bytes_max=query.bytes, wait_ms=wait_ms), query.wait_ms
    )
    if query.wait_ms:
        _check_again(call, delivery)
    if kind in ONE_EACH and not len(delivery):
        return Response(204)
    batch = delivery.present if kind == ARROW and query.columns == "present" else delivery.batch
    try:
        response = await write_pull(
            kind, batch, delivery.lease_column(), call.service.broker.slices, columns=query.columns
        )
    except asyncio.CancelledError:  # the client disconnected before the answer was written
        delivery.take_back()
        raise
    response.undo = delivery.take_back
    return response


def parts_of(call: ApiCall) -> list[LeasePart]:
    """Return the parts of leases that the receipts of a call name."""
    return parse_receipts(call.body.receipts)


def within(call: ApiCall) -> tuple[str, str]:
    """Return the topic and subscription of a call: its key was checked for these, so its leases must be theirs."""
    return call["topic"], call["subscription"]


@TABLE.add("POST", PATH + "/ack", "consume", body=ReceiptsToSettle, answers={204: None}, **SETTLING)
async def ack(call: ApiCall) -> Answer:
    """Ack messages; acks of durable messages are on disk when the answer comes."""
    await call.service.settler.ack(parts_of(call), within(call))
    return Response(204)


@TABLE.add("POST", PATH + "/nack", "consume", body=Nack, answers={204: None}, **SETTLING)
async def nack(call: ApiCall) -> Answer:
    """Nack messages that failed: they come back by the retry policy, or become dead letters."""
    await call.service.settler.nack(parts_of(call), call.body.delay_ms, call.body.error, within(call))
    return Response(204)


@TABLE.add("POST", PATH + "/dead-letter", "consume", body=DeadLetter, answers={204: None}, **SETTLING)
async def dead_letter(call: ApiCall) -> Answer:
    """Give up on messages: they become dead letters at once."""
    await call.service.settler.dead_letter(parts_of(call), call.body.reason, call.body.error, within(call))
    return Response(204)


@TABLE.add("POST", PATH + "/release", "consume", body=ReceiptsToSettle, answers={204: None}, **SETTLING)
async def release(call: ApiCall) -> Answer:
    """Hand messages back untouched; no attempt is counted."""
    call.service.settler.release(parts_of(call), within(call))
    return Response(204)


@TABLE.add("POST", PATH + "/renew", "consume", body=Renew, answers={204: None}, **SETTLING)
async def renew(call: ApiCall) -> Answer:
    """Renew leases; a lease is renewed as a whole."""
    call.service.settler.renew([token for token, _ in parts_of(call)], call.body.lease_ms, within(call))
    return Response(204)


class EventsQuery(msgspec.Struct, frozen=True):
    """How a stream is acked, and how many messages may be unacked at a time; with `ack=auto` nothing waits for acks."""

    ack: Literal["auto", "manual"] = "manual"
    messages: PullMessages = 100
    consumer: ConsumerName | None = None


@TABLE.add(
    "GET",
    PATH + "/events",
    "consume",
    query=EventsQuery,
    gives=(EVENTS,),
    answers={200: {EVENTS: None}},
    codes=CONSUMES,
)
async def events(call: ApiCall) -> Answer:
    """Stream messages as server-sent events, as they come.

    The `id` of an event is the receipt to settle its message by, and at most `messages` of them are unsettled at a
    time; with `ack=auto` a message is settled when it is written to the connection. The last event of a stream that the
    broker ends is a `problem`.
    """
    query: EventsQuery = call.query
    media_type(call, (EVENTS,))
    check.integer("messages", query.messages, 1, PULL_MESSAGES_MAX)
    call.service.server.begin_wait(call.request)
    consumer = await call.service.broker.consumer(
        call["topic"], call["subscription"], query.consumer, buffer_messages=query.messages
    )
    chunks = _events(call, consumer)
    await anext(chunks)  # from here on, the end of the stream closes the consumer
    return Stream(chunks, EVENTS, [("Cache-Control", "no-store")])


async def _events(call: ApiCall, consumer: ConsumerPort) -> AsyncIterator[bytes]:
    query: EventsQuery = call.query
    server = call.service.server
    config = call.service.broker.subscription(call["topic"], call["subscription"])
    acks = query.ack == "auto" and config.acks  # without acks, messages are settled when they are handed over
    async with consumer:
        yield b""
        yield b": wherry\n\n"
        try:
            while not server.closing:
                delivery = await server.patiently(
                    lambda wait_ms: consumer.pull(query.messages, bytes_max=EVENTS_BYTES_MAX, wait_ms=wait_ms),
                    HEARTBEAT_MS,
                )
                _check_again(call, delivery)
                yield _written(delivery) if len(delivery) else b": still here\n\n"
                if acks and len(delivery):
                    await delivery.ack()
            raise HttpError("closed", "the broker is closing")
        except (GeneratorExit, asyncio.CancelledError):
            if query.ack == "manual" and not server.closing:  # with ack=auto a message was not written, or is acked
                await consumer.close(LOST)
            raise
        except WherryError as fault:  # the subscription was deleted, the consumer left, the broker closes
            (document,) = problem(fault).body
            yield b"event: problem\ndata: %b\n\n" % bytes(document)


def _check_again(call: ApiCall, delivery: DeliveryPort) -> None:
    """Check the right again after a wait: a key that was deleted or changed meanwhile gets no more messages."""
    try:
        call.service.guard(call.request, "consume", call["topic"])
    except WherryError:
        delivery.take_back()
        raise


def _written(delivery: DeliveryPort) -> bytes:
    leases = delivery.lease_column()
    (lines,) = write_messages(NDJSON, delivery.batch, leases=leases).body
    places = zip(leases.tolist(), delivery.batch.column("offset").to_pylist(), strict=True)
    texts = bytes(memoryview(lines)).splitlines()
    events = [b"id: %d:%d\ndata: %b\n\n" % (*place, text) for place, text in zip(places, texts, strict=True)]
    return b"".join(events)
