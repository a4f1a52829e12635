"""The sessions of STOMP as JSON: what they hold, and which clients were cut off."""

from __future__ import annotations

from typing import Annotated

import msgspec

from wherry.wire.http.api.terms import json_schema
from wherry.wire.stomp.session import Session, SessionState
from wherry.wire.stomp.sessions import Sessions
from wherry.wire.stomp.subscriptions import Consumer
from wherry.wire.stomp.transports.transport import NEVER_BYTES

Count = Annotated[int, json_schema(minimum=0)]


class StompSubscriber(msgspec.Struct):
    """A subscription over STOMP. `ready` messages wait for it, and for other consumers of its queue.

    *Held* messages were sent and are not acked; with `ack:auto` and a declared buffer, they are on their way.
    """

    id: str | None
    destination: str
    ack: str
    held_messages: Count
    held_bytes: Count
    buffer_messages: int | None
    buffer_bytes: int | None
    delivered: Count
    ready: Count


class StompHere(msgspec.Struct):
    """A session of STOMP; `version` and `host` are null until the client has logged in.

    `unread_bytes` were sent and have not reached the client's machine; the last 64 KiB do not count. `left_off` is how
    many subscriptions are not shown: at most 10,000 are, of all sessions.
    """

    id: str
    peer: str
    transport: str
    version: str | None
    user: str
    host: str | None
    secure: bool
    age_ms: Count
    unread_bytes: Count
    transactions: Count
    subscriptions: list[StompSubscriber]
    left_off: Count


class StompCutOff(msgspec.Struct):
    """A client that was cut off, and why. `at_ms` is Unix time."""

    at_ms: int
    peer: str
    user: str
    why: str
    detail: str


class StompView(msgspec.Struct):
    """At most 1,000 sessions, the oldest first, and how many were left off; the last 256 that were cut off."""

    sessions: list[StompHere]
    left_off: Count
    cut_offs: list[StompCutOff]


SHOWN_MAX, SUBSCRIPTIONS_MAX = 1_000, 10_000
"""Sessions, and subscriptions of all sessions together; the view counts those beyond."""


def seen(sessions: Sessions) -> StompView:
    """Return the current view: the oldest sessions first, the last cut off first."""
    here = sorted((each for each in sessions.connected if not each.is_over), key=lambda each: each.deadlines.began)
    room = SUBSCRIPTIONS_MAX
    shown: list[StompHere] = []
    for session in here[:SHOWN_MAX]:
        shown.append(_here(session, room))
        room -= len(shown[-1].subscriptions)
    return StompView(
        sessions=shown,
        left_off=max(0, len(here) - SHOWN_MAX),
        cut_offs=[StompCutOff(*each) for each in reversed(sessions.cut_offs)],
    )


def _here(session: Session, room: int) -> StompHere:
    mine, is_let_in = list(session.subscriptions.values()), session.state is SessionState.OPEN
    unread = session.transport.unread_bytes()
    return StompHere(
        id=session.id,
        peer=session.peer,
        transport=session.transport.name,
        version=session.version if is_let_in else None,
        user=session.user,
        host=session.host.name if is_let_in else None,
        secure=session.secure,
        age_ms=int((session.shared.clock() - session.deadlines.began) * 1_000),
        unread_bytes=0 if unread >= NEVER_BYTES else unread,
        transactions=len(session.transactions),
        subscriptions=[_subscriber(each) for each in mine[:room]],
        left_off=max(0, len(mine) - room),
    )


def _subscriber(subscription: Consumer) -> StompSubscriber:
    terms, (messages, size) = subscription.terms, subscription.held_now()
    return StompSubscriber(
        id=terms.id,
        destination=terms.destination,
        ack=terms.ack,
        held_messages=messages,
        held_bytes=size,
        buffer_messages=None if terms.buffer is None else terms.buffer.messages,
        buffer_bytes=None if terms.buffer is None else terms.buffer.bytes,
        delivered=subscription.delivered,
        ready=subscription.queue.ready(),
    )
