"""In which partitions a subscription may have messages to lease: a pull tries no others."""

from __future__ import annotations

from bisect import bisect_left

from wherry.core.index.times import Times


class NonEmpty:
    """Partitions that may have a message to lease, ascending; and times at which others will.

    Whatever gives a reader messages must `add` its partition. A partition too many costs one try, one too few loses
    messages.
    """

    __slots__ = ("_numbers", "times")

    def __init__(self) -> None:
        self._numbers: list[int] = []
        self.times: Times[int] = Times()
        """A time no later than that at which a delayed message may be leased, by partition."""

    def __len__(self) -> int:
        return len(self._numbers)

    def __contains__(self, number: int) -> bool:
        index = bisect_left(self._numbers, number)
        return index < len(self._numbers) and self._numbers[index] == number

    def numbers(self) -> list[int]:
        """Return all of these partitions, ascending."""
        return self._numbers.copy()

    def add(self, number: int) -> None:
        """Mark a partition: it may have a message to lease."""
        numbers = self._numbers
        index = bisect_left(numbers, number)
        if index == len(numbers) or numbers[index] != number:
            numbers.insert(index, number)

    def remove(self, number: int) -> None:
        """Unmark a partition: it has no message to lease now."""
        numbers = self._numbers
        index = bisect_left(numbers, number)
        if index < len(numbers) and numbers[index] == number:
            del numbers[index]
