"""The clocks of a broker: real ones here, virtual ones in the simulator and in tests."""

from __future__ import annotations

import time
from typing import Protocol

import numpy as np
import numpy.typing as npt


class Clock(Protocol):
    """Time and entropy, passed to every decision."""

    def wall_us(self) -> int:
        """Return Unix time in microseconds; operators may set it back."""

    def steady_ms(self) -> int:
        """Return milliseconds that only ever grow."""

    def entropy(self, count: int) -> npt.NDArray[np.float64]:
        """Return so many random numbers in 0..1."""


class SystemClock:
    """The clocks and the random generator of the machine."""

    def __init__(self) -> None:
        self._random = np.random.default_rng()

    def wall_us(self) -> int:
        """See `Clock`."""
        return time.time_ns() // 1000

    def steady_ms(self) -> int:
        """See `Clock`."""
        return time.monotonic_ns() // 1_000_000

    def entropy(self, count: int) -> npt.NDArray[np.float64]:
        """See `Clock`."""
        return self._random.random(count)
