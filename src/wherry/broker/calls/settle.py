"""Settle leases by fencing token, for deliveries in process and for clients of wires.

Acks, nacks and dead letters of one turn of the event loop, from all callers, are one journal entry. Each call succeeds
or fails alone: one that is refused leaves nothing in the entry.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from time import perf_counter
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from wherry.broker.commit.shard import Shard
from wherry.broker.commit.turn import Phase
from wherry.broker.port.consume import Answered
from wherry.core.decide import leasing, settling, staging
from wherry.core.decide.leasing import Now
from wherry.core.decide.settling import Ending, Failure, Rejection
from wherry.core.decide.volatile import separate
from wherry.core.state.bodies import Cold, together
from wherry.core.state.lease import Lease, Rows
from wherry.model import ops
from wherry.model.calls.lease import LeasePart, NamedPart, OffsetRanges, Within
from wherry.model.errors import StaleLease, WherryError
from wherry.model.ops import AnyOp

Int64: TypeAlias = npt.NDArray[np.int64]
HeldPart: TypeAlias = tuple[Lease, Rows | None]
"""A lease and some of its rows, None for all."""

Step: TypeAlias = Callable[[Ending, Lease, Rows | None], list[AnyOp]]
"""Settles one part: returns its operations, and notes in the ending what leaves the lease."""


_log = logging.getLogger("wherry.settle")


@dataclass(slots=True, eq=False)
class _Call:
    """A settle that waits for the end of the turn."""

    parts: Sequence[NamedPart]
    step: Step
    within: Within
    answered: Answered
    applied: Callable[[], None] | None = None
    """Called when the call has changed the state; not if it is refused."""
    began: float = field(default_factory=perf_counter)
    is_answered: bool = False

    def answer(self, fault: BaseException | None) -> None:
        """Report the end of the call, once: a call that was refused may be of a turn whose entry fails then.

        An exception of one caller must not keep others from their answers.
        """
        if self.is_answered:
            return
        self.is_answered = True
        try:
            self.answered(fault)
        except Exception:
            _log.exception("a settle could not be answered")


PURGE_STEP = 65_536
"""Messages that one entry of a purge settles."""


class Settler:
    """Settles parts of leases: all parts of a call or none, durable on return, or when the call is answered."""

    __slots__ = ("_calls", "_shard")

    def __init__(self, shard: Shard) -> None:
        self._shard = shard
        self._calls: list[_Call] = []

    async def ack(self, parts: Sequence[NamedPart], within: Within = None) -> None:
        """Settle messages that are done."""
        await _called_back(lambda answered: self.ack_soon(parts, answered, within))

    async def nack(
        self,
        parts: Sequence[NamedPart],
        delay_ms: int | None,
        error: str,
        within: Within = None,
        applied: Callable[[], None] | None = None,
    ) -> None:
        """Count a failed attempt for messages."""
        await _called_back(lambda answered: self.nack_soon(parts, delay_ms, error, answered, within, applied))

    async def dead_letter(self, parts: Sequence[NamedPart], reason: str, error: str, within: Within = None) -> None:
        """Make messages dead letters at once."""
        await _called_back(lambda answered: self.dead_letter_soon(parts, reason, error, answered, within))

    def ack_soon(self, parts: Sequence[NamedPart], answered: Answered, within: Within = None) -> None:
        """Do as `ack` at the end of this turn, and call back, so that a lone ack needs no task."""
        self._add(_Call(parts, settling.ack, within, answered))

    def nack_soon(
        self,
        parts: Sequence[NamedPart],
        delay_ms: int | None,
        error: str,
        answered: Answered,
        within: Within = None,
        applied: Callable[[], None] | None = None,
    ) -> None:
        """Do as `nack` at the end of this turn, and call back."""
        shard = self._shard
        failure = Failure(error, 0, shard.clock.entropy, delay_ms).checked()

        def step(ending: Ending, lease: Lease, rows: Rows | None) -> list[AnyOp]:
            now = replace(failure, now_ms=shard.now().wall_ms)
            return settling.failed(shard.state, ending, lease, rows, now)

        self._add(_Call(parts, step, within, answered, applied))

    def dead_letter_soon(
        self, parts: Sequence[NamedPart], reason: str, error: str, answered: Answered, within: Within = None
    ) -> None:
        """Do as `dead_letter` at the end of this turn, and call back."""
        state, rejection = self._shard.state, Rejection(reason, error).checked()

        def step(ending: Ending, lease: Lease, rows: Rows | None) -> list[AnyOp]:
            return settling.dead_letter(state, ending, lease, rows, rejection)

        self._add(_Call(parts, step, within, answered))

    def release(self, parts: Sequence[NamedPart], within: Within = None) -> None:
        """Hand messages back: they wait again, no attempt counted."""
        for lease, rows in self._held(parts, within):
            settling.release(self._shard.state, lease, rows)
        self._shard.wake()

    def take_back(self, tokens: Sequence[int]) -> None:
        """Take back messages whose consumer disconnected before it got them; those still on lease wait again."""
        shard = self._shard
        if shard.committer.failure is None:
            for lease in [lease for token in tokens if (lease := shard.state.leases.get(token)) is not None]:
                settling.take_back(shard.state, lease)
            shard.wake()

    def still_held(self, parts: Iterable[LeasePart]) -> list[LeasePart]:
        """Return the parts without messages that are no longer on lease, such as those settled over another wire."""
        found: list[LeasePart] = []
        for token, offsets in parts:
            lease = self._shard.state.leases.get(token)
            if lease is not None:
                kept = lease.offset if offsets is None else offsets[np.isin(offsets, lease.offset)]
                if len(kept):
                    found.append((token, kept))
        return found

    def renew(self, tokens: Sequence[int], lease_ms: int | None, within: Within = None) -> None:
        """Give leases more time, all of them or none."""
        for lease, _ in self._held([(token, None) for token in tokens], within):
            leasing.renew(self._shard.state, lease, lease_ms, self._shard.now())

    async def stage_ack(self, key: str, parts: Sequence[LeasePart], within: Within = None) -> None:
        """Ack when the stage is committed; the leases must still hold then."""
        shard = self._shard
        await shard.admit_settle(1)
        self._held(parts, within)
        position = 0
        for token, offsets in parts:
            entries = staging.stage_settle(shard.state, key, token, offsets, shard.now().wall_us)
            if entries:
                position = shard.commit(entries)
                staging.note_settle(shard.state, key, token, offsets)
        # Another call may have created the stage: its entry must be durable too.
        await shard.committer.wait(position or shard.committer.submitted)

    async def purge(self, topic: str, subscription: str) -> int:
        """Settle what is ready by now, unread; what is published meanwhile stays."""
        shard = self._shard
        partitions = shard.state.subscription(topic, subscription).topic.partitions
        ends = {number: partition.next_offset for number, partition in partitions.items()}
        done, count = 0, -1
        colds: list[Cold] = []
        while count and (step := min(PURGE_STEP, self._ready(topic, subscription))):
            await shard.admit_settle(step)
            now = shard.now()
            shard.upkeep(now, (topic,))
            try:
                steps, count = settling.purge(shard.state.subscription(topic, subscription), ends, step, now.wall_ms)
            except Cold as cold:  # with key order, which message is next depends on keys that are on disk
                colds = together(colds, cold)
                await shard.store.load(*colds)
                continue
            await shard.committer.wait(shard.commit(separate(shard.state, now.wall_us, steps)))
            done += count
        # That nothing is left depends on entries of other callers, which must be durable too.
        await shard.committer.wait(shard.committer.submitted)
        return done

    def _ready(self, topic: str, subscription: str) -> int:
        now_ms = self._shard.now().wall_ms
        readers = self._shard.state.subscription(topic, subscription).readers.values()
        return sum(reader.counts(now_ms, reader.start).ready for reader in readers)

    def _add(self, call: _Call) -> None:
        if not self._calls:
            self._shard.turn.at_end(Phase.SUBMIT, self._end_turn)
        self._calls.append(call)

    def _end_turn(self) -> None:
        calls, self._calls = self._calls, []
        try:
            left = [] if len(calls) == 1 and self._ack_lone(calls[0]) else self._settle_now(calls)
        except Exception as fault:  # the journal failed, or has no space: no call is left waiting
            for call in calls:
                call.answer(fault)
            if not isinstance(fault, WherryError):
                raise
            return
        if left:
            _ = self._shard.keep(self._settle_one_by_one(left))

    def _ack_lone(self, call: _Call) -> bool:
        """Ack a whole lease by the planned way; return False, with nothing changed, if the general way has to decide.

        Then nothing has to be compared with other calls of the turn, or joined with them.
        """
        shard = self._shard
        if call.step is not settling.ack or len(call.parts) != 1:
            return False
        now, (token, offsets) = self._prepare(), call.parts[0]
        lease = shard.state.leases.get(token)
        if lease is None or not _is_whole(lease, offsets) or not shard.admits_settle(len(lease)):
            return False
        subscription = shard.state.subscriptions[lease.subscription]
        if call.within is not None and call.within != (subscription.config.topic, subscription.config.name):
            return False
        position = shard.planned.ack_lease(lease, now.wall_us)
        if position is None:
            return False
        shard.wake()
        self._answer_when_durable([call], [lease], position)
        return True

    def _settle_now(self, calls: list[_Call]) -> list[_Call]:
        """Decide and write calls as one entry; return those that need room on the disk first."""
        shard, ending = self._shard, Ending()
        now = self._prepare()
        steps: list[AnyOp] = []
        decided: list[_Call] = []
        leases: list[Lease] = []
        count = 0
        for call in calls:
            mark, known = ending.mark(), len(steps)
            try:
                held = self._resolved(call.parts, call.within)
                for lease, rows in held:
                    steps += call.step(ending, lease, rows)
            except WherryError as fault:
                ending.undo(mark)
                del steps[known:]
                call.answer(fault)
                continue
            for lease, rows in held:
                count += len(lease if rows is None else rows)
                leases.append(lease)
            decided.append(call)
        if not decided:
            return []
        if not shard.admits_settle(count):
            return decided
        if len(steps) > 1:
            steps = settling.joined_acks(steps)
        position = self._commit(steps, now.wall_us)
        ending.carry_out(shard.state)
        shard.wake()  # buffers have room and keys are free again
        for call in decided:
            if call.applied is not None:
                call.applied()
        self._answer_when_durable(decided, leases, position)
        return []

    def _answer_when_durable(self, calls: list[_Call], leases: list[Lease], position: int) -> None:
        committer, can_wait = self._shard.committer, self._can_wait(calls, leases)
        if can_wait:
            committer.may_wait(position, partial(self._has_messages, leases[-1].subscription))
        committer.when_durable(position, partial(self._durable, calls), can_wait=can_wait)

    def _can_wait(self, calls: list[_Call], leases: list[Lease]) -> bool:
        """Return whether calls are acks of consumers that hold no other message, and for which none waits.

        Then no consumer is slowed down if the answer waits until there are messages again (`commit/delay`).
        """
        subscriptions = self._shard.state.subscriptions
        for call in calls:
            if call.step is not settling.ack:
                return False
        for lease in leases:
            subscription = subscriptions[lease.subscription]
            consumer = subscription.consumers.get(lease.consumer)
            if len(subscription.nonempty) or (consumer is not None and consumer.unsettled_messages):
                return False
        return bool(leases)  # the ack of an empty delivery has none

    def _has_messages(self, number: int) -> bool:
        """Return whether messages wait in a subscription."""
        subscription = self._shard.state.subscriptions.get(number)
        return subscription is not None and bool(len(subscription.nonempty))

    def _commit(self, steps: list[AnyOp], at_us: int) -> int:
        """Write and apply operations as one entry, by the planned way if they are one ack; return its position."""
        op = steps[0] if len(steps) == 1 else None
        if type(op) is ops.Settle and op.outcome == "acked":
            position = self._shard.planned.ack(op, at_us)
            if position is not None:
                return position
        return self._shard.commit(separate(self._shard.state, at_us, steps))

    def _durable(self, calls: list[_Call], fault: WherryError | None) -> None:
        """Answer calls whose entry is on disk, or was lost with the journal."""
        metrics = self._shard.metrics
        for call in calls:
            if metrics is not None and fault is None:
                metrics.settle.observe(perf_counter() - call.began)
            call.answer(fault)

    async def _settle_one_by_one(self, calls: list[_Call]) -> None:
        """Settle calls on a disk that is nearly full: each waits for its own room."""
        for call in calls:
            try:
                while self._settle_now([call]):
                    await self._shard.admit_settle(sum(self._count(part) for part in call.parts))
            except Exception as fault:
                call.answer(fault)
                if not isinstance(fault, WherryError):
                    raise

    def _count(self, part: NamedPart) -> int:
        lease = self._shard.state.leases.get(part[0])
        return len(part[1]) if part[1] is not None else len(lease) if lease is not None else 0

    def _held(self, parts: Sequence[NamedPart], within: Within) -> list[HeldPart]:
        """Return the leases and rows of all parts as they are now, before any is changed."""
        self._prepare()
        return self._resolved(parts, within)

    def _prepare(self) -> Now:
        """End leases whose time is over, before anything is decided; return the time. Leased messages do not expire."""
        shard = self._shard
        shard.committer.check()
        now = shard.now()
        shard.upkeep(now, about=())
        return now

    def _resolved(self, parts: Sequence[NamedPart], within: Within) -> list[HeldPart]:
        state = self._shard.state
        number = None if within is None else state.subscription(*within).number
        held: list[HeldPart] = []
        for token, offsets in parts:
            lease = leasing.held_lease(state, token)
            if number is not None and lease.subscription != number:
                raise StaleLease(token, "belongs to another subscription")
            held.append((lease, settling.rows_of(lease, offsets)))
        return held


def _is_whole(lease: Lease, offsets: Int64 | OffsetRanges | None) -> bool:
    """Return whether a call names all messages of a lease over a run, without a look at each."""
    if offsets is None or lease.run is None:
        return lease.run is not None
    return isinstance(offsets, OffsetRanges) and offsets.ranges == [lease.run[:2]]


async def _called_back(begin: Callable[[Answered], None]) -> None:
    """Begin a settle that calls back, and return or raise by what it reports."""
    settled = asyncio.get_running_loop().create_future()

    def answered(fault: BaseException | None) -> None:
        if settled.done():  # the caller was cancelled
            return
        if fault is None:
            settled.set_result(None)
        else:
            settled.set_exception(fault)

    begin(answered)
    await settled
