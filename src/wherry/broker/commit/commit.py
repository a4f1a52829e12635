"""Group commit: entries that were submitted since the last write are one write and one sync; answers wait for it.

State is changed when an entry is submitted, before it is durable; that is safe because nothing leaves the broker
before its position is durable (`wait`). If the journal fails, the state is discarded with the broker.

Entries are written at the end of the turn. A group is delayed for a moment if all of it can wait (`may_wait`) and no
caller needs it sooner: any entry that cannot wait, and any `wait`, ends the delay.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextvars import copy_context
from functools import partial
from operator import itemgetter
from time import perf_counter
from typing import TYPE_CHECKING, TypeAlias

from wherry.broker.commit.delay import DELAY_S, CommitDelay
from wherry.broker.commit.turn import Phase, Turn
from wherry.journal.engine import Appended, AppendFenced, EntryTooLarge, Writer
from wherry.model import errors
from wherry.model.errors import Closed, WherryError, WriterFailed
from wherry.model.ipc import ByteChunks

if TYPE_CHECKING:
    from wherry.broker.metrics.metrics import Metrics

WhenDurable: TypeAlias = Callable[[WherryError | None], None]
"""Called with None, or with the reason why the journal failed."""

GROUP_BYTES = 8 << 20
"""Most bytes of one write; a larger backlog is written in several."""

AT_ONCE_BYTES_MAX = 4 << 10
"""Most bytes that are written in the thread of the event loop."""

LONE_BYTES_MAX = 1 << 10
"""Most bytes that groups have on average while clients send one message and wait. With more, clients send without
waiting: their next messages are read while another thread writes, and so become larger groups."""

AVERAGE_GROUPS = 16
"""The weight of the past in that average, in groups."""

PENDING_BYTES_MAX = 64 << 20
"""Most bytes submitted and not yet written; beyond it producers wait."""

_PARTS = itemgetter(0)
"""What is written of a pending entry."""


class Committer:
    """Numbers entries, writes them in groups, and wakes callers when a position is durable."""

    def __init__(self, writer: Writer, on_failure: Callable[[WherryError], None], turn: Turn) -> None:
        self._writer, self._turn = writer, turn
        self._on_failure = on_failure
        self._pending: deque[tuple[ByteChunks, int]] = deque()
        self._waiters: list[tuple[int, WhenDurable]] = []
        """What to call when a position is durable."""
        self._is_scheduled = False
        self._task: asyncio.Task[None] | None = None
        self._room: asyncio.Future[None] | None = None
        self._average_bytes = 0.0
        """Bytes of a group, by a running average."""
        self._delay = CommitDelay()
        self._can_wait_to = 0
        """All entries that are not written yet can wait, up to this position."""
        self._has_work: Callable[[], bool] = lambda: False
        """Whether the last client whose entry waits has messages by now, and so would have lost nothing."""
        self._timer: asyncio.TimerHandle | None = None
        """Ends the delay of what is queued."""
        self._context = copy_context()  # of the broker: the task of the caller may end before the delay
        self.pending_bytes = 0
        self.submitted = writer.last
        self.durable = writer.last
        self.failure: WherryError | None = None
        self.closing = False
        self.metrics: Metrics | None = None

    def submit(self, parts: ByteChunks, size: int) -> int:
        """Queue an entry; return its position.

        Queued entries are written together at the end of the turn, or after the sync that is under way. A small
        group is written by the loop itself where the disk is quick: two hand-overs between threads cost more than the
        sync of a fast disk takes.
        """
        self.check()
        self.submitted += 1
        self._pending.append((parts, size))
        self.pending_bytes += size
        self._schedule()
        return self.submitted

    def may_wait(self, position: int, has_work: Callable[[], bool]) -> None:
        """Note that the last entry, at `position`, may be delayed for company; called within the turn that submits it.

        Only for an entry whose callers have nothing to do; they pass `can_wait` to `when_durable`. `has_work` returns
        whether the entry that ended the delay gave them something: else the delay was in vain.
        """
        if max(self._can_wait_to, self.durable) == position - 1:
            self._can_wait_to, self._has_work = position, has_work

    @property
    def is_writing(self) -> bool:
        """Whether an entry that cannot wait is queued, or written by the loop."""
        return self.submitted > self.durable and self._can_wait_to < self.submitted

    def check(self) -> None:
        """Raise the failure of the journal, if it failed."""
        if self.failure is not None:
            raise self.failure
        if self.closing:
            raise Closed("the broker is closing")

    async def wait(self, position: int) -> None:
        """Wait until everything up to `position` is durable."""
        while position > self.durable:
            if self.failure is not None:
                raise self.failure
            self._hurry()
            waiter = asyncio.get_running_loop().create_future()  # its own: this caller can be cancelled alone
            self._waiters.append((position, partial(_wake, waiter)))
            await waiter

    def when_durable(self, position: int, call: WhenDurable, *, can_wait: bool = False) -> None:
        """Call once everything up to `position` is durable, or the journal failed; at once if that is so already.

        `call` must not raise: it runs within the step that ends the sync, before other callers go on. Unless it can
        wait, what is queued is not delayed.
        """
        if position <= self.durable:
            call(None)
        elif self.failure is not None:
            call(self.failure)
        else:
            if not can_wait:
                self._hurry()
            self._waiters.append((position, call))

    def is_full(self) -> bool:
        """Return whether so much is queued that a producer must `wait_for_room`."""
        return self.pending_bytes > PENDING_BYTES_MAX

    async def wait_for_room(self) -> None:
        """Wait until less is queued."""
        while self.is_full():
            self.check()
            if self._room is None:
                self._room = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._room)

    def _schedule(self) -> None:
        if self._task is None and not self._is_scheduled:
            self._is_scheduled = True
            self._turn.at_end(Phase.WRITE, self._write_soon)

    def _hurry(self) -> None:
        """Have what is queued written at the end of this turn: a caller needs it."""
        self._can_wait_to = 0
        if self._timer is not None:
            self._schedule()

    def _is_delayed(self) -> bool:
        """Return whether what is queued waits for company, and begin its delay if need be."""
        if not self._pending or self._can_wait_to < self.submitted or self.closing or not self._writer.syncs:
            return False
        if self._timer is None and self._delay.may_begin():
            self._timer = asyncio.get_running_loop().call_later(DELAY_S, self._delay_is_over, context=self._context)
        return self._timer is not None

    def _delay_is_over(self) -> None:
        self._end_delay(in_vain=True)
        self._can_wait_to = 0
        self._write_soon()

    def _end_delay(self, *, in_vain: bool) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._delay.ended(in_vain=in_vain)

    def _write_soon(self) -> None:
        """Write what is queued: within this call if the writer can, else in a task that waits for the disk."""
        self._is_scheduled = False
        if self._task is not None or self.failure is not None or self._is_delayed():
            return
        if self._timer is not None:
            self._end_delay(in_vain=not self._has_work())
        try:
            while self._pending and self._write_at_once():
                pass
        except BaseException as fault:
            self._fail_by(fault)
        if self._pending and self.failure is None:
            self._task = asyncio.get_running_loop().create_task(self._write_all())

    def _write_at_once(self) -> bool:
        """Write a small group without a hand-over to another thread; return False, with nothing written, if not now."""
        if self.pending_bytes > AT_ONCE_BYTES_MAX or self._average_bytes > LONE_BYTES_MAX:
            return False
        began = perf_counter()
        outcome = self._writer.append_at_once(list(map(_PARTS, self._pending)), self.durable)
        if outcome is None:
            return False
        entries, size = len(self._pending), self.pending_bytes
        self._pending.clear()
        self.pending_bytes = 0
        self._written(outcome.position, perf_counter() - began, entries, size)
        return True

    async def _write_all(self) -> None:
        try:
            while self._pending:
                await self._write_group()
        except BaseException as fault:
            self._fail_by(fault)
        finally:
            self._task = None

    def _fail_by(self, fault: BaseException) -> None:
        self.fail(fault if isinstance(fault, WherryError) else WriterFailed(f"{type(fault).__name__}: {fault}"))
        if not isinstance(fault, WherryError | OSError):
            raise fault

    def _written(self, position: int, seconds: float, entries: int, size: int) -> None:
        if self.metrics is not None:
            self.metrics.synced(seconds, entries, size)
        self._average_bytes += (size - self._average_bytes) / AVERAGE_GROUPS
        self.durable = position
        self._release()

    async def _write_group(self) -> None:
        bodies: list[ByteChunks] = []
        size = 0
        while self._pending and (size == 0 or size + self._pending[0][1] <= GROUP_BYTES):
            parts, length = self._pending.popleft()
            bodies.append(parts)
            size += length
        self.pending_bytes -= size
        began = perf_counter()
        outcome = await self._writer.append(bodies, self.durable)
        if isinstance(outcome, Appended):
            self._written(outcome.position, perf_counter() - began, len(bodies), size)
        elif isinstance(outcome, AppendFenced):
            raise errors.Fenced(f"another owner has written up to position {outcome.actual}")
        elif isinstance(outcome, EntryTooLarge):
            raise WriterFailed(f"an entry above {outcome.bytes_max} bytes reached the journal")
        else:
            raise WriterFailed(f"the journal does not know whether a group was stored: {outcome.why}")

    def _release(self) -> None:
        waiters, self._waiters = self._waiters, []  # before a call changes it
        ready: list[tuple[int, WhenDurable]] = []
        for each in waiters:
            (ready if each[0] <= self.durable else self._waiters).append(each)
        for _, call in ready:
            call(None)
        if self._room is not None and not self.is_full():
            self._room.set_result(None)
            self._room = None

    def fail(self, fault: WherryError) -> None:
        """Stop: calls that wait for a position not yet durable, and all later calls, raise `fault`.

        Only the first fault counts. It is the reason of a failure, or `Closed` after the last write of a clean close.
        """
        if self.failure is not None:
            return
        self.failure = fault
        self._end_delay(in_vain=False)
        waiters, self._waiters = self._waiters, []
        for _, call in waiters:
            call(fault)
        if self._room is not None:
            self._room.set_result(None)
            self._room = None
        self._on_failure(fault)

    async def close(self) -> None:
        """Write what is queued, then refuse everything. Nothing new is accepted once `closing` is set."""
        self.closing = True
        self._write_soon()
        while self._task is not None and self.failure is None:
            await asyncio.shield(self._task)
        self.fail(Closed("the broker is closed"))


def _wake(waiter: asyncio.Future[None], _: WherryError | None) -> None:
    if not waiter.done():
        waiter.set_result(None)
