"""What a filter with `OR` says: several narrowings, one of which holds for each row that the filter selects. Pure.

The hull of both sides of an `OR` says nothing where they are about different columns: `offset < 10 OR key = 'ann'` has
everything in it. So a few sides are kept apart, and `pieces` cuts a range of offsets where one of them ends: in each
piece fewer of them can hold, and their hull says more.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce
from itertools import pairwise, product
from typing import NamedTuple, TypeAlias

from wherry.model.calls.narrowing import EVERYTHING, WHOLE, Narrowing, both, either

MOST = 8
"""Alternatives that are kept apart; of more than that the hull is taken."""

Alternatives: TypeAlias = tuple[Narrowing, ...]

ANYTHING: Alternatives = (EVERYTHING,)
NOTHING: Alternatives = ()


class Piece(NamedTuple):
    """Offsets `start..stop`, and where the rows can be among them that match."""

    start: int
    stop: int
    wanted: Narrowing
    """Says nothing about partitions and offsets."""


def all_hold(first: Alternatives, second: Alternatives) -> Alternatives:
    """Return where rows are that are in both.

    Examples
    --------
    >>> all_hold(ANYTHING, NOTHING)
    ()
    """
    return _few(both(one, other) for one, other in product(first, second))


def one_holds(first: Alternatives, second: Alternatives) -> Alternatives:
    """Return where rows are that are in one of the two."""
    return _few((*first, *second))


def _few(given: Iterable[Narrowing]) -> Alternatives:
    """Return alternatives without those that are empty or inside another; not too many."""
    found: dict[Narrowing, Narrowing] = {}
    for each in given:
        if each.is_empty:
            continue
        numbers = each._replace(key=None)  # where these are equal, the hull of both has no row more than the two
        found[numbers] = either(found[numbers], each) if numbers in found else each
    kept: list[Narrowing] = []
    for each in found.values():
        if not any(both(each, other) == each for other in kept):
            kept = [*(other for other in kept if both(each, other) != other), each]
    return tuple(kept) if len(kept) <= MOST else (reduce(either, kept),)


def pieces(partition: int, start: int, stop: int, wanted: Alternatives) -> list[Piece]:
    """Return the parts of some offsets of a partition that can have rows that match, ascending."""
    here = [each for each in wanted if each.partition.meets(partition, partition)]
    edges = {edge for each in here for edge in (each.offset.low, each.offset.high + 1) if start < edge < stop}
    found: list[Piece] = []
    for low, high in pairwise(sorted({start, *edges, stop})):
        inside = [each for each in here if each.offset.meets(low, high - 1)]
        if not inside:
            continue
        hull = reduce(either, inside)._replace(offset=WHOLE, partition=WHOLE)
        if found and found[-1].stop == low and found[-1].wanted == hull:
            found[-1] = found[-1]._replace(stop=high)
        else:
            found.append(Piece(low, high, hull))
    return found
