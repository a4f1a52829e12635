"""Changes of a message that waits: what to change, and what it is afterwards."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True, slots=True, kw_only=True)
class Amendment:
    """What to change of a waiting message; None leaves a field as it is. Times are Unix milliseconds."""

    payload: bytes | None = None
    priority: int | None = None
    due_ms: int | None = None
    expires_ms: int | None = None
    headers: dict[str, str] | None = None


class Amended(NamedTuple):
    """The message after the change: its (unchanged) id, its new place, its new version."""

    id: str
    partition: int
    offset: int
    version: int
