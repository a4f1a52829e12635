"""How a client reaches its broker: a request goes out, a whole answer comes back. Sockets are one way of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Protocol, TypeAlias

import pyarrow as pa

Bytes: TypeAlias = bytes | bytearray | memoryview | pa.Buffer

JSON = "application/json"
ARROW = "application/vnd.apache.arrow.stream"


@dataclass(slots=True)
class Ask:
    """One request. `target` is the path with its query, percent-encoded; `wait_s` is how long the broker may wait.

    `headers` go out as they are: whoever gives them has seen to it that they cannot end their line.
    """

    method: str
    target: str
    body: Sequence[Bytes] = ()
    content_type: str = ""
    accept: str = JSON
    wait_s: float = 0.0
    headers: tuple[tuple[str, str], ...] = ()


@dataclass(slots=True)
class Answer:
    """A whole answer, of any status."""

    status: int
    content_type: str = ""
    body: Bytes = b""
    retry_after_s: float | None = None
    following: str | None = None
    """Where a listing goes on that ended early."""
    restarts: bool = True
    """Whether a broker that failed may be started again behind the same transport."""

    @property
    def ok(self) -> bool:
        """Whether the broker did what was asked."""
        return HTTPStatus.OK <= self.status < HTTPStatus.MULTIPLE_CHOICES


class Transport(Protocol):
    """A way to a broker."""

    async def ask(self, ask: Ask) -> Answer:
        """The answer; `Unavailable` if there is none."""

    async def close(self) -> None:
        """Let go of everything."""
