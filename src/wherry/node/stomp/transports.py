"""STOMP over the HTTP port: WebSockets and polled sessions."""

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
    """Opens WebSockets and polled sessions."""

    def __init__(self, sessions: Sessions, bounds: Bounds | None = None) -> None:
        self._sessions = sessions
        self.sockets, self.polling = WebSockets(sessions), Polling(sessions, bounds)

    def upgrade(self, headers: Mapping[str, str], *, peer: str, secure: bool) -> WebSocket:
        """Return a WebSocket for a request that asks for one; else raise `InvalidInput`."""
        return self.sockets.answer(headers)

    def open(self, *, peer: str, secure: bool) -> OpenedSession:
        """Open a polled session, or raise `LimitReached`."""
        return self.polling.open(peer=peer, secure=secure)

    def check(self, session: str, token: str) -> None:
        """Raise `NotFound` unless there is such a session with this token."""
        self.polling.check(session, token)

    async def send(self, session: str, at: int, data: bytes) -> ReceivedBytes:
        """Take bytes from a client that begin at a place; skip those that were received before."""
        return await self.polling.transport(session).send(at, data)

    async def take(self, session: str, after: int, wait_ms: int) -> Taken:
        """Return bytes for a client after a place, which confirms that the client has all bytes before it."""
        return await self.polling.transport(session).take(after, wait_ms)

    def end(self, session: str) -> None:
        """End a session on request of its client."""
        self.polling.end(session)

    def seen(self) -> StompView:
        """Return the sessions of STOMP over any transport, and those that were cut off."""
        return views.seen(self._sessions)

    def tick(self, now: float) -> None:
        """End sessions without a call for too long; called about once a second."""
        self.polling.tick(now)
