"""Transactions: publishes and settles put aside under a key until one operation makes all of them visible.

Staged messages are durable. Staged settles are not: they name leases, and a lease does not outlive the process, so
a stage that held settles when the process ended can only be aborted. The keys of committed stages are remembered, so
that a repeated commit is a success that does nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Int64: TypeAlias = npt.NDArray[np.int64]

COMMITTED_MAX = 100_000
"""Committed keys remembered; the oldest is forgotten first."""

STAGES_MAX = 10_000
STAGE_BYTES_MAX = 1 << 30
"""All open stages together: they are held in memory until they are committed."""


class Part(NamedTuple):
    """Messages of one stage for one partition."""

    topic: int
    partition: int
    messages: int
    columns: int
    bytes: int
    batch: pa.RecordBatch


class StagedSettle(NamedTuple):
    """A settle that waits for the commit: the whole lease, or some offsets of it."""

    token: int
    offsets: Int64


@dataclass(slots=True)
class Stage:
    """What lies under one key. `held_settles` is durable; `settles` itself is not."""

    key: str
    opened_ms: int
    parts: list[Part] = field(default_factory=list)
    held_settles: bool = False
    settles: list[StagedSettle] = field(default_factory=list)
    lost: bool = False
    """Whether a restart took settles from it."""

    def bytes(self) -> int:
        """Content bytes put aside."""
        return sum(part.bytes for part in self.parts)


class Stages:
    """Open stages by key, and the keys that were committed."""

    __slots__ = ("committed", "expired", "open")

    def __init__(self) -> None:
        self.open: dict[str, Stage] = {}
        self.expired: dict[str, None] = {}
        """Keys of stages that were not committed in time: what they held is gone, so the key is never good again."""
        self.committed: dict[str, Int64] = {}
        """Key to `topic, partition, base, count` for each part."""

    def bytes(self) -> int:
        """Content bytes of all open stages."""
        return sum(stage.bytes() for stage in self.open.values())

    def remember(self, key: str, placed: Int64) -> None:
        """A key was committed."""
        if len(self.committed) >= COMMITTED_MAX:
            del self.committed[next(iter(self.committed))]
        self.committed[key] = placed

    def forget(self, key: str) -> None:
        """A stage was not committed in time."""
        if len(self.expired) >= COMMITTED_MAX:
            del self.expired[next(iter(self.expired))]
        self.expired[key] = None

    def older_than(self, opened_ms: int) -> list[str]:
        """Keys of stages that were opened at or before a time."""
        return [key for key, stage in self.open.items() if stage.opened_ms <= opened_ms]
