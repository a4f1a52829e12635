"""Where requested messages are: rows of batches in memory, before anything of them is copied."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from wherry.core.index.offsets import starts
from wherry.journal.bodies import merged
from wherry.model.schema import content_sizes, content_sizes_at

if TYPE_CHECKING:
    from wherry.journal.bodies.merged import Merged
    from wherry.journal.bodies.partition import CachedBatch

Int64: TypeAlias = npt.NDArray[np.int64]


class BatchPiece(NamedTuple):
    """Requested messages of one batch: `at` are their rows in the result, `batch` has only these messages."""

    at: Int64 | slice
    batch: pa.RecordBatch
    published_us: int | Int64
    gate: int


class Place(NamedTuple):
    """Requested messages of one batch: `at` are their rows in the result, `rows` those in the batch (None: all)."""

    at: Int64 | slice
    batch: pa.RecordBatch
    rows: Int64 | None
    published_us: int | Int64
    gate: int

    def piece(self) -> BatchPiece:
        """Return the messages alone."""
        batch, rows = self.batch, self.rows
        if rows is not None:
            batch = batch.slice(int(rows[0]), len(rows)) if is_run(rows) else batch.take(pa.array(rows))
        return BatchPiece(self.at, batch, self.published_us, self.gate)

    def sizes(self) -> Int64:
        """Return the content bytes of each message."""
        return content_sizes(self.batch) if self.rows is None else content_sizes_at(self.batch, self.rows)


def places_in(slots: list[CachedBatch | None], numbers: Int64, offsets: Int64, at: Int64) -> list[Place]:
    """Return where messages are that batches hold; `numbers` are the slots of their batches."""
    if len(numbers) == 0:
        return []
    order = np.argsort(numbers, kind="stable")
    ascending = numbers[order]
    first = starts(ascending)
    batches = [each for slot in ascending[first].tolist() if (each := slots[slot]) is not None]
    counts = np.diff(np.append(first, len(order)))
    return _grouped(batches, counts, order, offsets, at)


def _grouped(batches: list[CachedBatch], counts: Int64, order: Int64, offsets: Int64, at: Int64) -> list[Place]:
    """Return one place for each batch, and for all batches that are merged into one; `order` goes batch by batch."""
    parts = _parts(batches)
    if len(parts) >= merged.LEAST and merged.merge_some(parts):
        parts = _parts(batches)
    numbers = {id(part): number for number, part in enumerate(parts)}
    columns: list[tuple[int, int, int]] = []
    for each in batches:
        own = each.slice
        start, part = (0, each) if own is None else (own.start, own.merged)
        columns.append((each.published_us, start - each.base, numbers[id(part)]))
    published, shift, of_part = (np.repeat(column, counts) for column in np.array(columns, np.int64).T)
    rows = offsets[order] + shift
    if len(parts) == 1:
        back = np.empty_like(order)
        back[order] = np.arange(len(order))
        return [_place(batches, rows[back], published[back], at)]
    return [
        _place(members, rows[mine], published[mine], at[order[mine]])
        for members, mine in zip(parts.values(), _split(of_part), strict=True)
    ]


def _parts(batches: list[CachedBatch]) -> dict[CachedBatch | Merged, list[CachedBatch]]:
    """Return batches by what they were merged into; those that were not, alone."""
    parts: dict[CachedBatch | Merged, list[CachedBatch]] = {}
    for each in batches:
        own = each.slice
        parts.setdefault(each if own is None else own.merged, []).append(each)
    return parts


def _place(batches: list[CachedBatch], rows: Int64, published: Int64, at: Int64) -> Place:
    first = batches[0]
    batch = first.batch if first.slice is None else first.slice.merged.batch
    stamps = first.published_us if len(batches) == 1 else published
    return Place(at, batch, rows, stamps, max(each.gate for each in batches))


def _split(numbers: Int64) -> list[Int64]:
    """Return the positions of each of the numbers 0, 1, … in turn."""
    order = np.argsort(numbers, kind="stable")
    return np.split(order, starts(numbers[order])[1:])


def is_run(rows: Int64) -> bool:
    """Return whether each number is one more than the number before."""
    return len(rows) == 1 or (int(rows[-1]) - int(rows[0]) == len(rows) - 1 and bool((rows[1:] > rows[:-1]).all()))
