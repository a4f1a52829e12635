"""The device under the simulated files: how bad it is, what it remembers, and what a power cut does to it.

Every decision comes from the one `Random` it was given. It never waits: the steps of an operation, with the time they
take, are those of `SimFiles`.
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
    """How bad a disk is: chances from 0 to 1, and durations.

    A step takes `delay_us_min` to `delay_us_max`, small ones more often; with the chance `stalls`, up to
    `stall_ms_max` more. In a crash or a failed sync, a write is kept whole with the chance `keeps`, lost whole with
    the chance `loses`, and torn otherwise; a change of names is kept with the chance `keeps_names`.
    """

    delay_us_min: int = 5
    delay_us_max: int = 5_000
    stalls: float = 0.002
    stall_ms_max: int = 800
    read_fails: float = 0.0
    write_fails: float = 0.0
    sync_fails: float = 0.0
    keeps: float = 0.25
    loses: float = 0.25
    keeps_names: float = 0.5


class Device:
    """What survives a crash. `faults`, `capacity_bytes` and `skip_sync` may be changed while it is in use.

    `skip_sync` plants a bug: syncs answer without making anything durable. A checker that does not notice is broken.
    `events` has the last steps, oldest first; `on_event` is called with each, and `crash` and the like.
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
        """Cut the power: every open generation is dead, and what was not synced is kept, lost or torn."""
        self.note("crash")
        self._end_generation()
        self.names.drop_cache(self.random, self.faults.keeps_names)
        for _path, file in sorted(self.names.durable.items(), key=lambda item: item[0]):
            file.drop_cache(self.random, self.share)

    def kill(self) -> None:
        """End every open generation as kill -9 does: the cache outlives it, so what was not synced can be read."""
        self.note("kill")
        self._end_generation()

    def flip_bit(self, path: str, byte: int, bit: int) -> None:
        """Rot: change one bit of a durable file, 0 being the lowest of its byte."""
        file = self.names.durable[path]
        self.note(f"flip {path} {byte}.{bit}")
        file.durable[byte] ^= 1 << bit
        if byte < len(file.cached):
            file.cached[byte] ^= 1 << bit

    def durable(self, path: str) -> bytes | None:
        """What is on the medium under this name for certain; None where there is no such file."""
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
        """With what chance each sector of one unsynced write lands: 1 is kept, 0 is lost, between is torn."""
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
