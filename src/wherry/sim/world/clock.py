"""Virtual clocks: the steady clock is that of the loop, the wall clock is set forward and back by faults."""

from __future__ import annotations

import asyncio
from random import Random

import numpy as np
import numpy.typing as npt

EPOCH_US = 1_800_000_000_000_000


class SimClock:
    """Implements the broker's `Clock` in virtual time."""

    def __init__(self, random: Random) -> None:
        self._random = np.random.default_rng(random.getrandbits(64))
        self._jump_us = 0
        self.highest_ms = 0
        """The latest wall time that was ever read: no message due after it may have been delivered."""

    def wall_us(self) -> int:
        """See `Clock`."""
        now_us = EPOCH_US + int(asyncio.get_running_loop().time() * 1e6) + self._jump_us
        self.highest_ms = max(self.highest_ms, now_us // 1000)
        return now_us

    def steady_ms(self) -> int:
        """See `Clock`."""
        return int(asyncio.get_running_loop().time() * 1000)

    def entropy(self, count: int) -> npt.NDArray[np.float64]:
        """See `Clock`."""
        return self._random.random(count)

    def jump(self, by_ms: int) -> None:
        """Set the wall clock forward or back."""
        self._jump_us += by_ms * 1000
