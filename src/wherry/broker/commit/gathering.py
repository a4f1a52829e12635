"""Submits publishes of one turn of the event loop together: a batch and an entry for each topic, and one sync.

    add … add … │ end of the turn │ submit: in the topics ──► stored: on disk ──► answers
                                    in order, one submission after the other

Every wire adds here, and so does `Broker.publish` with a single message. Submissions follow one after the other, so a
topic keeps the order in which messages arrived. While a sync is under way, messages are gathered until the sync ends:
they could not be on disk sooner, and one large batch costs less than many small ones.

A caller's messages stand or fall by themselves: when the broker refuses a batch of several callers, each caller's
messages are submitted again alone.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from wherry.broker.commit.batches import AnsweredRuns, CallerRows, Submittable, TopicBatch, fitting
from wherry.broker.commit.turn import Phase, Turn
from wherry.model.calls.publish import Published, PublishOptions
from wherry.model.calls.rows import BARE, Handling, Rows
from wherry.model.catalog.topic import Topic
from wherry.model.errors import DiskFull, DuplicateId, InvalidInput, LimitReached, TooLarge, WherryError
from wherry.model.schema import Publishable

BATCH_BYTES_MAX = 8 << 20
"""Most bytes of one batch: each has to fit one entry of the journal."""

PATIENT_BYTES_MAX = 64 << 10
"""Most bytes gathered while a sync is under way; with more they are submitted at once, ready for the next sync."""

MAY_BE_OF_ONE_CALL = (InvalidInput, DuplicateId, LimitReached, TooLarge, DiskFull)
"""Refusals of a batch that may be caused by some of its messages: the others may be accepted alone."""

_log = logging.getLogger("wherry.publish")


class SubmitPort(Protocol):
    """The calls of a broker that gathering needs."""

    def find_topic(self, name: str) -> Topic | None: ...

    async def submit(
        self, topic: str, messages: Submittable, options: PublishOptions
    ) -> tuple[int, Published | WherryError]: ...

    def submit_at_once(
        self, topic: str, messages: Submittable, options: PublishOptions
    ) -> tuple[int, Published | WherryError] | None: ...

    def count_refusal(self, topic: str, fault: WherryError) -> None: ...

    def is_stored(self, position: int) -> bool: ...

    def when_stored(self, position: int, call: Callable[[WherryError | None], None]) -> None: ...

    def publish_lone(self, topic: str, payload: bytes) -> tuple[int, int] | None: ...


class Written(Protocol):
    """What is in its topics and not durable yet."""

    @property
    def position(self) -> int:
        """The position of the journal at which all of it is durable."""

    def report(self, fault: WherryError | None) -> None:
        """Answer the callers: it is stored, or the journal failed."""


class LonePublish(Protocol):
    """A publish of one payload without options, which may be the only one of its turn."""

    topic: str
    payload: bytes

    def gather(self) -> None:
        """Add the message to the gathering as rows: it has company, or its topic needs more than the planned way."""

    def placed(self, position: int, offset: int) -> Written:
        """Note where the message is, in partition 0; return what answers its caller."""

    def refused(self, fault: WherryError) -> None:
        """Answer the caller: the message cannot be published."""


@dataclass(slots=True, eq=False)
class Submission:
    """Messages that are submitted together, and the functions to call when they are submitted and stored.

    They were added in one turn of the loop, or in several during a sync.
    """

    batches: deque[TopicBatch] = field(default_factory=deque)
    """The batches that are not submitted yet."""
    size: int = 0
    parts: list[AnsweredRuns] = field(default_factory=list)
    """The answers of the broker, once all batches are submitted."""
    on_submitted: list[Callable[[Submission], None]] = field(default_factory=list)
    on_stored: list[Callable[[Submission, WherryError | None], None]] = field(default_factory=list)
    """Called with the reason if the journal failed: then none of the messages is promised to be stored."""

    @property
    def position(self) -> int:
        """Return the position of the journal at which all messages are durable."""
        parts = self.parts
        return parts[0].position if len(parts) == 1 else max((part.position for part in parts), default=0)

    def report(self, fault: WherryError | None) -> None:
        """See `Written`."""
        _call_all(self.on_stored, self, fault)


class Gathering:
    """Gathers publishes, submits them together and answers their callers."""

    def __init__(self, broker: SubmitPort, turn: Turn) -> None:
        self._broker, self._turn = broker, turn
        self._filling = Submission()
        self._open: dict[tuple[str, bool], TopicBatch] = {}
        self._scheduled = False
        self._waiting: deque[Submission] = deque()
        """Closed submissions that are not in their topics yet."""
        self._written: deque[Written] = deque()
        """Submissions that are in their topics and not durable yet."""
        self._lone: LonePublish | None = None
        """The only publish of this turn so far."""
        self._is_submitting = False
        self._task: asyncio.Task[None] | None = None
        self._failure: WherryError | None = None
        """Why the journal failed. Nothing is reported as stored after it."""

    @property
    def open_submission(self) -> Submission:
        """Return the submission that `add` adds to now; it is submitted even if nothing more is added."""
        self._join_lone()
        self._schedule()
        return self._filling

    def add(self, topic: str, rows: Rows, handling: Handling, owner: object, *, separable: bool = False) -> Submission:
        """Add rows for a topic to the open submission. Persistent and transient rows of a topic keep their order."""
        if self._lone is not None:
            self._join_lone()
        persistent = handling.persistent
        batch = self._open.get((topic, persistent))
        if batch is None or batch.size + rows.size > BATCH_BYTES_MAX:
            batch = self._open[topic, persistent] = TopicBatch(topic, persistent)
            self._open.pop((topic, not persistent), None)
            self._filling.batches.append(batch)
        batch.add(CallerRows(rows, handling, owner, separable))
        self._filling.size += rows.size
        self._schedule()
        return self._filling

    async def publish(self, topic: str, rows: Rows, handling: Handling) -> Published:
        """Add the rows of one call, all of them or none; return when they are stored."""
        answered = asyncio.get_running_loop().create_future()
        submission = self.add(topic, rows, handling, answered)
        self._answer_calls(submission)
        answer, start = await answered
        return _answer_of_call(answer, start, len(rows))

    async def publish_batch(self, topic: str, messages: Publishable, options: PublishOptions) -> Published:
        """Publish the batch of one call behind the messages that were added before it; return when it is stored."""
        answered = asyncio.get_running_loop().create_future()
        self._answer_calls(self.add_batch(topic, messages, options, answered))
        answer, _ = await answered
        return answer

    def add_batch(self, topic: str, messages: Publishable, options: PublishOptions, owner: object) -> Submission:
        """Add the batch of one call to the open submission, behind the messages that were added before it.

        Its run has no rows: the whole answer is that of its owner.
        """
        self._join_lone()
        for persistent in (True, False):
            self._open.pop((topic, persistent), None)  # messages that are added later come later
        batch = TopicBatch(topic, persistent=True, whole=(messages, options))
        batch.runs.append(CallerRows(Rows([]), BARE[True], owner, separable=False))
        self._filling.batches.append(batch)
        self._filling.size += PATIENT_BYTES_MAX  # the batch is large: it does not wait for a sync
        self._schedule()
        return self._filling

    def _answer_calls(self, submission: Submission) -> None:
        if _answer not in submission.on_stored:
            submission.on_submitted.append(self._answer_stored)
            submission.on_stored.append(_answer)

    def is_open(self, topic: str) -> bool:
        """Return whether messages for a topic were added that are not in it yet."""
        self._join_lone()
        return bool(self._filling.batches or self._waiting) and any(
            batch.topic == topic for each in (*self._waiting, self._filling) for batch in each.batches
        )

    async def flush(self) -> None:
        """Wait until everything that was added so far is in its topic, so that a reader finds it there."""
        self._close_submission()
        if not self._waiting:
            return
        submitted = asyncio.get_running_loop().create_future()
        self._waiting[-1].on_submitted.append(lambda _: None if submitted.done() else submitted.set_result(None))
        await asyncio.shield(submitted)

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._turn.at_end(Phase.SUBMIT, self._at_end_of_turn)

    def add_lone(self, lone: LonePublish) -> bool:
        """Take a publish that is the first since all others were stored; return False if it is not, or has company.

        While it has no company it needs no batch and no submission: at the end of the turn it goes the planned way.
        """
        if self._scheduled or self._waiting or self._written:
            return False
        self._lone = lone
        self._schedule()
        return True

    def _join_lone(self) -> None:
        """Gather the lone publish, if there is one: whatever is added now comes behind it."""
        lone, self._lone = self._lone, None
        if lone is not None:
            lone.gather()

    def _publish_lone(self, lone: LonePublish) -> bool:
        """Publish by the planned way; return False, with nothing published, if that is not open to this message."""
        try:
            placed = self._broker.publish_lone(lone.topic, lone.payload)
        except WherryError:  # with nothing written: the general way finds the same reason
            return False
        except Exception as fault:  # not tried again: the message may be in the topic
            _log.error("a publish failed", exc_info=fault)
            self._lone = None
            _call_all((lone.refused,), _as_bug(fault))
            return True
        if placed is None:
            return False
        self._lone = None
        self._written.append(lone.placed(*placed))
        self._broker.when_stored(placed[0], self._at_end_of_sync)
        return True

    def _at_end_of_turn(self) -> None:
        try:
            if self._lone is not None and self._publish_lone(self._lone):
                return
            self._join_lone()
        finally:
            self._scheduled = False  # not before: what a lone publish adds is of this turn
        if self._written and self._is_patient():
            return
        self._close_submission()

    def _is_patient(self) -> bool:
        """Return whether the added messages may wait for the sync under way, and for more that arrive meanwhile."""
        submission = self._filling
        return submission.size < PATIENT_BYTES_MAX and all(batch.persistent for batch in submission.batches)

    def _close_submission(self) -> None:
        self._join_lone()
        submission = self._filling
        if submission.batches or submission.on_submitted or submission.on_stored:
            self._waiting.append(submission)
            self._filling = Submission()
            self._open.clear()
        if self._is_submitting or not self._waiting:  # it may be called from within `_submit_at_once`
            return
        self._is_submitting = True
        if self._submit_at_once():
            self._is_submitting = False
        else:
            self._task = asyncio.get_running_loop().create_task(self._submit_all(), name="wherry gathering")

    def _submit_at_once(self) -> bool:
        """Submit without a task, whose price a lone message would pay; return whether everything is submitted.

        Stops at a batch that has to wait for something, or has to be split.
        """
        while self._waiting:
            submission = self._waiting[0]
            while submission.batches:
                part = self._publish_at_once(submission.batches[0])
                if part is None:
                    return False
                submission.parts.append(part)
                submission.batches.popleft()
            self._after_submit()
        return True

    async def _submit_all(self) -> None:
        try:
            while self._waiting:
                submission = self._waiting[0]
                while submission.batches:
                    batch = submission.batches[0]
                    for runs in fitting(self._broker.find_topic(batch.topic), batch):
                        try:
                            submission.parts += await self._publish(batch, runs)
                        except Exception as fault:
                            submission.parts.append(_failed(batch.topic, runs, fault))
                    submission.batches.popleft()
                self._after_submit()
        finally:
            self._is_submitting = False

    def _after_submit(self) -> None:
        submission = self._waiting.popleft()
        _call_all(submission.on_submitted, submission)
        self._written.append(submission)
        if len(self._written) == 1:
            self._wait_for_disk()

    def _publish_at_once(self, batch: TopicBatch) -> AnsweredRuns | None:
        config = self._broker.find_topic(batch.topic)
        if config is not None and config.is_bounded and fitting(config, batch) != [batch.runs]:
            return None
        try:
            done = self._broker.submit_at_once(batch.topic, *batch.content(batch.runs))
        except Exception as fault:  # not tried again: the messages may be in the topic
            return _failed(batch.topic, batch.runs, fault)
        if done is None or _parted(batch.runs, done[1]):
            return None
        return self._answered(batch.topic, batch.runs, *done)

    async def _publish(self, batch: TopicBatch, runs: list[CallerRows]) -> list[AnsweredRuns]:
        """Submit runs as one batch; if it is refused, each run alone, and each row of a separable run alone."""
        position, answer = await self._broker.submit(batch.topic, *batch.content(runs))
        alone = _parted(runs, answer)
        if alone:
            return [part for each in alone for part in await self._publish(batch, [each])]
        return [self._answered(batch.topic, runs, position, answer)]

    def _answered(
        self, topic: str, runs: list[CallerRows], position: int, answer: Published | WherryError
    ) -> AnsweredRuns:
        if isinstance(answer, WherryError) and runs[0].separable:  # `publish` counts its refusals itself
            self._broker.count_refusal(topic, answer)
        return AnsweredRuns(topic, runs, position, answer)

    def _wait_for_disk(self) -> None:
        """Report what is stored, in the order of submission; come back when the next submission is stored."""
        while self._written and (self._failure is not None or self._broker.is_stored(self._written[0].position)):
            self._report()
        if self._written:
            self._broker.when_stored(self._written[0].position, self._at_end_of_sync)

    def _at_end_of_sync(self, fault: WherryError | None) -> None:
        self._failure = self._failure or fault
        self._report()
        self._wait_for_disk()
        self._close_submission()

    def _report(self) -> None:
        """Report the first submission that was written: stored, or failed with the journal."""
        self._written.popleft().report(self._failure)

    def _answer_stored(self, submission: Submission) -> None:
        """Answer calls that need not wait for the disk, as their messages are transient."""
        for part in submission.parts:
            if self._broker.is_stored(part.position):
                _answer_part(part)


def _call_all(calls: Sequence[Callable[..., None]], *arguments: object) -> None:
    """Call each; one that raises must not keep the others, or the journal, from going on."""
    for call in calls:
        try:
            call(*arguments)
        except Exception:
            _log.exception("publishes could not be answered")


def _failed(topic: str, runs: list[CallerRows], fault: Exception) -> AnsweredRuns:
    """Return the answer to runs whose publish failed by a bug: their callers must not wait for ever."""
    _log.error("publishes failed", exc_info=fault)
    return AnsweredRuns(topic, runs, 0, _as_bug(fault))


def _as_bug(fault: Exception) -> WherryError:
    return WherryError(f"{type(fault).__name__}: {fault}")


def _parted(runs: list[CallerRows], answer: Published | WherryError) -> list[CallerRows]:
    """Return runs to submit one by one after a refusal that may concern some messages only; else nothing."""
    run = runs[0]
    if not isinstance(answer, MAY_BE_OF_ONE_CALL):
        return []
    if len(runs) > 1:
        return runs
    if run.separable and len(run.rows) > 1:
        return list(run.split(1))
    if run.separable and run.rows.id is not None and isinstance(answer, DuplicateId | InvalidInput):
        return [run._replace(rows=run.rows.without_id())]
    return []


def _answer(submission: Submission, fault: WherryError | None) -> None:
    for part in submission.parts:
        _answer_part(part if fault is None else part._replace(answer=fault))


def _answer_part(part: AnsweredRuns) -> None:
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


def _answer_of_call(answer: Published, start: int, count: int) -> Published:
    """Return the part of a batch's answer for one call; the last `dead` messages of the batch are dead letters."""
    total = len(answer)
    if count == total:
        return answer
    stop = start + count
    return answer.part(start, stop, dead=max(0, stop - max(start, total - answer.dead)))
