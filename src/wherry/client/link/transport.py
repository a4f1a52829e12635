"""What a client sends and gets, and the interface of a transport: over sockets, or to a broker in process."""

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
class ClientRequest:
    """One request. `target` is the path with its query, percent-encoded; `wait_s` is how long the broker may wait.

    `headers` are sent as they are: the caller has made sure that none contains a line end.
    """

    method: str
    target: str
    body: Sequence[Bytes] = ()
    content_type: str = ""
    accept: str = JSON
    wait_s: float = 0.0
    headers: tuple[tuple[str, str], ...] = ()


@dataclass(slots=True)
class ClientResponse:
    """A whole answer, of any status."""

    status: int
    content_type: str = ""
    body: Bytes = b""
    retry_after_s: float | None = None
    following: str | None = None
    """Where to continue a listing that ended early."""
    restarts: bool = True
    """Whether a broker that failed may be started again behind the same transport."""

    @property
    def ok(self) -> bool:
        """Whether the request succeeded."""
        return HTTPStatus.OK <= self.status < HTTPStatus.MULTIPLE_CHOICES


class Transport(Protocol):
    """Sends requests to a broker."""

    async def ask(self, request: ClientRequest) -> ClientResponse:
        """Return the answer, or raise `Unavailable` if there is none."""

    async def close(self) -> None:
        """Close every connection."""
