"""One entry on its way into the state, and what the shell must do after it."""

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

Int64: TypeAlias = npt.NDArray[np.int64]


class Stored(NamedTuple):
    """A batch that became part of a partition."""

    topic: int
    partition: int
    base: int
    batch: pa.RecordBatch
    published_us: int
    batch_index: int
    """Which batch of the entry it was, or"""
    staged: tuple[str, int] | None = None
    """which part of a stage."""


@dataclass(slots=True)
class Effects:
    """What the shell has to do after a step: keep bodies, look for emptied batches, wake consumers."""

    stored: list[Stored] = field(default_factory=list)
    touched: dict[tuple[int, int], Partition] = field(default_factory=dict)
    maybe_ready: dict[int, None] = field(default_factory=dict)
    """Topics in which something may have become ready."""
    staged: list[tuple[str, int, int]] = field(default_factory=list)
    """Key, number of the part, and which batch of the entry it was."""
    ended: list[str] = field(default_factory=list)
    """Keys of stages that are over."""
    dropped_topics: list[int] = field(default_factory=list)
    maybe_ended: list[tuple[int, int, Int64 | None]] = field(default_factory=list)
    """Topic, partition and offsets (None: any) of messages that may have come to their end."""
    amended: list[tuple[int, int, int, int]] = field(default_factory=list)
    """Topic, partition, and the offsets of a message and of the one that took its place."""
    outcomes: list[tuple[int, Int64]] = field(default_factory=list)
    """Topics, and the places of which there is something to tell."""
    webhooks_changed: list[int] = field(default_factory=list)
    """Subscriptions whose webhook came or changed."""
    buried: list[int] = field(default_factory=list)
    """Topics that have new dead letters."""


class Step(NamedTuple):
    """One entry on its way through the operations."""

    state: State
    at_us: int
    volatile: bool
    batches: list[pa.RecordBatch]
    effects: Effects
    total: int

    def next_batch(self) -> tuple[pa.RecordBatch, int]:
        """The next batch of the entry, and its number."""
        index = self.total - len(self.batches)
        return self.batches.pop(0), index

    @property
    def now_ms(self) -> int:
        """The time of the entry."""
        return self.at_us // 1000


def release_settled(step: Step, topic: TopicState, partition: Partition, offset: Int64) -> None:
    """A durable subscription is done with messages: what nobody else waits for leaves the bounds and the log."""
    topic.give_back(partition.settled(offset))
    step.effects.touched[topic.number, partition.number] = partition
    check_ended(step, topic, partition, offset)


def check_ended(step: Step, topic: TopicState, partition: Partition, offset: Int64 | None) -> None:
    """Messages (None: any) may have come to their end: whoever asked is told."""
    step.effects.maybe_ended.append((topic.number, partition.number, offset))
    if len(topic.outbox.watched):
        _record_outcomes(step, topic, partition, offset)


def _record_outcomes(step: Step, topic: TopicState, partition: Partition, offset: Int64 | None) -> None:
    places = topic.outbox.among(partition.number, offset)
    at = places & ((1 << PARTITION_SHIFT) - 1)
    fate = fates.ending(partition, at)
    done = fate != WAITING
    places, at, fate = places[done], at[done], fate[done]
    if len(places) == 0:
        return
    news, untold = topic.outbox.conclude(places, fate, fates.is_dead(partition, at), step.now_ms)
    if len(news):
        step.effects.outcomes.append((topic.number, news))
        step.state.with_outcomes[topic.number] = None
    if untold:
        topic.count("untold", untold)


def put_dead(step: Step, partition: Partition, offset: Int64, reason: str, error: str) -> None:
    """Messages became dead letters of nobody: they died before there was a subscription to bury them."""
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
"""How one kind of operation moves the state."""
