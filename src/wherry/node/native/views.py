"""The sessions of the native wire as JSON: what they hold, and which clients were cut off."""

from __future__ import annotations

from typing import Annotated

import msgspec

from wherry.wire.http.api.terms import json_schema
from wherry.wire.native.session import Session
from wherry.wire.native.sessions import Sessions
from wherry.wire.native.streams import PushStream

Count = Annotated[int, json_schema(minimum=0)]


class NativeStream(msgspec.Struct):
    """A stream of pushed messages; `consumer` is null until it has joined. *Held* messages are not settled yet."""

    id: Count
    topic: str
    subscription: str
    consumer: str | None
    held_messages: Count
    delivered: Count


class NativeHere(msgspec.Struct):
    """A session. `unstored_bytes` were published and are not on disk yet, `unread_bytes` sent and not read yet.

    `left_off` is how many streams are not shown: at most 10,000 are, of all sessions.
    """

    peer: str
    client: str
    user: str
    secure: bool
    state: str
    age_ms: Count
    unstored_bytes: Count
    unread_bytes: Count
    calls: Count
    streams: list[NativeStream]
    left_off: Count


class NativeCutOff(msgspec.Struct):
    """A client that was cut off, and why. `at_ms` is Unix time."""

    at_ms: int
    peer: str
    user: str
    why: str
    detail: str


class NativeView(msgspec.Struct):
    """At most 1,000 sessions, the oldest first, and how many were left off; the last 256 that were cut off."""

    sessions: list[NativeHere]
    left_off: Count
    cut_offs: list[NativeCutOff]


SHOWN_MAX, STREAMS_MAX = 1_000, 10_000
"""Sessions, and streams of all sessions together; the view counts those beyond."""


def seen(sessions: Sessions) -> NativeView:
    """Return the current view: the oldest sessions first, the last cut off first."""
    here = list(sessions.open)
    room = STREAMS_MAX
    shown: list[NativeHere] = []
    for session in here[:SHOWN_MAX]:
        shown.append(_here(session, room))
        room -= len(shown[-1].streams)
    return NativeView(
        sessions=shown,
        left_off=max(0, len(here) - SHOWN_MAX),
        cut_offs=[NativeCutOff(*each) for each in reversed(sessions.cut_offs)],
    )


def _here(session: Session, room: int) -> NativeHere:
    streams = list(session.streams.values())
    return NativeHere(
        peer=session.peer,
        client=session.client,
        user=session.user,
        secure=session.secure,
        state=session.state.name.lower(),
        age_ms=int((session.shared.clock() - session.began) * 1_000),
        unstored_bytes=session.unstored_bytes,
        unread_bytes=session.transport.waiting_bytes(),
        calls=session.calls_under_way,
        streams=[_stream(each) for each in streams[:room]],
        left_off=max(0, len(streams) - room),
    )


def _stream(stream: PushStream) -> NativeStream:
    consumer = stream.consumer
    return NativeStream(
        id=stream.number,
        topic=stream.terms.topic,
        subscription=stream.terms.subscription,
        consumer=None if consumer is None else consumer.id,
        held_messages=0 if consumer is None else consumer.unsettled_messages,
        delivered=stream.delivered,
    )
