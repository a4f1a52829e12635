"""STOMP over HTTP for clients that cannot have a WebSocket: two streams of bytes, each with positions.

    client ── send(at, bytes) ──►  received      a repeat begins before `received`: only new bytes are fed
    client ── take(after) ──────►  first … next  `after` confirms all bytes before it; later ones are sent again

Bytes that the client has not confirmed are kept, and count as not taken. So a client repeats a request whose
answer was lost, and as long as the session exists no byte is lost or doubled. A session without requests ends
after a while.
"""

from __future__ import annotations

import asyncio
import hmac
import secrets
from collections import deque
from hashlib import blake2b
from typing import NamedTuple

import msgspec

from wherry.model.errors import InvalidInput, LimitReached, NotFound
from wherry.wire.fairness import STRANGER_BYTES_MAX, Budget, fair_loop
from wherry.wire.stomp.session import Session
from wherry.wire.stomp.sessions import STRANGE, Sessions
from wherry.wire.stomp.transports.transport import LOW_BYTES

ID_BYTES, TOKEN_BYTES = 12, 32
PIECE_BYTES = 4 << 10
"""Bytes fed at once; between two pieces the budget is checked."""

TAKE_BYTES = 1 << 20
"""Bytes of one answer; the next request takes more."""

PARTING_S = 10.0
"""How long the last bytes can be fetched from a session that is closed."""


class Bounds(msgspec.Struct, frozen=True, kw_only=True):
    """What polled sessions may use.

    `strangers` of the `sessions` may be of clients that have not logged in; a session ends after `idle_s` without
    a request; a client that has not confirmed `waiting_bytes` when more comes is cut off; `full_s` is how long
    bytes may wait for a session that is full before they are refused.
    """

    sessions: int = 1_000
    strangers: int = 100
    idle_s: float = 60.0
    waiting_bytes: int = 16 << 20
    full_s: float = 20.0


class OpenedSession(NamedTuple):
    """A session, and the secret that its later requests must contain."""

    id: str
    token: str


class Taken(NamedTuple):
    """Bytes for a client, the position after them, and whether they are the last."""

    data: bytes
    next: int
    is_over: bool


class ReceivedBytes(NamedTuple):
    """How many bytes have arrived from a client, and whether the session is closed."""

    received: int
    is_over: bool


class PollingTransport:
    """The transport of one session that is polled."""

    name = "polling"
    is_stopped = False

    def __init__(self, sessions: Sessions, bounds: Bounds, *, peer: str, secure: bool) -> None:
        self._bounds, self._clock = bounds, sessions.clock
        self._chunks: deque[bytes] = deque()
        self._first = self._next = 0
        """The position of the oldest byte that is kept, and the one after the newest."""
        self._received = 0
        self._is_closed = self._is_write_paused = False
        self._closed_at = 0.0
        self._polls = 0
        self._taker: asyncio.Future[None] | None = None
        self._feeding = asyncio.Lock()
        self.request_at = self._clock()
        self._session = Session(sessions, self, peer=peer, secure=secure, heart_beats=False)

    # ----------------------------------------------------------------------------------------------- for the session

    def write(self, data: bytes) -> None:
        """Keep bytes until the client fetches them."""
        if self._is_closed:
            return
        before = self.waiting_bytes()  # a single write may be larger than the bound
        self._chunks.append(data)
        self._next += len(data)
        self._wake()
        if before > self._bounds.waiting_bytes and not self._is_write_paused:
            self._is_write_paused = True  # first, since `cut_off` writes an ERROR here too
            most = self._bounds.waiting_bytes
            self._session.cut_off("nothing read", f"{before} bytes are not confirmed, and more came; allowed: {most}")

    def close(self) -> None:
        """Close the session; its last bytes can still be fetched for a while."""
        self._is_closed = True
        self._closed_at = self._clock()
        self._wake()
        asyncio.get_running_loop().call_soon(self._release)

    def _release(self) -> None:
        self._session.over()

    def waiting_bytes(self) -> int:
        """Return how many written bytes the client has not confirmed."""
        return self._next - self._first

    unread_bytes = waiting_bytes

    # ------------------------------------------------------------------------------------------------ for the client

    async def send(self, at: int, data: bytes) -> ReceivedBytes:
        """Feed the new part of bytes that begin at position `at`."""
        self.request_at = self._clock()
        async with self._feeding:
            if at > self._received:
                raise InvalidInput("at", at, f"0 to {self._received}: the number of bytes that have arrived")
            end, until = at + len(data), self._clock() + self._bounds.full_s
            budget = Budget(fair_loop(), self)
            while self._received < end and not self._is_closed:
                if not await self._relieved(until):
                    raise LimitReached("bytes that this session has not handled yet", self._received, end)
                here = self._received - at
                piece = data[here : here + PIECE_BYTES]
                self._received += len(piece)
                budget.begin(is_stranger=self.is_stranger)
                self._session.feed(piece)
                self._check_stranger()
                budget.end()
                await budget.wait_if_used_up()
        self.request_at = self._clock()
        return ReceivedBytes(self._received, self._is_closed)

    def _check_stranger(self) -> None:
        if self._session.is_stranger and self._received > STRANGER_BYTES_MAX:
            why = f"{self._received} bytes without a login; allowed: {STRANGER_BYTES_MAX}"
            self._session.cut_off(STRANGE, why)

    async def _relieved(self, until: float) -> bool:
        """Wait until the session can be fed; return False if that takes until `until`."""
        while self._session.is_full and not self._is_closed:
            relief = asyncio.Event()
            self._session.when_relieved(relief.set)
            try:
                await asyncio.wait_for(relief.wait(), until - self._clock())
            except TimeoutError:
                return False
        return True

    async def take(self, after: int, wait_ms: int) -> Taken:
        """Return the bytes after a position, and wait for some; a later call ends an earlier one that still waits."""
        self.request_at = self._clock()
        self._confirm(after)
        self._wake()
        if not self._chunks and wait_ms and not self._is_closed:
            self._polls += 1
            taker = self._taker = asyncio.get_running_loop().create_future()
            try:
                await asyncio.wait([taker], timeout=wait_ms / 1000)
            finally:
                self._polls -= 1
                self.request_at = self._clock()
        return self._answer(after)

    def _answer(self, after: int) -> Taken:
        """Return chunks up to a bound, complete ones unless the first alone is larger."""
        if after != self._first:  # a later call has confirmed more, and its client does not read this answer
            return Taken(b"", after, is_over=False)
        parts, size = [], 0
        for chunk in self._chunks:
            if size and size + len(chunk) > TAKE_BYTES:
                break
            parts.append(chunk[:TAKE_BYTES])
            size += len(parts[-1])
        end = after + size
        return Taken(b"".join(parts), end, is_over=self._is_closed and end == self._next)

    def _confirm(self, after: int) -> None:
        if not self._first <= after <= self._next:
            raise InvalidInput(
                "after", after, f"{self._first} to {self._next}: from the bytes confirmed to the bytes sent"
            )
        was = self.waiting_bytes()
        while self._first < after:
            chunk = self._chunks.popleft()
            done = min(len(chunk), after - self._first)
            self._first += done
            if done < len(chunk):
                self._chunks.appendleft(chunk[done:])
        if was >= LOW_BYTES > self.waiting_bytes():
            self._session.drained()

    def _wake(self) -> None:
        if self._taker is not None and not self._taker.done():
            self._taker.set_result(None)

    # ------------------------------------------------------------------------------------------------------- the end

    @property
    def is_polled(self) -> bool:
        """Whether the client waits for bytes just now."""
        return self._polls > 0

    @property
    def is_done(self) -> bool:
        """Whether the session is closed and the client has confirmed all bytes."""
        return self._is_closed and not self.waiting_bytes()

    @property
    def is_stranger(self) -> bool:
        """Whether the client has never logged in."""
        return not hasattr(self._session, "host")

    def is_gone(self, now: float) -> bool:
        """Return whether the session can be removed: all bytes are confirmed, or the client was silent for too long."""
        if self._is_closed:
            return self.is_done or now - self._closed_at > PARTING_S
        return not self.is_polled and now - self.request_at > self._bounds.idle_s

    def end(self) -> None:
        """End the session at once."""
        self._is_closed = True
        self._wake()
        if not self._session.is_over:
            self._session.over()


class Polling:
    """All sessions that are polled."""

    def __init__(self, sessions: Sessions, bounds: Bounds | None = None) -> None:
        self._sessions, self.bounds = sessions, bounds or Bounds()
        self._transports: dict[str, tuple[bytes, PollingTransport]] = {}
        """By id: a digest of the secret, and the transport."""

    def __len__(self) -> int:
        return len(self._transports)

    def open(self, *, peer: str, secure: bool) -> OpenedSession:
        """Open a session."""
        bounds, strangers = self.bounds, self._strangers()
        if len(self._transports) >= bounds.sessions or strangers >= bounds.strangers:
            self.tick(self._sessions.clock())
            strangers = self._strangers()
        if len(self._transports) >= bounds.sessions:
            raise LimitReached("sessions that are polled", bounds.sessions, len(self._transports) + 1)
        if strangers >= bounds.strangers:
            raise LimitReached("sessions that are polled without a CONNECT", bounds.strangers, strangers + 1)
        name, token = secrets.token_urlsafe(ID_BYTES), secrets.token_urlsafe(TOKEN_BYTES)
        self._transports[name] = (
            _digest(token),
            PollingTransport(self._sessions, self.bounds, peer=peer, secure=secure),
        )
        return OpenedSession(name, token)

    def _strangers(self) -> int:
        return sum(transport.is_stranger for _, transport in self._transports.values())

    def check(self, name: str, token: str) -> None:
        """Raise `NotFound` unless there is a session with this secret, without revealing which of the two is wrong."""
        digest, _ = self._transports.get(name, (b"", None))
        if not hmac.compare_digest(digest, _digest(token)):
            raise NotFound("session", name)

    def transport(self, name: str) -> PollingTransport:
        """Return the transport of a session."""
        found = self._transports.get(name)
        if found is None:
            raise NotFound("session", name)
        return found[1]

    def end(self, name: str) -> None:
        """End a session and remove it."""
        transport = self.transport(name)
        del self._transports[name]
        transport.end()

    def tick(self, now: float) -> None:
        """Remove sessions that have ended or were silent for too long."""
        for name in [name for name, (_, transport) in self._transports.items() if transport.is_gone(now)]:
            self.end(name)


def _digest(token: str) -> bytes:
    return blake2b(token.encode("utf-8", "surrogateescape"), digest_size=32).digest()
