"""Weights of numbered things, and one of them drawn in proportion to its weight: both in O(log n), by a Fenwick tree.

Node i (from 1) holds the sum of the weights of the last `i & -i` things up to and with thing i. Whole numbers, so that
a million changes leave no rounding behind.
"""

from __future__ import annotations

from collections.abc import Sequence


class Weights:
    """A list of whole numbers above 0 that can be changed and drawn from."""

    __slots__ = ("_top", "_tree", "_values", "total")

    def __init__(self, values: Sequence[int]) -> None:
        self._values = list(values)
        self.total = sum(values)
        self._tree = [0, *values]
        for at in range(1, len(self._tree)):
            above = at + (at & -at)
            if above < len(self._tree):
                self._tree[above] += self._tree[at]
        self._top = 1 << max(0, len(values).bit_length() - 1)

    def __getitem__(self, at: int) -> int:
        return self._values[at]

    def set(self, at: int, value: int) -> None:
        """Change one weight."""
        change = value - self._values[at]
        if not change:
            return
        self._values[at] = value
        self.total += change
        tree = self._tree
        at += 1
        while at < len(tree):
            tree[at] += change
            at += at & -at

    def draw(self, chance: float) -> int:
        """Return the thing at this part of the sum, for a `chance` from 0 up to and without 1."""
        rest = min(int(chance * self.total), self.total - 1)
        tree = self._tree
        last = len(tree)
        at = 0
        step = self._top
        while step:
            there = at + step
            if there < last and tree[there] <= rest:
                rest -= tree[there]
                at = there
            step >>= 1
        return at
