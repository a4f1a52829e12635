"""Values about leases: how much a pull may ask for, one delivered message, and a part of a lease."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from wherry.model.limits import PRIORITY_DEFAULT

Int64: TypeAlias = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class OffsetRanges:
    """Offsets as a client named them: `(first, stop)` of each range, ascending and apart.

    They are not listed before the lease is found: a few bytes can name a million messages that no lease holds.
    """

    ranges: list[tuple[int, int]]

    @classmethod
    def of(cls, ranges: list[tuple[int, int]]) -> OffsetRanges:
        """Return ranges that may overlap, and come in any order.

        Examples
        --------
        >>> OffsetRanges.of([(7, 9), (1, 3), (2, 5), (5, 6)]).ranges
        [(1, 6), (7, 9)]
        """
        joined: list[tuple[int, int]] = []
        for first, stop in sorted(ranges):
            if joined and first <= joined[-1][1]:
                joined[-1] = joined[-1][0], max(stop, joined[-1][1])
            else:
                joined.append((first, stop))
        return cls(joined)

    def __len__(self) -> int:
        return sum(stop - first for first, stop in self.ranges)


LeasePart: TypeAlias = tuple[int, Int64 | None]
"""The fencing token of a lease, and some offsets of it; None for all of them."""

NamedPart: TypeAlias = tuple[int, Int64 | OffsetRanges | None]
"""The same, with offsets that may be ranges."""

Within: TypeAlias = tuple[str, str] | None
"""The topic and subscription that leases must belong to, where a caller has rights to no other."""

PULL_MESSAGES_MAX = 65_536
PULL_BYTES_DEFAULT = 16 << 20

LOST = "the connection was lost"
"""The error stored with messages that a client held when its connection was lost: a message may be the cause."""


@dataclass(frozen=True, slots=True)
class Received:
    """One message of a delivery. Times are Unix milliseconds."""

    payload: bytes
    id: str
    key: str | None
    priority: int
    due_ms: int | None
    headers: dict[str, str]
    partition: int
    offset: int
    attempt: int


class DeliveredRow(NamedTuple):
    """One delivered message as values, with all that a wire may have to send. Times are Unix milliseconds."""

    offset: int
    partition: int
    attempt: int
    published_us: int
    payload: bytes
    key: str | None = None
    priority: int = PRIORITY_DEFAULT
    due: int | None = None
    expires: int | None = None
    headers: list[tuple[str, str]] | None = None
    envelope: bytes | None = None

    def received(self) -> Received:
        """Return the message as callers of a broker in process get it."""
        return Received(
            self.payload,
            f"{self.partition}-{self.offset}",
            self.key,
            self.priority,
            self.due,
            dict(self.headers or ()),
            self.partition,
            self.offset,
            self.attempt,
        )
