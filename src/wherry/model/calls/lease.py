"""Values about leases: how much a pull may ask for, one delivered message, and a part of a lease."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from wherry.model.limits import PRIORITY_DEFAULT

Int64: TypeAlias = npt.NDArray[np.int64]
LeasePart: TypeAlias = tuple[int, Int64 | None]
"""The fencing token of a lease, and some offsets of it; None for all of them."""

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
