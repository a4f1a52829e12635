"""STOMP over the HTTP port, as this folder sees it: an upgrade, and sessions that are polled. Built elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Protocol

import msgspec

from wherry.wire.http.terms import told
from wherry.wire.http.upgrade import Upgrade

Count = Annotated[int, told(minimum=0)]


class StompSubscriber(msgspec.Struct):
    """A subscription over STOMP. `ready` is what waits for it, and for whoever shares its queue.

    *Held* is what it was sent and has not acked; with `ack:auto` and a declared buffer, what has not reached it.
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
    """A session of STOMP; `version` and `host` are null until it is let in.

    `unread_bytes` were sent and have not reached the client's machine; the last 64 KiB do not count. `left_off` is how
    many subscriptions are not shown: at most 10,000 are, of all sessions.
    """

    id: str
    peer: str
    road: str
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


class Roads(Protocol):
    """Two roads. Errors are those of the model."""

    def upgrade(self, headers: Mapping[str, str], *, peer: str, secure: bool) -> Upgrade:
        """A WebSocket for a request that asks for one, or `InvalidInput`."""

    def open(self, *, peer: str, secure: bool) -> tuple[str, str]:
        """A session that is polled, or `LimitReached`: its id, and the secret that whoever goes on with it shows."""

    def check(self, session: str, token: str) -> None:
        """Whether there is such a session with this secret; else `NotFound`."""

    async def send(self, session: str, at: int, data: bytes) -> tuple[int, bool]:
        """Bytes from a client that begin at a place; those that came before are not heard again.

        How many came so far, and whether nothing more is wanted.
        """

    async def take(self, session: str, after: int, wait_ms: int) -> tuple[bytes, int, bool]:
        """What is there for a client behind a place, which says that it has all before it.

        The bytes, the place behind them, and whether nothing will ever come after them.
        """

    def end(self, session: str) -> None:
        """The client is done."""

    def seen(self) -> StompView:
        """Who is here over STOMP, on any road, and who was cut off."""

    def tick(self, now: float) -> None:
        """About once a second, by the steady clock: end the sessions of which nothing is heard."""
