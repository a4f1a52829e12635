"""What each frame of a client does. A call raises what is wrong, or returns what is left to do if that takes time.

The receipt of a frame is sent when it is done: of a SEND when its message is stored, of an ACK when it is settled, of a
COMMIT when all of it is on disk; of a frame within a transaction when it is taken up in it.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any

from wherry.wire.amqp.dealing import Said
from wherry.wire.stomp import greeting, translate
from wherry.wire.stomp.codec import V10, Frame, StompFault
from wherry.wire.stomp.destinations import TEMPORARY, parsed
from wherry.wire.stomp.queues import delete_lasting, lasting_of, queue_of
from wherry.wire.stomp.sending import send
from wherry.wire.stomp.subscriptions import SEPARATOR, AckMode, Buffer, Out, Subscription, Terms, by_subscription
from wherry.wire.stomp.transaction import OPEN_MAX, Transaction

if TYPE_CHECKING:
    from wherry.wire.stomp.session import Session

SUBSCRIPTIONS_MAX = 1_000
"""Of one session."""

PREFETCH_MAX = 1 << 31
BUFFER_MAX = 1 << 40

Work = Coroutine[Any, Any, None]

_ACK_MODES: dict[str, AckMode] = {"auto": "auto", "client": "client", "client-individual": "client-individual"}


def header(frame: Frame, name: str) -> str:
    """A header that must be there."""
    value = frame.headers.get(name)
    if value is None:
        raise StompFault("Header missing", f"{frame.command} needs the header {name}")
    return value


# --------------------------------------------------------------------------------------------------- the session itself


def connect(session: Session, frame: Frame) -> None:
    """Let the client in."""
    greeting.connect(session, frame)


def disconnect(session: Session, frame: Frame) -> Work:
    """All that was said is done before the receipt: then the client may go."""

    async def leave() -> None:
        await session.receipts.all_stored()
        await session.all_settled()
        session.receipt(frame.headers.get("receipt"))
        session.hang_up()

    return session.finished(frame, leave(), tells=False)


# -------------------------------------------------------------------------------------------------------- subscriptions


def subscribe(session: Session, frame: Frame) -> Work:
    """Join a queue."""
    headers = frame.headers
    text = header(frame, "destination")
    destination = parsed(text)
    if destination.kind == "temp-queue":
        raise StompFault("Invalid destination", f"{text[:120]!r} is for reply-to: replies come without a SUBSCRIBE")
    if headers.get("selector"):
        raise StompFault("Not supported", "selector: messages are chosen by /exchange/ destinations and patterns here")
    identity = headers.get("id")
    if identity is None and session.version != V10:
        raise StompFault("Header missing", f"SUBSCRIBE needs the header id in STOMP {session.version}")
    if identity is not None and identity.startswith(TEMPORARY):
        raise StompFault("Invalid header", f"id is {identity[:80]!r}; {TEMPORARY} is for replies")
    tag = _tag(identity, text)
    if tag in session.subscriptions:
        raise StompFault("Duplicate subscription", f"{tag[2:][:120]!r} is in use; UNSUBSCRIBE comes first")
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
    return session.finished(frame, _joined(session, frame, terms), tells=False)


async def _joined(session: Session, frame: Frame, terms: Terms) -> None:
    queue, is_own = await queue_of(session, parsed(terms.destination), terms, frame.headers)
    if session.is_over:  # while we waited; what is its own goes with it
        if queue.owner is session:
            await session.host.delete_queue(queue)
        return
    if queue.exclusive_to is not None:
        raise StompFault("access_refused", f"queue {queue.name!r} is in exclusive use")
    subscription = Subscription(session, terms._replace(is_own=is_own), queue)
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
    """Leave a queue; a durable subscription is deleted where the frame says that it is one."""
    headers = frame.headers
    identity = headers.get("id")
    if identity is None and "destination" not in headers:
        raise StompFault("Header missing", "UNSUBSCRIBE needs the header id, or in STOMP 1.0 the destination")
    subscription = session.subscriptions.get(_tag(identity, headers.get("destination", "")))
    if subscription is None and identity is None:  # a client of 1.0 may have named an id, and leave by destination
        there = (each for each in session.subscriptions.values() if each.terms.destination == headers["destination"])
        subscription = next(there, None)
    destination = headers.get("destination") if subscription is None else subscription.terms.destination
    lasting = None if destination is None else lasting_of(session, parsed(destination), identity, headers)
    if subscription is None and lasting is None:
        raise StompFault("Subscription not found", f"there is no {(identity or headers['destination'])[:120]!r}")
    if subscription is not None and subscription.terms.tag.startswith(f"T_{TEMPORARY}"):
        raise StompFault("Invalid header", "a queue for replies is left with the session")

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
        await session.house.tidied()

    return session.finished(frame, leave())


# ------------------------------------------------------------------------------------------------------------- settling


def ack(session: Session, frame: Frame) -> Work | None:
    """Done with a message, or with `ack:client` with all up to it."""
    return _settle(session, frame, "ack")


def nack(session: Session, frame: Frame) -> Work | None:
    """The message comes back, or with `requeue:false` is a dead letter."""
    return _settle(session, frame, "requeue" if translate.flag(frame.headers, "requeue", default=True) else "reject")


def _settle(session: Session, frame: Frame, said: Said) -> Work | None:
    headers = frame.headers
    named = headers.get("id") or headers.get("message-id")
    if named is None:
        wanted = "id" if session.version == "1.2" else "message-id"
        raise StompFault("Header missing", f"{frame.command} needs the header {wanted}")
    transaction = _transaction(session, frame) if "transaction" in headers else None
    subscription, outs = _out(session, frame.command, named, headers.get("subscription"))
    if transaction is not None:
        try:
            transaction.check(len(outs))
        except StompFault:
            subscription.hold_again(outs)
            raise
        transaction.settled += [(out, said) for out in outs]
    else:
        subscription.end(outs, said)
        if "receipt" in headers:
            return session.finished(frame, session.all_settled())
    session.receipt(headers.get("receipt"))
    return None


def _out(session: Session, command: str, named: str, subscription_id: str | None) -> tuple[Subscription, list[Out]]:
    """The messages that an ACK or NACK is about."""
    place, _, number = named.rpartition(SEPARATOR)
    tag = place.rpartition(SEPARATOR)[0]
    subscription = session.subscriptions.get(tag)
    known = subscription is not None and subscription.message_prefix == f"{place}{SEPARATOR}" and number.isdecimal()
    if subscription_id is not None and tag.startswith("T_") and tag != f"T_{subscription_id}":
        known = False
    outs = subscription.take_out(int(number)) if subscription is not None and known and len(number) < 20 else []
    if not outs or subscription is None:
        text = f"{command} of {named[:120]!r}: it was settled before, or is none that this session was sent to be acked"
        raise StompFault("Message not found", text)
    return subscription, outs


# --------------------------------------------------------------------------------------------------------- transactions


def _transaction(session: Session, frame: Frame) -> Transaction:
    name = header(frame, "transaction")
    found = session.transactions.get(name)
    if found is None:
        raise StompFault("Transaction not found", f"{name[:120]!r} was not begun, or is over")
    return found


def begin(session: Session, frame: Frame) -> None:
    """Open a transaction."""
    name = header(frame, "transaction")
    if name in session.transactions:
        raise StompFault("Transaction already begun", f"{name[:120]!r} is open; COMMIT or ABORT comes first")
    if len(session.transactions) >= OPEN_MAX:
        raise StompFault("Too many transactions", f"a session has at most {OPEN_MAX} open")
    session.transactions[name] = Transaction(session.desk)
    session.receipt(frame.headers.get("receipt"))


def commit(session: Session, frame: Frame) -> Work:
    """All of a transaction at once."""
    transaction = _transaction(session, frame)
    del session.transactions[frame.headers["transaction"]]

    async def done() -> None:
        await session.intake.flush()  # what was sent before it comes before it
        try:
            others = await transaction.commit(session.house.broker, session.intake)
        except BaseException:
            session.undo(transaction)
            raise
        finally:
            transaction.drop_messages()
        theirs: dict[Said, list[Out]] = {}
        for out, said in others:
            theirs.setdefault(said, []).append(out)
        for said, outs in theirs.items():
            for subscription, mine in by_subscription(outs).items():
                subscription.end(mine, said)
        if others:
            await session.all_settled()

    return session.finished(frame, done())


def abort(session: Session, frame: Frame) -> None:
    """Nothing of a transaction."""
    session.undo(_transaction(session, frame))
    del session.transactions[frame.headers["transaction"]]
    session.receipt(frame.headers.get("receipt"))


def send_frame(session: Session, frame: Frame) -> Work | None:
    """A message."""
    transaction = _transaction(session, frame) if "transaction" in frame.headers else None
    return send(session, frame, transaction)


Call = Callable[["Session", Frame], Work | None]

CALLS: dict[str, Call] = {
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
