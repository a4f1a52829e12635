"""SEND: makes rows of a frame for the next batch of each queue that the message is routed to.

Most producers send the same headers again and again: what follows from them is computed once (`Prepared`), and
each message then takes a few calls. What arrives in one turn of the loop is one batch for each queue.
"""

from __future__ import annotations

from collections.abc import Coroutine, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from wherry.model.calls.rows import Rows
from wherry.model.limits import TIME_MS_MAX
from wherry.queueing.hosts.queue import Queue
from wherry.queueing.message.envelope import Pairs, prefix, texts
from wherry.queueing.message.handling import delay_ms, handling_of
from wherry.queueing.message.properties import UsedProperties, used_properties
from wherry.queueing.names import full_name
from wherry.queueing.refusals import no_queue
from wherry.wire.stomp import translate
from wherry.wire.stomp.codec import Frame, Head, StompFault
from wherry.wire.stomp.destinations import TEMPORARY, Destination, missing_destination, parsed
from wherry.wire.stomp.queues import ARGUMENTS, reply_queue, shared_queue
from wherry.wire.stomp.transaction import Transaction, size_of

if TYPE_CHECKING:
    from wherry.wire.stomp.session import Session

PREPARED_MAX = 32
DECLARED_MAX = 1_024

_QUEUE_HEADERS = ARGUMENTS | {"auto-delete", "exclusive", "durable"}

_NOT_KEPT = frozenset({"receipt", "transaction", "reply-to", "expires", translate.DUE, "x-delay", "user-id"})
"""A head with one of these is not cached: it is seldom the same twice, or depends on the time."""

Work = Coroutine[Any, Any, None]


class Prepared(NamedTuple):
    """What follows from the headers of a SEND alone."""

    head: Head
    destination: Destination
    known: UsedProperties
    envelope: bytes
    key: str | None
    headers: Pairs | None
    due: int | None


def send(session: Session, frame: Frame, transaction: Transaction | None) -> Work | None:
    """Publish a message; return the rest of the work if its queue has to be made first."""
    known = session.prepared.get(id(frame.head))
    if known is not None and known.head is frame.head:
        prepared: Prepared = known
    else:
        reply_to = frame.headers.get("reply-to", "")
        if reply_to.startswith(TEMPORARY):
            return session.finished(frame, _send_with_reply_queue(session, frame, transaction), sends_receipt=False)
        prepared = _prepared(session, frame.head)
    if _must_be_made(session, prepared):
        return session.finished(frame, _send_later(session, frame, prepared, transaction), sends_receipt=False)
    _put(session, frame, prepared, transaction)
    return None


def _must_be_made(session: Session, prepared: Prepared) -> bool:
    destination = prepared.destination
    if destination.kind != "queue":
        return False
    return not session.host.has_queue(destination.key) or _queue_headers_of(prepared) not in session.declared


def _queue_headers_of(prepared: Prepared) -> tuple[str, ...]:
    """Return the queue and the headers that give it terms, if any: they are checked once in a session."""
    headers = prepared.head.headers
    given = headers.keys() & _QUEUE_HEADERS
    return (prepared.destination.key, *(f"{name}:{headers[name]}" for name in sorted(given))) if given else ()


async def _send_later(session: Session, frame: Frame, prepared: Prepared, transaction: Transaction | None) -> None:
    await _make(session, prepared)
    _put(session, frame, prepared, transaction)


async def _make(session: Session, prepared: Prepared) -> None:
    queue = await shared_queue(session, prepared.destination.key, prepared.head.headers)
    if session.is_over and queue.owner is session:
        await session.host.delete_queue(queue)
    if len(session.declared) >= DECLARED_MAX:
        session.declared = {()}
    session.declared.add(_queue_headers_of(prepared))


async def _send_with_reply_queue(session: Session, frame: Frame, transaction: Transaction | None) -> None:
    """Send a message with a reply queue, whose name replaces the name that the client gave."""
    name = frame.headers["reply-to"].removeprefix(TEMPORARY)
    if not name or len(name) > 255:
        raise StompFault("Invalid header", f"reply-to is {frame.headers['reply-to'][:120]!r}; allowed: {TEMPORARY}name")
    queue = await reply_queue(session, name)
    head = frame.head._replace(headers={**frame.headers, "reply-to": queue})
    prepared = _prepared(session, head)
    if _must_be_made(session, prepared):
        await _make(session, prepared)
    _put(session, frame, prepared, transaction)


def _prepared(session: Session, head: Head) -> Prepared:
    headers = head.headers
    if "message-id" in headers:
        ours = "it is the broker's to give; amqp-message-id is yours"
        raise StompFault("Invalid header", "'message-id' is not allowed on 'SEND'.\n", ours)
    text = headers.get("destination")
    if text is None:
        raise missing_destination("SEND")
    destination = parsed(text)
    if destination.kind == "temp-queue":
        raise StompFault(
            "Invalid destination", f"{text[:120]!r} is for reply-to; send answers to the reply-to of a MESSAGE"
        )
    known = used_properties(translate.raw_properties(headers, session.now_ms()))
    if known.user_id is not None and known.user_id != session.user:
        raise StompFault(
            "Invalid header", f"user-id is {known.user_id[:80]!r}; allowed: {session.user!r}, the name of the login"
        )
    exchange, key = destination.exchange, destination.key
    due = translate.due_ms(headers)
    if exchange:
        due = _due_by_exchange(session, exchange, known) if due is None else due
    prepared = Prepared(
        head,
        destination,
        known,
        prefix(exchange, key) + known.raw,
        headers.get(translate.KEY) or (key if exchange else None),
        texts(known),
        due,
    )
    if not headers.keys() & _NOT_KEPT and destination.kind != "exchange":  # an exchange may be deleted, or made again
        if len(session.prepared) >= PREPARED_MAX:
            session.prepared.clear()
        session.prepared[id(head)] = prepared
    return prepared


def _due_by_exchange(session: Session, exchange: str, known: UsedProperties) -> int | None:
    """Check that the exchange may be published to; return the due time, if it delays messages."""
    terms = session.host.exchange_index.terms(exchange)
    if terms.internal:
        raise StompFault("access_refused", f"cannot publish to internal exchange {exchange!r}")
    delay = delay_ms(known) if terms.delayed else None
    return None if delay is None else min(session.now_ms() + delay, TIME_MS_MAX)


def _put(session: Session, frame: Frame, prepared: Prepared, transaction: Transaction | None) -> None:
    if session.is_over:
        return
    destination, known, due = prepared.destination, prepared.known, prepared.due
    targets = session.host.targets(destination.exchange, destination.key, known)
    if not session.login.is_open:
        session.check_publish(_publish_topics(session, destination, targets))
    if destination.kind == "amq-queue" and not targets:
        raise no_queue(session.host.name, destination.key)
    identity = known.message_id if due is not None else None
    message = Rows([frame.body], prepared.envelope, prepared.key, prepared.headers, identity)
    rows = [(queue, message, handling_of(queue, known, due, session.now_ms)) for queue in targets]
    if transaction is not None:
        transaction.send(rows, size_of(message), frame.headers.get("receipt"))
        return
    unconfirmed = session.receipts.unconfirmed(frame.headers.get("receipt"))
    for queue, _, handling in rows:
        session.intake.add(queue.topic, message, unconfirmed, handling)
    if not rows:
        session.intake.note(unconfirmed)


def _publish_topics(session: Session, destination: Destination, targets: tuple[Queue, ...]) -> Iterator[str]:
    """Yield the topics that the client needs the right to publish to; the exchange covers queues of one session."""
    if destination.exchange:
        yield full_name(session.host.name, destination.exchange)
    elif destination.kind == "queue" and not targets:
        yield full_name(session.host.name, destination.key)
    for queue in targets:
        if not queue.terms.exclusive or destination.kind not in ("reply-queue", "topic", "exchange"):
            yield queue.topic
