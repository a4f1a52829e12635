"""The queues behind destinations: which exist, which are made, and the terms that the headers of a frame give them."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from wherry.model.errors import AlreadyExists
from wherry.queueing.hosts import queue_terms
from wherry.queueing.hosts.queue import Queue
from wherry.queueing.hosts.queue_terms import QueueTerms
from wherry.queueing.names import SHORT_BYTES_MAX, full_name, is_short
from wherry.wire.stomp import translate
from wherry.wire.stomp.codec import StompFault
from wherry.wire.stomp.destinations import OWN, TEMPORARY, Destination, lasting_name, parsed
from wherry.wire.stomp.subscriptions import Consumer, Terms

if TYPE_CHECKING:
    from wherry.wire.stomp.session import Session

ARGUMENTS = frozenset(
    {"x-message-ttl", "x-expires", "x-max-length", "x-max-length-bytes", "x-max-priority", "x-delivery-limit"}
    | {"x-dead-letter-exchange", "x-dead-letter-routing-key", "x-overflow", "x-queue-type", "x-queue-mode"}
    | {"x-single-active-consumer"}
)
"""Headers of SUBSCRIBE and SEND that are arguments of the queue."""

_NAMES = ("activemq.subscriptionName", "durable-subscription-name", "durable-subscriber-name")
"""How ActiveMQ and similar brokers name a durable subscription, together with the `client-id` of CONNECT."""

REPLY_QUEUES_MAX = 100
"""Reply queues of one session."""


def arguments_of(headers: Mapping[str, str]) -> dict[str, Any]:
    """Return arguments of a queue as values of their types; a value that does not fit is refused by the later check."""
    found: dict[str, Any] = {}
    for name in headers.keys() & ARGUMENTS:
        value = headers[name]
        if name == "x-single-active-consumer":
            found[name] = translate.flag(headers, name)
        else:
            found[name] = int(value) if value.isascii() and value.isdecimal() and len(value) < 19 else value
    return found


def terms_of(session: Session, name: str, headers: Mapping[str, str], usual: QueueTerms) -> QueueTerms:
    """Return the terms that a frame asks for in a queue that is to be made."""
    arguments = queue_terms.checked_arguments(session.host.name, name, arguments_of(headers))
    wanted = QueueTerms(
        durable=usual.durable,
        exclusive=translate.flag(headers, "exclusive", default=usual.exclusive),
        auto_delete=translate.flag(headers, "auto-delete", default=usual.auto_delete),
        arguments=arguments,
    )
    queue_terms.check_type(session.host.name, name, wanted)
    return wanted


async def declare(session: Session, name: str, wanted: QueueTerms, *, is_ours: bool = False) -> Queue:
    """Return a queue as declared, made if needed. `is_ours`: the broker chose the name, for this session alone."""
    host = session.host
    if not is_ours:
        session.check("admin", full_name(host.name, name))
    if wanted.dead_exchange is not None:  # or the broker would publish for a client that may not
        where = wanted.dead_exchange or wanted.dead_key
        session.check("publish", full_name(host.name, where) if where else "*")
    try:
        return await host.declare_queue(name, wanted, session)
    except AlreadyExists:  # another client was faster
        queue = host.queue_for(name, session)
        await host.have_subscription(queue)
        return queue


_OWN = QueueTerms(durable=False, exclusive=True, auto_delete=True)
_LASTING = QueueTerms(durable=True)


async def shared_queue(session: Session, name: str, headers: Mapping[str, str], *, durable: bool = True) -> Queue:
    """Return the queue of `/queue/x`, made on first use; an existing one is checked only if the frame has terms."""
    host = session.host
    given = bool(headers.keys() & (ARGUMENTS | {"auto-delete", "exclusive", "durable"}))
    if host.has_queue(name) and not given:
        queue = host.queue_for(name, session)
        await host.have_subscription(queue)
        return queue
    usual = QueueTerms(durable=durable)
    return await declare(session, name, terms_of(session, name, headers, usual))


def _is_lasting(headers: Mapping[str, str], *, default: bool) -> bool:
    """Return whether a queue is to be durable; `persistent` is another name for that header."""
    return translate.flag(headers, "durable", default=translate.flag(headers, "persistent", default=default))


def _queue_name(headers: Mapping[str, str]) -> str | None:
    """Return the queue name in the headers of a frame, if there is one."""
    name = headers.get("x-queue-name")
    if name is not None and not (name and is_short(name)):
        allowed = f"a name of 1 to {SHORT_BYTES_MAX} bytes, in UTF-8"
        raise StompFault("Invalid header", f"x-queue-name is {name[:80]!r}; allowed: {allowed}")
    return name


def lasting_of(
    session: Session, destination: Destination, identity: str | None, headers: Mapping[str, str]
) -> str | None:
    """Return the queue of a durable subscription, if the frame is about one."""
    if destination.kind not in ("topic", "exchange"):
        return None
    place = (destination.exchange, destination.key)
    owner = None if session.login.is_open else session.user
    for header in _NAMES:
        if header in headers:
            if not session.client_id:
                raise StompFault("Missing Header", f"{header} needs the header client-id in CONNECT")
            return lasting_name(owner, "client", session.client_id, headers[header], *place)
    if not _is_lasting(headers, default=False):
        return None
    named = _queue_name(headers)
    if named is not None:
        return named
    if identity is None:
        raise StompFault("Missing Header", "Header 'id' is required for durable subscriptions")
    return lasting_name(owner, "id", identity, *place)


async def queue_of(
    session: Session, destination: Destination, terms: Terms, headers: Mapping[str, str]
) -> tuple[Queue, bool]:
    """Return the queue of a SUBSCRIBE, and whether it belongs to this subscription alone."""
    host = session.host
    if destination.kind == "reply-queue":
        raise StompFault("Invalid destination", f"{terms.destination[:120]!r}: replies come without a SUBSCRIBE")
    if destination.kind in ("queue", "amq-queue"):
        session.check("consume", full_name(host.name, destination.key))
        if destination.kind == "queue":
            durable = _is_lasting(headers, default=True)
            return await shared_queue(session, destination.key, headers, durable=durable), False
        queue = host.queue_for(destination.key, session)
        await host.have_subscription(queue)
        return queue, False
    host.exchange_index.terms(destination.exchange)
    session.check("consume", full_name(host.name, destination.exchange))
    lasting = lasting_of(session, destination, terms.id, headers)
    named = _queue_name(headers) if lasting is None else lasting
    if named is None:
        name = OWN + secrets.token_urlsafe(16)
        wanted = terms_of(session, name, headers, _OWN)
        wanted = QueueTerms(exclusive=True, auto_delete=True, arguments=wanted.arguments)
        return await _bound(session, name, wanted, destination, is_ours=True), True
    session.check("consume", full_name(host.name, named))
    usual = _LASTING if lasting is not None else QueueTerms(durable=False, auto_delete=True)
    wanted = terms_of(session, named, headers, usual)
    if wanted.exclusive and lasting is None:  # exclusive: no other client could use what it leaves
        wanted = QueueTerms(exclusive=True, auto_delete=True, arguments=wanted.arguments)
    queue = await _bound(session, named, wanted, destination, is_ours=False)
    return queue, wanted.exclusive


def lost_right(session: Session) -> str | None:
    """Return which right to consume a subscribed session has lost, if any."""
    if session.login.is_open:
        return None
    for topic in {topic for each in session.subscriptions.values() for topic in _consumed(each)}:
        try:
            session.check("consume", topic)
        except StompFault as fault:
            return fault.detail
    return None


def _consumed(subscription: Consumer) -> Iterator[str]:
    """Yield the topics that a subscription needs the right to consume from; `queue_of` checks the same."""
    queue, destination = subscription.queue, parsed(subscription.terms.destination)
    if destination.kind in ("topic", "exchange"):
        yield full_name(queue.host, destination.exchange)
    if destination.kind != "temp-queue" and not queue.terms.exclusive:
        yield queue.topic


async def _bound(session: Session, name: str, wanted: QueueTerms, destination: Destination, *, is_ours: bool) -> Queue:
    queue = await declare(session, name, wanted, is_ours=is_ours)
    try:
        await session.host.bind(destination.exchange, destination.key, {}, queue=name)
    except BaseException:
        if is_ours:
            await session.host.delete_queue(queue)
        raise
    return queue


async def delete_lasting(session: Session, name: str) -> None:
    """Delete a durable subscription, with the messages in its queue."""
    if session.host.has_queue(name):
        queue = session.host.queue_for(name, session)
        session.check("admin", queue.topic)
        await session.host.delete_queue(queue)


async def reply_queue(session: Session, name: str) -> str:
    """Return the name of the queue for replies to a `/temp-queue/`, which is made and subscribed to if needed."""
    identity = TEMPORARY + name
    tag = f"T_{identity}"
    known = session.subscriptions.get(tag)
    if known is not None:
        return known.queue.name
    count = sum(each.terms.tag.startswith(f"T_{TEMPORARY}") for each in session.subscriptions.values())
    if count >= REPLY_QUEUES_MAX:
        raise StompFault("Too many subscriptions", f"a session has at most {REPLY_QUEUES_MAX} queues for replies")
    queue = await declare(session, "", _OWN, is_ours=True)
    if session.is_over:
        await session.host.delete_queue(queue)
        return queue.name
    terms = Terms(tag, identity, identity, "auto", prefetch=0, buffer=None, is_own=True)
    subscription = session.subscriptions[tag] = Consumer(session, terms, queue)
    queue.join(subscription)
    return queue.name
