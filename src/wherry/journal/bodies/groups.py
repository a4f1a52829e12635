"""Batches in memory that move to a segment together, and those of their messages that are still needed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from wherry.journal.bodies.joining import full
from wherry.journal.bodies.partition import CachedBatch
from wherry.journal.bodies.places import BatchPiece

Int64: TypeAlias = npt.NDArray[np.int64]

SEGMENT_BYTES_MAX = 64 << 20
SEGMENT_BATCHES_MAX = 16_384
"""Batches leave memory in one turn of the event loop, at a few microseconds each."""
CHUNK_BYTES = 8 << 20
"""Bytes that are joined at once when a segment is written."""


def groups_of(picked: list[CachedBatch]) -> list[list[CachedBatch]]:
    """Group batches for segments: one partition each, and not too many bytes or batches."""
    by_partition: dict[tuple[int, int], list[CachedBatch]] = {}
    for cached in picked:
        by_partition.setdefault((cached.topic, cached.partition), []).append(cached)
    return [group for batches in by_partition.values() for group in _by_bytes(batches, SEGMENT_BYTES_MAX)]


def _by_bytes(batches: list[CachedBatch], size_max: int) -> list[list[CachedBatch]]:
    groups: list[list[CachedBatch]] = []
    room = 0
    for cached in sorted(batches, key=lambda each: each.base):
        if room < cached.size or not groups or len(groups[-1]) >= SEGMENT_BATCHES_MAX:
            groups.append([])
            room = size_max
        groups[-1].append(cached)
        room -= cached.size
    return groups


def offsets_of(group: list[CachedBatch]) -> Int64:
    """Return every offset of these batches, ascending as the batches are."""
    base, count = np.array([(cached.base, cached.count) for cached in group], np.int64).T
    ends = np.cumsum(count)
    return np.repeat(base - ends + count, count) + np.arange(ends[-1])


def needed_rows(group: list[CachedBatch], kept: Int64, chunk_bytes: int = CHUNK_BYTES) -> Iterator[pa.RecordBatch]:
    """Yield the messages `kept` of these batches as full batches. Runs in a thread: its input is immutable."""
    for chunk in _by_bytes(group, chunk_bytes):
        first = at = int(np.searchsorted(kept, chunk[0].base))
        pieces = []
        for cached in chunk:
            end = at + int(np.searchsorted(kept[at : at + cached.count], cached.base + cached.count))
            if at < end:
                some = (
                    cached.batch.take(pa.array(kept[at:end] - cached.base)) if end - at < cached.count else cached.batch
                )
                pieces.append(BatchPiece(np.arange(at - first, end - first), some, cached.published_us, 0))
            at = end
        if pieces:
            yield full(pieces, kept[first:at])
