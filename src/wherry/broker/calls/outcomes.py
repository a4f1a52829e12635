"""The fate of messages: ask for it, wait for it, or have it reported to a callback, all from the same state."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from wherry.broker.calls.calls import BrokerCalls
from wherry.broker.commit.shard import Shard
from wherry.broker.commit.turn import Phase
from wherry.broker.waiting.watches import FateWatch
from wherry.core.index.offsets import distinct
from wherry.core.inspect import by_id
from wherry.core.state import fates
from wherry.core.state.bodies import Cold
from wherry.core.state.state import State, TopicState
from wherry.model import check, ops
from wherry.model.calls.fate import (
    DELIVERED,
    DROPPED,
    FATES,
    OUTCOME_MS_MAX,
    SETTLED,
    Fate,
    Fates,
    Outcome,
    Until,
)
from wherry.model.calls.publish import Published
from wherry.model.errors import NotFound
from wherry.model.ops import AnyOp, Entry

Int64: TypeAlias = npt.NDArray[np.int64]

REPORTED_MAX = 65_536

ENTRY_OUTCOMES = 8_192
"""Outcomes of a turn after which the entry is written at once, so that entries stay small."""

BLOCK = 1_024
"""Messages whose bodies are read together, since memory may not hold more."""


class OutcomeCalls(BrokerCalls):
    """The calls about fates and outcomes."""

    _reports: Reports

    async def fate(self, topic: str, message_id: str) -> Fate:
        """Return what became of a message: as a whole, and for each subscription.

        A message is found by its default id (`partition-offset`) even when it is gone, and by an id of its own as long
        as it is in the topic.
        """
        shard = self.shard
        while True:
            now = shard.now()
            shard.upkeep(now, (topic,))
            try:
                found = by_id.fate_of(shard.state, shard.state.topic(topic), message_id, now.wall_ms)
            except Cold as cold:
                await shard.store.load(cold)
                continue
            except NotFound:
                await self.stored_so_far()
                raise
            await shard.committer.wait(shard.committer.submitted)
            return found

    async def outcome(
        self, topic: str, published: Published, *, until: Until = "settled", timeout_ms: int = 30_000
    ) -> Fates:
        """Wait until each message of a publish was handed over or has ended, or (`settled`) until each has ended.

        After `timeout_ms`, return the fates as they are then.

        Examples
        --------
        >>> async def main(broker):
        ...     published = await broker.publish("jobs", [b"hello"])
        ...     fates = await broker.outcome("jobs", published, until="settled", timeout_ms=5_000)
        ...     return fates.counts()
        """
        check.one_of("until", until, ("delivered", "settled"))
        check.integer("timeout_ms", timeout_ms, 0, OUTCOME_MS_MAX)
        shard = self.shard
        shard.committer.check()
        known = shard.state.topic(topic)
        watch = FateWatch(known.number, published.partition, published.offset, until)
        for number in distinct(published.partition).tolist():
            mine = published.offset[published.partition == number]
            if number not in known.partitions or int(mine.max()) >= known.partitions[number].next_offset:
                raise NotFound("message", f"{number}-{int(mine.max())}")
            watch.begin(known.partitions[number])
        if not watch.is_complete():
            await self._wait(watch, timeout_ms)
        await self._bring_up_to_date(known, watch)
        return Fates(published.partition, published.offset, watch.code)

    async def _wait(self, watch: FateWatch, timeout_ms: int) -> None:
        watches = self.shard.watches
        watches.add(watch)
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await watch.done
        except TimeoutError:
            return
        finally:
            watches.remove(watch)
        if not watch.is_complete():
            self.shard.committer.check()

    async def _bring_up_to_date(self, topic: TopicState, watch: FateWatch) -> None:
        """Update the fates of messages that have not ended; `delivered` stays, even if the message waits again."""
        shard = self.shard
        for number in distinct(watch.partition).tolist():
            rows = np.flatnonzero((watch.partition == number) & (watch.code < SETTLED))
            for start in range(0, len(rows), BLOCK):
                block = rows[start : start + BLOCK]
                code = await self._as_they_are(topic, number, watch.offset[block])
                handed = watch.code[block] == DELIVERED
                watch.code[block] = np.where(handed, np.maximum(code, DELIVERED), code)
        await shard.committer.wait(shard.committer.submitted)

    async def _as_they_are(self, topic: TopicState, number: int, offset: Int64) -> Int64:
        shard = self.shard
        while shard.state.topics.get(topic.number) is topic:
            try:
                return fates.fates(shard.state, topic, number, offset, shard.now().wall_ms)
            except Cold as cold:
                await shard.store.load(cold)
        return np.full(len(offset), DROPPED, np.int64)

    @property
    def on_outcome(self) -> asyncio.Event:
        """Set when there are new outcomes; clear it before you call `unreported`."""
        return self.shard.pending_outcomes.event

    def unreported(self, limit: int = 1_000, *, without: Collection[str] = ()) -> list[Outcome]:
        """Return durable outcomes that are still to be posted to the callbacks of producers.

        They come topic by topic and URL by URL, the URL that has waited longest first, each in the order in which its
        outcomes came. `without` names URLs to leave out: a call to them is under way, or they cannot be reached. An
        outcome is returned again until `reported` was called with it.
        """
        return self.shard.pending_outcomes.unreported(check.integer("limit", limit, 1, REPORTED_MAX), without)

    async def reported(self, outcomes: Sequence[Outcome]) -> None:
        """Record that outcomes were posted, or given up; durable on return: `unreported` does not return them again."""
        if outcomes:
            await self.shard.committer.wait(await asyncio.shield(self._reports.add(outcomes)))

    def delivered_notices(self) -> list[Outcome]:
        """Return the first hand-overs of messages with a callback since the last call.

        They are in memory only: a restart may lose some, and may repeat others.
        """
        return self.shard.pending_outcomes.notices()


class Reports:
    """Gathers the outcomes that are reported in one turn of the loop, for all URLs: they are one entry."""

    def __init__(self, shard: Shard) -> None:
        self._shard = shard
        self._outcomes: list[Outcome] = []
        self._written: asyncio.Future[int] | None = None

    def add(self, outcomes: Sequence[Outcome]) -> asyncio.Future[int]:
        """Add outcomes to the entry of this turn; return its position, once it is written."""
        if self._written is None:
            self._written = asyncio.get_running_loop().create_future()
            self._shard.turn.at_end(Phase.SUBMIT, self._end_turn)
        written = self._written
        self._outcomes += outcomes
        if len(self._outcomes) >= ENTRY_OUTCOMES:
            self._end_turn()
        return written

    def _end_turn(self) -> None:
        outcomes, written = self._outcomes, self._written
        if written is None:  # the entry was full before the end of the turn
            return
        self._outcomes, self._written = [], None
        if self._shard.admits_settle(len(outcomes)):
            self._write(outcomes, written)
        else:
            _ = self._shard.keep(self._write_with_room(outcomes, written))

    async def _write_with_room(self, outcomes: list[Outcome], written: asyncio.Future[int]) -> None:
        """Make room on a disk that is nearly full, then write."""
        try:
            await self._shard.admit_settle(len(outcomes))
        except Exception as fault:  # of any kind: no caller is left waiting
            written.set_exception(fault)
        else:
            self._write(outcomes, written)

    def _write(self, outcomes: list[Outcome], written: asyncio.Future[int]) -> None:
        shard = self._shard
        try:
            steps = _steps(shard.state, outcomes)
            # Without steps another caller has reported them, or deleted their topic: its entry must be durable too.
            position = shard.commit([Entry(shard.now().wall_us, steps)]) if steps else shard.committer.submitted
        except Exception as fault:  # of any kind: no caller is left waiting
            written.set_exception(fault)
        else:
            written.set_result(position)


def _steps(state: State, outcomes: Sequence[Outcome]) -> list[AnyOp]:
    """Return the operations that remove outcomes, each once: one for each partition."""
    numbers = {topic.config.name: topic.number for topic in state.topics.values()}
    parts: dict[tuple[int, int], dict[tuple[int, int], None]] = {}
    for each in outcomes:
        fate = FATES.index(each.fate)
        if each.topic in numbers and fate >= SETTLED:
            parts.setdefault((numbers[each.topic], each.partition), {})[each.offset, fate] = None
    return [
        ops.Reported(*place, *(np.array(column, np.int64) for column in zip(*rows, strict=True)))
        for place, rows in parts.items()
    ]
