"""The way in: what clients of queues publish is gathered by the broker, bounded here, and confirmed here.

The broker makes one batch of what arrives in one turn of the loop (`broker/commit/gathering`). The intake keeps what
is special to queues: publishes of a channel have numbers and are confirmed as multiples, and nothing more is read from
clients while too many bytes are not stored yet.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import pyarrow as pa

from wherry.broker.commit.gathering import (
    BATCH_BYTES_MAX,
    AnsweredRuns,
    Run,
    Submission,
    TopicBatch,
    batch_of,
)
from wherry.broker.port.port import BrokerPort
from wherry.model.calls.rows import Handling, Rows
from wherry.model.errors import NotFound, WherryError
from wherry.queueing.hosts.queue import Queue

HELD_BYTES_MAX = 64 << 20
"""Bytes gathered and not yet durable; beyond it nothing is read from any client."""

_log = logging.getLogger("wherry.amqp")


class Producer(Protocol):
    """A channel that wants to know what became of its publishes, which it numbers from 1."""

    def confirmed(self, last: int, refused: set[int]) -> None:
        """Take note that all publishes up to `last` are over: stored, except those that were refused."""


class Sender(Protocol):
    """A connection, of which no more is read while too much that it published is not stored."""

    def take_stored(self, size: int) -> None:
        """Take note that so many bytes of what it published are durable, or refused."""


class Ticket(NamedTuple):
    """Which publishes of which channel some rows are: as many as there are payloads, up to `last`."""

    producer: Producer
    last: int
    publishes: int = 1
    """How many there are."""

    def numbers(self, run: Run) -> range:
        """Return the numbers of the publishes that a run of these rows is."""
        first = self.last - self.publishes + 1 + run.first
        return range(first, first + len(run.rows))


@dataclass(slots=True, eq=False)
class _Record:
    """What clients of queues added to one turn."""

    last: dict[Producer, int] = field(default_factory=dict)
    refused: dict[Producer, set[int]] = field(default_factory=dict)
    size: int = 0
    senders: dict[Sender, int] = field(default_factory=dict)
    """Whose messages these are, in bytes."""


class Intake:
    """Bounds and confirms what clients publish."""

    def __init__(self, broker: BrokerPort) -> None:
        self._broker = broker
        self._gathering = broker.gathering
        self._records: dict[Submission, _Record] = {}
        self._written: deque[_Record] = deque()
        self._relief: list[Callable[[], None]] = []
        self.held = 0
        """Bytes that are not durable yet."""
        self.watched: dict[str, Callable[[], None]] = {}
        """By topic: called when messages were added to it, for a subscriber that must not let too many wait there."""

    @property
    def is_full(self) -> bool:
        """Whether nothing should be read from clients until `when_relieved`."""
        return self.held > HELD_BYTES_MAX

    def when_relieved(self, call: Callable[[], None]) -> None:
        """Call back once there is room again."""
        self._relief.append(call)

    def add(self, topic: str, rows: Rows, ticket: Ticket | None, handling: Handling) -> None:
        """Add messages for a topic to this turn."""
        turn = self._gathering.add(topic, rows, handling, ticket, separable=True)
        record = self._records.get(turn) or self._record(turn)
        record.size += rows.size
        self.held += rows.size
        if ticket is not None:
            record.last[ticket.producer] = ticket.last

    def charge(self, sender: Sender, size: int) -> None:
        """Note that so many bytes of this turn are of a connection, which is told when they are stored."""
        senders = self._record(self._gathering.open_submission).senders
        senders[sender] = senders.get(sender, 0) + size

    def note(self, ticket: Ticket) -> None:
        """Confirm publishes that reached no queue together with the turn that they came in."""
        self._record(self._gathering.open_submission).last[ticket.producer] = ticket.last

    def batches(self, incoming: Iterable[tuple[Queue, Rows, Handling]]) -> list[tuple[str, pa.RecordBatch]]:
        """Return messages as batches by topic, for a transaction that publishes them in another way."""
        groups: list[TopicBatch] = []
        filling: dict[str, TopicBatch] = {}
        for queue, rows, handling in incoming:
            group = filling.get(queue.topic)
            if group is None or group.size > BATCH_BYTES_MAX:
                group = filling[queue.topic] = TopicBatch(queue.topic, persistent=True)
                groups.append(group)
            group.add(Run(rows, handling, None, separable=True))
        return [(group.topic, batch_of(group.runs, plain=group.plain)) for group in groups]

    async def flush(self) -> None:
        """Wait until everything that came so far is in its topic, so that a reader finds it there."""
        await self._gathering.flush()

    def _record(self, turn: Submission) -> _Record:
        record = self._records.get(turn)
        if record is None:
            record = self._records[turn] = _Record()
            turn.on_submitted.append(self._submitted)
            turn.on_stored.append(self._stored)
        return record

    def _submitted(self, turn: Submission) -> None:
        """Collect what was refused, and confirm what waits for no disk."""
        record = self._records[turn]
        waits: set[Producer] = set()
        for part in turn.parts:
            if not self._broker.is_stored(part.position):
                waits.update(run.owner.producer for run in part.runs if isinstance(run.owner, Ticket))
            self._refuse(part, record)
            if part.topic in self.watched:
                self.watched[part.topic]()
        # A client that published a transient message gets its confirm before a consumer answers the message.
        for producer in [each for each in record.last if each not in waits]:
            if not any(producer in earlier.last for earlier in self._written):
                producer.confirmed(record.last.pop(producer), record.refused.pop(producer, set()))
        self._written.append(record)

    def _refuse(self, part: AnsweredRuns, record: _Record) -> None:
        """Note the publishes of a part that were refused, or died of a full queue: those at its end."""
        if isinstance(part.answer, WherryError):
            if isinstance(part.answer, NotFound):
                return  # the queue was deleted on the way: as if it had been before
            dead = sum(len(run.rows) for run in part.runs)
            if any(isinstance(run.owner, Ticket) for run in part.runs):
                _log.info("publish refused", extra={"topic": part.topic, "rows": dead, "why": str(part.answer)})
        else:
            dead = part.answer.dead
        for run in reversed(part.runs if dead else ()):
            if isinstance(run.owner, Ticket):
                numbers = run.owner.numbers(run)
                refused = record.refused.setdefault(run.owner.producer, set())
                refused.update(numbers[max(0, len(numbers) - dead) :])
            dead -= min(dead, len(run.rows))
            if not dead:
                break

    def _stored(self, turn: Submission, fault: WherryError | None) -> None:
        """Release what a turn held, and confirm it unless the journal failed."""
        record = self._records.pop(turn)
        self._written.remove(record)
        self.held -= record.size
        for sender, size in record.senders.items():
            sender.take_stored(size)
        if fault is None:
            for producer, last in record.last.items():
                producer.confirmed(last, record.refused.get(producer, set()))
        elif record.last:
            _log.warning("publishes were not stored", extra={"why": str(fault)})
        self._relieve()

    def _relieve(self) -> None:
        if self._relief and not self.is_full:
            waiting, self._relief = self._relief, []
            for call in waiting:
                call()
