"""A clock for tests: its time moves only by `advance`, and its random numbers come from a seed."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from wherry.model import check

START_MS = 1_800_000_000_000
"""The first moment of every test: in January 2027."""


class VirtualClock:
    """Implements `wherry.Clock`. Due times, leases, retries and expiry follow it to the millisecond."""

    def __init__(self, start_ms: int = START_MS, seed: int = 0) -> None:
        self._start_ms, self._passed_us = start_ms, 0
        self._random = np.random.default_rng(seed)
        self._moved: list[Callable[[], None]] = []

    @property
    def now_ms(self) -> int:
        """Return Unix milliseconds."""
        return self.wall_us() // 1000

    def wall_us(self) -> int:
        """See `Clock`."""
        return self._start_ms * 1000 + self._passed_us

    def steady_ms(self) -> int:
        """See `Clock`."""
        return self._passed_us // 1000

    def entropy(self, count: int) -> npt.NDArray[np.float64]:
        """See `Clock`."""
        return self._random.random(count)

    def advance(self, seconds: float) -> None:
        """Move the time: what is due by then is done on return, and pulls that wait look again."""
        check.number("seconds", seconds, 0, 1e10)
        self._passed_us += round(seconds * 1e6)
        for moved in self._moved:
            moved()

    def on_move(self, moved: Callable[[], None]) -> None:
        """Register a function that is called each time that the clock has moved."""
        self._moved.append(moved)
