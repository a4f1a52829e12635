"""A client that reads a topic as a log, without leases, by positions that it keeps itself over all restarts of brokers.

It works as a stream query does: it asks how far to read, reads that far, saves its position from time to time, and
begins again at the saved position after a fault. It reports to the broker what it has processed, never more than it
saved.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from random import Random

from wherry.broker.broker import Broker
from wherry.model.catalog.topic import Topic
from wherry.model.errors import HistoryLost, WherryError
from wherry.sim.clients.producers import name_of
from wherry.sim.history import LOG, Advanced, LogRead, LogRow, Measured, Missed, Outcome, Positions
from wherry.sim.world.world import LOST, World

ROUNDS_MAX = 2_000


@dataclass
class LogClient:
    """Reads one topic as a log."""

    world: World
    topic: Topic
    random: Random
    position: Positions = field(default_factory=dict)
    noted: Positions = field(default_factory=dict)
    _since: list[LogRead] = field(default_factory=list)
    """Reads since the position was last saved."""

    async def run(self) -> None:
        """Read, save, go back and report at random until the run ends."""
        doings = (self.go_back, self.read_again, self.advance, self.advance, self.measure)
        while not self.world.ending:
            await asyncio.sleep(self.random.uniform(0, 0.3))
            try:
                for _ in range(self.random.choice((0, 1, 3))):
                    await self.step(wait_ms=self.random.choice((0, 100)))
                if self.random.random() < 0.4:
                    self.note()
                if self.random.random() < 0.6:
                    await self.random.choice(doings)()
            except LOST:
                continue
            except WherryError as fault:
                self.world.note("log", str(fault))

    async def watch(self) -> None:
        """Read ahead at random times until the run ends, beside `run`."""
        while not self.world.ending:
            await asyncio.sleep(self.random.expovariate(2))
            try:
                await self.look()
            except LOST:
                continue

    async def step(self, wait_ms: int) -> bool:
        """Ask how far to read, then read everything up to there; return whether there was anything new."""
        start, name, start_at = self.world.now(), self.topic.name, dict(self.position)
        messages_max, bytes_max = self.random.choice((1, 4, 25, 1_000)), self.random.choice((40, 1_200, 100_000))
        try:
            reached = await self.world.call(
                lambda broker: broker.reach(
                    {name: start_at}, messages_max=messages_max, bytes_max=bytes_max, wait_ms=wait_ms
                )
            )
        except HistoryLost as lost:
            self._miss({lost.partition: start_at[lost.partition]}, {lost.partition: lost.first})
            self.position[lost.partition] = lost.first
            return True
        stop_at = reached[name]
        if all(start_at.get(number, 0) == stop for number, stop in stop_at.items()):
            return False
        rows = await self._read(start_at, stop_at)
        read = LogRead(
            "range",
            name,
            start_at,
            stop_at,
            start,
            self.world.now(),
            rows,
            messages_max=messages_max,
            bytes_max=bytes_max,
        )
        self._add(read)
        self._since.append(read)
        self.position = dict(stop_at)
        return True

    async def _read(self, start_at: Positions, stop_at: Positions) -> list[LogRow]:
        """Return everything between two positions; if a part is lost, the rest."""
        rows: list[LogRow] = []
        for number, stop in stop_at.items():
            start = start_at.get(number, 0)
            try:
                rows += await self._read_one(number, start, stop, strict=True)
            except HistoryLost:
                self._miss({number: start}, {number: stop})
                rows += await self._read_one(number, start, stop, strict=False)
        return rows

    async def _read_one(self, number: int, start: int, stop: int | None, *, strict: bool) -> list[LogRow]:
        async def ask(broker: Broker) -> list[LogRow]:
            batches = broker.history(
                self.topic.name, number, start, stop, columns=["partition", "offset", "payload"], strict=strict
            )
            return [
                LogRow(row["partition"], row["offset"], name_of(row["payload"]), len(row["payload"]))
                async for batch in batches
                for row in batch.to_pylist()
            ]

        return await self.world.call(ask)

    def _add(self, read: LogRead) -> None:
        self.world.note(read.kind, read.start_at, read.stop_at, read.rows)
        self.world.history.log_reads.append(read)

    def _miss(self, start_at: Positions, stop_at: Positions) -> None:
        self.world.history.missed.append(Missed(self.topic.name, start_at, stop_at, self.world.now()))

    def note(self) -> None:
        """Save the position: the client never goes back behind it."""
        self.noted, self._since = dict(self.position), []

    async def go_back(self) -> None:
        """Go back to the saved position, and read on from there in other steps."""
        for read in self._since:
            read.kept = False
        self.position, self._since = dict(self.noted), []

    async def read_again(self) -> None:
        """Repeat the reads since the saved position, as after a restart of the reader."""
        for read in self._since:
            start = self.world.now()
            rows = await self._read(read.start_at, read.stop_at)
            times = (start, self.world.now())
            self._add(LogRead("again", self.topic.name, read.start_at, read.stop_at, *times, rows))

    async def look(self) -> None:
        """Read to the end without asking how far, and keep the position."""
        start, begin, end = self.world.now(), dict[int, int](), dict[int, int]()
        rows: list[LogRow] = []
        for number in range(self.world.partitions[self.topic.name]):
            begin[number] = self.position.get(number, 0)
            found = await self._read_one(number, begin[number], None, strict=False)
            end[number] = max((row.offset + 1 for row in found), default=begin[number])
            rows += found
        self._add(LogRead("look", self.topic.name, begin, end, start, self.world.now(), rows))

    async def advance(self) -> None:
        """Report the saved position to the broker."""
        start, positions = self.world.now(), dict(self.noted)
        outcome: Outcome = "ok"
        try:
            await self.world.call(lambda broker: broker.advance(self.topic.name, LOG, positions))
        except (*LOST, WherryError) as fault:  # an advance takes several steps: some of them may have been made
            self.world.note("advance", str(fault))
            outcome = "unknown"
        done = Advanced(self.topic.name, positions, start, self.world.now(), outcome)
        self.world.note("advance", positions, outcome)
        self.world.history.advanced.append(done)

    async def measure(self) -> None:
        """Ask how far behind the subscription is."""
        start, name = self.world.now(), self.topic.name

        async def ask(broker: Broker) -> tuple[int, Positions]:
            (own,) = (each for each in broker.stats(name).subscriptions if each.name == LOG)
            return own.lag, {extent.partition: extent.stop for extent in broker.extents(name)}

        lag, stop_at = await self.world.call(ask)
        self.world.note("lag", lag, stop_at)
        self.world.history.measured.append(Measured(name, start, self.world.now(), lag, stop_at))

    async def finish(self) -> None:
        """Read to the end after the run, and report the final position."""
        for _ in range(ROUNDS_MAX):
            if not await self.step(wait_ms=0):
                break
        else:
            self.world.history.faults.append("log: there is always something more to read")
        await self.read_again()
        self.note()
        await self.measure()
        await self.advance()
        await self.measure()
        stop_at = self.world.history.measured[-1].stop_at
        if any(stop != self.position.get(number, 0) for number, stop in stop_at.items()):
            self.world.history.faults.append(f"log: the reader reached {self.position}, and the log ends at {stop_at}")
