"""What the core may ask about message bodies. They may lie on disk, and the core never waits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Int64: TypeAlias = npt.NDArray[np.int64]


class Cold(Exception):
    """Bodies that a decision needs are not in memory: load them and ask again. Nothing was changed.

    `offsets` are missing; `asked` was the whole question, which must be in memory together.
    """

    def __init__(self, topic: int, partition: int, offsets: Int64, asked: Int64 | None = None) -> None:
        self.topic, self.partition, self.offsets = topic, partition, offsets
        self.asked = offsets if asked is None else asked
        super().__init__(f"{len(offsets)} bodies of topic {topic} partition {partition} are not in memory")


def together(colds: list[Cold], cold: Cold) -> list[Cold]:
    """What one decision has met so far, `cold` last: of each partition two questions, such as for keys and for sizes.

    All of it must be in memory when the decision is made again, else one question would push out another for ever.
    """
    same = [each for each in colds if (each.topic, each.partition) == (cold.topic, cold.partition)]
    return [*(each for each in colds if each not in same[:-1]), cold]


class Bodies(Protocol):
    """Bodies of messages in memory."""

    def sizes(self, topic: int, partition: int, offsets: Int64, *, share: int = 1) -> Int64:
        """Content bytes of each message, headers and all; raises `Cold`.

        Fewer than were asked for, but at least one, where memory cannot hold all of them at once; `share` is how many
        such questions need their bodies together.
        """

    def take(self, topic: int, partition: int, offsets: Int64, columns: Sequence[str]) -> pa.RecordBatch:
        """Some stored columns of messages, in the order asked for; raises `Cold`."""
