"""Values for changing a waiting message: what to change, and the result."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True, slots=True, kw_only=True)
class Amendment:
    """What to change of a waiting message; None leaves a field unchanged. Times are Unix milliseconds."""

    payload: bytes | None = None
    priority: int | None = None
    due_ms: int | None = None
    expires_ms: int | None = None
    headers: dict[str, str] | None = None


class Amended(NamedTuple):
    """The message after the change: its (unchanged) id, its new offset, its new version."""

    id: str
    partition: int
    offset: int
    version: int
