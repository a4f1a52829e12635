"""Scheduled messages on disk, and a broker that is killed while it stores them and while it hands them over.

Work and not time makes the load: a process is killed after so many lines that it wrote, and its clock moves by hand.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

import numpy as np
import numpy.typing as npt
import pytest

import wherry
from tests.integration.schedule_worker import FIRST_MS, PARTS, PULL, SPACING_MS, START_MS, STEPS, due_times


class Life:
    """One process, from its start to its kill; `line` returns what it reports next."""

    def __init__(self, what: str, path: Path, count: int, now_ms: int) -> None:
        command = [sys.executable, "-m", "tests.integration.schedule_worker", what, str(path), str(count), str(now_ms)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE)
        self.memory_kib = 0

    def line(self) -> list[str]:
        """Return the next line, once it is whole; none if the process is gone."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        return line.decode().split() if line.endswith(b"\n") else []

    def rest(self) -> Iterator[list[str]]:
        """Return the whole lines that the process had written before it was killed."""
        while line := self.line():
            yield line

    def kill(self) -> None:
        """Kill the process, and note the most memory that it had."""
        if self.process.returncode is None:
            self.process.kill()
            _, self.process.returncode, usage = os.wait4(self.process.pid, 0)
            self.memory_kib = usage.ru_maxrss


@contextmanager
def life(what: str, path: Path, count: int, now_ms: int = START_MS) -> Iterator[Life]:
    """Start a process, and kill it at the end."""
    found = Life(what, path, count, now_ms)
    try:
        yield found
    finally:
        found.kill()
        assert found.process.stdout is not None
        found.process.stdout.close()


def schedule(path: Path, count: int) -> int:
    """Store all messages; the process is killed half-way, and when it has reported all. Return its memory in KiB."""
    with life("publish", path, count) as first:
        for part in range(PARTS // 2):
            assert first.line() == ["published", str(part)]
    with life("publish", path, count) as second:
        for part in range(PARTS):
            assert second.line() == ["published", str(part)]
        assert second.line() == ["all"]
    return max(first.memory_kib, second.memory_kib)


class Arrivals:
    """Which messages came, judged line by line."""

    def __init__(self, count: int) -> None:
        self.due_ms = due_times(count)
        self.came, self.acked = np.zeros(count, bool), np.zeros(count, bool)
        self.held = self.unsure = np.empty(0, np.int64)
        """Handed over without a confirmed ack: in this life, and at the end of the one before."""
        self.again = 0
        """Messages that came in two lives."""
        self.now_ms = self.next_ms = START_MS
        """What the clock showed when all that was due was taken, and what it shows since."""
        self._step_ms = count // STEPS * SPACING_MS

    def take(self, line: list[str]) -> None:
        """Judge a line: nothing early, nothing after its ack, nothing left when all that is due was taken."""
        if line[0] == "got":
            self._hand_over(np.array(line[1:], np.int64))
        elif line[0] == "acked":
            self.acked[self.held] = True
            self.held = np.empty(0, np.int64)
        else:
            self.now_ms = int(line[1])
            self.next_ms = max(self.now_ms + self._step_ms, FIRST_MS - 1)
            assert self.came[self.due_ms <= self.now_ms].all(), "a message that is due did not come"

    def _hand_over(self, numbers: npt.NDArray[np.int64]) -> None:
        assert self.due_ms[numbers].max() <= self.next_ms, "a message came before its time"
        assert not self.acked[numbers].any(), "a message came again after its ack"
        assert len(np.unique(numbers)) == len(numbers), "a message came twice in one pull"
        twice = numbers[self.came[numbers]]
        assert np.isin(twice, self.unsure).all(), "a message came twice, and no kill was between"
        self.again += len(twice)
        self.came[numbers] = True
        self.held = numbers

    def next_life(self) -> None:
        """Note a kill: whether the messages that were held are acked is not known, so they may come again."""
        self.unsure, self.held = self.held, np.empty(0, np.int64)
        self.next_ms = self.now_ms


def consume(path: Path, arrivals: Arrivals, lines: int) -> int:
    """Take messages until so many lines were reported or all came, and kill; return the memory in KiB."""
    with life("consume", path, len(arrivals.came), arrivals.next_ms) as found:
        while lines > 0 and not arrivals.acked.all():
            line = found.line()
            assert line, "the process ended by itself"
            arrivals.take(line)
            lines -= 1
        found.kill()
        for line in found.rest():
            arrivals.take(line)
    return found.memory_kib


def left(path: Path, now_ms: int) -> int:
    """Return how many messages are on disk and neither settled nor dead."""

    async def main() -> int:
        async with wherry.open(path, clock=wherry.VirtualClock(now_ms)) as broker:
            return broker.subscription_stats("later", "readers").lag

    return asyncio.run(main())


@pytest.mark.rows("A1", "A15", "A16")
@pytest.mark.parametrize("count", [50_000, pytest.param(2_000_000, marks=pytest.mark.long)])
def test_of_messages_scheduled_on_disk_none_is_early_and_each_comes_once_after_kills(tmp_path: Path, count: int):
    """Kill the broker while it stores them, after it has, and while it hands them over."""
    path, arrivals, random, kills = tmp_path / "data", Arrivals(count), Random(7), 2
    lines = STEPS + 2 * max(STEPS, count // PULL)
    began = time.monotonic()
    memory_kib = schedule(path, count)
    stored = time.monotonic()
    assert left(path, START_MS) == count
    while not arrivals.came.all():
        memory_kib = max(memory_kib, consume(path, arrivals, random.randrange(lines // 5, lines // 3)))
        arrivals.next_life()
        kills += 1
    assert left(path, arrivals.now_ms) <= len(arrivals.unsure)
    print(
        f"{count} scheduled, {kills} kills, {arrivals.again} came again without a confirmed ack; stored in"
        f" {stored - began:.0f} s, taken in {time.monotonic() - stored:.0f} s, {memory_kib >> 10} MiB at most"
    )
