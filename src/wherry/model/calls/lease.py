"""Messages on lease: how much a pull may ask for, one message as it is handed over, and a part of a lease."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Int64: TypeAlias = npt.NDArray[np.int64]
LeasePart: TypeAlias = tuple[int, Int64 | None]
"""The fencing token of a lease, and the offsets meant under it; None for everything it holds."""

PULL_MESSAGES_MAX = 65_536
PULL_BYTES_DEFAULT = 16 << 20

LOST = "the connection was lost"
"""The error of what a client held when its connection ended without its word: the message may be what ended it."""


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
