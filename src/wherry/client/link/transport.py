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
    """One request. `target` is the path with its query, percent-encoded; `wait_s` is how long the broker may wait."""

    method: str
    target: str
    body: Sequence[Bytes] = ()
    content_type: str = ""
    accept: str = JSON
    wait_s: float = 0.0


@dataclass(slots=True)
class Answer:
    """A whole answer, of any status."""

    status: int
    content_type: str = ""
    body: Bytes = b""
    retry_after_s: float | None = None

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
