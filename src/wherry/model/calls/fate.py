"""What can become of a message, as words and as numbers. The numbers are in checkpoints and never change."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

Int64: TypeAlias = npt.NDArray[np.int64]
Until: TypeAlias = Literal["delivered", "settled"]
"""What a publish may wait for before it is answered."""

OUTCOME_MS_MAX = 600_000
"""The longest wait for an outcome."""

FATES: Final = ("waiting", "scheduled", "delivered", "settled", "dead", "cancelled", "expired", "dropped", "gone")
"""By number. From `settled` on a fate is final, except that a dead letter may be redriven."""

WAITING, SCHEDULED, DELIVERED, SETTLED, DEAD, CANCELLED, EXPIRED, DROPPED, GONE = range(len(FATES))


@dataclass(frozen=True, slots=True)
class Fate:
    """What became of one message, and its state for each subscription that has or had it.

    If the message ended otherwise than by being settled, the subscriptions that settled it before are not known. Then
    only subscriptions that still have it are listed.
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
        """Return the fate of each message as a word."""
        return [FATES[code] for code in self.code.tolist()]

    def counts(self) -> dict[str, int]:
        """Return how many messages have which fate."""
        return dict(sorted(Counter(self.words()).items()))


class Outcome(NamedTuple):
    """The outcome of a message, to be sent to its producer. Partition, offset and id are those of the publish."""

    topic: str
    partition: int
    offset: int
    id: str
    url: str
    fate: str
    at_ms: int
