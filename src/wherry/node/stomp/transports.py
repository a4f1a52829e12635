"""STOMP over the HTTP port: a WebSocket, or a session that is polled."""

from __future__ import annotations

from collections.abc import Mapping

from wherry.node.stomp import views
from wherry.node.stomp.views import StompView
from wherry.wire.stomp.sessions import Sessions
from wherry.wire.stomp.transports.polling import (
    Bounds,
    OpenedSession,
    Polling,
    ReceivedBytes,
    Taken,
)
from wherry.wire.stomp.transports.websocket import WebSocket, WebSockets


class HttpTransports:
    """WebSockets, and sessions that are polled."""

    def __init__(self, sessions: Sessions, bounds: Bounds | None = None) -> None:
        self._sessions = sessions
        self.sockets, self.polling = WebSockets(sessions), Polling(sessions, bounds)

    def upgrade(self, headers: Mapping[str, str], *, peer: str, secure: bool) -> WebSocket:
        """A WebSocket for a request that asks for one, or `InvalidInput`."""
        return self.sockets.answer(headers)

    def open(self, *, peer: str, secure: bool) -> OpenedSession:
        """A session that is polled, or `LimitReached`."""
        return self.polling.open(peer=peer, secure=secure)

    def check(self, session: str, token: str) -> None:
        """Whether there is such a session with this secret; else `NotFound`."""
        self.polling.check(session, token)

    async def send(self, session: str, at: int, data: bytes) -> ReceivedBytes:
        """Bytes from a client that begin at a place; those that came before are not heard again."""
        return await self.polling.transport(session).send(at, data)

    async def take(self, session: str, after: int, wait_ms: int) -> Taken:
        """What is there for a client behind a place, which says that it has all before it."""
        return await self.polling.transport(session).take(after, wait_ms)

    def end(self, session: str) -> None:
        """The client is done."""
        self.polling.end(session)

    def seen(self) -> StompView:
        """Who is here over STOMP, by any transport, and who was cut off."""
        return views.seen(self._sessions)

    def tick(self, now: float) -> None:
        """About once a second: end the sessions of which nothing is heard."""
        self.polling.tick(now)
