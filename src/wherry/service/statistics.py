"""Counts of calls by outcome, and how long they took: a histogram of fixed size. Pure: the seconds come in.

Eight buckets for each doubling of the time, from 1 µs on: a quantile is read with an error of at most 1/8.
"""

from __future__ import annotations

from math import frexp
from typing import Final

from wherry.service.outcomes import CallOutcome

STEPS: Final = 8
"""Buckets for each doubling."""

DOUBLINGS: Final = 32
"""From 1 µs to more than an hour."""

OUTCOMES: Final = tuple(CallOutcome)


class CallStatistics:
    """What became of the calls of one method, and how long those took that were run.

    Examples
    --------
    >>> found = CallStatistics()
    >>> for ms in range(1, 101):
    ...     found.note(CallOutcome.ANSWERED, ms / 1000)
    >>> found.counts()["answered"], 0.045 < found.quantile_s(0.5) < 0.06
    (100, True)
    """

    __slots__ = ("_buckets", "_counts", "_ran")

    def __init__(self) -> None:
        self._counts = dict.fromkeys(OUTCOMES, 0)
        self._buckets = [0] * (STEPS * DOUBLINGS)
        self._ran = 0

    def note(self, outcome: CallOutcome, seconds: float | None) -> None:
        """Count a call; `seconds` is None for one that was not run."""
        self._counts[outcome] += 1
        if seconds is not None:
            part, power = frexp(seconds * 1e6 + 1.0)
            at = (power - 1) * STEPS + int(part * 16) - STEPS
            self._buckets[at if at < STEPS * DOUBLINGS else -1] += 1
            self._ran += 1

    def counts(self) -> dict[str, int]:
        """Return how many calls ended in which way."""
        return {outcome.value: count for outcome, count in self._counts.items()}

    def quantile_s(self, share: float) -> float:
        """Return the time that this share of the calls did not exceed; 0 if none was run."""
        wanted, seen = self._ran * share, 0
        for at, count in enumerate(self._buckets):
            seen += count
            if count and seen >= wanted:
                power, step = divmod(at, STEPS)
                return (2.0**power * (1 + (step + 0.5) / STEPS) - 1.0) / 1e6
        return 0.0
