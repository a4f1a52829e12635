"""The device under the simulated files: its faults, its durable contents, and the effect of a power cut.

All chance comes from the one `Random` of the device. The device never waits: `SimFiles` has the steps of an operation
and the time that each takes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Final

from wherry.sim.world.medium import DirectoryTree

EVENTS_MAX: Final = 10_000


@dataclass(frozen=True, slots=True)
class DiskFaults:
    """The faults of a disk: chances from 0 to 1, and durations.

    A step takes `delay_us_min` to `delay_us_max`, small ones more often; with the chance `stalls`, up to
    `stall_ms_max` more. With the chance `quick`, a small write is made by the loop itself, in no time. In a crash or a
    failed sync, a write is kept whole with the chance `keeps`, lost whole with the chance `loses`, and torn otherwise;
    a change of names is kept with the chance `keeps_names`.
    """

    delay_us_min: int = 5
    delay_us_max: int = 5_000
    quick: float = 0.0
    stalls: float = 0.002
    stall_ms_max: int = 800
    read_fails: float = 0.0
    write_fails: float = 0.0
    sync_fails: float = 0.0
    keeps: float = 0.25
    loses: float = 0.25
    keeps_names: float = 0.5


class Device:
    """The part of a disk that survives a crash. `faults`, `capacity_bytes` and `skip_sync` may be changed at any time.

    `skip_sync` plants a bug: syncs return without making anything durable. A checker must notice it.
    `events` has the last steps, oldest first; `on_event` is called with each step, crash and kill.
    """

    def __init__(
        self,
        random: Random,
        faults: DiskFaults | None = None,
        *,
        capacity_bytes: int = 1 << 30,
        on_event: Callable[[str], None] | None = None,
    ) -> None:
        self.random = random
        self.faults = faults or DiskFaults()
        self.capacity_bytes = capacity_bytes
        self.skip_sync = False
        self.events: deque[str] = deque(maxlen=EVENTS_MAX)
        self.on_event = on_event
        self.names = DirectoryTree()
        self.generation = 0
        self.owner: object | None = None

    def crash(self) -> None:
        """Cut the power: open generations are dead, and each write that was not synced is kept, lost or torn."""
        self.note("crash")
        self._end_generation()
        self.names.drop_cache(self.random, self.faults.keeps_names)
        for _path, file in sorted(self.names.durable.items(), key=lambda item: item[0]):
            file.drop_cache(self.random, self.share)

    def kill(self) -> None:
        """Kill all open generations as kill -9 does: the cache survives, so writes that were not synced can be read."""
        self.note("kill")
        self._end_generation()

    def flip_bit(self, path: str, byte: int, bit: int) -> None:
        """Flip one bit of a durable file; bit 0 is the lowest of its byte."""
        file = self.names.durable[path]
        self.note(f"flip {path} {byte}.{bit}")
        file.durable[byte] ^= 1 << bit
        if byte < len(file.cached):
            file.cached[byte] ^= 1 << bit

    def durable(self, path: str) -> bytes | None:
        """Return the durable contents of a file; None if there is no such file."""
        file = self.names.durable.get(path)
        return None if file is None else bytes(file.durable)

    def free_bytes(self) -> int:
        return max(0, self.capacity_bytes - sum(file.allocated_bytes for file in self.names.files()))

    def note(self, event: str) -> None:
        self.events.append(event)
        if self.on_event is not None:
            self.on_event(event)

    def chance(self, probability: float) -> bool:
        return probability > 0 and self.random.random() < probability

    def share(self) -> float:
        """Return the chance to keep each sector of an unsynced write: 1 keeps it whole, 0 loses it, others tear it."""
        draw = self.random.random()
        if draw < self.faults.keeps:
            return 1.0
        return 0.0 if draw < self.faults.keeps + self.faults.loses else self.random.random()

    def delay_s(self) -> float:
        faults = self.faults
        doublings = (faults.delay_us_max // faults.delay_us_min).bit_length()
        least_us = faults.delay_us_min << self.random.randrange(doublings)
        delay_us = min(least_us + self.random.randrange(least_us), faults.delay_us_max)
        if self.chance(faults.stalls):
            delay_us += 1_000 * self.random.randint(1, faults.stall_ms_max)
        return delay_us / 1_000_000

    def _end_generation(self) -> None:
        self.generation += 1
        self.owner = None
