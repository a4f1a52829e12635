"""Transactions: publishes and settles staged under a key until one operation makes all of them visible.

Staged messages are durable. Staged settles are not: they refer to leases, and a restart ends all leases. So a stage
that had settles when the process ended can only be aborted. The keys of committed stages are remembered, so that a
repeated commit succeeds and changes nothing.
"""

from __future__ import annotations

import re
from collections import UserDict, deque
from collections.abc import Iterable, Mapping
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Int64: TypeAlias = npt.NDArray[np.int64]

COMMITTED_MAX = 100_000
"""Committed keys remembered; the oldest is forgotten first."""

BATCHES_MAX = 100
"""Committed keys remembered for one streaming query of Spark, which repeats its last micro-batch at most.

Without this bound a query with five micro-batches a second would push out the keys of all others within hours.
"""

_MICRO_BATCH = re.compile(r"((?:[^:]*:)?spark/[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})/[0-9]{1,19}", re.ASCII)
"""How the Spark sink names micro-batches: `spark/<id of the query>/<number>`, after an optional `<client>:`."""

STAGES_MAX = 10_000
STAGE_BYTES_MAX = 1 << 30
"""Of all open stages together: they are held in memory until they are committed."""


class StagedBatch(NamedTuple):
    """Messages of one stage for one partition."""

    topic: int
    partition: int
    messages: int
    columns: int
    bytes: int
    batch: pa.RecordBatch


class StagedSettle(NamedTuple):
    """A settle that waits for the commit: some offsets of a lease."""

    token: int
    offsets: Int64


class StagedBatches(list[StagedBatch]):
    """The parts of a stage; only ever added to. Keeps the sum of their bytes, also in the `Open` that has the stage."""

    __slots__ = ("bytes", "within")

    def __init__(self, parts: Iterable[StagedBatch] = ()) -> None:
        super().__init__(parts)
        self.bytes = sum(part.bytes for part in self)
        self.within: Open | None = None

    def append(self, part: StagedBatch) -> None:
        super().append(part)
        self.bytes += part.bytes
        if self.within is not None:
            self.within.bytes += part.bytes


class OpenStage:
    """What is staged under one key. `held_settles` is durable; `settles` itself is not."""

    __slots__ = ("held_settles", "key", "lost", "opened_ms", "parts", "settles")

    def __init__(self, key: str, opened_ms: int, parts: Iterable[StagedBatch] = (), held_settles: bool = False) -> None:
        self.key, self.opened_ms, self.held_settles = key, opened_ms, held_settles
        self.parts = StagedBatches(parts)
        self.settles: list[StagedSettle] = []
        self.lost = False
        """Whether the stage lost its settles in a restart."""


class Open(UserDict[str, OpenStage]):
    """Open stages by key, with the sum of their content bytes: it is needed for each batch, so it is kept."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0

    def __setitem__(self, key: str, stage: OpenStage) -> None:
        self.pop(key, None)
        super().__setitem__(key, stage)
        stage.parts.within = self
        self.bytes += stage.parts.bytes

    def __delitem__(self, key: str) -> None:
        parts = self.data[key].parts
        super().__delitem__(key)
        parts.within = None
        self.bytes -= parts.bytes


class Stages:
    """Open stages by key, and the keys that were committed."""

    __slots__ = ("_batches", "_committed", "expired", "open")

    def __init__(self) -> None:
        self.open = Open()
        self.expired: dict[str, None] = {}
        """Keys of stages that were not committed in time.

        Their messages are gone, so the key is refused from then on.
        """
        self._committed: dict[str, Int64] = {}
        self._batches: dict[str, deque[str]] = {}
        """Micro-batches among the committed keys by query, oldest first. Derived from the keys and their order."""

    @property
    def committed(self) -> dict[str, Int64]:
        """`topic, partition, base, count` for each part, by key, oldest key first."""
        return self._committed

    @committed.setter
    def committed(self, known: Mapping[str, Int64]) -> None:
        self._committed, self._batches = {}, {}
        for key, placed in known.items():
            self.remember(key, placed)

    def bytes(self) -> int:
        """Content bytes of all open stages."""
        return self.open.bytes

    def remember(self, key: str, placed: Int64) -> None:
        """Remember a committed key."""
        if len(self._committed) >= COMMITTED_MAX:
            self._drop(next(iter(self._committed)))
        self._committed[key] = placed
        query = _query(key)
        if query is not None:
            batches = self._batches.setdefault(query, deque())
            batches.append(key)
            if len(batches) > BATCHES_MAX:
                self._drop(batches[0])

    def _drop(self, key: str) -> None:
        """Forget a key, which is the oldest of all or the oldest of its query."""
        self._committed.pop(key, None)
        query = _query(key)
        if query is not None:
            self._batches[query].popleft()
            if not self._batches[query]:
                del self._batches[query]

    def forget(self, key: str) -> None:
        """Remember that a stage was not committed in time."""
        if len(self.expired) >= COMMITTED_MAX:
            del self.expired[next(iter(self.expired))]
        self.expired[key] = None

    def older_than(self, opened_ms: int) -> list[str]:
        """Return the keys of stages that were opened at or before a time."""
        return [key for key, stage in self.open.items() if stage.opened_ms <= opened_ms]


def _query(key: str) -> str | None:
    """Return the Spark query of which a key names a micro-batch; None for other keys."""
    found = _MICRO_BATCH.fullmatch(key)
    return None if found is None else found[1]
