"""The transport of a client over the native wire, and over HTTP where a server or proxy refuses the upgrade.

    first call ──► upgrade ──101──► session ──lost──► the next call connects again
                      │                └──GOODBYE──► the next call connects again, and waits for a broker that restarts
                      └──anything else──► HTTP, for the life of the client

A call that was sent and not answered is sent again only if HTTP would send it again: GET, PUT and DELETE, once, and not
on a connection that was new.
"""

from __future__ import annotations

import asyncio
import ssl
from copy import copy
from typing import Literal, TypeAlias

from wherry.client.link.address import Address, trust
from wherry.client.link.backoff import Backoff
from wherry.client.link.credential import Credential, KeyOrSource
from wherry.client.link.errors import error_of, returns
from wherry.client.link.pool import CONNECTIONS_MAX, GOODBYE_S, REPEATABLE, TIMEOUT_S, WAITS_MAX, Pool
from wherry.client.link.transport import ARROW, ClientRequest, ClientResponse
from wherry.client.native.renewing import renew_key
from wherry.client.native.session import NativeSession
from wherry.client.native.upgrade import SWITCHED, ask_upgrade
from wherry.model import check
from wherry.model.errors import Unavailable, WherryError
from wherry.wire.native.codec.frames import FRAME_BYTES_MAX, chunk_bytes

Wire: TypeAlias = Literal["auto", "native", "http"]
WIRES = ("auto", "native", "http")

CALLS_MAX = 512
"""Calls under way of each kind, those that wait for messages and the others: a broker takes 1,024 of a connection."""

BODY_BYTES_MAX = FRAME_BYTES_MAX - (1 << 20)
"""A larger body is sent by HTTP, whose bound is that of the node."""

TARGET_CHARS_MAX = 16 << 10
"""A longer target, such as a filter of thousands of offsets, is sent by HTTP too: the head of a frame has its bound."""

CLOSED = "this client is closed"

OWN_REFUSALS = (401, 403, 503)
"""Answers to the upgrade that come from a broker, if they have a code: the same call over HTTP would get them too."""


class NativeTransport:
    """A `Transport` over one connection, which `ready` opens when it is needed."""

    def __init__(
        self,
        address: Address,
        key: KeyOrSource = None,
        *,
        tls: ssl.SSLContext | None = None,
        wire: Wire = "auto",
        connections: int = CONNECTIONS_MAX,
        waits: int = WAITS_MAX,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        self._pool = Pool(address, key, tls=tls, connections=connections, waits=waits, timeout_s=timeout_s)
        self._address, self._tls = address, trust(address, tls)
        self._credential = Credential(address, key)
        self._timeout_s = timeout_s
        self._must_be_native = check.one_of("wire", wire, WIRES) == "native"
        self._room = asyncio.Semaphore(min(connections, CALLS_MAX))
        self._waits = asyncio.Semaphore(min(waits, CALLS_MAX))
        self._opening: asyncio.Task[NativeSession | None] | None = None
        self._open: set[NativeSession] = set()
        self._move_until = 0.0
        """Until when calls wait for a broker that sent GOODBYE and cannot be reached yet: it restarts."""
        self.session: NativeSession | None = None
        """The connection that takes requests, if one is open."""
        self.is_refused = wire == "http"
        """Whether everything goes by HTTP."""
        self.is_closed = False

    async def ready(self) -> NativeSession | None:
        """Return a session with room for a request, or None if everything goes by HTTP."""
        while not self.is_refused:
            session = self.session or await self._opened()
            if session is None or not session.is_full:
                return session
            await session.room()
        return None

    async def _opened(self) -> NativeSession | None:
        """Open a session; callers that come meanwhile share it. Raise if it closed again before it could be used."""
        if self._opening is None:
            self._opening = asyncio.create_task(self._connect(), name="wherry connect")
            self._opening.add_done_callback(_retrieved)
        opening = self._opening
        await asyncio.wait([opening])  # which leaves it to others if this caller is cancelled
        if opening.cancelled():
            raise Unavailable(CLOSED)
        fault = opening.exception()
        if fault is not None:
            raise copy(fault) if type(fault) is Unavailable else fault  # callers do not share a traceback
        session = opening.result()
        if session is not None and session is not self.session:
            raise Unavailable(f"{self._address.shown} closed the connection at once")
        return session

    async def ask(self, request: ClientRequest) -> ClientResponse:
        """See `Transport`."""
        async with self._waits if request.wait_s else self._room:
            was_open = self.session is not None
            session = await self.ready()
            if session is None or not _fits(request):
                return await self._pool.ask(request)
            try:
                answer = await session.call(request)
            except Unavailable:
                if not was_open or not session.is_closed or request.method not in REPEATABLE:
                    raise
                session = await self.ready()
                answer = await session.call(request) if session is not None else await self._pool.ask(request)
            if answer.status == 413 and request.accept == ARROW:  # larger than a frame; what was pulled waits again
                return await self._pool.ask(request)
            return answer

    # ------------------------------------------------------------------------------------------------------- connect

    async def _connect(self) -> NativeSession | None:
        """Open a connection; again for a while, if the broker announced a restart."""
        backoff, loop = Backoff(), asyncio.get_running_loop()
        try:
            while True:
                try:
                    return await self._upgrade()
                except WherryError as fault:
                    if not returns(fault) or loop.time() >= self._move_until or self.is_closed:
                        raise
                await backoff.pause()
        finally:
            self._opening = None

    async def _upgrade(self) -> NativeSession | None:
        if self.is_closed:
            raise Unavailable(CLOSED)
        lines, token = await self._credential.lines()
        transport, answer = await ask_upgrade(self._address, self._tls, lines)
        if answer is not None and answer.status == 401 and (other := await self._credential.other_lines(token)):
            transport, answer = await ask_upgrade(self._address, self._tls, other)
        if answer is None or answer.status != SWITCHED:
            await self._refused(answer)
            return None
        session = NativeSession(transport, self._timeout_s, self._ended)
        self._open.add(session)
        session.lost.add_done_callback(lambda _: self._open.discard(session))
        if self._credential.source is not None:
            renewing = asyncio.create_task(renew_key(session, self._credential.source), name="wherry renew")
            session.lost.add_done_callback(lambda _: renewing.cancel())
        session.data_received(bytes(answer.body))
        await session.opened
        if self.is_closed:
            session.close()
            raise Unavailable(CLOSED)
        self.session, self._move_until = session, 0.0
        return session

    async def _refused(self, answer: ClientResponse | None) -> None:
        """Take HTTP from now on, unless a broker refused the client itself.

        A server that closes without an answer may be a proxy that does not know upgrades, or a broker that just died:
        HTTP counts as the way only if it is answered there.
        """
        fault: WherryError = Unavailable("the server closed the connection without an answer to the upgrade")
        if answer is not None:
            fault = error_of(answer)
            if answer.status in OWN_REFUSALS and b'"code"' in bytes(answer.body):
                raise fault
        if self._must_be_native:
            raise Unavailable(f"{self._address.shown} does not speak the native wire: {fault}")
        if answer is None:
            await self._pool.ask(ClientRequest("GET", "/healthz"))
        self.is_refused = True

    def _ended(self, session: NativeSession) -> None:
        if session is self.session:
            self.session = None
            if session.is_leaving and not self.is_closed:
                self._move_until = asyncio.get_running_loop().time() + self._timeout_s

    async def close(self) -> None:
        """Close the connection with its last answer; returns at once if calls are under way, else when it is closed."""
        self.is_closed = True
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.wait([self._opening])
        for session in list(self._open):
            session.finish()
            if session.is_closed:
                await session.gone(GOODBYE_S)
        await self._pool.close()


def _fits(request: ClientRequest) -> bool:
    """Return whether a frame can hold a request."""
    return len(request.target) <= TARGET_CHARS_MAX and chunk_bytes(list(request.body)) <= BODY_BYTES_MAX


def _retrieved(opening: asyncio.Task[NativeSession | None]) -> None:
    """Take note of an error that every caller stopped waiting for."""
    if not opening.cancelled():
        opening.exception()
