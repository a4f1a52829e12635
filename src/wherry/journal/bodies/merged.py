"""Batches in memory that are kept as one, because pulls take a few messages from each of them.

A pull in the order of priorities or due times finds its thousand messages in a hundred batches. Each take of Arrow
costs some microseconds, however few rows it is for. So batches that such a pull touches are merged, once, and later
pulls take from a few large batches. A member is a slice of what it was merged into: nothing is held twice.

The memory of a member that is dropped is free when the others are dropped as well. So those that are left are merged
again when half of the messages are gone.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa

from wherry.model.row_batch import RowBatch
from wherry.model.schema import presence

if TYPE_CHECKING:
    from wherry.journal.bodies.partition import CachedBatch

LEAST = 16
"""So many batches, not merged yet, that one pull touches are merged."""

BYTES_MAX = 8 << 20
"""Bytes of batches that are merged at once, and merged by one pull: some milliseconds of copying."""

MEMBERS_MAX = 4_096
"""Batches that are merged at once: as many single publishes take some milliseconds too."""


class Merged:
    """The messages of several batches of a partition, all with the same columns."""

    __slots__ = ("batch", "live", "members", "total")

    def __init__(self, batch: pa.RecordBatch, members: list[CachedBatch]) -> None:
        self.batch, self.members = batch, members
        self.live = self.total = int(batch.num_rows)
        """Messages of members that are not dropped; messages of all members."""

    def drop(self, member: CachedBatch) -> None:
        """Note that a member is dropped; merge the others again if its memory would else stay for long."""
        self.live -= member.count
        if self.live * 2 < self.total:
            merge([each for each in self.members if not each.dropped and each is not member])


class Slice(NamedTuple):
    """Where the messages of a member are. One value, which threads read while the loop merges."""

    merged: Merged
    start: int


def merge_some(batches: Iterable[CachedBatch]) -> None:
    """Merge as many of these batches as one pull may pay for, if they are many that are not merged."""
    loose = [each for each in batches if each.slice is None and each.size <= BYTES_MAX // 2]
    if len(loose) < LEAST:
        return
    chosen: dict[int, list[CachedBatch]] = {}
    room = BYTES_MAX
    for each in loose[:MEMBERS_MAX]:
        room -= each.size
        if room < 0:
            break
        rows = each.rows
        chosen.setdefault(presence(each.batch) if rows is None else rows.columns, []).append(each)
    for group in chosen.values():
        if len(group) > 1:
            merge(group)


def merge(batches: list[CachedBatch]) -> None:
    """Make batches with the same columns slices of one."""
    if not batches:
        return
    rows = [(each, found) for each in batches if (found := each.rows) is not None]
    columns = [each for each in batches if each.rows is None]
    parts = [each.batch for each in columns]
    if rows:
        parts.insert(0, joined_rows([found for _, found in rows]).batch)
    members = [each for each, _ in rows] + columns
    merged = Merged(pa.concat_batches(parts), members)
    start = 0
    for each in members:
        each.belong_to(merged, start)
        start += each.count


def joined_rows(many: list[RowBatch]) -> RowBatch:
    """Return row batches with the same columns as one."""
    values = {name: list(chain.from_iterable(each.values[name] for each in many)) for name in many[0].values}
    return RowBatch(many[0].columns, values, list(chain.from_iterable(each.sizes for each in many)))
