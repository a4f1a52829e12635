"""One function for each command of a client. It raises a fault, or returns the rest of its work if that takes time.

When the receipt of a frame is sent:

| frame | outside a transaction | in a transaction |
|---|---|---|
| SEND | when its message is stored | when the COMMIT is done |
| ACK, NACK | when the message is settled | when the frame is added to the transaction, as in RabbitMQ |
| COMMIT | | when its SENDs, ACKs and NACKs are all on disk |
"""

from __future__ import annotations

import re
from collections.abc import Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any

from wherry.queueing.flow.delivering import SettleVerb
from wherry.wire.stomp import greeting, translate
from wherry.wire.stomp.codec import V12, Frame, StompFault, quoted, shown
from wherry.wire.stomp.destinations import TEMPORARY, missing_destination, parsed
from wherry.wire.stomp.queues import delete_lasting, lasting_of, queue_of
from wherry.wire.stomp.sending import send
from wherry.wire.stomp.subscriptions import SEPARATOR, AckMode, Buffer, Consumer, Terms, UnackedMessage, by_consumer
from wherry.wire.stomp.transaction import OPEN_MAX, Transaction

if TYPE_CHECKING:
    from wherry.wire.stomp.session import Session

SUBSCRIPTIONS_MAX = 1_000
"""Subscriptions of one session."""

PREFETCH_MAX = 1 << 31
BUFFER_MAX = 1 << 40

Work = Coroutine[Any, Any, None]

_TAG = re.compile(r"[0-9]{1,19}")

_ACK_MODES: dict[str, AckMode] = {"auto": "auto", "client": "client", "client-individual": "client-individual"}


# --------------------------------------------------------------------------------------------------- the session itself


def connect(session: Session, frame: Frame) -> Work | None:
    """Log the client in; a refusal may be sent later."""
    return greeting.connect(session, frame)


def disconnect(session: Session, frame: Frame) -> Work:
    """Finish all earlier frames, then send the receipt and close."""

    async def leave() -> None:
        await session.receipts.all_stored()
        await session.all_settled()
        session.receipt(frame.headers.get("receipt"))
        session.hang_up()

    return session.finished(frame, leave(), sends_receipt=False)


# -------------------------------------------------------------------------------------------------------- subscriptions


def subscribe(session: Session, frame: Frame) -> Work:
    """Join a queue."""
    headers = frame.headers
    text = headers.get("destination")
    if text is None:
        raise missing_destination("SUBSCRIBE")
    destination = parsed(text)
    if destination.kind == "temp-queue":
        raise StompFault("Invalid destination", f"{text[:120]!r} is for reply-to: replies come without a SUBSCRIBE")
    if headers.get("selector"):
        raise StompFault("Not supported", "selector: messages are chosen by /exchange/ destinations and patterns here")
    identity = headers.get("id")
    if identity is not None and identity.startswith(TEMPORARY):
        raise StompFault("Invalid id", f"SUBSCRIBE 'id' may not start with {TEMPORARY}\n")
    tag = _tag(identity, text)
    if tag in session.subscriptions:
        text = f"A subscription identified by '{shown(tag)}' already exists."
        raise StompFault("Duplicated subscription identifier", text, "send UNSUBSCRIBE first")
    if len(session.subscriptions) >= SUBSCRIPTIONS_MAX:
        raise StompFault("Too many subscriptions", f"a session has at most {SUBSCRIPTIONS_MAX}")
    terms = Terms(
        tag=tag,
        id=identity,
        destination=text,
        ack=_ack_mode(headers),
        prefetch=translate.whole(headers, "prefetch-count", PREFETCH_MAX) if "prefetch-count" in headers else 0,
        buffer=_buffer(headers),
        is_own=False,
    )
    return session.finished(frame, _joined(session, frame, terms), sends_receipt=False)


async def _joined(session: Session, frame: Frame, terms: Terms) -> None:
    queue, is_own = await queue_of(session, parsed(terms.destination), terms, frame.headers)
    if session.is_over:  # it was closed meanwhile; delete a queue of its own
        if queue.owner is session:
            await session.host.delete_queue(queue)
        return
    if queue.exclusive_to is not None:
        raise StompFault("access_refused", f"queue {queue.name!r} is in exclusive use")
    subscription = Consumer(session, terms._replace(is_own=is_own), queue)
    session.subscriptions[terms.tag] = subscription
    session.receipt(frame.headers.get("receipt"))  # before the first message
    queue.join(subscription)


def _tag(identity: str | None, destination: str) -> str:
    return f"Q_{destination}" if identity is None else f"T_{identity}"


def _ack_mode(headers: Mapping[str, str]) -> AckMode:
    mode = _ACK_MODES.get(headers.get("ack", "auto"))
    if mode is None:
        raise StompFault("Invalid header", f"ack is {headers['ack'][:80]!r}; allowed: {', '.join(_ACK_MODES)}")
    return mode


def _buffer(headers: Mapping[str, str]) -> Buffer | None:
    names = ("wherry-buffer-messages", "wherry-buffer-bytes")
    found = [translate.whole(headers, name, BUFFER_MAX, 1) if name in headers else None for name in names]
    return None if found == [None, None] else Buffer(*found)


def unsubscribe(session: Session, frame: Frame) -> Work:
    """Leave a queue; delete a durable subscription if the frame names one."""
    identity, destination = frame.headers.get("id"), frame.headers.get("destination")
    if identity is None and destination is None:
        raise StompFault("Missing destination or id", "UNSUBSCRIBE must include a 'destination' or 'id' header")
    if identity is not None and identity.startswith(TEMPORARY):
        text = f"UNSUBSCRIBE 'id' may not start with {TEMPORARY}\n"
        raise StompFault("Invalid id", text, "a reply queue is left when the session ends")
    subscription = session.subscriptions.get(_tag(identity, destination or ""))
    if subscription is None and identity is None:  # SUBSCRIBE may have had an id all the same
        there = (each for each in session.subscriptions.values() if each.terms.destination == destination)
        subscription = next(there, None)
    place = destination if subscription is None else subscription.terms.destination
    lasting = None if place is None else lasting_of(session, parsed(place), identity, frame.headers)
    if subscription is None and lasting is None:
        which = f"destination='{destination}'" if identity is None else f"id='{identity}'"
        text = f"UNSUBSCRIBE must refer to an existing subscription.\nSubscription to {quoted(which)} not found.\n"
        raise StompFault("No subscription found", text)

    async def leave() -> None:
        if subscription is not None:
            del session.subscriptions[subscription.terms.tag]
            subscription.close()
            try:
                await session.all_settled()
            finally:
                session.tidy_queue(subscription.queue)
        if lasting is not None:
            await delete_lasting(session, lasting)
        await session.queueing.background_done()

    return session.finished(frame, leave())


# ------------------------------------------------------------------------------------------------------------- settling


def ack(session: Session, frame: Frame) -> Work | None:
    """Ack a message; with `ack:client` also all before it."""
    return _settle(session, frame, "ack")


def nack(session: Session, frame: Frame) -> Work | None:
    """Requeue a message; with `requeue:false` make it a dead letter."""
    return _settle(session, frame, "requeue" if translate.flag(frame.headers, "requeue", default=True) else "reject")


def _settle(session: Session, frame: Frame, verb: SettleVerb) -> Work | None:
    headers = frame.headers
    wanted = "id" if session.version == V12 else "message-id"
    if wanted not in headers:
        raise StompFault("Missing header", f'"{frame.command}" must include the "{wanted}" header\n')
    transaction = _transaction(session, frame) if "transaction" in headers else None
    subscription, unacked = _messages_of(session, frame.command, wanted, headers[wanted])
    if transaction is not None:
        try:
            transaction.check(len(unacked))
        except StompFault:
            subscription.hold_again(unacked)
            raise
        transaction.settled += [(message, verb) for message in unacked]
    else:
        subscription.end(unacked, verb)
        if "receipt" in headers:
            return session.finished(frame, session.all_settled())
    session.receipt(headers.get("receipt"))
    return None


def _messages_of(session: Session, command: str, header: str, named: str) -> tuple[Consumer, list[UnackedMessage]]:
    """Return the messages that an ACK or NACK is about.

    The id contains the subscription. The header `subscription`, which 1.1 requires, is ignored: clients of
    RabbitMQ write anything there.
    """
    place, _, number = named.rpartition(SEPARATOR)
    tag, separator, _ = place.rpartition(SEPARATOR)
    if not separator or not _TAG.fullmatch(number):
        raise StompFault("Invalid header", f'"{command}" must include a valid "{header}" header\n')
    subscription = session.subscriptions.get(tag)
    if subscription is None:
        raise StompFault("Subscription not found", f"Message with id {quoted(named)} has no subscription")
    unacked = subscription.take_out(int(number)) if subscription.message_prefix == f"{place}{SEPARATOR}" else []
    if not unacked:
        text = "it was settled before, or was not sent to this session for an ack"
        raise StompFault("precondition_failed", f"unknown delivery tag {number}", text)
    return subscription, unacked


# --------------------------------------------------------------------------------------------------------- transactions


def _transaction_name(frame: Frame) -> str:
    name = frame.headers.get("transaction")
    if name is None:
        raise StompFault("Missing transaction", f"\"{frame.command}\" must include a 'transaction' header\n")
    return name


def _transaction(session: Session, frame: Frame) -> Transaction:
    name = _transaction_name(frame)
    found = session.transactions.get(name)
    if found is None:
        text = f"Invalid transaction identifier: {quoted(name)}\n"
        raise StompFault("Bad transaction", text, "it was not begun, or has ended")
    return found


def begin(session: Session, frame: Frame) -> None:
    """Open a transaction."""
    name = _transaction_name(frame)
    if name in session.transactions:
        raise StompFault("Transaction already begun", f"{name[:120]!r} is open; send COMMIT or ABORT first")
    if len(session.transactions) >= OPEN_MAX:
        raise StompFault("Too many transactions", f"a session has at most {OPEN_MAX} open")
    session.transactions[name] = Transaction(session.shared)
    session.receipt(frame.headers.get("receipt"))


def commit(session: Session, frame: Frame) -> Work:
    """Commit a transaction, all of it at once."""
    transaction = _transaction(session, frame)
    del session.transactions[frame.headers["transaction"]]

    async def done() -> None:
        await session.intake.flush()  # messages sent before the COMMIT come before its messages
        try:
            others = await transaction.commit(session.queueing.broker, session.intake)
        except BaseException:
            session.undo(transaction)
            raise
        finally:
            transaction.drop_messages()
        theirs: dict[SettleVerb, list[UnackedMessage]] = {}
        for message, verb in others:
            theirs.setdefault(verb, []).append(message)
        for verb, unacked in theirs.items():
            for subscription, mine in by_consumer(unacked).items():
                subscription.end(mine, verb)
        for receipt_id in transaction.receipts:
            session.receipt(receipt_id)
        if others:
            await session.all_settled()

    return session.finished(frame, done())


def abort(session: Session, frame: Frame) -> None:
    """Drop a transaction."""
    session.undo(_transaction(session, frame))
    del session.transactions[frame.headers["transaction"]]
    session.receipt(frame.headers.get("receipt"))


def send_frame(session: Session, frame: Frame) -> Work | None:
    """Publish a message, or add it to a transaction."""
    transaction = _transaction(session, frame) if "transaction" in frame.headers else None
    return send(session, frame, transaction)


FrameHandler = Callable[["Session", Frame], Work | None]

CALLS: dict[str, FrameHandler] = {
    "CONNECT": connect,
    "STOMP": connect,
    "DISCONNECT": disconnect,
    "SEND": send_frame,
    "SUBSCRIBE": subscribe,
    "UNSUBSCRIBE": unsubscribe,
    "ACK": ack,
    "NACK": nack,
    "BEGIN": begin,
    "COMMIT": commit,
    "ABORT": abort,
}
