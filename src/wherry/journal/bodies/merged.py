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
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa

from wherry.model.row_batch import RowBatch
from wherry.model.schema import presence

if TYPE_CHECKING:
    from wherry.journal.bodies.partition import CachedBatch

LEAST = 8
"""From so many parts on (batches, or what batches were merged into) that one pull touches, small parts are merged."""

TOGETHER_MIN = 4
"""Fewer parts are not worth a copy."""

BYTES_MAX = 4 << 20
"""Bytes of batches that one pull merges: some milliseconds of copying. A part of more than half of it is not small."""

MEMBERS_MAX = 4_096
"""Batches that one pull merges: as many single publishes take some milliseconds too."""


class Merged:
    """The messages of several batches of a partition, all with the same columns."""

    __slots__ = ("batch", "live", "members", "size", "total")

    def __init__(self, batch: pa.RecordBatch, members: list[CachedBatch]) -> None:
        self.batch, self.members = batch, members
        self.live = self.total = int(batch.num_rows)
        """Messages of members that are not dropped; messages of all members."""
        self.size = sum(each.size for each in members)
        """Bytes of members that are not dropped."""

    def drop(self, member: CachedBatch) -> None:
        """Note that a member is dropped; merge the others again if its memory would else stay for long."""
        self.live -= member.count
        self.size -= member.size
        if self.live * 2 < self.total:
            merge([each for each in self.members if not each.dropped and each is not member])


class Slice(NamedTuple):
    """Where the messages of a member are. One value, which threads read while the loop merges."""

    merged: Merged
    start: int


def merge_some(parts: Iterable[CachedBatch | Merged]) -> bool:
    """Merge as many small parts as one pull may pay for; return whether there were any."""
    groups: dict[int, list[Part]] = {}
    for each in parts:
        if each.size <= BYTES_MAX // 2:
            part = _part(each)
            groups.setdefault(part.columns, []).append(part)
    room, places, is_done = BYTES_MAX, MEMBERS_MAX, False
    for group in groups.values():
        chosen = _worth(sorted(group, key=attrgetter("size")), room, places)
        if len(chosen) >= TOGETHER_MIN:
            members = [member for part in chosen for member in part.members]
            merge(members)
            room, places = room - sum(part.size for part in chosen), places - len(members)
            is_done = True
    return is_done


def _worth(parts: list[Part], room: int, places: int) -> list[Part]:
    """Return the first of some parts, ascending by size, as many as are worth a copy and fit.

    A large part is not copied for the sake of few small ones. So each message is copied a few times in all, however
    many batches come after it.
    """
    before = count = 0
    for number, part in enumerate(parts):
        room, places = room - part.size, places - len(part.members)
        if room < 0 or places < 0:
            break
        if part.size <= 2 * before:
            count = number + 1
        before += part.size
    return parts[:count]


class Part(NamedTuple):
    """What may be merged: a batch, or what batches were merged into."""

    columns: int
    size: int
    members: list[CachedBatch]


def _part(each: CachedBatch | Merged) -> Part:
    if isinstance(each, Merged):
        return Part(presence(each.batch), each.size, [member for member in each.members if not member.dropped])
    rows = each.rows
    return Part(presence(each.batch) if rows is None else rows.columns, each.size, [each])


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
