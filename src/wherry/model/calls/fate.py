"""What can become of a message, in words and as numbers. The numbers are in checkpoints: none ever changes."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

Int64: TypeAlias = npt.NDArray[np.int64]
Until: TypeAlias = Literal["delivered", "settled"]
"""What an answer to a publish may wait for."""

OUTCOME_MS_MAX = 600_000
"""The longest wait for an outcome."""

FATES: Final = ("waiting", "scheduled", "delivered", "settled", "dead", "cancelled", "expired", "dropped", "gone")
"""By number. From `settled` on it is over, though people may send a dead letter back."""

WAITING, SCHEDULED, DELIVERED, SETTLED, DEAD, CANCELLED, EXPIRED, DROPPED, GONE = range(len(FATES))


@dataclass(frozen=True, slots=True)
class Fate:
    """What became of one message, and where it stands for each subscription that has or had to do with it.

    Where it went otherwise than by being settled, who had settled it before is not known: then only those are named
    that still have it.
    """

    fate: str
    subscriptions: dict[str, str]


@dataclass(frozen=True, slots=True)
class Fates:
    """What became of the messages of a publish, row by row."""

    partition: Int64
    offset: Int64
    code: Int64

    def __len__(self) -> int:
        return len(self.code)

    def words(self) -> list[str]:
        """The fate of each."""
        return [FATES[code] for code in self.code.tolist()]

    def counts(self) -> dict[str, int]:
        """How many have which fate."""
        return dict(sorted(Counter(self.words()).items()))


class Outcome(NamedTuple):
    """What is to be told to a producer. Partition and offset, and with them the id, are those of its publish."""

    topic: str
    partition: int
    offset: int
    id: str
    url: str
    fate: str
    at_ms: int
