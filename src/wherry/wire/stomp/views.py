"""Who is here over STOMP, what they hold, and who was cut off: for people."""

from __future__ import annotations

import time

from wherry.wire.http.roads import StompCutOff, StompHere, StompSubscriber, StompView
from wherry.wire.stomp.desk import Desk
from wherry.wire.stomp.session import Session, State
from wherry.wire.stomp.subscriptions import Subscription

SHOWN_MAX = 1_000
"""Sessions, each with its subscriptions, which are bounded; how many more there are is told."""


def seen(desk: Desk) -> StompView:
    """All of it, as it is now; the oldest sessions first, the last cut off first."""
    here = sorted((each for each in desk.sessions if not each.is_over), key=lambda each: each.began_s)
    return StompView(
        sessions=[_here(each) for each in here[:SHOWN_MAX]],
        left_off=max(0, len(here) - SHOWN_MAX),
        cut_offs=[StompCutOff(*each) for each in reversed(desk.cut_offs)],
    )


def _here(session: Session) -> StompHere:
    mine, is_let_in = list(session.subscriptions.values()), session.state is State.OPEN
    return StompHere(
        id=session.id,
        peer=session.peer,
        road=session.road.name,
        version=session.version if is_let_in else None,
        user=session.user,
        host=session.host.name if is_let_in else None,
        secure=session.secure,
        age_ms=int((time.monotonic() - session.began_s) * 1_000),
        unread_bytes=session.road.unread_bytes(),
        transactions=len(session.transactions),
        subscriptions=[_subscriber(each) for each in mine],
    )


def _subscriber(subscription: Subscription) -> StompSubscriber:
    terms = subscription.terms
    return StompSubscriber(
        id=terms.id,
        destination=terms.destination,
        ack=terms.ack,
        held_messages=subscription.out,
        held_bytes=subscription.out_bytes,
        buffer_messages=None if terms.buffer is None else terms.buffer.messages,
        buffer_bytes=None if terms.buffer is None else terms.buffer.bytes,
        delivered=subscription.delivered,
        ready=subscription.queue.ready(),
    )
