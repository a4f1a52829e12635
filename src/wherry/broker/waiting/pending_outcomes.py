"""Outcomes to report to producers, once they are durable, and notices that messages were handed over.

Outcomes are in the state and survive a crash. Notices are in memory only: one for each watched message, at its first
hand-over since the broker started; the oldest notices are dropped when they are not fetched.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Coroutine
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from pyroaring import BitMap64

from wherry.broker.commit.commit import Committer
from wherry.core.index.offsets import bitmap_of, offsets_of
from wherry.core.state.state import State, TopicState
from wherry.model.calls.fate import Outcome
from wherry.model.errors import WherryError

Int64: TypeAlias = npt.NDArray[np.int64]

NOTICES_MAX = 65_536
SLACK = 4_096


class PendingOutcomes:
    """Outcomes that may be reported by now, and notices."""

    def __init__(self, state: State, committer: Committer, keep: Callable[[Coroutine[Any, Any, None]], object]) -> None:
        self._state, self._committer, self._keep = state, committer, keep
        self.event = asyncio.Event()
        """Set when there is something new; the sender of callbacks clears it."""
        self._fresh: deque[tuple[int, int, Int64]] = deque()  # position, topic, places: written and not durable yet
        self._announcing = False
        self._notices: deque[Outcome] = deque(maxlen=NOTICES_MAX)
        self._noticed: dict[int, BitMap64] = {}

    def add(self, position: int, outcomes: list[tuple[int, Int64]]) -> None:
        """Add the outcomes of an entry; they are returned once the entry is durable."""
        if position <= self._committer.durable:
            self.event.set()
            return
        self._fresh.extend((position, topic, places) for topic, places in outcomes)
        if not self._announcing:
            self._announcing = True
            self._keep(self._announce())

    async def _announce(self) -> None:
        try:
            while self._fresh:
                await self._committer.wait(self._fresh[0][0])
                self._forget_durable()
                self.event.set()
        except WherryError:
            return  # the journal failed: nothing of this has happened
        finally:
            self._announcing = False

    def _forget_durable(self) -> None:
        while self._fresh and self._fresh[0][0] <= self._committer.durable:
            self._fresh.popleft()

    def unreported(self, limit: int, without: Collection[str]) -> list[Outcome]:
        """Return durable outcomes, topic by topic, URL by URL."""
        self._forget_durable()
        found: list[Outcome] = []
        for number in self._state.with_outcomes:
            topic = self._state.topics[number]
            hidden = [places for _, of, places in self._fresh if of == number]
            places = np.concatenate(hidden) if hidden else np.empty(0, np.int64)
            found += topic.outbox.unreported(topic.config.name, limit - len(found), places, without)
            if len(found) >= limit:
                break
        return found

    def handed(self, topic: TopicState, number: int, offset: Int64, now_ms: int) -> None:
        """Add a notice for each watched message that is handed over for the first time."""
        outbox = topic.outbox
        watched = outbox.among(number, offset)
        if len(watched) == 0:
            return
        noticed = self._noticed.setdefault(topic.number, BitMap64())
        new = bitmap_of(watched) - noticed
        noticed |= new
        if len(noticed) > 2 * len(outbox.watched) + SLACK:
            noticed &= bitmap_of(outbox.watched.offsets())
        places = offsets_of(new)
        first, url = (outbox.watched.get(places, name, 0).tolist() for name in ("first", "url"))
        for place, target in zip(first, url, strict=True):
            self._notices.append(outbox.outcome(topic.config.name, place, target, "delivered", now_ms))
        if len(places):
            self.event.set()

    def notices(self) -> list[Outcome]:
        """Return the notices since the last call."""
        found = list(self._notices)
        self._notices.clear()
        return found

    def forget_topic(self, number: int) -> None:
        """Forget a topic that was deleted."""
        self._noticed.pop(number, None)
