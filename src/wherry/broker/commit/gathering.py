"""Publishes of one turn of the event loop are one batch for each topic, one journal entry, one sync.

    add … add … │ end of the turn │ submit: in the topics ──► stored: on disk ──► answers
                                    in order, one turn after the other

Every wire adds here, and so does `Broker.publish` with a single message. Turns are submitted one after the other, so a
topic keeps the order in which messages arrived. While a sync is under way, messages are gathered until the sync ends:
they could not be on disk sooner, and one large batch costs less than many small ones.

A caller's messages stand or fall by themselves: when the broker refuses a batch of several callers, each caller's
messages are submitted again alone.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import chain, repeat
from typing import Any, NamedTuple, Protocol

import pyarrow as pa

from wherry.model.calls.publish import Published, PublishOptions
from wherry.model.calls.rows import Handling, Rows
from wherry.model.catalog.topic import Topic
from wherry.model.errors import DiskFull, DuplicateId, InvalidInput, LimitReached, TooLarge, WherryError
from wherry.model.schema import MESSAGE, Publishable

BATCH_BYTES_MAX = 8 << 20
"""Most bytes of one batch: each has to fit one entry of the journal."""

TURN_BYTES = 64 << 10
"""Most bytes gathered while a sync is under way; with more they are submitted at once, ready for the next sync."""

OPTIONS = {True: PublishOptions(persistent=True), False: PublishOptions(persistent=False)}

OF_ONE = (InvalidInput, DuplicateId, LimitReached, TooLarge, DiskFull)
"""Refusals of a batch that may be caused by some of its messages: the others may be accepted alone."""

_NO_MORE = (None, None, None)
_AS_GIVEN = Handling(persistent=True)

_log = logging.getLogger("wherry.publish")


class Target(Protocol):
    """The calls of a broker that gathering needs."""

    def find_topic(self, name: str) -> Topic | None: ...

    async def submit(
        self, topic: str, messages: Publishable, options: PublishOptions
    ) -> tuple[int, Published | WherryError]: ...

    def count_refusal(self, topic: str, fault: WherryError) -> None: ...

    def is_stored(self, position: int) -> bool: ...

    async def stored(self, position: int) -> None: ...


class Run(NamedTuple):
    """Rows of one caller within a group."""

    rows: Rows
    handling: Handling
    owner: Any
    """The value by which the caller finds its rows."""
    separable: bool
    """Whether each row succeeds or fails alone, and is published without its id where the id is refused."""
    first: int = 0
    """How many rows of the same `add` come before these: a run may be split."""

    def split(self, step: int) -> Iterator[Run]:
        """Split into runs of at most `step` rows."""
        payloads = self.rows.payloads
        for at in range(0, len(payloads), step):
            rows = replace(self.rows, payloads=payloads[at : at + step])
            yield self._replace(rows=rows, first=self.first + at)


class Part(NamedTuple):
    """Runs that were submitted together, and the answer to all of them."""

    topic: str
    runs: list[Run]
    position: int
    answer: Published | WherryError


@dataclass(slots=True)
class Group:
    """Runs of one turn for one topic, to be one batch."""

    topic: str
    persistent: bool
    size: int = 0
    plain: bool = True
    """Whether no message has more than a payload and an envelope."""
    runs: list[Run] = field(default_factory=list)
    whole: tuple[Publishable, PublishOptions] | None = None
    """The messages of one call that are a batch already, instead of rows: they are submitted unchanged."""

    def add(self, run: Run) -> None:
        """Add a run."""
        self.runs.append(run)
        rows = run.rows
        self.size += rows.size
        if (rows.key, rows.headers, rows.id) != _NO_MORE or run.handling[1:] != _NO_MORE:
            self.plain = False


@dataclass(slots=True, eq=False)
class Turn:
    """The messages added in one turn of the loop, and the functions to call when they are submitted and stored."""

    groups: list[Group] = field(default_factory=list)
    size: int = 0
    parts: list[Part] = field(default_factory=list)
    """The answers, once the turn is submitted."""
    on_submitted: list[Callable[[Turn], None]] = field(default_factory=list)
    on_stored: list[Callable[[Turn, WherryError | None], None]] = field(default_factory=list)
    """Called with the reason if the journal failed: then nothing of the turn is promised."""

    @property
    def position(self) -> int:
        """Return the position of the journal at which all of the turn is durable."""
        return max((part.position for part in self.parts), default=0)


class Gathering:
    """Gathers the publishes of a turn, submits them and answers their callers."""

    def __init__(self, broker: Target) -> None:
        self._broker = broker
        self._turn = Turn()
        self._open: dict[tuple[str, bool], Group] = {}
        self._scheduled = False
        self._waiting: deque[Turn] = deque()
        self._written: deque[Turn] = deque()
        self._submitting: asyncio.Task[None] | None = None
        self._storing: asyncio.Task[None] | None = None

    @property
    def turn(self) -> Turn:
        """Return the turn that `add` adds to at this moment; it will end, even if nothing more is added."""
        self._schedule()
        return self._turn

    def add(self, topic: str, rows: Rows, handling: Handling, owner: object, *, separable: bool = False) -> Turn:
        """Add rows for a topic to this turn. Persistent and transient messages of a topic keep their order."""
        persistent = handling.persistent
        group = self._open.get((topic, persistent))
        if group is None or group.size + rows.size > BATCH_BYTES_MAX:
            group = self._open[topic, persistent] = Group(topic, persistent)
            self._open.pop((topic, not persistent), None)
            self._turn.groups.append(group)
        group.add(Run(rows, handling, owner, separable))
        self._turn.size += rows.size
        self._schedule()
        return self._turn

    async def publish(self, topic: str, rows: Rows, handling: Handling) -> Published:
        """Add the rows of one call, all of them or none; return when they are stored."""
        answered = asyncio.get_running_loop().create_future()
        turn = self.add(topic, rows, handling, answered)
        self._answer_calls(turn)
        answer, start = await answered
        return _own(answer, start, len(rows))

    async def publish_batch(self, topic: str, messages: Publishable, options: PublishOptions) -> Published:
        """Publish the batch of one call behind the messages that were added before it; return when it is stored."""
        answered = asyncio.get_running_loop().create_future()
        for persistent in (True, False):
            self._open.pop((topic, persistent), None)  # messages that are added later come later
        group = Group(topic, persistent=True, whole=(messages, options))
        group.runs.append(Run(Rows([]), _AS_GIVEN, answered, separable=False))
        self._turn.groups.append(group)
        self._turn.size += TURN_BYTES  # it is large: no sync is waited for
        self._answer_calls(self._turn)
        self._schedule()
        answer, _ = await answered
        return answer

    def _answer_calls(self, turn: Turn) -> None:
        if _answer not in turn.on_stored:
            turn.on_submitted.append(self._answer_stored)
            turn.on_stored.append(_answer)

    def is_open(self, topic: str) -> bool:
        """Return whether messages for a topic were added that are not in it yet."""
        return bool(self._open or self._waiting) and any(
            group.topic == topic for turn in (*self._waiting, self._turn) for group in turn.groups
        )

    async def flush(self) -> None:
        """Wait until everything that was added so far is in its topic, so that a reader finds it there."""
        self._end_turn()
        if not self._waiting:
            return
        submitted = asyncio.get_running_loop().create_future()
        self._waiting[-1].on_submitted.append(lambda _: None if submitted.done() else submitted.set_result(None))
        await asyncio.shield(submitted)

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
        """Return whether the added messages may wait for the sync under way, and for more that arrive meanwhile."""
        turn = self._turn
        return turn.size < TURN_BYTES and all(group.persistent for group in turn.groups)

    def _end_turn(self) -> None:
        turn = self._turn
        if turn.groups or turn.on_submitted or turn.on_stored:
            self._waiting.append(turn)
            self._turn = Turn()
            self._open.clear()
        if self._submitting is None and self._waiting:
            self._submitting = asyncio.get_running_loop().create_task(self._submit_all(), name="wherry gathering")

    async def _submit_all(self) -> None:
        try:
            while self._waiting:
                turn = self._waiting[0]
                await self._submit(turn)
                self._waiting.popleft()
                for call in turn.on_submitted:
                    call(turn)
                self._written.append(turn)
                if self._storing is None:
                    self._storing = asyncio.get_running_loop().create_task(self._store_all())
        finally:
            self._submitting = None

    async def _submit(self, turn: Turn) -> None:
        for group in turn.groups:
            for runs in fitting(self._broker.find_topic(group.topic), group):
                try:
                    turn.parts += await self._publish(group, runs)
                except Exception as fault:  # other callers must not wait for ever, whatever failed
                    _log.exception("publishes failed")
                    turn.parts.append(Part(group.topic, runs, 0, WherryError(f"{type(fault).__name__}: {fault}")))

    async def _publish(self, group: Group, runs: list[Run]) -> list[Part]:
        """Submit runs as one batch; if it is refused, each run alone, and each row of a separable run alone."""
        messages, options = group.whole or (batch_of(runs, plain=group.plain), OPTIONS[group.persistent])
        position, answer = await self._broker.submit(group.topic, messages, options)
        run = runs[0]
        if isinstance(answer, OF_ONE):
            if len(runs) > 1:
                alone = runs
            elif run.separable and len(run.rows) > 1:
                alone = list(run.split(1))
            elif run.separable and run.rows.id is not None and isinstance(answer, DuplicateId | InvalidInput):
                alone = [run._replace(rows=replace(run.rows, id=None))]
            else:
                alone = []
            if alone:
                return [part for each in alone for part in await self._publish(group, [each])]
        if isinstance(answer, WherryError) and run.separable:  # `publish` counts its refusals itself
            self._broker.count_refusal(group.topic, answer)
        return [Part(group.topic, runs, position, answer)]

    async def _store_all(self) -> None:
        try:
            while self._written:
                turn = self._written[0]
                try:
                    await self._broker.stored(turn.position)
                except WherryError as fault:  # the journal failed: nothing of this is promised
                    self._fail(fault)
                    return
                self._written.popleft()
                for call in turn.on_stored:
                    call(turn, None)
                self._end_turn()
        finally:
            self._storing = None

    def _fail(self, fault: WherryError) -> None:
        written = list(self._written)
        self._written.clear()
        for turn in written:
            for call in turn.on_stored:
                call(turn, fault)
        self._end_turn()

    def _answer_stored(self, turn: Turn) -> None:
        """Answer calls that need not wait for the disk, as their messages are transient."""
        for part in turn.parts:
            if self._broker.is_stored(part.position):
                _answer_part(part)


def _answer(turn: Turn, fault: WherryError | None) -> None:
    for part in turn.parts:
        _answer_part(part if fault is None else part._replace(answer=fault))


def _answer_part(part: Part) -> None:
    """Give each call its answer and the row of the batch where its messages begin."""
    start = 0
    for run in part.runs:
        answered = run.owner
        if isinstance(answered, asyncio.Future) and not answered.done():
            if isinstance(part.answer, WherryError):
                answered.set_exception(part.answer)
            else:
                answered.set_result((part.answer, start))
        start += len(run.rows)


def _own(answer: Published, start: int, count: int) -> Published:
    """Return the part of a batch's answer for one call; the last `dead` messages of the batch are dead letters."""
    total = len(answer.offset)
    if count == total:
        return answer
    stop = start + count
    dead = max(0, stop - max(start, total - answer.dead))
    return Published(answer.partition[start:stop], answer.offset[start:stop], dead=dead, durable=answer.durable)


def fitting(config: Topic | None, group: Group) -> list[list[Run]]:
    """Split a group so that a bounded topic can accept it, dropping its oldest messages or refusing some of these."""
    if config is None or group.whole is not None or (config.messages_max is None and config.bytes_max is None):
        return [group.runs]
    step = group.size if config.messages_max is None else config.messages_max
    if config.overflow == "refuse" or (config.bytes_max is not None and group.size > config.bytes_max):
        step = 1  # each alone: those that fit are accepted
    pieces = (each for run in group.runs for each in (run.split(step) if run.separable else (run,)))
    parts: list[list[Run]] = []
    room = 0
    for run in pieces:
        if len(run.rows) > room:
            parts.append([])
            room = step
        parts[-1].append(run)
        room -= len(run.rows)
    return parts


def batch_of(runs: list[Run], *, plain: bool) -> pa.RecordBatch:
    """Make columns of rows, without columns that have no values."""
    columns: dict[str, list[Any]] = {"payload": list(chain.from_iterable(run.rows.payloads for run in runs))}
    counts = None if len(columns["payload"]) == len(runs) else [len(run.rows) for run in runs]
    _add_column(columns, "envelope", [run.rows.envelope for run in runs], counts)
    if not plain:
        for name in ("key", "headers", "id"):
            _add_column(columns, name, [getattr(run.rows, name) for run in runs], counts)
        for at, name in enumerate(("priority", "expires", "due"), 1):
            _add_column(columns, name, [run.handling[at] for run in runs], counts)
    return pa.RecordBatch.from_arrays(
        [pa.array(values, MESSAGE.field(name).type) for name, values in columns.items()], names=list(columns)
    )


def _add_column(columns: dict[str, list[Any]], name: str, values: list[Any], counts: list[int] | None) -> None:
    """Add a column with a value of each run, for each of its rows."""
    if any(value is not None for value in values):
        columns[name] = values if counts is None else list(chain.from_iterable(map(repeat, values, counts)))
