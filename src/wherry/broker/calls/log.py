"""Reading a topic as a log: by offsets, without leases, from memory and segments alike.

The event loop returns where messages are, a window at a time (`journal/bodies/window`); the caller's thread reads and
cuts them. No message is shown before it is durable. A reader that keeps its own positions may report them (`advance`)
as a durable subscription: then its lag is known, and a queue keeps what it has not read.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence

import pyarrow as pa

from wherry.broker.calls.calls import BrokerCalls
from wherry.core.decide import span
from wherry.core.decide.span import LogRange, ReadBudget
from wherry.core.state.bodies import Cold, together
from wherry.core.state.partition import Partition
from wherry.core.state.state import TopicState
from wherry.journal.bodies.segments.nearby import Nearby, nearby
from wherry.journal.bodies.segments.segment import Segment
from wherry.journal.bodies.window import SegmentGone, Window, window
from wherry.journal.disk.real_files import RealFiles
from wherry.model import check, limits
from wherry.model.calls.log import (
    BUDGET_MAX,
    WAIT_MS_MAX,
    Extent,
    Positions,
    check_columns,
)
from wherry.model.calls.where import Where
from wherry.model.errors import HistoryLost

WINDOW = 1 << 18
"""Offsets that are looked up at a time."""

STEP_BYTES = 8 << 20
"""What `history` reads before it yields."""


class LogCalls(BrokerCalls):
    """The calls that read topics as logs."""

    def extents(self, topic: str) -> list[Extent]:
        """Return the offsets of each partition: from `start` up to `stop`, with holes where messages are gone."""
        return span.extents(self.shard.state.topic(topic))

    def offsets_at(self, topic: str, at_ms: int) -> dict[int, int]:
        """Return, for each partition, the first offset published at or after a time; its end if there is none."""
        check.integer("at_ms", at_ms, 0, limits.TIME_MS_MAX)
        return span.at_time(self.shard.state.topic(topic), at_ms * 1000)

    async def check_kept(self, topic: str, partition: int, start: int, stop: int) -> None:
        """Raise `HistoryLost` if messages of `start..stop` are gone that a reader might have wanted."""
        state = self.shard.state.topic(topic)
        found = state.partitions.get(partition)
        if found is not None and start < stop:
            await self._check_kept(state, found, start, min(stop, found.next_offset))

    async def window(self, topic: str, partition: int, start: int, stop: int, *, strict: bool = False) -> Window:
        """Return where the first messages of `start..stop` are; `Window.stop` is where the window ends.

        Its batches can be read in any thread, by `Window.batches` with `read_file`. With `strict`, raise `HistoryLost`
        for messages that are gone unread; else leave them out.
        """
        state = self.shard.state.topic(topic)
        check.integer("partition", partition, 0, state.config.partitions - 1)
        check.integer("start", start, 0, limits.OFFSET_MAX)
        check.integer("stop", stop, start, limits.OFFSET_MAX)
        found = state.partitions.get(partition)
        if found is None:
            return Window(partition, start, stop)
        begin = max(start, found.released.floor)
        end = min(stop, found.next_offset, begin + WINDOW)
        if strict:
            await self._check_kept(state, found, start, max(end, min(stop, begin)))
        view = Window(partition, start, stop)
        if begin < end:
            view = window(self.shard.store, state.number, partition, begin, end, found.released.inside(begin, end))
        # A message that is left out must be gone for good: a crash could bring back one that was dropped a moment ago.
        hides = begin > start or view.gone
        await self.shard.committer.wait(self.shard.committer.submitted if hides else view.gate)
        if begin >= end:
            return view
        return view if view.stop < found.next_offset else view._replace(stop=stop)

    async def nearby(self, topic: str, partition: int, start: int, stop: int, *, strict: bool = False) -> Nearby:
        """Return which files hold the beginning of `start..stop`, for a reader on this machine."""
        files = self.shard.files
        folder = files.root if isinstance(files, RealFiles) else None
        found = self.shard.state.topic(topic).partitions.get(partition)
        end = 0 if found is None else found.next_offset
        return nearby(await self.window(topic, partition, start, stop, strict=strict), folder, end)

    def read_file(self, path: str, offset: int, length: int) -> pa.Buffer:
        """Read bytes of a segment, for `Window.batches`; waits for the disk, so never call it on the loop."""
        assert self.shard.files is not None
        return self.shard.files.read_blocking(path, offset, length)

    def read_log(
        self,
        topic: str,
        partition: int,
        start: int,
        stop: int,
        *,
        columns: Sequence[str] | None = None,
        where: Where | None = None,
        strict: bool = False,
    ) -> LogReader:
        """Return a reader of `start..stop`: it looks windows up on the loop, and reads them in any thread."""
        return LogReader(
            self, (topic, partition, strict), start, stop, check_columns(columns), (where or Where()).checked()
        )

    async def history(
        self,
        topic: str,
        partition: int = 0,
        start: int = 0,
        stop: int | None = None,
        *,
        columns: Sequence[str] | None = None,
        where: Where | None = None,
        strict: bool = False,
    ) -> AsyncIterator[pa.RecordBatch]:
        """Yield the messages of a partition from `start` up to `stop` (None: the end as it is now), in batches."""
        end = self.next_offset(topic, partition) if stop is None else stop
        reader = self.read_log(topic, partition, start, end, columns=columns, where=where, strict=strict)
        while not reader.is_done:
            await reader.find_window()
            read = reader.batches()
            while some := await self._compute(read):
                for batch in some:
                    if batch.num_rows:
                        yield batch

    async def _compute(self, read: Iterator[pa.RecordBatch]) -> list[pa.RecordBatch]:
        """Read the next few batches of a window, in a thread; return none at its end."""

        def step() -> list[pa.RecordBatch]:
            some, size = [], 0
            for batch in read:
                some.append(batch)
                size += batch.nbytes
                if size >= STEP_BYTES:
                    break
            return some

        return step() if self.shard.files is None else await self.shard.files.compute(step)

    async def reach(
        self,
        start: Positions,
        *,
        stop: Positions | None = None,
        messages_max: int = BUDGET_MAX,
        bytes_max: int = BUDGET_MAX,
        wait_ms: int = 0,
    ) -> dict[str, dict[int, int]]:
        """Return how far to read from `start` without going over `messages_max` or `bytes_max`, nor beyond `stop`.

        Where there is nothing new, wait for up to `wait_ms`. A single message that is larger than `bytes_max` is read
        alone. Partitions that `start` does not name are read from their beginning. Raise `HistoryLost` for messages
        that are gone unread.
        """
        check.integer("messages_max", messages_max, 1, BUDGET_MAX)
        check.integer("bytes_max", bytes_max, 1, BUDGET_MAX)
        check.integer("wait_ms", wait_ms, 0, WAIT_MS_MAX)
        until_ms = self.shard.clock.steady_ms() + wait_ms
        while True:
            self.shard.committer.check()
            begin = {topic: await self._from(topic, given) for topic, given in start.items()}
            result = await self._reach(begin, stop, ReadBudget(messages_max, bytes_max))
            left_ms = until_ms - self.shard.clock.steady_ms()
            if result != begin or left_ms <= 0:
                await self.shard.committer.wait(self.shard.committer.submitted)
                return result
            await self.shard.arrivals.wait([self.shard.state.topic(topic).number for topic in start], left_ms)

    async def _from(self, topic: str, given: Mapping[int, int]) -> dict[int, int]:
        state = self.shard.state.topic(topic)
        span.check_positions(state, given)
        for number, offset in given.items():
            if (found := state.partitions.get(number)) is not None:
                await self._check_kept(state, found, offset, found.released.floor)
        return {number: given.get(number, 0) for number in range(state.config.partitions)}

    async def _reach(self, start: Positions, stop: Positions | None, budget: ReadBudget) -> dict[str, dict[int, int]]:
        colds: list[Cold] = []
        while True:
            ranges = [wanted for topic, begin in start.items() for wanted in self._ranges(topic, begin, stop)]
            try:
                ends = span.reach(self.shard.state.bodies, ranges, budget)
            except Cold as cold:
                colds = together(colds, cold)
                await self.shard.store.load(*colds)
                continue
            result = {topic: dict(begin) for topic, begin in start.items()}
            for wanted, end in zip(ranges, ends, strict=True):
                result[wanted.topic.config.name][wanted.partition.number] = end
            return result

    def _ranges(self, topic: str, start: Mapping[int, int], stop: Positions | None) -> list[LogRange]:
        state = self.shard.state.topic(topic)
        ends = None if stop is None else stop.get(topic, {})
        return [
            LogRange(
                state, found, begin, found.next_offset if ends is None else min(found.next_offset, ends.get(number, 0))
            )
            for number, begin in start.items()
            if (found := state.partitions.get(number)) is not None
        ]

    def check_positions(self, topic: str, positions: Mapping[int, int]) -> None:
        """Raise `InvalidInput` for a partition that the topic does not have, or an offset that cannot be."""
        span.check_positions(self.shard.state.topic(topic), positions)

    def next_offset(self, topic: str, partition: int) -> int:
        """Return the offset that the next message of a partition will have."""
        return self.shard.state.topic(topic).next_offset(partition)

    async def advance(self, topic: str, subscription: str, positions: Mapping[int, int]) -> None:
        """Settle everything below these offsets for a subscription; durable on return. Backwards does nothing.

        For readers that keep positions and take no leases. Raise `NotWaiting` while a consumer holds one of them.
        """
        state = self.shard.state
        span.check_positions(state.topic(topic), positions)
        while True:
            known = state.subscription(topic, subscription)
            now = self.shard.now()
            self.shard.upkeep(now, (topic,))
            entries = span.advance(state, known, positions, now.wall_us)
            position = self.shard.commit(entries)
            await self.shard.committer.wait(position or self.shard.committer.submitted)
            if not entries:
                return

    async def _check_kept(self, topic: TopicState, partition: Partition, start: int, stop: int) -> None:
        """Raise `HistoryLost` if a message of `start..stop` is gone, once that is durable: the reader will skip it."""
        lost = span.first_lost(partition, start, stop)
        if lost is not None:
            first = max(partition.released.floor, lost + 1)
            await self.stored_so_far()
            raise HistoryLost(topic.config.name, partition.number, lost, first)


class LogReader:
    """Reads a range of a partition: a window is looked up on the loop, its batches are read in any thread."""

    def __init__(
        self, log: LogCalls, place: tuple[str, int, bool], start: int, stop: int, columns: list[str], where: Where
    ) -> None:
        self._log, self._place, self._at, self._stop = log, place, start, stop
        self._columns, self._where = columns, where
        self._view: Window | None = None
        self._gone: Segment | None = None
        """A segment whose file was removed before it was read."""

    @property
    def is_done(self) -> bool:
        """Whether the end of the range is reached."""
        return self._at >= self._stop

    async def find_window(self) -> None:
        """Look up the window of the next messages; call it on the loop."""
        topic, partition, strict = self._place
        self._view = await self._log.window(topic, partition, self._at, self._stop, strict=strict)
        self._view.check_without(self._gone)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the batches of the window, ascending; call `find_window` again afterwards, unless `is_done`.

        A batch has no rows where no message of it is wanted, so that the caller can stop after any of them.
        """
        view = self._view
        assert view is not None
        try:
            for batch, reached in view.batches(self._log.read_file, self._columns, self._where):
                yield batch
                self._at = reached
        except SegmentGone as fault:  # the segment was rewritten: its messages are in another one now
            self._gone = fault.segment
            return
        self._at = view.stop
