"""What the core may ask about message bodies. They may lie on disk, and the core never waits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Int64: TypeAlias = npt.NDArray[np.int64]


class Cold(Exception):
    """Bodies that a decision needs are not in memory: load them and ask again. Nothing was changed."""

    def __init__(self, topic: int, partition: int, offsets: Int64) -> None:
        self.topic, self.partition, self.offsets = topic, partition, offsets
        super().__init__(f"{len(offsets)} bodies of topic {topic} partition {partition} are not in memory")


class Bodies(Protocol):
    """Bodies of messages in memory."""

    def sizes(self, topic: int, partition: int, offsets: Int64) -> Int64:
        """Content bytes of each message, headers and all; raises `Cold`."""

    def take(self, topic: int, partition: int, offsets: Int64, columns: Sequence[str]) -> pa.RecordBatch:
        """Some stored columns of messages, in the order asked for; raises `Cold`."""
