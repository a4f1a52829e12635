"""Reading a topic as a log: by offsets, without leases, from memory and segments alike.

The loop says where messages are, a window at a time (`journal/window`); reading and cutting happens wherever the caller
is. Nothing is shown before it is durable. A reader that keeps its own positions may tell them (`advance`), as a durable
subscription: then its lag is known, and a queue keeps what it has not read.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from pathlib import Path

import pyarrow as pa

from wherry.broker.face import Face
from wherry.core import span
from wherry.core.bodies import Cold, together
from wherry.core.partition import Partition
from wherry.core.span import Budget, Way
from wherry.core.state import TopicState
from wherry.journal.realfiles import RealFiles
from wherry.journal.window import SegmentGone, Window, window
from wherry.model import check, limits
from wherry.model.errors import HistoryLost
from wherry.model.log import BUDGET_MAX, WAIT_MS_MAX, Extent, check_columns
from wherry.model.where import Where

WINDOW = 1 << 18
"""Offsets that are looked up at a time."""

STEP_BYTES = 8 << 20
"""What `history` reads before it hands something over."""

Positions = Mapping[str, Mapping[int, int]]
"""For each topic and partition the offset to read next."""


class Historian(Face):
    """The calls that read topics as logs."""

    def extents(self, topic: str) -> list[Extent]:
        """Which offsets there are of each partition: from `start` up to `stop`, with holes where messages are gone."""
        return span.extents(self.shard.state.topic(topic))

    def offsets_at(self, topic: str, at_ms: int) -> dict[int, int]:
        """For each partition the offset of the first message published at or after a time; its end if there is none."""
        check.integer("at_ms", at_ms, 0, limits.TIME_MS_MAX)
        return span.at_time(self.shard.state.topic(topic), at_ms * 1000)

    async def check_kept(self, topic: str, partition: int, start: int, stop: int) -> None:
        """Raise `HistoryLost` if messages of `start..stop` went that a reader might have wanted."""
        state = self.shard.state.topic(topic)
        found = state.partitions.get(partition)
        if found is not None and start < stop:
            await self._check_kept(state, found, start, min(stop, found.next_offset))

    async def window(self, topic: str, partition: int, start: int, stop: int, *, strict: bool = False) -> Window:
        """Where the messages of the beginning of `start..stop` are; `Window.stop` says how far it goes.

        Its batches can be read in any thread, by `Window.batches` with `read_file`. With `strict`, messages that went
        before they were read are an error, `HistoryLost`; else they are left out.
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
        # What is left out must be gone for good: a crash could bring back what went a moment ago.
        hides = begin > start or view.gone
        await self.shard.committer.wait(self.shard.committer.submitted if hides else view.gate)
        if begin >= end:
            return view
        return view if view.stop < found.next_offset else view._replace(stop=stop)

    @property
    def folder(self) -> Path | None:
        """Where the paths of segments begin, if they are files of this machine."""
        return self.shard.files.root if isinstance(self.shard.files, RealFiles) else None

    def read_file(self, path: str, offset: int, length: int) -> pa.Buffer:
        """Bytes of a segment, for `Window.batches`; waits for the disk, so never call it on the loop."""
        assert self.shard.files is not None
        return self.shard.files.read_blocking(path, offset, length)

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
        """The messages of a partition from `start` up to `stop` (None: what there is now), in batches of columns."""
        names, wanted = check_columns(columns), (where or Where()).checked()
        end = self._end(topic, partition) if stop is None else stop
        at, gone = start, None
        while at < end:
            view = await self.window(topic, partition, at, end, strict=strict)
            view.check_without(gone)
            read = view.batches(self.read_file, names, wanted)
            try:
                while some := await self._compute(read):
                    for batch, reached in some:
                        if batch.num_rows:
                            yield batch
                        at = reached
            except SegmentGone as fault:  # written again since: its messages are somewhere else now
                gone = fault.segment
                continue
            at = view.stop

    async def _compute(self, read: Iterator[tuple[pa.RecordBatch, int]]) -> list[tuple[pa.RecordBatch, int]]:
        """The next few batches of a window; none at its end."""

        def step() -> list[tuple[pa.RecordBatch, int]]:
            some, size = [], 0
            for batch, reached in read:
                some.append((batch, reached))
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
        """How far to read from `start` without going over `messages_max` or `bytes_max`, nor beyond `stop`.

        Where there is nothing new it waits for up to `wait_ms`. A single message that is larger than `bytes_max` is
        read alone. Partitions that a topic has and `start` does not name are read from their beginning. Messages that
        went before they were read are an error, `HistoryLost`.
        """
        check.integer("messages_max", messages_max, 1, BUDGET_MAX)
        check.integer("bytes_max", bytes_max, 1, BUDGET_MAX)
        check.integer("wait_ms", wait_ms, 0, WAIT_MS_MAX)
        until_ms = self.shard.clock.steady_ms() + wait_ms
        while True:
            self.shard.committer.check()
            begin = {topic: await self._from(topic, given) for topic, given in start.items()}
            result = await self._reach(begin, stop, Budget(messages_max, bytes_max))
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

    async def _reach(self, start: Positions, stop: Positions | None, budget: Budget) -> dict[str, dict[int, int]]:
        colds: list[Cold] = []
        while True:
            ways = [way for topic, begin in start.items() for way in self._ways(topic, begin, stop)]
            try:
                ends = span.reach(self.shard.state.bodies, ways, budget)
            except Cold as cold:
                colds = together(colds, cold)
                await self.shard.store.load(*colds)
                continue
            result = {topic: dict(begin) for topic, begin in start.items()}
            for way, end in zip(ways, ends, strict=True):
                result[way.topic.config.name][way.partition.number] = end
            return result

    def _ways(self, topic: str, start: Mapping[int, int], stop: Positions | None) -> list[Way]:
        state = self.shard.state.topic(topic)
        ends = None if stop is None else stop.get(topic, {})
        return [
            Way(state, found, begin, found.next_offset if ends is None else min(found.next_offset, ends.get(number, 0)))
            for number, begin in start.items()
            if (found := state.partitions.get(number)) is not None
        ]

    async def advance(self, topic: str, subscription: str, positions: Mapping[int, int]) -> None:
        """A subscription is done with everything below these offsets; durable on return. Backwards does nothing.

        For readers that keep positions and take no leases: `NotWaiting` while a consumer holds one of the messages.
        """
        state = self.shard.state
        span.check_positions(state.topic(topic), positions)
        while True:
            known = state.subscription(topic, subscription)
            now = self.shard.now()
            self.shard.upkeep(now)
            entries = span.advance(state, known, positions, now.wall_us)
            position = self.shard.commit(entries)
            await self.shard.committer.wait(position or self.shard.committer.submitted)
            if not entries:
                return

    async def _check_kept(self, topic: TopicState, partition: Partition, start: int, stop: int) -> None:
        """`HistoryLost` where something of `start..stop` is, for good: whoever is told so goes on behind it."""
        lost = span.first_lost(partition, start, stop)
        if lost is not None:
            first = max(partition.released.floor, lost + 1)
            await self._all_durable()
            raise HistoryLost(topic.config.name, partition.number, lost, first)

    def _end(self, topic: str, partition: int) -> int:
        found = self.shard.state.topic(topic).partitions.get(partition)
        return 0 if found is None else found.next_offset
