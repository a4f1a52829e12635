"""Split operations into a journaled and a volatile entry.

Operations about transient messages or ephemeral subscriptions are never journaled, because replay knows neither their
offsets nor their subscriptions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from wherry.core.index.offsets import members
from wherry.core.state.state import State
from wherry.model import ops
from wherry.model.ops import AnyOp, Entry, from_ranges, to_ranges

Int64: TypeAlias = npt.NDArray[np.int64]

OF_READERS = (ops.Settle, ops.Fail, ops.Admit)
OF_TOPICS = (ops.Bury, ops.Redrive, ops.Discard, ops.Remove)
RANGED = (ops.Settle, ops.Remove, ops.Admit)
"""Operations that name messages: of a subscription, of a topic; and those that name them by ranges."""

ALIGNED = ("offsets", "ranks", "hashes", "until_ms", "due_ms")
"""Columns of an operation with one value for each message."""


def separate(state: State, at_us: int, steps: Sequence[AnyOp]) -> list[Entry]:
    """Return the operations as a journaled and a volatile entry, without empty ones."""
    lasting: list[AnyOp] = []
    passing: list[AnyOp] = []
    for op in steps:
        for_ever, for_now = _halves(state, op)
        lasting += for_ever
        passing += for_now
    entries = [Entry(at_us, lasting)] if lasting else []
    return [*entries, Entry(at_us, passing, volatile=True)] if passing else entries


def joined(entries: list[Entry]) -> list[Entry]:
    """Merge neighbouring entries that are all journaled or all volatile, so that each run is one atomic entry."""
    result: list[Entry] = []
    for entry in entries:
        if result and result[-1].volatile == entry.volatile:
            last = result[-1]
            result[-1] = Entry(last.at_us, last.ops + entry.ops, last.batches + entry.batches, last.volatile)
        else:
            result.append(entry)
    return result


def _halves(state: State, op: AnyOp) -> tuple[list[AnyOp], list[AnyOp]]:
    number = getattr(op, "subscription", 0)
    if number < 0:
        return [], [op]
    if isinstance(op, OF_READERS):
        topic = state.subscriptions[op.subscription].topic
    elif isinstance(op, OF_TOPICS):
        topic = state.topics[op.topic]
    else:
        return [op], []
    transient = topic.partitions[op.partition].transient
    if not transient:
        return [op], []
    offset = from_ranges(op.ranges) if isinstance(op, RANGED) else op.offsets
    passing = members(transient, offset)
    if not passing.any():
        return [op], []
    # An `Admit` is always journaled: it records how far the backfill came.
    if passing.all() and not isinstance(op, ops.Admit):
        return [], [op]
    return [_part(op, offset, ~passing)], [_part(op, offset, passing)]


def _part(op: AnyOp, offset: Int64, mask: npt.NDArray[np.bool_]) -> AnyOp:
    columns = {name: getattr(op, name) for name in ALIGNED if hasattr(op, name)}
    parted = {name: c[mask] if len(c) else c for name, c in columns.items()}
    if isinstance(op, RANGED):
        parted["ranges"] = to_ranges(offset[mask])
    return msgspec.structs.replace(op, **parted)
