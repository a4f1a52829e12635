"""Requests and answers as the endpoints see them: whole values, no sockets."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from http import HTTPStatus
from typing import TYPE_CHECKING, TypeAlias
from urllib.parse import parse_qsl, unquote

import msgspec
import pyarrow as pa

from wherry.wire.http.protocol.upgrade import Upgrade

if TYPE_CHECKING:
    from wherry.wire.http.api.routing import Endpoint

Bytes: TypeAlias = bytes | bytearray | memoryview | pa.Buffer
Header: TypeAlias = tuple[str, str]

JSON = "application/json"
PROBLEM = "application/problem+json"
NDJSON = "application/x-ndjson"
OCTETS = "application/octet-stream"
ARROW = "application/vnd.apache.arrow.stream"
AVRO = "application/avro"
AVRO_SINGLE = "application/vnd.wherry.avro"
EVENTS = "text/event-stream"
TEXT = "text/plain; charset=utf-8"
HTML = "text/html; charset=utf-8"


@dataclass(slots=True)
class Request:
    """One request. Header names are in lower case; the body is whole."""

    method: str
    path: str
    query: str
    headers: dict[str, str]
    body: Bytes = b""
    peer: str = ""
    secure: bool = False
    connection: int = 0
    """The number of the connection that the request came over; 0 for none."""
    params: dict[str, str] = field(default_factory=dict)
    """The values of the placeholders in the path's template, decoded."""
    waits: bool = False
    """Whether the request waits for messages or for an outcome, and ends when its client disconnects."""
    endpoint: str = ""
    """Method and path template of the endpoint that answers; empty when there is none."""
    caller: str = ""
    """The name of the key that the request came with; empty where the broker requires no keys."""
    page: str = ""
    """The origin of a page from another site that may call this broker; empty for requests that need no permission."""
    admitted: Endpoint | None = None
    """The endpoint that answers, set once the head was allowed: rights are not checked again after the body."""
    body_max: int | None = None
    """The most bytes that the body may have, where that is less than the server allows; known from the head."""

    def brings_body(self) -> bool:
        """Return whether the head announces a body."""
        return "transfer-encoding" in self.headers or self.headers.get("content-length", "0") != "0"

    def segments(self) -> list[str]:
        """Return the parts of the path, each decoded."""
        return segments(self.path)

    def arguments(self) -> list[tuple[str, str]]:
        """Return the arguments of the query string, in order."""
        if not self.query:
            return []
        return parse_qsl(self.query, keep_blank_values=True, max_num_fields=100, errors="surrogateescape")

    def content_type(self) -> str:
        """Return the media type of the body, without parameters."""
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()


@dataclass(slots=True)
class Response:
    """A whole answer. The parts of its body are written without copying them."""

    status: int = HTTPStatus.OK
    body: Sequence[Bytes] = ()
    content_type: str = ""
    headers: list[Header] = field(default_factory=list)
    close: bool = False
    """Whether the connection closes after this answer."""
    undo: Callable[[], None] | None = None
    """Called when the client disconnects before it got the answer."""


@dataclass(slots=True)
class Stream:
    """An answer without a known end; each chunk is sent as it comes, as fast as the client reads."""

    chunks: AsyncIterator[bytes]
    content_type: str
    headers: list[Header] = field(default_factory=list)


Answer: TypeAlias = Response | Stream | Upgrade


def segments(path: str) -> list[str]:
    """Return the parts of a path, each decoded after the split: a name may hold a slash."""
    return [unquote(part, errors="surrogateescape") for part in path.strip("/").split("/")]


_ENCODER = msgspec.json.Encoder()


def json_response(value: object, status: int = HTTPStatus.OK, headers: list[Header] | None = None) -> Response:
    """Return an answer that holds a value as JSON."""
    return Response(status, [_ENCODER.encode(value)], JSON, headers or [])


@lru_cache(maxsize=64)
def accepted(accept: str, offered: tuple[str, ...]) -> str | None:
    """Return the best offered media type for an `Accept` header, the first offered for no header, None if none fits."""
    if not accept:
        return offered[0]
    best: tuple[float, int, str] | None = None
    for entry in accept.split(","):
        wanted, _, rest = entry.partition(";")
        quality = _quality(rest)
        for place, kind in enumerate(offered):
            if quality > 0 and _matches(wanted.strip().lower(), kind):
                exact = 0 if wanted.strip() == kind else 1
                rank = (-quality, exact * len(offered) + place, kind)
                best = rank if best is None or rank < best else best
    return best[2] if best is not None else None


def _quality(parameters: str) -> float:
    for parameter in parameters.split(";"):
        name, _, value = parameter.strip().partition("=")
        if name == "q":
            try:
                return float(value)
            except ValueError:
                return 0.0
    return 1.0


def _matches(wanted: str, kind: str) -> bool:
    kind = kind.partition(";")[0]
    return wanted in ("*/*", kind) or (wanted.endswith("/*") and kind.startswith(wanted[:-1]))
