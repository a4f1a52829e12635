"""Calls over the one session of a link: a `Transport` that opens no connection of its own."""

from __future__ import annotations

from wherry.client.link.transport import ClientRequest, ClientResponse
from wherry.client.native.session import NativeSession
from wherry.client.requests import Caller


class _SessionTransport:
    def __init__(self, session: NativeSession) -> None:
        self._session = session

    async def ask(self, request: ClientRequest) -> ClientResponse:
        return await self._session.call(request)

    async def close(self) -> None:
        """Do nothing: the link closes its session."""


class SessionCaller(Caller):
    """The caller of a link."""

    def __init__(self, session: NativeSession) -> None:
        super().__init__(_SessionTransport(session))
