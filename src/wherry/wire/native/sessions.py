"""What all sessions of a node share: the broker, bounds, the intake, and which clients were cut off and why."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter, deque
from collections.abc import Coroutine
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from wherry.broker.port.port import BrokerPort
from wherry.wire.listener import Clock
from wherry.wire.native.intake import PublishIntake

if TYPE_CHECKING:
    from wherry.wire.native.session import Session

CUT_OFF_REASONS = (
    *("protocol", "no hello", "no heartbeat", "nothing read", "too much that is not whole"),
    *("key no longer good", "fault of the broker"),
)

CUT_OFFS_MAX = 256
"""How many are remembered, for operators: the newest."""

FINISH_S = 5.0
"""How long the tasks of sessions may take after their connections are closed."""

_log = logging.getLogger("wherry.native")


class Bounds(msgspec.Struct, frozen=True, kw_only=True):
    """What a client may use. Times in seconds.

    `hello_s` until its HELLO, `write_s` without reading anything of what it was sent, `goodbye_s` to answer a GOODBYE.
    `held_bytes` of incomplete frames, all clients together. `streams` of one connection.
    """

    hello_s: float = 10.0
    write_s: float = 30.0
    goodbye_s: float = 2.0
    heartbeat_ms: int = 30_000
    held_bytes: int = 256 << 20
    streams: int = 256


class CutOffSession(NamedTuple):
    """A client of the native wire that was cut off, and why."""

    at_ms: int
    """Unix milliseconds."""
    peer: str
    user: str
    why: str
    detail: str


class Sessions:
    """The open sessions."""

    def __init__(self, broker: BrokerPort, bounds: Bounds | None = None, *, clock: Clock = time.monotonic) -> None:
        self.broker, self.bounds, self.clock = broker, bounds or Bounds(), clock
        self.intake = PublishIntake(broker)
        self.open: dict[Session, None] = {}
        self.partial_bytes = 0
        """Bytes that incomplete frames occupy."""
        self.frames: Counter[int] = Counter()
        """Frames of clients by kind, since the start."""
        self.cut_offs: deque[CutOffSession] = deque(maxlen=CUT_OFFS_MAX)
        self.cut_off_counts: Counter[str] = Counter()
        """By reason, since the start."""
        self._tasks: set[asyncio.Task[None]] = set()

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run work of a session as a task, and log an exception that it raises."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (fault := task.exception()) is not None:
            _log.error("a session failed", exc_info=fault)

    def note(self, session: Session, why: str, detail: str) -> None:
        """Record a client that is cut off."""
        _log.info("cut off", extra={"peer": session.peer, "why": why, "detail": detail})
        self.cut_off_counts[why] += 1
        self.cut_offs.append(CutOffSession(self.broker.now_ms(), session.peer, session.user, why, detail))

    def is_roomy(self, size: int) -> bool:
        """Return whether `size` more bytes of incomplete frames leave half of their memory free."""
        return self.partial_bytes + size <= self.bounds.held_bytes // 2

    def check_partial(self) -> None:
        """Cut off the client with the most bytes of an incomplete frame, if memory is short."""
        if self.partial_bytes > self.bounds.held_bytes:
            largest = max(self.open, key=lambda each: each.partial_bytes)
            largest.cut_off("too much that is not whole", f"{largest.partial_bytes} bytes of one frame")

    def relieved(self) -> None:
        """Read clients again that were stopped because all of them together had published too much."""
        if not self.intake.is_full:
            for session in list(self.open):
                session.transport.look_again()

    async def finished(self) -> None:
        """Wait until the tasks of all sessions have ended: consumers left, calls answered or undone; within a bound."""
        with suppress(TimeoutError):
            async with asyncio.timeout(FINISH_S):
                while self._tasks:
                    await asyncio.wait(set(self._tasks))
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
