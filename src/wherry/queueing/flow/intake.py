"""Takes what clients of queues publish: the broker gathers it, the intake bounds and confirms it.

The broker submits together what arrives in one turn of the loop, or during one sync (`broker/commit/gathering`). The
intake does what is special to queues: it confirms publishes of a client by number, many at once, and stops reading
from clients while too many bytes are not stored.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import pyarrow as pa

from wherry.broker.commit.batches import AnsweredRuns, CallerRows, TopicBatch, columns
from wherry.broker.commit.gathering import BATCH_BYTES_MAX, Submission
from wherry.broker.port.port import BrokerPort
from wherry.model.calls.rows import Handling, Rows
from wherry.model.errors import NotFound, WherryError
from wherry.queueing.hosts.queue import Queue

UNSTORED_BYTES_MAX = 64 << 20
"""Bytes gathered and not yet durable; beyond it no client is read."""

_log = logging.getLogger("wherry.queueing")


class ConfirmListener(Protocol):
    """A channel or session that is notified which of its publishes are stored or refused; it numbers them from 1."""

    def confirmed(self, last: int, refused: set[int]) -> None:
        """Note that all publishes up to `last` are stored, except those in `refused`."""


class UnstoredCounter(Protocol):
    """Counts the bytes that one connection published and that are not stored; beyond a bound it is not read."""

    def take_stored(self, size: int) -> None:
        """Note that `size` bytes of the connection are durable, or refused."""


class Unconfirmed(NamedTuple):
    """Publishes of one listener that are not confirmed yet: how many, and the highest of their numbers."""

    listener: ConfirmListener
    last: int
    publishes: int = 1

    def numbers(self, run: CallerRows) -> range:
        """Return the numbers of the publishes that a run of these rows holds."""
        first = self.last - self.publishes + 1 + run.first
        return range(first, first + len(run.rows))


@dataclass(slots=True, eq=False)
class _Record:
    """What clients of queues added to one submission, which spans several turns of the loop during a sync."""

    last: dict[ConfirmListener, int] = field(default_factory=dict)
    refused: dict[ConfirmListener, set[int]] = field(default_factory=dict)
    size: int = 0
    counters: dict[UnstoredCounter, int] = field(default_factory=dict)
    """The bytes of each connection."""


class Intake:
    """Bounds and confirms what clients publish."""

    def __init__(self, broker: BrokerPort) -> None:
        self._broker = broker
        self._gathering = broker.gathering
        self._records: dict[Submission, _Record] = {}
        self._written: deque[_Record] = deque()
        self._has_failed = False
        """Whether the journal failed: nothing is confirmed any more."""
        self._relief: list[Callable[[], None]] = []
        self.unstored_bytes = 0
        """Bytes that are not durable yet."""
        self.watched: dict[str, Callable[[], None]] = {}
        """By topic: called when messages were added to it, for a consumer that bounds how many wait there."""

    @property
    def is_full(self) -> bool:
        """Whether clients should not be read until `when_relieved` calls back."""
        return self.unstored_bytes > UNSTORED_BYTES_MAX

    def when_relieved(self, call: Callable[[], None]) -> None:
        """Call back once the intake is no longer full."""
        self._relief.append(call)

    def add(self, topic: str, rows: Rows, unconfirmed: Unconfirmed | None, handling: Handling) -> None:
        """Add messages for a topic to the open submission."""
        submission = self._gathering.add(topic, rows, handling, unconfirmed, separable=True)
        record = self._records.get(submission) or self._record(submission)
        record.size += rows.size
        self.unstored_bytes += rows.size
        if unconfirmed is not None:
            record.last[unconfirmed.listener] = unconfirmed.last

    def charge(self, counter: UnstoredCounter, size: int) -> None:
        """Count bytes of the open submission for a connection; its counter is called when they are stored."""
        counters = self._record(self._gathering.open_submission).counters
        counters[counter] = counters.get(counter, 0) + size

    def note(self, unconfirmed: Unconfirmed) -> None:
        """Confirm publishes that reached no queue together with the others of the open submission."""
        self._record(self._gathering.open_submission).last[unconfirmed.listener] = unconfirmed.last

    def batches(self, incoming: Iterable[tuple[Queue, Rows, Handling]]) -> list[tuple[str, pa.RecordBatch]]:
        """Return messages as batches by topic, for a transaction, which publishes them itself."""
        groups: list[TopicBatch] = []
        filling: dict[str, TopicBatch] = {}
        for queue, rows, handling in incoming:
            group = filling.get(queue.topic)
            if group is None or group.size > BATCH_BYTES_MAX:
                group = filling[queue.topic] = TopicBatch(queue.topic, persistent=True)
                groups.append(group)
            group.add(CallerRows(rows, handling, None, separable=True))
        return [(group.topic, columns(group.runs)) for group in groups]

    async def flush(self) -> None:
        """Wait until everything that arrived so far is in its topic, so that a reader finds it there."""
        await self._gathering.flush()

    def _record(self, submission: Submission) -> _Record:
        record = self._records.get(submission)
        if record is None:
            record = self._records[submission] = _Record()
            submission.on_submitted.append(self._submitted)
            submission.on_stored.append(self._stored)
        return record

    def _submitted(self, submission: Submission) -> None:
        """Collect refused publishes, and confirm those that need not wait for the disk."""
        record = self._records[submission]
        waits: set[ConfirmListener] = set()
        for part in submission.parts:
            if not self._broker.is_stored(part.position):
                waits.update(run.owner.listener for run in part.runs if isinstance(run.owner, Unconfirmed))
            self._refuse(part, record)
            if part.topic in self.watched:
                self.watched[part.topic]()
        before = [each.last for each in self._written]
        self._written.append(record)
        if self._has_failed:  # a confirm covers all earlier publishes of its channel, of which some were not stored
            return
        # At once: the producer of a transient message has its confirm before the reply of a consumer.
        for listener in [each for each in record.last if each not in waits]:
            if not any(listener in last for last in before):
                listener.confirmed(record.last.pop(listener), record.refused.pop(listener, set()))

    def _refuse(self, part: AnsweredRuns, record: _Record) -> None:
        """Note the publishes of a part that were refused, or became dead letters of a full queue: its last ones."""
        if isinstance(part.answer, WherryError):
            if isinstance(part.answer, NotFound):
                return  # the queue was deleted meanwhile: as if before the publish
            dead = sum(len(run.rows) for run in part.runs)
            if any(isinstance(run.owner, Unconfirmed) for run in part.runs):
                _log.info("publish refused", extra={"topic": part.topic, "rows": dead, "why": str(part.answer)})
        else:
            dead = part.answer.dead
        for run in reversed(part.runs if dead else ()):
            if isinstance(run.owner, Unconfirmed):
                numbers = run.owner.numbers(run)
                refused = record.refused.setdefault(run.owner.listener, set())
                refused.update(numbers[max(0, len(numbers) - dead) :])
            dead -= min(dead, len(run.rows))
            if not dead:
                break

    def _stored(self, submission: Submission, fault: WherryError | None) -> None:
        """Release the bytes of a submission, and confirm its publishes unless the journal failed."""
        record = self._records.pop(submission)
        self._written.remove(record)
        self.unstored_bytes -= record.size
        for counter, size in record.counters.items():
            counter.take_stored(size)
        if fault is None:
            for listener, last in record.last.items():
                listener.confirmed(last, record.refused.get(listener, set()))
        else:
            self._has_failed = True
            if record.last:
                _log.warning("publishes were not stored", extra={"why": str(fault)})
        self._relieve()

    def _relieve(self) -> None:
        if self._relief and not self.is_full:
            waiting, self._relief = self._relief, []
            for call in waiting:
                call()
