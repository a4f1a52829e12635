"""In which partitions a subscription may find something: a pull looks nowhere else."""

from __future__ import annotations

from bisect import bisect_left

from wherry.core.index.times import Times


class NonEmpty:
    """Partitions in which something may be ready, ascending; the others rest, some of them until a time.

    Whatever gives a reader messages must `stir` its partition. One too many costs a look; one too few loses messages.
    """

    __slots__ = ("_numbers", "times")

    def __init__(self) -> None:
        self._numbers: list[int] = []
        self.times: Times[int] = Times()
        """When a message that waits for a time may be handed out, or earlier."""

    def __len__(self) -> int:
        return len(self._numbers)

    def __contains__(self, number: int) -> bool:
        place = bisect_left(self._numbers, number)
        return place < len(self._numbers) and self._numbers[place] == number

    def numbers(self) -> list[int]:
        """All of them, ascending."""
        return self._numbers.copy()

    def add(self, number: int) -> None:
        """Something may be ready there."""
        if number not in self:
            self._numbers.insert(bisect_left(self._numbers, number), number)

    def remove(self, number: int) -> None:
        """Nothing is ready there."""
        if number in self:
            del self._numbers[bisect_left(self._numbers, number)]
