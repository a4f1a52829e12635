"""Ranges of whole numbers: what a load may read of partitions, offsets and times. Pure arithmetic."""

from __future__ import annotations

from typing import NamedTuple


class NumberRange(NamedTuple):
    """The whole numbers from `low` to `high`, both included; None is no bound."""

    low: int | None = None
    high: int | None = None

    def both(self, other: NumberRange) -> NumberRange:
        """Return the numbers that are in this range and in the other."""
        lows = [low for low in (self.low, other.low) if low is not None]
        highs = [high for high in (self.high, other.high) if high is not None]
        return NumberRange(max(lows, default=None), min(highs, default=None))

    def either(self, other: NumberRange) -> NumberRange:
        """Return the smallest range with the numbers of this one and of the other."""
        low = None if self.low is None or other.low is None else min(self.low, other.low)
        high = None if self.high is None or other.high is None else max(self.high, other.high)
        return NumberRange(low, high)

    def clip(self, start: int, stop: int) -> tuple[int, int]:
        """Return the part of `start..stop`, its end not included, that is in this range.

        Examples
        --------
        >>> NumberRange(3, 5).clip(0, 10), NumberRange(high=5).clip(7, 10)
        ((3, 6), (7, 7))
        """
        low = start if self.low is None else max(start, self.low)
        return low, max(low, stop if self.high is None else min(stop, self.high + 1))
