"""Apply a run of publishes in one step, on recovery: entries that each add one batch to a fifo and nothing else.

The result is the same as that of `apply` for one entry after the other. Most of the cost of publishing one message is a
fixed cost for each entry, and a journal may hold hundreds of thousands of such entries.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeAlias

import numpy as np

from wherry.core.state.state import State
from wherry.model import ops
from wherry.model.schema import BIT

Timed: TypeAlias = tuple[int, ops.Publish]
"""When an entry was written, and its only operation."""

_INDEXED = BIT["id"] | BIT["due"] | BIT["expires"]


def is_plain(state: State, found: Sequence[ops.AnyOp]) -> bool:
    """Return whether an entry with these operations can be applied in a run: its batch need not be read."""
    if len(found) != 1 or not isinstance(op := found[0], ops.Publish) or op.dead or op.origin or op.columns & _INDEXED:
        return False
    topic = state.topics.get(op.topic)
    return topic is not None and topic.config.order == "fifo"


def apply_plain(state: State, run: Sequence[Timed]) -> None:
    """Apply plain entries in their order."""
    by_place: dict[tuple[int, int], list[Timed]] = {}
    for timed in run:
        by_place.setdefault((timed[1].topic, timed[1].partition), []).append(timed)
    for members in by_place.values():
        for stretch in _without_gaps(members):
            _add(state, stretch)


def _without_gaps(members: list[Timed]) -> Iterator[list[Timed]]:
    """Yield publishes of a partition in runs without a gap between their offsets."""
    start = 0
    for at in range(1, len(members)):
        before = members[at - 1][1]
        if members[at][1].base != before.base + before.count:
            yield members[start:at]
            start = at
    yield members[start:]


def _add(state: State, stretch: list[Timed]) -> None:
    first = stretch[0][1]
    topic = state.topics[first.topic]
    partition = topic.partition(first.partition)
    rows = np.array([(op.base, op.count, op.bytes, at_us) for at_us, op in stretch], np.int64).T
    count, size = int(rows[1].sum()), int(rows[2].sum())
    partition.skip_to(first.base)
    partition.extend(*rows)
    topic.oldest.note(first.partition, int(rows[3].min()))
    rank = np.arange(first.base, first.base + count, dtype=np.int64)
    for subscription in topic.subscriptions.values():
        state.reader(subscription, first.partition, first.base).admit(first.base, rank, None, 0)
        if subscription.config.buffer_bytes is not None:
            subscription.backlog_bytes += size
    topic.messages += count
    topic.bytes += size
    topic.count("published", count)
