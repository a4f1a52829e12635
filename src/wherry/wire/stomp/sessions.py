"""What all STOMP sessions of a node share, over any transport: bounds, clock, and clients that were cut off."""

from __future__ import annotations

import logging
import socket
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from wherry.queueing.login import Login
from wherry.queueing.queueing import Queueing
from wherry.security.access import Access
from wherry.wire.listener import Clock, Connected, ticking
from wherry.wire.stomp.codec import StompFault

if TYPE_CHECKING:
    from wherry.wire.stomp.session import Session

TICK_S = 0.25

STRANGE = "too much before login"

CUT_OFF_REASONS = (
    *("buffer overrun", "backlog overrun", "nothing read", "no heart-beat", "no login", "frame not whole"),
    *("too much that is not whole", "too much in transactions", "key no longer good", "websocket", STRANGE),
)

STAGED_BYTES_MAX = 256 << 20
"""Memory for open transactions of all clients together, in bytes."""

BACKLOG_SHARE = 8
"""Without a configured bound, the messages that wait for one subscription may use the memory for recent messages
divided by this number."""

CLOSING = StompFault("connection_forced", "the broker is shutting down")

CUT_OFFS_MAX = 256
"""How many are remembered, for operators: the newest."""

_log = logging.getLogger("wherry.stomp")


class Bounds(msgspec.Struct, frozen=True, kw_only=True):
    """What a client may use. Times in seconds.

    `login_s` until login. `frame_s` until a frame is complete, and a second more for every 100,000 bytes of it.
    `write_s` without reading anything of what it was sent. `stall_s` with a full buffer that it declared, while more
    messages wait. `backlog_bytes` in the own queue of a subscription; None for an eighth of the memory for recent
    messages, since that is where these messages are. `held_bytes` of incomplete frames, all clients together.
    """

    connections: int = 10_000
    login_s: float = 10.0
    frame_s: float = 60.0
    write_s: float = 60.0
    stall_s: float = 5.0
    backlog_bytes: int | None = None
    held_bytes: int = 256 << 20


class CutOffClient(NamedTuple):
    """A client that was cut off, and why."""

    at_ms: int
    """Unix milliseconds."""
    peer: str
    user: str
    why: str
    detail: str


def _staged(session: Session) -> int:
    """Return the bytes of memory that the open transactions of a session use."""
    return sum(each.size for each in session.transactions.values())


class Sessions:
    """The virtual hosts, the login, and the open sessions."""

    def __init__(
        self,
        queueing: Queueing,
        access: Access | None = None,
        bounds: Bounds | None = None,
        *,
        any_user: bool = False,
        names: Iterable[str] = (),
        clock: Clock = time.monotonic,
    ) -> None:
        self.queueing, self.bounds, self.clock = queueing, bounds or Bounds(), clock
        self.backlog_bytes = self.bounds.backlog_bytes or queueing.broker.cache_bytes_max // BACKLOG_SHARE
        self.names = frozenset({"localhost", socket.gethostname(), *names})
        """Names of this machine."""
        self.connected = Connected["Session"](self.bounds.connections)
        self.partial_bytes = 0
        """Bytes of incomplete frames."""
        self.staged = 0
        """Bytes of memory that transactions use."""
        self.cut_offs: deque[CutOffClient] = deque(maxlen=CUT_OFFS_MAX)
        self.cut_off_counts: Counter[str] = Counter()
        """By reason, since the start."""
        self.frames = Counter[str]()
        """Frames of clients by command, since the start."""
        self._access, self._any_user = access, any_user

    def login(self, certified: str | None, peer: str) -> Login:
        """Return a login for a client, by its address and its certificate, if it has one."""
        return Login(self._access, certified, any_user=self._any_user, peer=peer.rpartition(":")[0] or peer)

    def admit(self, session: Session) -> StompFault | None:
        """Add a session; return the fault if there are too many, or the node closes."""
        self.queueing.clients[session] = None
        if self.connected.admit(session):
            return None
        if self.connected.is_closing:
            return CLOSING
        return StompFault("too many connections", f"at most {self.bounds.connections} are allowed")

    def discard(self, session: Session) -> None:
        """Remove a session that has ended."""
        self.connected.discard(session)
        self.queueing.clients.pop(session, None)

    def note(self, session: Session, why: str, detail: str) -> None:
        """Record a client that is cut off."""
        self.cut_off_counts[why] += 1
        self.cut_offs.append(CutOffClient(self.queueing.broker.now_ms(), session.peer, session.user, why, detail))

    def check_partial(self) -> None:
        """Cut off the client with the most bytes of an incomplete frame, if memory is short."""
        if self.partial_bytes > self.bounds.held_bytes:
            largest = max(self.connected, key=lambda each: each.partial_bytes)
            largest.cut_off("too much that is not whole", f"{largest.partial_bytes} bytes of one frame")

    def check_staged(self) -> None:
        """Cut off the client with the largest open transactions, if memory is short."""
        if self.staged > STAGED_BYTES_MAX:
            largest = max(self.connected, key=_staged)
            largest.cut_off("too much in transactions", f"{_staged(largest)} bytes are not committed")

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """Tick all sessions until the end; then close them."""
        async with ticking(lambda: self.connected, TICK_S, clock=self.clock, log=_log, name="wherry stomp ticks"):
            try:
                yield
            finally:
                await self.close()

    async def close(self) -> None:
        """Store what arrived, and send every client an ERROR frame with the reason: the broker is shutting down."""
        self.connected.is_closing = True
        await self.queueing.intake.flush()
        for session in self.connected:
            session.shut_down()
        await self.queueing.settling.flush()
