"""What the core may ask about message bodies. They may be on disk, and the core never waits for the disk."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Int64: TypeAlias = npt.NDArray[np.int64]


class Cold(Exception):
    """A decision needs bodies that are not in memory: load them and decide again. Nothing was changed.

    `offsets` are the missing ones; `asked` are all offsets of the question, which must be in memory together;
    `fewer_suffice`: the first of them would do, since the answer may be about fewer messages than asked.
    """

    def __init__(self, topic: int, partition: int, offsets: Int64, asked: Int64 | None = None) -> None:
        self.topic, self.partition, self.offsets = topic, partition, offsets
        self.asked = offsets if asked is None else asked
        self.fewer_suffice = False
        super().__init__(f"{len(offsets)} bodies of topic {topic} partition {partition} are not in memory")


def together(colds: list[Cold], cold: Cold) -> list[Cold]:
    """Return what to load before a decision is made again: `cold`, and what the same decision asked before it.

    A decision asks at most two questions about a partition, such as for keys and for sizes. All of them must be in
    memory together, otherwise loading for one question could evict the bodies of another, without end.
    """
    same = [each for each in colds if (each.topic, each.partition) == (cold.topic, cold.partition)]
    return [*(each for each in colds if each not in same[:-1]), cold]


class Bodies(Protocol):
    """Bodies of messages that are in memory."""

    def sizes(self, topic: int, partition: int, offsets: Int64, *, share: int = 1) -> Int64:
        """Return the content bytes of each message, headers included; raise `Cold` if one is not in memory.

        Returns fewer sizes than asked for, but at least one, where memory cannot hold all these bodies at once. `share`
        is the number of such questions whose bodies must be in memory together.
        """

    def run_sizes(self, topic: int, partition: int, first: int, stop: int) -> list[int] | None:
        """Return the content bytes of consecutive messages; None unless all of them are in memory as rows."""

    def few_sizes(self, topic: int, partition: int, offsets: list[int]) -> list[int] | None:
        """Return the content bytes of a few messages; None unless all are in memory and can be delivered as rows."""

    def take(self, topic: int, partition: int, offsets: Int64, columns: Sequence[str]) -> pa.RecordBatch:
        """Return some stored columns of messages, in the order of `offsets`; raise `Cold` if one is not in memory."""
