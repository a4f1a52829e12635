"""Receipts of SENDs: each is sent when its message is stored, and not before."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING

from wherry.queueing.flow.intake import Unconfirmed
from wherry.wire.stomp import codec
from wherry.wire.stomp.codec import StompFault

if TYPE_CHECKING:
    from wherry.wire.stomp.session import Session


class Receipts:
    """The publishes of one session, numbered from 1, and the receipts that wait for them."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._published = self._confirmed = 0
        self._wanted: deque[tuple[int, str]] = deque()
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    def unconfirmed(self, receipt_id: str | None) -> Unconfirmed:
        """Number the next publish, and return its number for the intake."""
        self._published += 1
        if receipt_id is not None:
            self._wanted.append((self._published, receipt_id))
        return Unconfirmed(self, self._published)

    def confirmed(self, last: int, refused: set[int]) -> None:
        """Send the receipts of publishes up to `last`; end the session with an ERROR if some were refused."""
        session, wanted = self._session, self._wanted
        self._confirmed = last
        good = min(refused) - 1 if refused else last
        frames = []
        while wanted and wanted[0][0] <= good:
            frames.append(codec.receipt(wanted.popleft()[1], session.version))
        session.write(b"".join(frames))
        while self._waiting and self._waiting[0][0] <= last:
            _set(self._waiting.popleft()[1])
        if refused:
            receipt = wanted[0][1] if wanted and wanted[0][0] == good + 1 else None
            text = "its queue is full or refused it; see the log of the broker"
            session.fail(StompFault("a message was not stored", text), receipt)

    async def all_stored(self) -> None:
        """Wait until everything that was published so far is durable."""
        if self._confirmed < self._published and not self._session.is_over:
            waiting = asyncio.get_running_loop().create_future()
            self._waiting.append((self._published, waiting))
            await waiting

    def end(self) -> None:
        """Wake all waiters, since the session is closed."""
        while self._waiting:
            _set(self._waiting.popleft()[1])


def _set(waiting: asyncio.Future[None]) -> None:
    if not waiting.done():
        waiting.set_result(None)
