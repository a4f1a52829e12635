"""Messages in memory that were published as rows, found by a run of offsets without an array."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from wherry.journal.bodies.partition import CachedBatch, PartitionBodies
from wherry.model.row_batch import RowBatch


class RowsAt(NamedTuple):
    """Some consecutive messages of a row batch: from row `at` on."""

    rows: RowBatch
    at: int
    length: int
    published_us: int
    gate: int

    def sizes(self) -> list[int]:
        """Return the content bytes of each message."""
        return self.rows.sizes[self.at : self.at + self.length]


def rows_between(
    batches: Mapping[tuple[int, int, int], CachedBatch],
    bodies: PartitionBodies,
    place: tuple[int, int],
    first: int,
    stop: int,
) -> list[RowsAt] | None:
    """Return the messages of `first..stop` as rows; None unless all of them are in memory as rows.

    `batches` are by topic, partition and base offset: the next messages of a queue mostly begin a batch.
    """
    found: list[RowsAt] = []
    cached = batches.get((*place, first)) or bodies.holder(first)
    while cached is not None and (rows := cached.rows) is not None:
        end = min(stop, cached.base + cached.count)
        found.append(RowsAt(rows, first - cached.base, end - first, cached.published_us, cached.gate))
        if end == stop:
            return found
        first = end
        cached = batches.get((*place, first))
    return None
