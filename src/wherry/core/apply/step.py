"""The state of applying one entry, and what the shell must do after it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from wherry.core.index.ids import PARTITION_SHIFT
from wherry.core.state import fates
from wherry.core.state.partition import Partition
from wherry.core.state.state import State, TopicState
from wherry.model.calls.fate import WAITING
from wherry.model.row_batch import RowBatch

Int64: TypeAlias = npt.NDArray[np.int64]


class Stored(NamedTuple):
    """A batch that was added to a partition."""

    topic: int
    partition: int
    base: int
    batch: pa.RecordBatch | RowBatch
    published_us: int
    batch_index: int
    """The number of the batch in its entry; not used if `staged` is set."""
    staged: tuple[str, int] | None = None
    """Key of the stage and number of the part, if the batch was staged before."""


@dataclass(slots=True)
class Effects:
    """What the shell has to do after a step: store bodies, drop emptied batches, wake pulls, report outcomes."""

    stored: list[Stored] = field(default_factory=list)
    touched: dict[tuple[int, int], Partition] = field(default_factory=dict)
    maybe_ready: dict[int, None] = field(default_factory=dict)
    """Topics in which a message may have become ready."""
    staged: list[tuple[str, int, int]] = field(default_factory=list)
    """Key, number of the part, and number of the batch in its entry."""
    ended: list[str] = field(default_factory=list)
    """Keys of stages that were committed or aborted."""
    dropped_topics: list[int] = field(default_factory=list)
    maybe_ended: list[tuple[int, int, Int64 | None]] = field(default_factory=list)
    """Topic, partition and offsets (None: any) of messages that may have ended."""
    amended: list[tuple[int, int, int, int]] = field(default_factory=list)
    """Topic, partition, and the offsets of a message and of its replacement."""
    outcomes: list[tuple[int, Int64]] = field(default_factory=list)
    """Topics, and the packed offsets of messages with a new outcome to report."""
    webhooks_changed: list[int] = field(default_factory=list)
    """Subscriptions that got another webhook."""
    buried: list[int] = field(default_factory=list)
    """Topics that have new dead letters."""
    unsubscribed: list[tuple[int, str]] = field(default_factory=list)
    """Subscriptions that were deleted, each with the reason if it was cut off."""


class Step(NamedTuple):
    """One entry that is being applied, operation by operation."""

    state: State
    at_us: int
    volatile: bool
    batches: list[pa.RecordBatch | RowBatch]
    effects: Effects
    total: int

    def next_batch(self) -> tuple[pa.RecordBatch | RowBatch, int]:
        """Return the next batch of the entry, and its number."""
        index = self.total - len(self.batches)
        return self.batches.pop(0), index

    @property
    def now_ms(self) -> int:
        """The time of the entry in Unix milliseconds."""
        return self.at_us // 1000


def release_settled(step: Step, topic: TopicState, partition: Partition, offset: Int64) -> None:
    """Release messages that a durable subscription settled and no other subscription needs."""
    topic.give_back(partition.settled(offset))
    step.effects.touched[topic.number, partition.number] = partition
    check_ended(step, topic, partition, offset)


def check_ended(step: Step, topic: TopicState, partition: Partition, offset: Int64 | None) -> None:
    """Note messages (None: any) that may have ended for waiting calls, and record outcomes of watched messages."""
    step.effects.maybe_ended.append((topic.number, partition.number, offset))
    if len(topic.outbox.watched):
        _record_outcomes(step, topic, partition, offset)


def _record_outcomes(step: Step, topic: TopicState, partition: Partition, offset: Int64 | None) -> None:
    packed = topic.outbox.among(partition.number, offset)
    at = packed & ((1 << PARTITION_SHIFT) - 1)
    fate = fates.ending(partition, at)
    done = fate != WAITING
    packed, at, fate = packed[done], at[done], fate[done]
    if len(packed) == 0:
        return
    outcomes, dropped = topic.outbox.conclude(packed, fate, fates.is_dead(partition, at), step.now_ms)
    if len(outcomes):
        step.effects.outcomes.append((topic.number, outcomes))
        step.state.with_outcomes[topic.number] = None
    if dropped:
        topic.count("outcomes_dropped", dropped)


def put_dead(step: Step, partition: Partition, offset: Int64, reason: str, error: str) -> None:
    """Make messages dead letters of no subscription: they did not fit, or died where there was no subscription."""
    numbers = step.state.text_numbers(reason, error)
    partition.dead.put(
        offset,
        attempts=0,
        first_ms=step.now_ms,
        last_ms=step.now_ms,
        dead_ms=step.now_ms,
        rank=0,
        reason=numbers[0],
        error=numbers[1],
    )


Handler: TypeAlias = Callable[[Step, Any], None]
"""Applies one kind of operation."""
