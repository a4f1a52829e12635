"""Where all bodies are, at one moment: what a checkpoint stores of the store."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from wherry.journal.bodies.partition import CachedBatch, CachedRow
from wherry.journal.bodies.segments.segment import Segment, SegmentImage

Int64: TypeAlias = npt.NDArray[np.int64]


class StoreImage(msgspec.Struct, frozen=True, array_like=True):
    """What a checkpoint stores: the segments, and where in the journal the other bodies are."""

    segments: list[SegmentImage]
    cached: Int64
    """The numbers of all `CachedRow`s, one row after the other."""

    def cached_rows(self) -> list[CachedRow]:
        """Return the batches that are in no segment."""
        return [CachedRow(*row) for row in self.cached.reshape(-1, len(CachedRow._fields)).tolist()]


class StoreSnapshot(NamedTuple):
    """Where all journaled bodies are, at one moment. Immutable, so that a thread can encode it."""

    segments: list[Segment]
    cached: list[CachedBatch]

    def floor(self) -> int | None:
        """Return the lowest journal position that is the only copy of a body, None if there is none."""
        return min((each.position for each in self.cached if each.position), default=None)

    def image(self) -> StoreImage:
        """Return what a checkpoint stores."""
        rows = [each.row() for each in self.cached if each.position]
        return StoreImage([segment.image() for segment in self.segments], np.array(rows, np.int64).ravel())
