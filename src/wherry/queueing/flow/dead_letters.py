"""Moves dead letters from their queue to the dead-letter exchange that the queue names.

They are dead letters of the broker first, with their reason. Then they are published again and removed in one step, so
that a crash neither loses nor doubles them; only copies too large for one step may be doubled.

The dead letters of all queues that have only a few are moved together, in one step: of 40 queues with a TTL, each has
one or two in every round of expiry. Queues with many, or with messages on disk, are moved side by side, a block each.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pyarrow as pa

from wherry.broker.port.port import BrokerPort
from wherry.model.calls.dead import DeadCopy, DeadFilter, DeadRow
from wherry.model.calls.publish import PublishOptions
from wherry.model.errors import LimitReached, TooLarge, WherryError
from wherry.model.schema import MESSAGE
from wherry.queueing.flow.dead_copies import Copier, Copy, Targets
from wherry.queueing.hosts.queue_terms import QueueTerms, terms_of
from wherry.queueing.names import SUBSCRIPTION

BLOCK = 1_000
"""Dead letters moved in one step."""

FEW = 64
"""Dead letters of a queue that are moved together with those of other queues."""

SIDE_BY_SIDE = 16
"""Queues that are moved alone at the same time: they share the syncs that each step waits for."""

SLICE = 64
"""Dead letters copied, or queues looked at, before the event loop turns for other work."""

BLOCK_BYTES = 4 << 20
MARGIN_BYTES = 1 << 20
"""Bytes of a journal entry for what is not body. Copies that do not fit into one entry are published one by one."""

SOURCES = (SUBSCRIPTION, "")
"""Whose dead letters are moved. "" has those of no subscription: they did not fit, or expired before there was one."""

PAUSE_S = 5.0
"""The pause before another try, when a target queue does not take them or the move failed."""

BY = "dead-letter exchange"
"""The name that the audit shows."""

_log = logging.getLogger("wherry.queueing")


class DeadLetterMover:
    """Moves the dead letters of all queues that name an exchange for them."""

    def __init__(self, broker: BrokerPort, targets: Targets) -> None:
        self._broker, self._targets = broker, targets
        self._pending: dict[str, None] = {}
        """Topics with dead letters to move, in the order in which they were noted."""
        self._paused: set[str] = set()
        """Topics whose move failed, until their pause ends: they would fail a step that they share with others."""
        self._alone: set[str] = set()
        """Topics of a shared step that failed, until each has been moved alone."""
        self._noted = asyncio.Event()
        self._copier = Copier(broker, targets)

    def note(self, topic: str) -> None:
        """Schedule the move of a topic's new dead letters."""
        if topic not in self._paused:
            self._pending[topic] = None
            self._noted.set()

    def expiring(self, topic: str, rows: list[DeadRow]) -> list[DeadCopy] | None:
        """Return the copies of messages that expire, for the step in which they do; None if they have to be moved."""
        terms = terms_of(self._broker.topic(topic))
        if terms.dead_exchange is None:
            return None
        try:
            made = self._copier.copies(topic, terms, rows)
        except Exception:  # the move meets it again and reports it
            return None
        if not all(persistent for copies in made for _, persistent, _ in copies):
            return None
        return [
            DeadCopy(target, {**columns, "payload": row.payload})
            for row, copies in zip(rows, made, strict=True)
            for target, _, columns in copies
        ]

    async def run(self) -> None:
        """Move dead letters for ever, beginning with those from before this start."""
        self._pending.update(dict.fromkeys(self._broker.topics_with_dead_letters()))
        while True:
            while self._pending:
                await self._round()
            self._noted.clear()
            await self._noted.wait()

    async def _round(self) -> None:
        """Move one step of those topics that have waited longest; those with more to move wait again."""
        step, alone = _Step(), list[str]()
        looked_at = 0
        for topic in list(self._pending):  # each once: one that is noted again meanwhile waits for the next round
            if len(alone) == SIDE_BY_SIDE or step.is_full():
                break
            del self._pending[topic]
            before = step.rows
            if not self._add_few(step, topic):
                alone.append(topic)
            self._alone.discard(topic)
            looked_at += 1 + step.rows - before
            if looked_at >= SLICE:  # a dead letter that another caller takes meanwhile fails the step
                looked_at = 0
                await asyncio.sleep(0)
        await asyncio.gather(self._move_together(step), *map(self._move_alone, alone))

    def _add_few(self, step: _Step, topic: str) -> bool:
        """Add the dead letters of a topic to a step, if it has any to move; return False if they are moved alone.

        They are if there are many, or if a step that they were in has failed.
        """
        size = self._broker.topic_size(topic)
        if size is None or size.dead == 0:
            return True
        terms = terms_of(self._broker.topic(topic))
        if terms.dead_exchange is None:  # such a queue keeps its dead letters
            return True
        return size.dead <= FEW and topic not in self._alone and self._add_all(step, topic, terms, size.dead)

    def _add_all(self, step: _Step, topic: str, terms: QueueTerms, count: int) -> bool:
        """Add all dead letters of a topic to a step; return False, with no change, if they have to be moved alone.

        They have to if the disk must be read, or if anything is wrong with them.
        """
        found: list[tuple[str, list[DeadRow], list[list[Copy]]]] = []
        try:
            for subscription in SOURCES:
                if count == 0:
                    break
                rows = self._broker.dead_rows(topic, DeadFilter(subscription=subscription), BLOCK_BYTES)
                if rows is None:
                    return False
                if rows:
                    found.append((subscription, rows, self._copier.copies(topic, terms, rows)))
                    count -= len(rows)
        except Exception:  # the move alone meets it again and reports it
            return False
        for each in found:
            step.add(topic, *each)
        return True

    async def _move_together(self, step: _Step) -> None:
        """Carry out a step; if that fails, have each of its topics moved alone, so that one cannot stop the others."""
        topics = dict(step.sources)
        if not topics:
            return
        has_failed = False
        try:
            await self._broker.forward(step.sources, step.calls(), by=BY)
        except Exception:  # the move alone meets it again and reports it
            has_failed = True
        for topic in topics:
            if (size := self._broker.topic_size(topic)) is not None and size.dead:
                if has_failed:
                    self._alone.add(topic)
                self.note(topic)

    async def _move_alone(self, topic: str) -> None:
        """Move a block of a topic's dead letters; if there may be more, the topic waits for its next turn."""
        try:
            terms = terms_of(self._broker.topic(topic))
            if any([await self._move_some(topic, subscription, terms) for subscription in SOURCES]):
                self.note(topic)
        except WherryError as fault:
            if self._broker.has_topic(topic):  # otherwise its dead letters were deleted with it
                _log.info("dead letters could not be moved yet", extra={"topic": topic, "why": str(fault)})
                self._try_later(topic)
        except Exception:
            _log.exception("moving dead letters failed", extra={"topic": topic})
            self._try_later(topic)

    def _try_later(self, topic: str) -> None:
        self._paused.add(topic)
        asyncio.get_running_loop().call_later(PAUSE_S, self._end_pause, topic)

    def _end_pause(self, topic: str) -> None:
        self._paused.discard(topic)
        self.note(topic)

    async def _move_some(self, topic: str, subscription: str, terms: QueueTerms) -> int:
        """Move a block of dead letters, or as many of its first as one step holds; return how many."""
        limit = BLOCK
        while True:
            try:
                return await self._move(topic, DeadFilter(subscription=subscription, limit=limit), terms)
            except (LimitReached, TooLarge):
                if limit == 1:
                    raise
                limit = max(1, limit // 8)

    async def _move(self, topic: str, wanted: DeadFilter, terms: QueueTerms) -> int:
        page = (await self._broker.dead_page(topic, wanted, bytes_max=BLOCK_BYTES)).batch
        if page.num_rows == 0:
            return 0
        step, rows = _Step(), _rows_of(page)
        step.add(topic, wanted.subscription or "", rows, self._copier.copies(topic, terms, rows))
        calls = step.calls()
        most = self._broker.entry_bytes_max - MARGIN_BYTES
        if page.num_rows == 1 and sum(batch.nbytes for _, batch, _ in calls) > most:
            for target, batch, persistent in calls[:-1]:  # a crash before the last one publishes these twice
                await self._broker.publish(target, batch, PublishOptions(persistent=persistent))
            calls = calls[-1:]
        return await self._broker.forward(step.sources, calls, by=BY)


class _Step:
    """Dead letters that are removed, and the copies that are published, in one step."""

    def __init__(self) -> None:
        self.sources: list[tuple[str, DeadFilter]] = []
        self._to: dict[tuple[str, bool], list[dict[str, Any]]] = {}
        self.rows = 0
        self._bytes = 0

    def is_full(self) -> bool:
        """Return whether the step has enough to do."""
        return self.rows >= BLOCK or self._bytes >= BLOCK_BYTES

    def add(self, topic: str, subscription: str, rows: list[DeadRow], copies: list[list[Copy]]) -> None:
        """Add dead letters of a subscription with the copies of each."""
        offsets = tuple(row.offset for row in rows)
        self.sources.append((topic, DeadFilter(subscription=subscription, partition=0, offsets=offsets)))
        for row, made in zip(rows, copies, strict=True):
            for target, persistent, message in made:
                self._to.setdefault((target, persistent), []).append({**message, "payload": row.payload})
                # What the envelope has is in the headers too, as text.
                self._bytes += len(row.payload) + 2 * len(message["envelope"])
        self.rows += len(rows)

    def calls(self) -> list[tuple[str, pa.RecordBatch, bool]]:
        """Return the publishes: a topic, the messages, and whether they are persistent."""
        return [(target, _batch(messages), persistent) for (target, persistent), messages in self._to.items()]


def _rows_of(page: pa.RecordBatch) -> list[DeadRow]:
    columns = [page.column(name).to_pylist() for name in ("offset", "payload", "envelope", "headers", "id", "reason")]
    died_ms = page.column("died").cast(pa.int64()).to_pylist()
    return [DeadRow(*values) for values in zip(*columns, died_ms, strict=True)]


def _batch(messages: list[dict[str, Any]]) -> pa.RecordBatch:
    kept = [name for name in messages[0] if any(each.get(name) is not None for each in messages)]
    return pa.RecordBatch.from_arrays(
        [pa.array([each.get(name) for each in messages], MESSAGE.field(name).type) for name in kept], names=kept
    )
