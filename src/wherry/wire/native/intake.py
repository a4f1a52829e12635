"""Adds what clients publish to the broker's gathering, and confirms it; bounds the bytes that are not stored yet.

The broker submits together what arrives in one turn of the loop, from all wires (`broker/commit/gathering`). When a
submission is stored, each session gets the confirms of its publishes in one go.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from time import perf_counter
from typing import NamedTuple, Protocol

import numpy as np

from wherry.broker.commit.batches import AnsweredRuns
from wherry.broker.commit.gathering import Submission
from wherry.broker.port.port import BrokerPort
from wherry.model.calls.publish import Published, PublishOptions
from wherry.model.calls.rows import Handling, Rows
from wherry.model.errors import WherryError
from wherry.model.schema import Publishable
from wherry.wire.native.codec.publishes import Confirmed

UNSTORED_BYTES_MAX = 64 << 20
"""Bytes of all sessions that are gathered and not durable yet; beyond it no client is read."""


class PublishListener(Protocol):
    """A session, as the intake sees it."""

    def take_stored(self, size: int) -> None:
        """Note that a publish of so many bytes is durable, or refused."""

    def confirm(self, number: int, published: PlacedMessages) -> None:
        """Answer a PUBLISH."""

    def refuse(self, number: int, fault: WherryError) -> None:
        """Answer a request with an error."""


class PlacedMessages(NamedTuple):
    """Where the messages of one PUBLISH are."""

    partition: int
    offset: int
    messages: int
    flags: int
    dead: int = 0
    places: tuple[tuple[int, int, int], ...] = ()
    """`(partition, first offset, messages)`, if the messages are not at consecutive offsets of one partition."""


class PublishOwner(NamedTuple):
    """The PUBLISH that messages of a submission came with."""

    session: PublishListener
    number: int
    quiet: bool
    """Whether the client wants no confirm."""
    size: int
    """Bytes that count against bounds until the messages are stored."""


class LoneRequest:
    """A PUBLISH of one payload without options: the `LonePublish` of the gathering."""

    __slots__ = ("_began", "_broker", "_gather", "_offset", "_owner", "payload", "position", "topic")

    def __init__(
        self, broker: BrokerPort, topic: str, payload: bytes, owner: PublishOwner, gather: Callable[[], None]
    ) -> None:
        self.topic, self.payload = topic, payload
        self._broker, self._owner, self._gather = broker, owner, gather
        self._began = perf_counter()
        self._offset = self.position = 0

    def gather(self) -> None:
        """See `gathering.LonePublish`."""
        self._gather()

    def placed(self, position: int, offset: int) -> LoneRequest:
        """See `gathering.LonePublish`."""
        self.position, self._offset = position, offset
        return self

    def refused(self, fault: WherryError) -> None:
        """See `gathering.LonePublish`."""
        owner = self._owner
        owner.session.take_stored(owner.size)
        self._broker.count_refusal(self.topic, fault)
        owner.session.refuse(owner.number, fault)

    def report(self, fault: WherryError | None) -> None:
        """See `gathering.Written`."""
        if fault is not None:
            self.refused(fault)
            return
        session, number, quiet, size = self._owner
        metrics = self._broker.metrics
        if metrics is not None:
            metrics.publish.observe(perf_counter() - self._began)
        session.take_stored(size)
        if not quiet:
            session.confirm(number, PlacedMessages(0, self._offset, 1, Confirmed.DURABLE))


@dataclass(slots=True, eq=False)
class _AddedPublishes:
    """What sessions added to one submission."""

    began: float
    publishes: int = 0
    unanswered: list[AnsweredRuns] = field(default_factory=list)


class PublishIntake:
    """What all sessions publish."""

    def __init__(self, broker: BrokerPort) -> None:
        self._broker, self._gathering = broker, broker.gathering
        self._added: dict[Submission, _AddedPublishes] = {}
        self.unstored_bytes = 0
        """Bytes of all sessions that are not durable yet."""

    @property
    def is_full(self) -> bool:
        """Whether no session should be read for now."""
        return self.unstored_bytes > UNSTORED_BYTES_MAX

    def add_lone(self, topic: str, payload: bytes, owner: PublishOwner, gather: Callable[[], None]) -> bool:
        """Take a publish that is alone so far; return False if it is not. It calls `gather` when it has company."""
        return self._gathering.add_lone(LoneRequest(self._broker, topic, payload, owner, gather))

    def add_rows(self, topic: str, rows: Rows, handling: Handling, owner: PublishOwner) -> None:
        """Add messages as rows: they become one batch with those of other clients."""
        self._note(self._gathering.add(topic, rows, handling, owner))

    def add_batch(self, topic: str, messages: Publishable, options: PublishOptions, owner: PublishOwner) -> None:
        """Add messages that are a batch of their own."""
        self._note(self._gathering.add_batch(topic, messages, options, owner))

    def _note(self, submission: Submission) -> None:
        added = self._added.get(submission)
        if added is None:
            added = self._added[submission] = _AddedPublishes(perf_counter())
            submission.on_submitted.append(self._submitted)
            submission.on_stored.append(self._stored)
        added.publishes += 1

    def _submitted(self, submission: Submission) -> None:
        """Answer publishes that need not wait for the disk: transient ones."""
        added = self._added[submission]
        for part in submission.parts:
            if self._broker.is_stored(part.position):
                self._answer(part, None)
            else:
                added.unanswered.append(part)

    def _stored(self, submission: Submission, fault: WherryError | None) -> None:
        added = self._added.pop(submission)
        metrics = self._broker.metrics
        if metrics is not None and fault is None:
            metrics.publish.observe(perf_counter() - added.began, added.publishes)
        for part in added.unanswered:
            self._answer(part, fault)

    def _answer(self, part: AnsweredRuns, fault: WherryError | None) -> None:
        """Answer all publishes of sessions in one part; `fault` is that of the journal."""
        answer = fault or part.answer
        start = 0
        for run in part.runs:
            owner, count = run.owner, len(run.rows)
            if type(owner) is PublishOwner:
                owner.session.take_stored(owner.size)
                if isinstance(answer, WherryError):
                    self._broker.count_refusal(part.topic, answer)
                    owner.session.refuse(owner.number, answer)
                elif not owner.quiet:
                    owner.session.confirm(owner.number, placed(answer, start, count or len(answer)))
            start += count


def placed(answer: Published, start: int, count: int) -> PlacedMessages:
    """Return where some of the messages of a batch are; the last `dead` messages of the batch are dead letters."""
    flags = (Confirmed.DURABLE if answer.durable else 0) | (Confirmed.REPEATED if answer.repeated else 0)
    flags |= Confirmed.FLOW if answer.mesh == "flow" else 0
    run = answer.one_run()
    if run is not None and not answer.dead:
        return PlacedMessages(run[0], run[1] + start, count, flags)
    partition, offset, stop = answer.partition, answer.offset, start + count
    dead = max(0, stop - max(start, len(offset) - answer.dead)) if answer.dead else 0
    first = int(partition[start]), int(offset[start])
    if count == 1:
        return PlacedMessages(*first, 1, flags, dead)
    some, many = partition[start:stop], offset[start:stop]
    breaks = np.flatnonzero((np.diff(some) != 0) | (np.diff(many) != 1)) + 1
    if not len(breaks):
        return PlacedMessages(*first, count, flags, dead)
    starts = np.concatenate(([0], breaks))
    counts = np.diff(np.append(starts, count))
    runs = zip(some[starts].tolist(), many[starts].tolist(), counts.tolist(), strict=True)
    return PlacedMessages(*first, count, flags, dead, tuple(runs))
