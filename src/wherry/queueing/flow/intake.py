"""The way in: what all clients publish in one turn of the loop is one batch for each queue, one write, one sync.

    add … add … │ end of the turn │ submit: in the topics ──► stored: on disk ──► confirms, as multiples
                                    in order, one turn after the other

Turns are submitted one after the other, so that a queue keeps the order in which messages came. While a sync is under
way, what comes is gathered until it ends: it could not be on disk sooner, and one large batch costs less than many.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import chain, repeat
from typing import Any, NamedTuple, Protocol

import pyarrow as pa

from wherry.broker.port import BrokerPort
from wherry.model.calls.publish import Published, PublishOptions
from wherry.model.errors import DuplicateId, InvalidInput, NotFound, WherryError
from wherry.model.schema import MESSAGE
from wherry.queueing.hosts.queue import Queue
from wherry.queueing.message.placing import Place

HELD_BYTES_MAX = 64 << 20
"""Bytes gathered and not yet durable; beyond it nobody is read from."""

BATCH_BYTES_MAX = 8 << 20
"""Of one batch: each has to fit one entry of the journal."""

TURN_BYTES = 64 << 10
"""Gathered while a sync is under way; what is more is submitted at once, so that it is ready for the next sync."""

ROW_BYTES = 100
"""What a message counts beside its body and envelope."""

_NO_MORE = (None, None, None)

_LASTING, _PASSING = PublishOptions(persistent=True), PublishOptions(persistent=False)

_log = logging.getLogger("wherry.amqp")


class Producer(Protocol):
    """A channel that wants to know what became of its publishes, which it numbers from 1."""

    def confirmed(self, last: int, refused: set[int]) -> None:
        """All up to `last` are over: stored, except those that were refused."""


class Sender(Protocol):
    """A connection, of which no more is read while too much that it published is not stored."""

    def take_stored(self, size: int) -> None:
        """So much of what it published is durable, or refused."""


@dataclass(slots=True)
class Incoming:
    """Messages on their way to some queues, that differ in nothing but their payloads: one, or what came together."""

    payloads: list[bytes]
    envelope: bytes
    key: str | None
    headers: list[tuple[str, str]] | None
    id: str | None = None
    body_bytes: int = field(init=False)
    size: int = field(init=False)
    """Bytes that all of them count: bodies, envelopes and `ROW_BYTES` each."""

    def __post_init__(self) -> None:
        self.body_bytes = sum(map(len, self.payloads))
        self.size = self.body_bytes + len(self.payloads) * (len(self.envelope) + ROW_BYTES)


class Ticket(NamedTuple):
    """Which publishes of which channel some messages are: as many as there are payloads, up to `last`."""

    producer: Producer
    last: int


class _Run(NamedTuple):
    """Messages of a group that came together."""

    messages: Incoming
    place: Place
    ticket: Ticket | None


@dataclass(slots=True)
class _Group:
    """Messages of one turn for one topic, in columns."""

    topic: str
    persistent: bool
    size: int = 0
    plain: bool = True
    """Whether no message has more than a payload and an envelope."""
    runs: list[_Run] = field(default_factory=list)

    def add(self, messages: Incoming, place: Place, ticket: Ticket | None = None) -> None:
        """Some messages more."""
        self.runs.append(_Run(messages, place, ticket))
        self.size += messages.size
        if (messages.key, messages.headers, messages.id) != _NO_MORE or place[1:] != _NO_MORE:
            self.plain = False

    def batch(self) -> pa.RecordBatch:
        """As the broker takes it, without the columns that say nothing."""
        columns: dict[str, list[Any]] = {
            "payload": list(chain.from_iterable(run.messages.payloads for run in self.runs))
        }
        columns["envelope"] = self._spread([run.messages.envelope for run in self.runs])
        if not self.plain:
            incoming, places = [run.messages for run in self.runs], [run.place for run in self.runs]
            for runs, names in ((incoming, ("key", "headers", "id")), (places, ("priority", "expires", "due"))):
                for name in names:
                    values = [getattr(run, name) for run in runs]
                    if any(value is not None for value in values):
                        columns[name] = self._spread(values)
        return pa.RecordBatch.from_arrays(
            [pa.array(values, MESSAGE.field(name).type) for name, values in columns.items()], names=list(columns)
        )

    def _spread(self, values: list[Any]) -> list[Any]:
        """A value of each run, for each of its messages."""
        counts = [len(run.messages.payloads) for run in self.runs]
        return list(chain.from_iterable(map(repeat, values, counts)))

    def publishes(self) -> list[tuple[Producer, int] | None]:
        """Of each message, which publish of whom it was; None where nobody wants to know."""
        return [
            None if ticket is None else (ticket.producer, number)
            for messages, _, ticket in self.runs
            for number in _numbers(ticket, len(messages.payloads))
        ]


def _numbers(ticket: Ticket | None, count: int) -> range:
    last = count if ticket is None else ticket.last
    return range(last - count + 1, last + 1)


@dataclass(slots=True)
class _Turn:
    """What one turn of the loop brought."""

    groups: list[_Group] = field(default_factory=list)
    last: dict[Producer, int] = field(default_factory=dict)
    size: int = 0
    senders: dict[Sender, int] = field(default_factory=dict)
    """Whose messages these are, in bytes."""
    submitted: asyncio.Future[None] | None = None
    """Of whoever waits for it."""


class Intake:
    """Gathers, submits, confirms."""

    def __init__(self, broker: BrokerPort) -> None:
        self._broker = broker
        self._turn = _Turn()
        self._open: dict[tuple[str, bool], _Group] = {}
        self._scheduled = False
        self._waiting: deque[_Turn] = deque()
        self._written: deque[tuple[int, _Turn, dict[Producer, set[int]]]] = deque()
        self._submitting: asyncio.Task[None] | None = None
        self._confirming: asyncio.Task[None] | None = None
        self._relief: list[Callable[[], None]] = []
        self.held = 0
        """Bytes that are not durable yet."""
        self.watched: dict[str, Callable[[], None]] = {}
        """By topic: called when messages were added to it, for whoever must not let too many wait there."""

    @property
    def is_full(self) -> bool:
        """Whether nobody should be read from until `when_relieved`."""
        return self.held > HELD_BYTES_MAX

    def when_relieved(self, call: Callable[[], None]) -> None:
        """Call back once there is room again."""
        self._relief.append(call)

    def add(
        self,
        topic: str,
        messages: Incoming,
        ticket: Ticket | None,
        place: Place,
    ) -> None:
        """Messages for a topic. Of those that are persistent and those that are not, none overtakes another."""
        size, persistent = messages.size, place.persistent
        group = self._open.get((topic, persistent))
        if group is None or group.size + size > BATCH_BYTES_MAX:
            group = self._open[topic, persistent] = _Group(topic, persistent)
            self._open.pop((topic, not persistent), None)
            self._turn.groups.append(group)
        group.add(messages, place, ticket)
        self._turn.size += size
        self.held += size
        if ticket is not None:
            self._turn.last[ticket.producer] = ticket.last
        self._schedule()

    def charge(self, sender: Sender, size: int) -> None:
        """So many bytes of what was added in this turn came from a connection; it is told when they are stored."""
        self._turn.senders[sender] = self._turn.senders.get(sender, 0) + size

    def note(self, ticket: Ticket) -> None:
        """Publishes that went nowhere are over with the turn that they came in."""
        self._turn.last[ticket.producer] = ticket.last
        self._schedule()

    def batches(self, incoming: Iterable[tuple[Queue, Incoming, Place]]) -> list[tuple[str, pa.RecordBatch]]:
        """Messages by topic, for whoever publishes them in another way."""
        groups: list[_Group] = []
        filling: dict[str, _Group] = {}
        for queue, messages, place in incoming:
            group = filling.get(queue.topic)
            if group is None or group.size > BATCH_BYTES_MAX:
                group = filling[queue.topic] = _Group(queue.topic, persistent=True)
                groups.append(group)
            group.add(messages, place)
        return [(group.topic, group.batch()) for group in groups]

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._end_of_turn)

    def _end_of_turn(self) -> None:
        self._scheduled = False
        if self._written and self._is_patient():
            return
        self._end_turn()

    def _is_patient(self) -> bool:
        """Whether what came may wait for the sync that is under way, and for more that comes meanwhile."""
        turn = self._turn
        return turn.size < TURN_BYTES and all(group.persistent for group in turn.groups)

    def _end_turn(self) -> None:
        if self._turn.groups or self._turn.last:
            self._waiting.append(self._turn)
            self._turn = _Turn()
            self._open.clear()
        if self._submitting is None and self._waiting:
            self._submitting = asyncio.get_running_loop().create_task(self._submit_all(), name="wherry amqp intake")

    async def flush(self) -> None:
        """Until everything that came so far is in its topic, so that whoever looks there finds it."""
        self._end_turn()
        if not self._waiting:
            return
        turn = self._waiting[-1]
        if turn.submitted is None:
            turn.submitted = asyncio.get_running_loop().create_future()
        await asyncio.shield(turn.submitted)

    async def _submit_all(self) -> None:
        try:
            while self._waiting:
                turn = self._waiting[0]
                position, refused, lasting = await self._submit(turn)
                self._confirm_passing(turn, refused, lasting)
                self._waiting.popleft()
                if turn.submitted is not None:
                    turn.submitted.set_result(None)
                self._written.append((position, turn, refused))
                if self._confirming is None:
                    self._confirming = asyncio.get_running_loop().create_task(self._confirm_all())
        finally:
            self._submitting = None

    def _confirm_passing(self, turn: _Turn, refused: dict[Producer, set[int]], lasting: set[Producer]) -> None:
        """Publishes that no disk has to be waited for are over now, in the turn in which they are in their topics.

        So whoever published a transient message hears of it before a consumer answers it, whatever others write.
        """
        for producer in [each for each in turn.last if each not in lasting]:
            if not any(producer in earlier.last for _, earlier, _ in self._written):
                producer.confirmed(turn.last.pop(producer), refused.pop(producer, set()))

    async def _submit(self, turn: _Turn) -> tuple[int, dict[Producer, set[int]], set[Producer]]:
        """Where the journal will be when the turn is durable, what was refused, and whose publishes wait for it."""
        last = 0
        refused: dict[Producer, set[int]] = {}
        lasting: set[Producer] = set()
        for group in turn.groups:
            try:
                position, dead = await self._publish(group)
            except Exception:  # whatever it is: others must not wait for it for ever
                _log.exception("publishes failed")
                position, dead = 0, list(range(len(group.publishes())))
            last = max(last, position)
            if not self._broker.is_stored(position):
                lasting.update(run.ticket.producer for run in group.runs if run.ticket is not None)
            publishes = group.publishes() if dead else []
            for publish in (publishes[row] for row in dead):
                if publish is not None:
                    refused.setdefault(publish[0], set()).add(publish[1])
            if group.topic in self.watched:
                self.watched[group.topic]()
        return last, refused, lasting

    async def _publish(self, group: _Group) -> tuple[int, list[int]]:
        """Where the journal will be when the group is durable, and which messages were refused."""
        options = _LASTING if group.persistent else _PASSING
        position, start = 0, 0
        refused: list[int] = []
        for part in _fitting(self._broker, group.topic, group.batch()):
            rows = range(start, start + part.num_rows)
            start = rows.stop
            at, answer = await self._submitted(group.topic, part, options)
            position = max(position, at)
            if isinstance(answer, InvalidInput) and part.num_rows > 1:  # of one of them: the others are good
                at, wrong = await self._one_by_one(group.topic, part, options)
                position = max(position, at)
                refused += [rows[row] for row in wrong]
                continue
            if isinstance(answer, NotFound):
                continue  # the queue was deleted on the way: as if it had been before
            if isinstance(answer, WherryError):
                _log.info("publish refused", extra={"topic": group.topic, "rows": part.num_rows, "why": str(answer)})
                refused += rows
            elif answer.dead:
                refused += rows[len(rows) - answer.dead :]
        return position, refused

    async def _one_by_one(self, topic: str, batch: pa.RecordBatch, options: PublishOptions) -> tuple[int, list[int]]:
        """The same, message by message; the rows that were refused."""
        position, wrong = 0, []
        for row in range(batch.num_rows):
            at, answer = await self._submitted(topic, batch.slice(row, 1), options)
            position = max(position, at)
            if isinstance(answer, WherryError) or answer.dead:
                wrong.append(row)
        return position, wrong

    async def _submitted(
        self, topic: str, batch: pa.RecordBatch, options: PublishOptions
    ) -> tuple[int, Published | WherryError]:
        at, (answer,) = await self._broker.submit([(topic, batch, options)])
        if "id" in batch.schema.names and isinstance(answer, DuplicateId | InvalidInput):
            # To this protocol an id is a note of the sender: where it cannot be ours, the message goes without.
            at, (answer,) = await self._broker.submit([(topic, batch.drop_columns(["id"]), options)])
        return at, answer

    async def _confirm_all(self) -> None:
        try:
            while self._written:
                position, turn, refused = self._written[0]
                try:
                    await self._broker.stored(position)
                except WherryError as fault:  # the journal is over: nothing of this is promised
                    _log.warning("publishes were not stored", extra={"why": str(fault)})
                    self._give_up()
                    return
                self._written.popleft()
                self._release(turn)
                for producer, last in turn.last.items():
                    producer.confirmed(last, refused.get(producer, set()))
                self._relieve()
                self._end_turn()
        finally:
            self._confirming = None

    def _give_up(self) -> None:
        """Confirm nothing of what was written, and hold nobody up for it."""
        written = list(self._written)
        self._written.clear()
        for _, turn, _ in written:
            self._release(turn)
        self._relieve()
        self._end_turn()

    def _release(self, turn: _Turn) -> None:
        """What came in a turn waits for the disk no longer."""
        self.held -= turn.size
        for sender, size in turn.senders.items():
            sender.take_stored(size)

    def _relieve(self) -> None:
        if self._relief and not self.is_full:
            waiting, self._relief = self._relief, []
            for call in waiting:
                call()


def _fitting(broker: BrokerPort, topic: str, batch: pa.RecordBatch) -> list[pa.RecordBatch]:
    """A batch in parts that a bounded queue can take by letting its oldest messages go, one part after the other."""
    config = broker.find_topic(topic)
    if config is None:
        return [batch]
    step = batch.num_rows
    if config.messages_max is not None:
        step = min(step, config.messages_max)
    if config.bytes_max is not None and batch.nbytes > config.bytes_max:
        step = 1
    if config.overflow == "refuse" and (config.messages_max is not None or config.bytes_max is not None):
        step = 1  # those that fit are taken, one by one
    return [batch.slice(start, step) for start in range(0, batch.num_rows, step)]
